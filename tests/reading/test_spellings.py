"""A value of a cell is read however it is written: the defect is found, or it is said what is unknown."""

import tomllib
from pathlib import Path

import pytest

from smp_advisor import check_estimator

SPELLINGS = tomllib.loads(Path(__file__).with_name("spellings.toml").read_text("utf-8"))
COMPUTED, UNKNOWN = SPELLINGS["computed"], SPELLINGS["unknown"]

CELL = """\
from sagemaker.huggingface import HuggingFace
{before}
estimator = HuggingFace(
    entry_point="train.py",
    role="role",
    instance_type={value},
    instance_count=1,
    transformers_version="4.56.2",
    pytorch_version="2.8.0",
    py_version="py312",
    hyperparameters={{"epochs": 1}},
    disable_profiler=True,
    debugger_hook_config=False,
)
"""


def cell(value, before="", **_):
    return CELL.format(before=before, value=value)


@pytest.mark.parametrize("name", COMPUTED)
def test_a_value_that_can_be_computed_has_the_finding_of_the_literal(name):
    report = check_estimator(cell(**COMPUTED[name]))
    assert "EST511" in {finding.id for finding in report}, report
    assert all("8 GPUs and no launcher" in note.what for note in report.unresolved)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_value_that_is_not_known_is_listed_with_the_reason(name):
    why = UNKNOWN[name]["why"]
    report = check_estimator(cell(**UNKNOWN[name]))
    if UNKNOWN[name].get("assumed"):  # a job has the defaults of its launcher, and says so
        assert any(why in sentence for sentence in report.readings[0].inferred)
        return
    assert "EST511" not in {finding.id for finding in report}
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
        assert "EST511" in {finding.id for finding in check_estimator(launch)}


def test_arguments_that_are_unpacked_are_read_or_listed():
    keywords = 'instance_type="ml.p3.16xlarge", instance_count=1'
    text = cell("0").replace("    instance_type=0,\n    instance_count=1,\n", "    **options,\n")
    assert "EST511" in {finding.id for finding in check_estimator(f"options = dict({keywords})\n{text}")}
    listed = [note.what for note in check_estimator(f"import mine\noptions = mine.options()\n{text}").unresolved]
    assert any("mine.options(...)" in what for what in listed), listed


def test_names_of_the_notebook_are_taken_where_they_are_passed():
    text = cell("kind")
    report = check_estimator(text, variables={"kind": "ml.p3.16xlarge"})
    assert "EST511" in {finding.id for finding in report}
    assert [note.what for note in check_estimator(text).unresolved if "kind is set elsewhere" in note.what]
