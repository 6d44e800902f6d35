"""Check a training script for defects before you pay for a cluster."""

from smp_advisor.review.findings.finding import Finding, Fix, Severity
from smp_advisor.review.findings.report import Report
from smp_advisor.review.reading.source import Unresolved
from smp_advisor.review.scripts.changes import Change, ScriptChanges, script_changes
from smp_advisor.review.scripts.check import check_script
from smp_advisor.review.scripts.following import ScriptStack, read_stack

__all__ = [
    "Change",
    "Finding",
    "Fix",
    "Report",
    "ScriptChanges",
    "ScriptStack",
    "Severity",
    "Unresolved",
    "check_script",
    "read_stack",
    "script_changes",
]
