"""Both checkers read one value the same way, however it is written: they find the defect or say what is unknown."""

import tomllib
from pathlib import Path

import pytest

from smp_advisor import check_estimator, check_script

SPELLINGS = tomllib.loads(Path(__file__).with_name("spellings.toml").read_text("utf-8"))
COMPUTED, UNKNOWN = SPELLINGS["computed"], SPELLINGS["unknown"]

CELL = """\
from sagemaker.huggingface import HuggingFace, TrainingCompilerConfig
{before}
estimator = HuggingFace(
    entry_point="train.py",
    role="role",
    instance_type={value},
    instance_count=1,
    transformers_version="4.21.1",
    pytorch_version="1.11.0",
    py_version="py38",
    compiler_config=TrainingCompilerConfig(),
    hyperparameters={{"epochs": 1}},
    disable_profiler=True,
    debugger_hook_config=False,
)
"""


def cell(value, before="", **_):
    return CELL.format(before=before, value=value)


@pytest.mark.parametrize("check", [check_script, check_estimator])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_value_that_can_be_computed_has_the_finding_of_the_literal(check, name):
    report = check(cell(**COMPUTED[name]))
    assert "STC407" in {finding.id for finding in report}, report
    assert all("memory is not checked" in note.what for note in report.unresolved)


@pytest.mark.parametrize("check", [check_script, check_estimator])
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_value_that_is_not_known_is_listed_with_the_reason(check, name):
    why = UNKNOWN[name]["why"]
    report = check(cell(**UNKNOWN[name]))
    if check is check_estimator and UNKNOWN[name].get("assumed"):  # a job has the defaults of its launcher, and says so
        assert any(why in sentence for sentence in report.readings[0].inferred)
        return
    assert "STC407" not in {finding.id for finding in report}
    assert any(note.what.startswith("instance_type") and why in note.what for note in report.unresolved), report


def test_constants_of_a_module_next_to_the_file_are_read(tmp_path):
    (tmp_path / "settings.py").write_text(
        'FAMILY = "p3"\n\n\ndef kind(size):\n    return f"ml.{FAMILY}.{size}xlarge"\n'
    )
    launch = tmp_path / "launch.py"
    for before, value in (
        ("import settings", 'f"ml.{settings.FAMILY}.16xlarge"'),
        ("from settings import kind", "kind(16)"),
        ("from settings import *", "kind(16)"),
    ):
        launch.write_text(cell(value, before))
        for report in (check_script(launch), check_estimator(launch)):
            assert "STC407" in {finding.id for finding in report}, report


@pytest.mark.parametrize("check", [check_script, check_estimator])
def test_arguments_that_are_unpacked_are_read_or_listed(check):
    keywords = 'instance_type="ml.p3.16xlarge", instance_count=1'
    text = cell("0").replace("    instance_type=0,\n    instance_count=1,\n", "    **options,\n")
    assert "STC407" in {finding.id for finding in check(f"options = dict({keywords})\n{text}")}
    listed = [note.what for note in check(f"import mine\noptions = mine.options()\n{text}").unresolved]
    assert any("mine.options(...)" in what for what in listed), listed


@pytest.mark.parametrize("check", [check_script, check_estimator])
def test_names_of_the_notebook_are_taken_where_they_are_passed(check):
    text = cell("kind")
    if check is check_estimator:
        report = check(text, variables={"kind": "ml.p3.16xlarge"})
        assert "STC407" in {finding.id for finding in report}
    assert [note.what for note in check(text).unresolved if "kind is set elsewhere" in note.what]
