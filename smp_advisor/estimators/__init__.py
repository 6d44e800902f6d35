"""Read estimators, trainers, recipes and requests back: the plan they state, and what is wrong with them."""

from smp_advisor.estimators.attach import watch
from smp_advisor.estimators.check import check_estimator, looks_like_estimator
from smp_advisor.estimators.report import EstimatorReport, Reading

__all__ = ["EstimatorReport", "Reading", "check_estimator", "looks_like_estimator", "watch"]
