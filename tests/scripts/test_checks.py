"""Every check notices its defect and stays silent on the script without it."""

from __future__ import annotations

import pytest

from smp_advisor.findings.catalog import sections
from smp_advisor.reading.source import Source
from smp_advisor.scripts import check_script
from smp_advisor.scripts.check import check_source
from smp_advisor.scripts.context import CHECKS
from tests.scripts import samples
from tests.scripts.cases import CASES, Case


def test_every_check_has_texts_and_cases():
    check_script("")
    texts = {check.id for section in sections() for check in section.checks if not check.id.startswith("EST")}
    assert set(CHECKS) | {"SMP100"} == texts
    assert {case.id for case in CASES} == texts


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_defect_is_found_at_its_line_and_nothing_else(case: Case):
    report = check_script(case.firing, case.settings)
    found = [finding for finding in report if finding.id == case.id]
    assert found, str(report)
    assert any(case.at in finding.text for finding in found), str(report)
    assert {finding.id for finding in report} <= {case.id} | case.also, str(report)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_script_without_the_defect_is_clean(case: Case):
    report = check_script(case.quiet, case.settings)
    assert not [finding for finding in report if finding.id == case.id], str(report)


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed], ids=str)
def test_the_fix_mends_it_and_changes_nothing_else(case: Case):
    source = Source("train.py", case.firing)
    findings = [finding for finding in check_source(source, case.settings) if finding.id == case.id]
    text = case.firing
    for _ in findings:
        report = [f for f in check_source(Source("train.py", text), case.settings) if f.id == case.id and f.fix]
        if not report:
            break
        fix = report[0].fix
        assert fix.diff.startswith("--- a/train.py\n+++ b/train.py\n@@")
        text = fix.source
    compile(text, "train.py", "exec")
    after = check_source(Source("train.py", text), case.settings)
    assert case.id not in {finding.id for finding in after}, text
    assert not {finding.id for finding in after} - case.also, str(after)
    kept = [line for line in case.firing.splitlines() if line in text.splitlines()]
    assert len(kept) >= len(case.firing.splitlines()) - 3
    assert [line for line in case.firing.splitlines() if "#" in line] == [
        line for line in text.splitlines() if "#" in line
    ]


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
