"""Writing plans as code: the notebook cell that launches a job, and the training script it runs."""

from smp_advisor.export.job_cell import estimator_cell
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import script_cell, training_script
from smp_advisor.export.sdk import installed_sdk

__all__ = ["JobOptions", "estimator_cell", "installed_sdk", "script_cell", "training_script"]
