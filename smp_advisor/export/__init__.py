"""Writing plans as code: the notebook cell that launches a job, and the training script it runs."""

from smp_advisor.export.estimator import estimator_cell
from smp_advisor.export.script import script_cell, training_script

__all__ = ["estimator_cell", "script_cell", "training_script"]
