"""A profile is the same on every machine at every load: work is counted, and no clock decides."""

from __future__ import annotations

import ast
import importlib
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
    assert len(sources) > 20
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {"time", "timeit", "datetime"} & set(names), path


def slowed(clock, factor):
    return lambda: factor * clock()


def in_this_process(function, *arguments, **_):
    return function(*arguments)


@pytest.mark.torch
def test_a_profile_is_the_same_on_a_machine_that_is_a_thousand_times_slower(monkeypatch):
    for stage in ("entry", "scaled.run"):
        monkeypatch.setattr(importlib.import_module(f"smp_advisor.profiling.{stage}"), "run_isolated", in_this_process)
    profiles = []
    for slowness in (1, 1000):
        with monkeypatch.context() as machine:
            for name in ("time", "perf_counter", "process_time", "monotonic"):
                machine.setattr(time, name, slowed(getattr(time, name), slowness))
            torch.manual_seed(7)
            model = PlainGPT(layers=3, width=64, heads=2, vocab=128)  # trained in place in this process
            torch.manual_seed(len(profiles))  # of the process that is forked
            profiles.append(smp_advisor.profile(model, sequence_length=64, precision="fp32"))
    first, second = profiles
    assert first.scaled.ok
    assert json.dumps(first.as_dict()) == json.dumps(second.as_dict())
    assert (str(first), first.as_html()) == (str(second), second.as_html())
