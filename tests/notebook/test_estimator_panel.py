"""What someone pastes into the widget, and what ``%smp_check`` makes of a cell that configures a job."""

from __future__ import annotations

import json

import pytest
from IPython.core.error import UsageError

from smp_advisor import Model, advise
from smp_advisor.estimators import EstimatorReport
from smp_advisor.notebook.checks import pasted
from tests.estimators import cells

BROKEN = cells.V1.replace('"fp16": True', '"fp16": 1')


@pytest.fixture(scope="module")
def small():
    model = Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257)
    return advise(model, "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=1024)


def test_the_panel_gets_findings_a_correction_and_a_comparison(small):
    shown = pasted(BROKEN, small, small.plan, {})
    json.dumps(shown, allow_nan=False)
    assert shown["summary"].startswith("1 error")
    assert [(one["id"], one["place"]) for one in shown["findings"]] == [("EST501", "line 14:")]
    assert shown["corrected"] == cells.V1
    assert shown["diff"].count("\n+") == 2
    assert shown["comparison"]["gain"].startswith("Your plan fits")
    assert any("tensor_parallel_degree=4" in line for line in shown["read"])


def test_the_comparison_is_with_the_plan_on_screen(small):
    rows = {row[0] for row in pasted(cells.V1, small, small.plan, {})["comparison"]["rows"]}
    assert "Tensor parallel degree" in rows
    other = pasted(small.cell("v2"), small, small.plan, {})
    assert other["comparison"]["rows"] == []
    assert other["findings"] == []


def test_names_of_the_notebook_are_known_to_what_is_pasted(small):
    cell = cells.V1.replace('"microbatches": 4', '"microbatches": pieces')
    assert any("pieces is set elsewhere" in line for line in pasted(cell, small, small.plan, {})["unresolved"])
    assert pasted(cell, small, small.plan, {"pieces": 4})["unresolved"] == []


def test_junk_is_a_sentence(small):
    for junk in ("", "x = 1", "def (", "a: [", "\x00"):
        shown = pasted(junk, small, small.plan, {})
        assert shown["summary"].endswith(".")
        assert shown["findings"] == []
        assert shown["comparison"] is None


def test_a_cell_with_an_estimator_is_checked_as_one_and_not_run(shell):
    report = shell.run_cell_magic("smp_check", "", BROKEN)
    assert isinstance(report, EstimatorReport)
    assert [(one.id, one.line) for one in report] == [("EST501", 15)]  # with the magic's own line
    assert report.corrected == cells.V1
    assert "estimator" not in shell.user_ns


def test_names_of_other_cells_are_known(shell):
    shell.user_ns["pieces"] = 4
    cell = cells.V1.replace('"microbatches": 4', '"microbatches": pieces')
    assert shell.run_cell_magic("smp_check", "", cell).plan.microbatches == 4


def test_recipes_and_requests_are_checked_by_their_path(shell, tmp_path):
    for name, text in (("recipe.yaml", cells.RECIPE), ("request.json", cells.REQUEST), ("job.py", cells.V1)):
        path = tmp_path / name
        path.write_text(text)
        assert shell.run_line_magic("smp_check", str(path)).plan is not None


def test_a_recipe_is_checked_on_the_instance_of_the_line(shell, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(cells.ADAPTER_RECIPE)
    assert shell.run_line_magic("smp_check", f"{path} --instance p5.48xlarge").main.estimate.fits
    assert shell.run_line_magic("smp_check", f"{path} -i p5.48xlarge -n 8").cluster.nodes == 8
    with pytest.raises(UsageError, match="add --instance"):
        shell.run_line_magic("smp_check", f"{path} -n 8")


def test_what_is_said_to_be_an_estimator_and_is_none_is_an_error(shell):
    with pytest.raises(UsageError, match="does not configure a training job"):
        shell.run_cell_magic("smp_check", "--estimator", "x = 1\n")
