"""Kernels of a profiled block, from its traced operators."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smp_advisor.workload.block import Kernels


_CONVERSIONS = 3.5
"""Traffic of convolutions besides their products, relative to their operands and results: kernels for tensor cores read
and write channels last, so PyTorch's default layout is converted before and after them (cuDNN documentation, tensor
layouts). Set to a U-Net, a WaveNet and a diffusion model on an H100 (``validation/one_gpu/modules.csv``)."""


def with_traced_kernels(
    approximate: Kernels,
    operators: Sequence[Mapping[str, Any]],
    *,
    element_bytes: int,
    sequence: int,
    has_sequence: bool,
    has_attention: bool,
    tokens: int = 1,
) -> Kernels:
    """Kernels with the traced traffic and launches, divided by tensor parallelism as the approximate ones are."""
    rows = [_row(row, 1 if has_sequence else 0, sequence) for row in operators if row["kind"] != "attention"]
    if has_attention and has_sequence:
        scores = {row.module for row in rows if row.is_on_scores and row.kind == "product"}
        # Queries, keys and values are copied for their products.
        rows = [_without_scores(row) for row in rows if row.operator != "aten.clone" or row.module not in scores]
    traffic = {phase: sum(row.traffic for row in rows if row.phase == phase) for phase in ("forward", "backward")}
    launches = {phase: sum(row.count for row in rows if row.phase == phase) for phase in traffic}
    before = approximate.elements + approximate.split_elements
    if traffic["forward"] <= 0 or launches["forward"] <= 0 or before <= 0:
        return approximate
    ratio = traffic["forward"] / element_bytes / tokens / before
    products = sum(row.count for row in rows if row.phase == "forward" and row.kind == "product")
    of_memory = sum(row.count for row in rows if row.phase == "forward" and row.kind == "memory")
    return dataclasses.replace(
        approximate,
        elements=approximate.elements * ratio,
        split_elements=approximate.split_elements * ratio,
        products=products,
        repeated_products=max(0.0, products - max(1.0, approximate.products)),
        # A convolution alone converts its layout, too.
        launches=of_memory or approximate.launches,
        backward_traffic=traffic["backward"] / traffic["forward"],
        backward_launches=launches["backward"] / launches["forward"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """Equal operators of a module, for one token."""

    module: str
    operator: str
    kind: str
    phase: str
    count: float
    bytes: float
    linear_bytes: float
    """Bytes without the traffic that grows with the square of the sequence."""
    is_on_scores: bool

    @property
    def traffic(self) -> float:
        """Bytes that kernels bound by memory move."""
        return self.bytes * (_CONVERSIONS if "convolution" in self.operator else self.kind == "memory")


def _row(values: Mapping[str, Any], power: int, sequence: int) -> _Row:
    traffic = _coefficients(values["bytes"])
    # Terms that do not grow with the batch are weights of norms, tables and masks.
    growing = [value * sequence ** (j - power) for j, value in enumerate(traffic[1] if len(traffic) > 1 else ())]
    return _Row(
        **{name: values[name] for name in ("module", "operator", "kind", "phase")},
        count=sum(value * sequence**j for row in _coefficients(values["count"]) for j, value in enumerate(row)),
        bytes=sum(growing),
        linear_bytes=sum(growing[:2]),
        is_on_scores=any(len(row) > 2 and row[2] > 0 for row in traffic),
    )


def _without_scores(row: _Row) -> _Row:
    """Return the row without its traffic on scores, and without its launches if it has no other traffic."""
    if not row.is_on_scores:
        return row
    has_other = row.kind == "memory" and row.linear_bytes >= 1
    return dataclasses.replace(row, bytes=row.linear_bytes, count=row.count if has_other else 0.0)


def _coefficients(polynomial: Mapping[str, Any]) -> list[list[float]]:
    """Factors of powers of the sequence, by power of the batch."""
    return [[float(Fraction(value)) for value in row] for row in polynomial["polynomial"]]
