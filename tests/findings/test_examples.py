"""Every check reports its bad examples, as its own text states it, and is silent on the good ones."""

from __future__ import annotations

import re

import pytest

from smp_advisor import check_estimator, check_script
from smp_advisor.findings.catalog import Check, Example, catalog
from smp_advisor.findings.report import Report

EXAMPLES = [(check, example) for check in catalog().values() for example in check.examples]
IDS = [f"{check.id} {example.variant}".strip() for check, example in EXAMPLES]
UNUSUAL = {("EST508", "host memory")}
"""Variants that take a very deep and narrow model, which is no example of anything."""


def report(check: Check, code: str, plan: dict[str, object]) -> Report:
    return check_estimator(code) if check.id.startswith("EST") else check_script(code, plan)


def pattern(check: Check, variant: str) -> str:
    """The variant's message with any values."""
    return re.sub(r"\\\{\w+(:[^{}]*)?\\\}", ".*", re.escape(check.wordings[variant].message))


def test_every_check_and_every_variant_has_an_example() -> None:
    shown = {(check.id, example.variant) for check, example in EXAMPLES}
    assert {(check.id, name) for check in catalog().values() for name in check.wordings} - shown == UNUSUAL


@pytest.mark.parametrize(("check", "example"), EXAMPLES, ids=IDS)
def test_the_bad_example_has_this_defect_alone(check: Check, example: Example) -> None:
    findings = report(check, example.bad, example.plan)
    assert {finding.id for finding in findings} == {check.id}, str(findings)
    for finding in findings:
        assert not re.search(r"[{}…]", f"{finding.message} {finding.consequence} {finding.remedy}")
    messages = [finding for finding in findings if re.fullmatch(pattern(check, example.variant), finding.message)]
    assert messages, str(findings)
    assert messages[0].severity == check.wordings[example.variant].severity


@pytest.mark.parametrize(("check", "example"), EXAMPLES, ids=IDS)
def test_the_good_example_has_no_finding(check: Check, example: Example) -> None:
    findings = report(check, example.good, example.plan)
    assert not findings, str(findings)


@pytest.mark.parametrize(("check", "example"), EXAMPLES, ids=IDS)
def test_a_fix_of_the_bad_example_removes_the_finding(check: Check, example: Example) -> None:
    for finding in report(check, example.bad, example.plan):
        if finding.fix is not None:
            assert check.id not in {left.id for left in report(check, finding.fix.source, example.plan)}
