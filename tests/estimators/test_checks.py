"""Every check of an estimator notices its defect, mends it where that is safe, and stays silent without it."""

import ast
import json
from typing import NamedTuple

import pytest

from smp_advisor import check_estimator
from smp_advisor.workload import Model
from tests.estimators.cells import RECIPE, REQUEST, TENSORFLOW, TRAINER, V1, V2


class Case(NamedTuple):
    """`old` replaced by `new` in `base`: the finding `id` is on the line with `at`, or with `new`."""

    id: str
    name: str
    base: str
    old: str
    new: str
    mended: str = ""
    """Text of the correction; empty where no change is safe."""
    at: str = ""
    severity: str = "error"

    @property
    def firing(self) -> str:
        assert self.base.count(self.old) == 1, (self.old, self.base.count(self.old))
        return self.base.replace(self.old, self.new)


END, FP16, TWO, FOUR = "disable_profiler=True", '"fp16": True,', '"tensor_parallel_degree": 2', '"microbatches": 4'
POOL = 'use_spot_instances=True, max_wait=9000, checkpoint_s3_uri="s3://b", keep_alive_period_in_seconds=60'
CASES = [
    Case("EST501", "unknown", V1, FOUR, '"microbatchs": 4', FOUR),
    Case("EST501", "type", V1, FP16, '"fp16": 1,', FP16),
    Case("EST501", "scientific", V1, FP16, f'{FP16} "sdp_reduce_bucket_size": 5e8,', '_size": int(5e8)'),
    Case("EST501", "range", V1, FOUR, '"microbatches": 0', '"microbatches": 1'),
    Case("EST501", "choice", V1, '"optimize": "speed"', '"optimize": "Speed"', '"optimize": "speed"'),
    Case("EST501", "refused by the SDK", V1, '"speed"', '"speed", "placement_strategy": "DPT"', '"speed",\n'),
    Case("EST501", "of version 1", V2, TWO, f"{TWO}, {FOUR}", f"{TWO},\n"),
    Case("EST501", "in a trainer", TRAINER, "parallel_degree=2", "paralel_degree=2", "tensor_parallel_degree=2"),
    Case("EST501", "in a request", REQUEST, '\\"ddp\\": true', '\\"dpp\\": true', at="mp_parameters"),
    Case("EST501", "of TensorFlow", TENSORFLOW, FOUR, f"{FOUR}, {TWO}", f"{FOUR}}}"),
    Case("EST502", "in a recipe", RECIPE, "shard_degree: 64", "shard_degree: 60", "shard_degree: 64"),
    Case("EST505", "active", V1, 'active_microbatches": 2', 'active_microbatches": 6', 'active_microbatches": 4'),
    Case("EST505", "without ddp", V1, '"ddp": True', '"ddp": False', '"ddp": True', "tensor_parallel_degree"),
    Case("EST505", "memory", V1, 'mize": "speed"', 'mize": "memory"', 'mize": "speed"', "prescaled_batch"),
    Case("EST505", "both precisions", V1, FP16, f'{FP16} "bf16": True,', f"{FP16}\n"),
    Case("EST506", "python", V1, 'py_version="py39"', 'py_version="py38"', 'py_version="py39"', "framework_version"),
    Case("EST506", "short version", V2, '"2.4.1"', '"2.4"', 'framework_version="2.4.1"'),
    Case("EST509", "length", V1, FP16, f'{FP16} "partition_file": "{"x" * 2600}",', "", '"parameters"', "warning"),
    *(
        Case("EST511", name, V1, END, f"{END},\n    {more}", at=more.partition("=")[0])
        for name, more in {
            "spot without a waiting time": 'use_spot_instances=True, checkpoint_s3_uri="s3://b/c"',
            "warm pool of spot instances": POOL,
            "longer than 28 days": "max_run=28 * 86400 + 1",
        }.items()
    ),
    Case(
        "EST511", "file system without a network", V1, f"{END},\n)",
        f'{END},\n)\nestimator.fit(FileSystemInput("fs-1", "FSxLustre", "/fsx/train"))', at="FileSystemInput",
    ),
]  # fmt: skip

