"""The checks of an estimator, EST501 to EST515."""

from smp_advisor.estimators.cases import Case, Change, Hit
from smp_advisor.estimators.checks.cluster import degrees, tensor_parallelism
from smp_advisor.estimators.checks.contract import EST514, outputs, versions
from smp_advisor.estimators.checks.launch import adapter, files, hardware, image, launcher, monitoring, terms
from smp_advisor.estimators.checks.memory import fit
from smp_advisor.estimators.checks.parameters import length, library_parameters

__all__ = ["CHECKS", "CORRECTABLE", "Case", "Change", "Hit"]

CORRECTABLE = (library_parameters, degrees, launcher, tensor_parallelism, image, hardware, monitoring, adapter)
"""Checks whose defects a change to the text can correct, in the order of their ids.

`library_parameters` makes EST501 and EST505.
"""
CHECKS = (*CORRECTABLE, versions, fit, length, terms, files, *EST514, outputs)
"""All checks; those after `CORRECTABLE` estimate memory or need the author."""
