"""Code of a plan, as cells to insert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export.formats import FORMATS, format_cell

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice


_REHEARSE = "%smp_rehearse --plan\n"
"""Of the plan displayed last."""
KINDS = (
    "job", "script", "local", "rehearsal", "monitoring", "permissions", "quota", "probe", "kubernetes",
    "slurm",
)  # fmt: skip
"""Kinds of cells: the job with its training script, the script alone, cells for preparing and watching jobs, the short
job that measures the plan's shape on one or two nodes. The last two write the job for
another launcher into a file."""


_LEARN = "# Afterwards: the advice with what it measured, once it has ended.\n%smp_calibrate --job {job_name}"


def cells(advice: Advice, plan: Plan, what: str = "job", sdk: str = "auto", **options: Any) -> list[str]:
    """Cells in the order in which they run."""
    kind = {name: options[name] for name in ("trainer", "objective") if name in options}
    if what == "job":
        # The estimator first: if it refuses the plan, no cell is returned.
        estimator = advice.cell(sdk, plan, **options)
        sources = ["" if options.get("script") else advice.script_cell(plan, **kind), estimator]
    elif what == "script":
        files = advice.script_files(plan, **kind).items()
        sources = [advice.script_cell(plan, **kind), *(f"%%writefile {name}\n{text}" for name, text in files)]
    elif what in ("local", "rehearsal"):
        sources = [advice.local_cell(plan, **options) if what == "local" else _REHEARSE]
    elif what == "monitoring":
        sources = [advice.monitoring_cell(region=options.get("region"))]
    elif what == "permissions":
        sources = [advice.permissions_cell(plan, sdk=sdk, **options)]
    elif what == "quota":
        sources = [advice.quota_cell(**options)]
    elif what == "probe":
        estimator = advice.probe_cell(sdk, plan, **options)
        sources = ["" if options.get("script") else advice.probe_script_cell(plan), estimator, _LEARN]
    elif what in FORMATS:
        sources = [format_cell(advice.export(what, plan, **options), what)]
    else:
        raise ExportError(f"There is no cell {what!r} to export: choose one of {', '.join(KINDS)}.")
    return [source for source in sources if source.strip()]