LARGE = Model.from_shape(layers=48, hidden=8192, heads=64, vocab=50_257)
SMALL = Model.from_shape(layers=12, hidden=768, heads=12, vocab=50_257)

CORRECT = {
    "SDK 2, SMP v1": V1,
    "SDK 2, SMP v2": V2,
    "SDK 3, SMP v2": TRAINER,
    "TensorFlow": TENSORFLOW,
    "recipe": RECIPE,
    "request": REQUEST,
}


def test_the_defect_is_found_at_its_line(subtests):
    for case in CASES:
        with subtests.test(f"{case.id} {case.name}"):
            report = check_estimator(case.firing)
            found = [one for one in report if one.id == case.id]
            assert found, str(report)
            assert any((case.at or case.new) in one.text and one.severity == case.severity for one in found), str(
                report
            )
            assert all(one.message and one.consequence and one.remedy and one.source_url for one in found)


@pytest.mark.parametrize("case", [case for case in CASES if case.mended], ids=lambda case: f"{case.id}-{case.name}")
def test_the_correction_mends_it_and_keeps_the_rest(case):
    report = check_estimator(case.firing)
    assert case.mended in report.corrected, report.diff
    again = check_estimator(report.corrected)
    assert not [one for one in again if one.severity == "error"], str(again)
    assert again.corrected == report.corrected  # nothing is left to change
    fixes = [one.fix for one in report if one.id == case.id and one.fix]
    assert fixes
    assert fixes[0].diff.startswith("--- a/")
    for line in case.firing.splitlines():
        if "#" in line and "one a GPU" not in line:
            comment = line[line.index("#") :]
            assert comment in report.corrected


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_configuration_reads_into_a_plan_without_findings(name):
    report = check_estimator(CORRECT[name])
    assert not report, str(report)
    assert report.plan is not None, report.unresolved
    assert report.diff == ""


def test_checks_of_memory_need_the_model():
    assert "EST508" in {one.id for one in check_estimator(V1, model=LARGE)}
    assert not check_estimator(V1, model=SMALL)
    report = check_estimator(V1)
    assert not report
    assert "does not describe the model, so memory is not checked" in str(report)


def test_what_does_not_fit_says_the_figure_and_the_smallest_change():
    (found,) = [one for one in check_estimator(V1, model=LARGE) if one.id == "EST508"]
    assert "GiB per GPU" in found.message
    assert "over the 39.4 GiB available" in found.message
    assert found.severity == "error"  # it certainly fails


def test_the_verdict_is_for_what_the_text_says():
    """Checkpointing that nobody wrote down is the change that mends it, and no assumption."""
    cell = V1.replace('"activation_checkpointing": "each", ', "")
    for model in (SMALL, LARGE):
        report = check_estimator(cell, model=model)
        found = [one for one in report if one.id == "EST508"]
        assert all("activation checkpointing" in one.message for one in found)
        if report.readings[0].checkpointed is not None:
            text = " ".join(str(report).split())
            assert found
            assert "With activation checkpointing, which the text does not set, it needs" in text


def test_several_defects_are_mended_together():
    text = V1
    for old, new in (
        ('"microbatches": 4,', '"microbatchs": 4,'),
        ('"active_microbatches": 2', '"active_microbatches": 9'),
        ('"optimize": "speed"', '"optimize": "memory"'),
        ('"tensor_parallel_degree": 4', '"tensor_parallel_degree": 3'),
        ('        "mpi": {"enabled": True, "processes_per_host": 8},  # one a GPU\n', ""),
        ('framework_version="1.13.1"', 'framework_version="1.13.0"'),
        ("    debugger_hook_config=False,\n", ""),
    ):
        assert old in text
        text = text.replace(old, new)
    report = check_estimator(text)
    assert {one.id for one in report} == {"EST501", "EST502", "EST503", "EST505", "EST506", "EST507"}
    assert not check_estimator(report.corrected), report.corrected
    ast.parse(report.corrected)
    assert report.mended.plan.tensor_parallel_degree == 4
    assert "# stages" in report.corrected
    assert "# replicas" in report.corrected


