"""Memory, time and price of a plan.

The formulas compute one plan from numbers and many plans from columns. They use operators and the functions of
`smp_advisor.core.elementwise`, never NumPy's functions or methods of arrays: ``where(full, a, b)``, ``inverted(full)``
for ``~full``, ``anywhere(level >= 3)`` for ``(level >= 3).any()``, ``0.0`` for ``np.zeros(n)``, and sums over a block's
operators in a loop, not along a second axis.
"""

from __future__ import annotations

from smp_advisor.costs.estimate import Estimate
from smp_advisor.costs.evaluate import estimate

__all__ = ["Estimate", "estimate"]
