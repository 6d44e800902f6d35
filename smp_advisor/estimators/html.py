"""The report in a notebook: what was read, the findings and the corrected text; everything from the text escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from smp_advisor.estimators.text import lines, outcome
from smp_advisor.scripts.html import CODE_BOX
from smp_advisor.scripts.html import as_html as findings_html

if TYPE_CHECKING:
    from smp_advisor.estimators.report import EstimatorReport

__all__ = ["as_html"]


def as_html(report: EstimatorReport) -> str:
    """The whole report."""
    read = "".join(f"<p>{escape(line.strip())}</p>" for reading in report.readings for line in lines(reading))
    diff = ""
    if report.diff:
        diff = (
            '<details open><summary style="cursor:pointer"><strong>Corrected</strong></summary>'
            f'<pre style="{CODE_BOX}">{escape(report.diff)}</pre>'
            f"{''.join(f'<p>{escape(line)}</p>' for line in outcome(report))}</details>"
        )
    return f'<div class="smp-advisor-estimator">{read}{findings_html(report)}{diff}</div>'