def test_options_that_are_added_at_one_place_keep_their_order():
    lines = V1.splitlines(keepends=True)
    terms = [line for line in lines if "debugger_hook_config" in line or "disable_profiler" in line]
    assert len(terms) == 2
    corrected = check_estimator("".join(line for line in lines if line not in terms)).corrected
    assert 0 < corrected.index("debugger_hook_config") < corrected.index("disable_profiler")


def test_a_value_is_changed_where_it_is_assigned():
    text = "degree = 3  # of mine\n" + V1.replace('"tensor_parallel_degree": 4', '"tensor_parallel_degree": degree')
    report = check_estimator(text)
    assert report.corrected.startswith("degree = 4  # of mine\n")
    assert '"tensor_parallel_degree": degree' in report.corrected


def test_a_value_that_two_settings_share_is_changed_where_it_is_used():
    text = "eight = 8\n" + V1.replace('"processes_per_host": 8', '"processes_per_host": eight').replace(
        '"active_microbatches": 2', '"active_microbatches": eight'
    )
    report = check_estimator(text)
    assert "eight = 8\n" in report.corrected
    assert '"active_microbatches": 4' in report.corrected
    assert '"processes_per_host": eight' in report.corrected


def test_magics_and_line_ends_stay():
    text = "%pip install sagemaker\n!ls\n" + V1.replace('"fp16": True', '"fp16": 1')
    assert check_estimator(text).corrected == text.replace('"fp16": 1', '"fp16": True')
    windows = V1.replace('"fp16": True', '"fp16": 1').replace("\n", "\r\n")
    assert check_estimator(windows).corrected == windows.replace('"fp16": 1', '"fp16": True')


def test_findings_of_a_notebook_name_the_cell(tmp_path):
    options, estimator = V1.split("estimator = ", 1)
    sources = [options.replace('"fp16": True', '"fp16": 1'), f"estimator = {estimator}"]
    notebook = {"cells": [{"cell_type": "code", "source": [text]} for text in sources], "nbformat": 4}
    path = tmp_path / "job.ipynb"
    path.write_text(json.dumps(notebook))
    (tmp_path / "train.py").touch()
    (found,) = check_estimator(path)
    assert (found.id, found.path, found.line) == ("EST501", f"{path}#cell-1", 14)
    assert check_estimator(path).diff == ""  # a notebook is shown what to change, not written anew


def test_a_defect_that_leaves_no_plan_is_reported_once():
    report = check_estimator({"microbatches": 4, "prescaled_batch": True, "optimize": "memory", "ddp": True})
    assert [finding.id for finding in report] == ["EST505"]
    assert not report.unresolved


def test_a_change_below_the_required_probability_is_only_the_nearest():
    text = RECIPE.replace("train_batch_size: 2", "train_batch_size: 16")
    remedies = [
        next(one.remedy for one in check_estimator(text, min_fit_probability=least) if one.id == "EST508")
        for least in (0.5, 0.95)
    ]
    assert remedies[0].startswith("The smallest change that fits is batch_size=2: it fits with")
    assert "No single change makes the plan fit with the required probability." in remedies[1]
    assert "The nearest is batch_size=2: it fits with a probability of" in remedies[1]
    assert "only (95.0 % required)" in remedies[1]


def test_flags_are_shown_as_python_writes_them_and_long_lines_are_wrapped():
    report = check_estimator(RECIPE)
    introduction = str(report).partition("\n\n")[0]
    assert "fp8=True" in introduction
    assert "offload_activations=False" in introduction
    assert max(map(len, introduction.splitlines())) <= 100
