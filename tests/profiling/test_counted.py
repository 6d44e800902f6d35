"""A profile is the same on every machine at every load: work is counted and fitted exactly, and no clock decides."""

import ast
import importlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor
from smp_advisor.profiling.polynomial import Polynomial
from tests.deferred import Deferred
from tests.sources import trees

torch = Deferred("torch")
choose_samples = Deferred("smp_advisor.profiling.traced_steps", "choose_samples")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")


def test_no_stage_reads_a_clock():
    sources = {path: tree for path, tree in trees().items() if "profiling" in path.parts}
    assert len(sources) > 20
    for path, tree in sources.items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {"time", "timeit", "datetime"} & set(names), path


def slowed(clock, factor):
    return lambda: factor * clock()


def in_this_process(function, *arguments, **_):
    return function(*arguments)


@pytest.mark.torch
def test_a_profile_is_the_same_on_a_machine_that_is_a_thousand_times_slower(monkeypatch):
    for stage in ("entry", "scaled"):
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
    assert (str(first), first._repr_html_()) == (str(second), second._repr_html_())


integers = st.integers(-(10**12), 10**12)
tables = st.lists(st.lists(integers, min_size=3, max_size=3), min_size=2, max_size=2)


def value(table, batch, sequence):
    return sum(table[i][j] * batch**i * sequence**j for i in range(2) for j in range(3))


@given(tables, st.integers(1, 64), st.integers(1, 10**5))
def test_a_fit_holds_at_sizes_that_were_not_fitted(table, batch, sequence):
    fitted = Polynomial.fit({(b, s): value(table, b, s) for b in (2, 3) for s in (64, 128, 256)})
    assert fitted(batch, sequence) == value(table, batch, sequence)
    assert Polynomial.from_list(fitted.as_list()) == fitted


@pytest.mark.torch
@given(st.integers(1, 200_000), st.sampled_from([0, 8, 64, 512, 1024, 131_072]), st.sampled_from([0, 128, 4096]))
def test_samples_lie_within_the_models_positions_on_one_side_of_a_window(sequence, longest, window):
    samples = choose_samples(sequence, has_sequence=True, longest=longest, window=window)
    assert len(set(samples.sequences)) == 3
    assert min(samples.sequences) >= 1
    if longest:
        assert max(samples.sequences) <= longest
    if window and samples.sequence > window and not longest:
        assert min(samples.sequences) > window
