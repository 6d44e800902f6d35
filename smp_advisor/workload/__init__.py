"""The model, as blocks with counts, and the settings of a training run."""

from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.calibration import Calibration, MeasuredRun, load_calibration
from smp_advisor.workload.counts import format_count, parse_count
from smp_advisor.workload.job import Job, Overheads
from smp_advisor.workload.model import BlockGroup, Model
from smp_advisor.workload.stack import Stack, stacks

__all__ = [
    "Adapter",
    "BlockGroup",
    "Calibration",
    "Job",
    "MeasuredRun",
    "Model",
    "Overheads",
    "Stack",
    "format_count",
    "load_calibration",
    "parse_count",
    "stacks",
]
