"""The checks of an estimator, EST501 to EST510."""

from smp_advisor.estimators.checks.case import Case, Change, Hit
from smp_advisor.estimators.checks.cluster import degrees, tensor_parallelism
from smp_advisor.estimators.checks.container import image
from smp_advisor.estimators.checks.launch import launcher, monitoring
from smp_advisor.estimators.checks.memory import fit, unneeded
from smp_advisor.estimators.checks.parameters import length, library_parameters

__all__ = ["CHECKS", "Case", "Change", "Hit"]

CHECKS = (library_parameters, degrees, launcher, tensor_parallelism, image, monitoring, fit, length, unneeded)
"""In the order of their ids; `library_parameters` makes EST501 and EST505."""
