"""Every library has every capability, including one that is registered from outside of the package."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from smp_advisor import advise
from smp_advisor.advice.explanation import ARGUMENTS
from smp_advisor.advice.practices import order, practice
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.libraries import (
    LIBRARIES,
    Library,
    Plan,
    get_library,
    image,
    register,
    schema,
    supported_instances,
    versions,
)
from smp_advisor.libraries.library import plan_fields, unregister
from smp_advisor.libraries.space import enumerate_plans
from smp_advisor.libraries.version import default_version
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.view_state import look_ahead
from smp_advisor.session.settings import job_labels
from smp_advisor.workload import Adapter, Job, Model
from tests.libraries.toy import LIBRARY as TOY
from tests.sources import PACKAGE, trees

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.session import Advice

GUIDE = Path(__file__).parents[2] / "docs" / "adding_a_library.md"
P4D = "ml.p4d.24xlarge"
MODEL = Model.from_parameters("350M", sequence_length=512, family="gpt2")


@pytest.fixture(scope="module", params=[*LIBRARIES, TOY.name])
def record(request: pytest.FixtureRequest) -> Iterator[Library]:
    if request.param != TOY.name:
        yield get_library(request.param)
        return
    register(TOY)
    yield TOY
    unregister(TOY.name)


@pytest.fixture(scope="module")
def advice(record: Library) -> Advice:
    return advise(MODEL, P4D, library=record.name, sequence_length=512, global_batch_size=64)


def test_its_plans_are_read_back_and_refuse_other_settings(record: Library) -> None:
    plan = Plan(library=record.name)
    assert type(plan) is record.plan
    again = Plan.from_parameters(plan.parameters, plan.hyperparameters, library=record.name)
    assert again == plan
    with pytest.raises(PlanError, match=f"{re.escape(record.title)} has no setting 'batch_sise'"):
        Plan(library=record.name, batch_sise=1)


def test_its_schema_describes_fields_and_versions_have_containers(record: Library) -> None:
    for name in plan_fields(record.name) - {"library", "version"}:
        parameter = schema(record.name).described(name)
        assert parameter is not None, name
        assert parameter.title
        assert parameter.doc

    assert default_version(record.name) in versions(record.name)
    assert Plan(library=record.name).version in versions(record.name)
    assert all(image(record.name, version).framework_version for version in versions(record.name))
    assert supported_instances(record.name)


def test_its_space_has_plans_of_its_kind_with_the_requested_batch(record: Library) -> None:
    job = Job(sequence_length=512, precision=record.default_precision, global_batch_size=64)
    space = enumerate_plans(MODEL, Cluster(P4D), job, library=record.name)
    assert len(space)
    plan = space.plan(len(space) - 1)
    assert type(plan) is record.plan
    assert estimate(MODEL, Cluster(P4D), job, plan).global_batch_size == 64


def test_its_practices_have_arguments_and_sources(record: Library) -> None:
    assert order(record.name)
    for technique in order(record.name):
        entry = practice(technique, record.name)
        assert entry.statement or entry.argument in ARGUMENTS
        assert entry.title
        assert entry.trade_off.endswith(".")
        assert entry.source_url.startswith("https://")


def test_advice_explains_its_plan(record: Library, advice: Advice) -> None:
    assert type(advice.plan) is record.plan
    assert advice.estimate.fits
    assert tuple(step.technique for step in advice.steps) == order(record.name)
    assert all(step.because.endswith(".") for step in advice.steps)
    assert advice.pitfalls
    assert all(pitfall.text.endswith(".") and "{" not in pitfall.text.replace('{"', "") for pitfall in advice.pitfalls)
    assert set(record.alternatives) <= set(advice.alternatives.columns)
    assert advice.alternatives["why"].iloc[0] == "Recommended."
    text = " ".join(advice.report(details=True).split())
    assert all(step.title in text for step in advice.steps)
    assert f"{advice.plan.batch_size}" in text


def test_a_setting_can_be_fixed(record: Library, advice: Advice) -> None:
    pinned = advise(MODEL, P4D, library=record.name, sequence_length=512, batch_size=advice.plan.batch_size)
    assert pinned.plan.batch_size == advice.plan.batch_size
    if not record.adapters:
        with pytest.raises(AdvisorError, match="documents no adapters"):
            advise(MODEL, P4D, library=record.name, sequence_length=512, adapter=Adapter(rank=8))


@pytest.mark.slow
def test_the_widget_shows_its_controls_with_figures_of_every_move(record: Library, advice: Advice) -> None:
    advisor = Advisor(advice)
    controls = advisor._controls
    ahead = look_ahead(advisor.advice.recommended, advisor.state["settings"])
    shown = [control["name"] for control in controls]
    of_job = job_labels(record.name)
    assert sorted(shown) == sorted([*(name for name in record.controls if name in shown), *of_job])
    groups = [advisor.recommendation["controls"][name]["group"] for name in shown]
    assert groups == sorted(groups)  # AWS's order, those of the library, those rarely changed
    practices = (
        "activation_checkpointing",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "offload_activations",
    )
    assert [name for name in shown if name in practices] == [name for name in practices if name in shown]
    for name in shown:
        about = advisor.recommendation["controls"][name]
        assert about["label"]
        assert ("Setting of the job: " if name in of_job else "Parameter") in about["help"]
    for control in controls:
        entries = ahead.get(control["name"], [])
        assert len(entries) in (0, len(control["values"]))
        assert all(entry if isinstance(entry, str) else entry["rungs"] for _, entry in entries)
    moved = {"batch_size": advice.plan.batch_size * 2}
    assert Advisor(replace(advice.recommended, job=replace(advice.job, global_batch_size=None))).move(**moved)


def test_the_saved_notebook_shows_its_plan(record: Library, advice: Advice) -> None:
    html = Advisor(advice)._repr_mimebundle_()[0]["text/html"]
    assert record.title in html
    assert all(escape(step.title) in html for step in advice.steps)


def test_the_guide_quotes_the_toy_library() -> None:
    block = r"`tests/libraries/toy/([\w.]+)`:?\n\n(?:<!-- .*? -->\n)?```\w+\n(.*?)```\n"
    blocks = re.findall(block, GUIDE.read_text("utf-8"), re.DOTALL)
    files = {path.name: path.read_text("utf-8") for path in Path(__file__).with_name("toy").iterdir() if path.is_file()}
    assert len(blocks) > 2
    assert dict(blocks).items() <= files.items()
    assert all(f"`tests/libraries/toy/{name}`" in GUIDE.read_text("utf-8") for name in files)


READERS = {"estimators", "review", "rehearsal"}
"""Rooms that find the names of libraries in the texts that they read, or simulate the libraries for them."""


@pytest.mark.slow
def test_rooms_compare_no_names_of_libraries() -> None:
    rooms = {
        path.relative_to(PACKAGE).with_suffix("").parts[0]
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in LIBRARIES
    }
    assert rooms <= READERS | {"libraries"}
