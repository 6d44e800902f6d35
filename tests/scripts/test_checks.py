"""Every check notices its defect, is silent on correct and exported scripts, and its fixes are safe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smp_advisor.export import training_script
from smp_advisor.findings.catalog import sections
from smp_advisor.scripts import check_script
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
    assert case.id not in {finding.id for finding in check_script(case.script[0], case.settings)}
    report = check_script(case.firing, case.settings)
    found = [finding for finding in report if finding.id == case.id]
    assert any(case.at in finding.text for finding in found), str(report)
    assert {finding.id for finding in report} <= {case.id} | case.also, str(report)
    if case.fixed:
        fix = found[0].fix
        assert fix.diff.startswith("--- a/")
        assert case.id not in {finding.id for finding in check_script(fix.source, case.settings)}, fix.source


PLANS = {name.removesuffix("_PLAN"): plan for name, plan in vars(samples).items() if name.endswith("_PLAN")}
PLANS |= dict.fromkeys(("ADAPTER", "FABRIC", "ACCELERATE", "SHARDED_TRAINER"), samples.FSDP_PLAN)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_correct_scripts_have_no_findings(name, known):
    assert not check_script(getattr(samples, name), PLANS[name] if known else None)


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
def test_an_exported_script_has_no_findings(name):
    script = training_script(*CELLS[name].parts)
    for plan in (CELLS[name].plan, None):
        assert not (report := check_script(script, plan)), str(report)


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
    finding = next(finding for finding in check_script(text, samples.PIPELINE_PLAN) if finding.id == "SMP108")
    assert finding.fix is None
    assert finding.unfixed == "device_of also decides the device elsewhere"
