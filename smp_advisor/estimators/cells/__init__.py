"""Following a cell without running it: what its names and dictionaries hold when the estimator is made."""

from smp_advisor.estimators.cells.following import Followed, follow

__all__ = ["Followed", "follow"]
