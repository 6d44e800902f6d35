"""A profile is the same on every machine at every load: work is counted, and no clock decides."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest

import smp_advisor
from tests.deferred import Deferred

torch = Deferred("torch")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")

SUPERVISED = {"local_run", "rehearsal", "sandbox"}
"""Rooms that start processes, and guard or wait for them."""


def test_no_stage_reads_a_clock():
    folder = Path(smp_advisor.__file__).parent / "profiling"
    sources = [path for path in folder.rglob("*.py") if not SUPERVISED & set(path.relative_to(folder).parts)]
    assert len(sources) > 40
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {"time", "timeit", "datetime"} & set(names), path


@pytest.mark.torch
def test_a_profile_is_the_same_on_a_machine_that_is_a_thousand_times_slower(monkeypatch):
    def in_this_process(function, *arguments, **_):
        torch.manual_seed(0)
        return function(*arguments)

    for stage in ("smp_advisor.profiling.entry", "smp_advisor.profiling.scaled.run"):
        monkeypatch.setattr(f"{stage}.run_isolated", in_this_process)
    model = PlainGPT(layers=3, width=64, heads=2, vocab=128)
    profiles = []
    for slowness in (1, 1000):
        with monkeypatch.context() as machine:
            for name in ("time", "perf_counter", "process_time", "monotonic"):
                machine.setattr(time, name, lambda clock=getattr(time, name), factor=slowness: factor * clock())
            profiles.append(smp_advisor.profile(model, sequence_length=64, precision="fp32"))
    first, second = profiles
    assert first.scaled.ok
    assert first.scaled.full_size is not None
    assert json.dumps(first.as_dict()) == json.dumps(second.as_dict())
    assert (str(first), first.as_html()) == (str(second), second.as_html())
