"""Export of plans as code: the notebook cells of a training job, and its training script."""

from smp_advisor.export.companions import monitoring_cell, permissions_cell, quota_cell
from smp_advisor.export.formats import FORMATS, exported, format_cell
from smp_advisor.export.job_cell import estimator_cell, installed_sdk, terms_of
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import local_cell, script_cell, small_script

__all__ = [
    "FORMATS",
    "JobOptions",
    "estimator_cell",
    "exported",
    "format_cell",
    "installed_sdk",
    "local_cell",
    "monitoring_cell",
    "permissions_cell",
    "quota_cell",
    "script_cell",
    "small_script",
    "terms_of",
]
