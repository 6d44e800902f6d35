"""The comparison with recorded results: a share of it runs here, the rest with ``python benchmarks/regression.py``."""

import copy
import dataclasses

import pytest

import smp_advisor as smpa
from benchmarks.regression_rows.code import code_digest
from benchmarks.regression_rows.command import share
from benchmarks.regression_rows.compare import Intended, compare, intended
from benchmarks.regression_rows.kinds import KINDS
from benchmarks.regression_rows.record import read, write
from benchmarks.regression_rows.requests import plan_requests

EVERY = {"advice": 25, "plan": 5, "cells": 4}
"""Of so many requests, one runs here."""
LIBRARIES = ("smp-v1", "smp-v1-tensorflow", "smp-v2", "training-compiler", "ddp", "fsdp")


def recorded(name: str) -> dict[str, dict]:
    return read(KINDS[name].record, KINDS[name].requests())


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_results_are_those_recorded_or_differ_as_listed(name: str) -> None:
    requests = share(KINDS[name].requests(), every=EVERY[name])
    comparison = compare(recorded(name), {key: KINDS[name].result(requests[key]) for key in requests}, name)
    assert not comparison.different
    assert not comparison.unused
    assert comparison.same + len(comparison.intended) == len(requests) > 10


def test_the_record_has_300_advices_and_1000_plans_of_every_library() -> None:
    advices, plans, cells = map(recorded, ("advice", "plan", "cells"))
    assert (len(advices), len(plans), len(cells)) == (300, 1000, 50)
    for library in LIBRARIES:
        assert sum(result.get("plan", "").startswith(f"{library} ") for result in advices.values()) >= 10
        results = [result for name, result in plans.items() if name.rsplit(" ", 1)[0] == library]
        assert sum("error" not in result for result in results) >= 30
        assert any(result.get("error") == "plan: PlanError" for result in results)
        assert any(result.get("error") == "estimate: PlanError" for result in results)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_plans_vary_every_field(library: str) -> None:
    settings = [request["plan"] for request in plan_requests().values() if request["plan"]["library"] == library]
    for field in dataclasses.fields(smpa.Plan(library=library)):
        if field.name != "library":
            assert len({plan.get(field.name) for plan in settings}) > 1, field.name


@pytest.mark.parametrize("name", KINDS)
def test_every_listed_difference_has_a_reason_and_a_request(name: str) -> None:
    requests = KINDS[name].requests()
    for entry in intended(name):
        assert entry.reason.endswith(".")
        assert entry.results.keys() <= requests.keys()


def test_a_difference_is_found_and_a_listed_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"a": {"peak_gib": 12.3456789}, "b": {"peak_gib": 1.0}, "c": {"error": "PlanError"}}
    present = copy.deepcopy(before) | {"b": {"peak_gib": 1.001}}
    comparison = compare(before, present, "plan")
    assert comparison.same == 2
    assert comparison.different["b"][0] == "peak_gib: 1.0 -> 1.001"
    new = comparison.different["b"][1].split('"')[3]
    entry = Intended(reason="A constant was corrected.", results={"b": new, "c": new})
    monkeypatch.setattr("benchmarks.regression_rows.compare.intended", lambda _: [entry])
    listed = compare(before, present, "plan")
    assert listed.intended == {"b": entry.reason}
    assert listed.unused == ["c"]
    assert "b" in compare(before, present | {"b": {"peak_gib": 2.0}}, "plan").different


def test_a_record_of_other_requests_is_refused(tmp_path) -> None:
    requests = {"a": {"plan": {"batch_size": 1}}}
    write(tmp_path / "plans.jsonl", requests, {"a": {"batch": 8, "usd_per_hour": None}})
    assert read(tmp_path / "plans.jsonl", requests) == {"a": {"batch": 8}}
    with pytest.raises(ValueError, match="other requests"):
        read(tmp_path / "plans.jsonl", {"a": {"plan": {"batch_size": 2}}})


def test_cells_are_equal_whatever_their_wording() -> None:
    cell = """%%writefile train.py
# a comment
def step(rows, rate=1):
    \"\"\"Train.\"\"\"
    found = [row for row in rows]
    print(f"step {len(found)} loss {rate}")

def report(name):
    found = name
    print(f"{found} has the statements now.")

step(rows=[1])
"""
    reworded = """%%writefile train.py
def update(batch, factor=1):
    samples = [sample for sample in batch]
    print(f"step {len(samples)} loss {factor}")

def report(role):
    attached = role
    print(f"The policy is attached to {attached}.")

update(batch=[1])
"""
    assert code_digest(cell) == code_digest(reworded)
    for change in (("loss", "error"), ("train.py", "main.py"), ("rate=1", "rate=2"), ("rows=[1]", "rate=[1]")):
        assert code_digest(cell) != code_digest(cell.replace(*change)), change
    raising = 'raise RuntimeError("This cell needs version 2.")\n'
    assert code_digest(raising) == code_digest('raise RuntimeError("Install version 2 first.")\n')
    assert code_digest(raising) != code_digest('raise ValueError("This cell needs version 2.")\n')
