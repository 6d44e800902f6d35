"""Every check notices its defect, is silent on correct and exported scripts, and its fixes are safe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smp_advisor.export import training_script
from smp_advisor.findings.catalog import sections
from smp_advisor.scripts import apply_fixes, check_script
from smp_advisor.scripts.context import CHECKS
from tests.export import examples
from tests.scripts import samples
from tests.scripts.cases import CASES, Case


def test_every_check_has_texts():
    check_script("")
    texts = {check.id for section in sections() for check in section.checks if not check.id.startswith("EST")}
    assert set(CHECKS) | {"SMP100"} == texts


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_defect_is_found_at_its_line_and_nothing_else_and_a_fix_mends_it(case: Case):
    assert case.id not in {finding.id for finding in check_script(case.base, case.settings)}
    report = check_script(case.firing, case.settings)
    found = [finding for finding in report if finding.id == case.id]
    assert any(case.at in finding.text for finding in found), str(report)
    assert {finding.id for finding in report} <= {case.id} | case.also, str(report)
    if case.fixed:
        fix = found[0].fix
        assert fix.diff.startswith("--- a/")
        assert case.id not in {finding.id for finding in check_script(fix.source, case.settings)}, fix.source


@pytest.mark.parametrize(
    ("script", "plan"),
    [
        (samples.PIPELINE, samples.PIPELINE_PLAN),
        (samples.TENSOR, samples.TENSOR_PLAN),
        (samples.SHARDED, samples.SHARDED_PLAN),
        (samples.TENSORFLOW, samples.TENSORFLOW_PLAN),
        (samples.V2, samples.V2_PLAN),
        (samples.FSDP, samples.FSDP_PLAN),
        (samples.ADAPTER, samples.FSDP_PLAN),
        (samples.FABRIC, samples.FSDP_PLAN),
        (samples.ACCELERATE, samples.FSDP_PLAN),
        (samples.SHARDED_TRAINER, samples.FSDP_PLAN),
        (samples.XLA, samples.XLA_PLAN),
        (samples.SCALER, samples.XLA_PLAN),
        (samples.ESTIMATOR, None),
        (samples.TRAINER, samples.XLA_PLAN),
    ],
    ids=[
        *("pipeline", "tensor", "sharded", "tensorflow", "v2"),
        *("fsdp", "adapter", "fabric", "accelerate", "sharded trainer"),
        *("xla", "scaler", "estimator", "trainer"),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_correct_scripts_have_no_findings(script, plan, known):
    assert not check_script(script, plan if known else None)


def plans(path: Path) -> list[dict[str, object] | None]:
    """No plan, and that of the first line."""
    first = path.read_text("utf-8").partition("\n")[0]
    return [None, *([json.loads(first.removeprefix("# plan: "))] if first.startswith("# plan: ") else [])]


SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks" / "scripts").glob("*.py"))


@pytest.mark.parametrize(
    ("path", "plan"),
    [pytest.param(path, plan, id=path.stem + "-plan" * bool(plan)) for path in SCRIPTS for plan in plans(path)],
)
def test_what_the_benchmark_breaks_is_whole_before(path, plan):
    report = check_script(path, plan)
    assert not report, str(report)


CELLS = examples.CASES | examples.TASK_CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_an_exported_script_has_no_findings(name, known):
    case = CELLS[name]
    report = check_script(training_script(*case.parts), case.plan if known else None)
    assert not report, str(report)


PLAN = samples.PIPELINE_PLAN


def test_padding_gets_no_length_that_nobody_chose():
    text = samples.XLA.replace('padding="max_length"', "padding=True")
    without = text.replace(", max_length=128", "").replace(", max_length=512", "")
    for script in {text, without}:
        finding = next(finding for finding in check_script(script, samples.XLA_PLAN) if finding.id == "STC401")
        if "max_length" in finding.text:
            assert finding.fix is not None
        else:
            assert finding.fix is None
            assert finding.unfixed == "the call has no max_length, which you must choose"


def test_a_name_that_decides_the_device_elsewhere_is_not_replaced_in_one_place():
    text = samples.PIPELINE.replace("set_device(smp.local_rank())", "set_device(device_of)").replace(
        "    model = Net()\n", "    model = Net().to(device_of)\n"
    )
    text = text.replace("    smp.init()\n", "    device_of = 0\n    smp.init()\n")
    finding = next(finding for finding in check_script(text, PLAN) if finding.id == "SMP108")
    assert finding.fix is None
    assert finding.unfixed == "device_of also decides the device elsewhere"


def test_line_ends_stay(tmp_path):
    path = tmp_path / "train.py"
    text = samples.PIPELINE.replace(", drop_last=True", "").replace("    smp.init()\n", "")
    path.write_bytes(text.replace("\n", "\r\n").encode())
    content = apply_fixes(path, in_place=True, plan=PLAN).read_bytes()
    assert b"smp.init()\r\n" in content
    assert content.count(b"\r\n") == content.count(b"\n")
    assert b"\r\r" not in content
