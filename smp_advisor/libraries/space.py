"""All plans of a library on a cluster, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.errors import PlanError
from smp_advisor.libraries import axes
from smp_advisor.libraries.layout import PlanColumns, decoded, encoded, layout_of_columns
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, plan_fields
from smp_advisor.libraries.version import default_of, driving_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Checkpointing, Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


_MOST_PLANS = 1_500_000
"""Plans of one search: over twice as many as defaults give on any cluster of up to 720 nodes."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """n plans as a `Layout`, and their fields."""

    library: str
    layout: Layout
    columns: Mapping[str, NDArray[Any]]
    """Codes of the fields that differ from plan to plan, shape (n,)."""
    shared: Mapping[str, Any]
    """Fields that all plans share."""
    finish: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Adds the fields of a plan that its other fields determine."""

    def __len__(self) -> int:
        return len(self.layout)

    def plan(self, row: int) -> Plan:
        """The plan of one row."""
        settings = {name: decoded(name, column[row].item()) for name, column in self.columns.items()}
        plan: Plan = get_library(self.library).plan(**{**self.finish(settings), **self.shared})
        return plan

    def take(self, rows: NDArray[np.intp]) -> Space:
        """The space of some of the plans."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, layout=self.layout.take(rows), columns=columns)

    @classmethod
    def of_blocks(
        cls,
        name: str,
        cluster: Cluster,
        job: Job,
        fields: Sequence[str],
        blocks: Iterable[tuple[int, Mapping[str, Any]]],
        shared: Mapping[str, Any],
        finish: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> Space:
        """Space of blocks of plans."""
        rows, parts = 0, []
        for size, block in blocks:
            rows += size
            if rows > _MOST_PLANS:
                raise PlanError(
                    f"The search has more than {_MOST_PLANS:,} plans: set a global batch, pin settings or lower"
                    f" max_tokens_per_step ({job.max_tokens_per_step:,})."
                )
            parts.append((size, block))
        columns = {field: _column([(size, block[field]) for size, block in parts]) for field in fields}
        plans = PlanColumns.of_fields(get_library(name).plan, rows, {**shared, **columns})
        layout = layout_of_columns(name, plans, job, cluster)
        return cls(library=name, layout=layout, columns=columns, shared=shared, finish=finish)


def _column(parts: list[tuple[int, Any]]) -> NDArray[Any]:
    """One column of blocks of rows, each with its values or with one value for all of them."""
    if not parts:
        return np.empty(0, dtype=np.int64)
    if any(isinstance(values, np.ndarray) for _, values in parts):
        return np.concatenate(
            [values if isinstance(values, np.ndarray) else np.full(size, values) for size, values in parts]
        )
    return np.repeat(np.array([value for _, value in parts]), [size for size, _ in parts])


def enumerate_plans(
    model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any] | None = None, *, library: str = DEFAULT_LIBRARY
) -> Space:
    """All plans of a library on the cluster, including unpromising ones."""
    names = plan_fields(library)
    own = {name: value for name, value in (pins or {}).items() if name in names}
    space: Space = get_library(library).space(model, cluster, job, own)
    return space


def replica_space(
    library: str, model: Model, cluster: Cluster, job: Job, pins: Mapping[str, Any], strategies: Sequence[str] = ()
) -> Space:
    """All plans of a library in which each GPU processes batches of its own."""
    names = plan_fields(library)
    accumulates = "gradient_accumulation_steps" in names
    pairs = axes.accumulated_batches(job, model, cluster.gpus, pins if accumulates else {**pins, _STEPS: 1})
    checkpointing: list[Checkpointing] = [False, "each"] if _CHECKPOINTING in names else [False]
    rows = axes.crossed(pairs, [choice for choice in axes.memory_choices(checkpointing, pins) if not choice[1]])
    columns = {"batch_size": rows[:, 0] // rows[:, 1], _STEPS: rows[:, 1], _CHECKPOINTING: rows[:, 2]}
    fields = [name for name in (*columns, "sharding_strategy") if name in names]
    candidates = [pins["sharding_strategy"]] if "sharding_strategy" in pins else strategies
    blocks = [{**columns, "sharding_strategy": encoded("sharding_strategy", strategy)} for strategy in candidates]
    version = default_of(library, driving_versions(library, cluster.instance))
    fixed = {name: value for name, value in pins.items() if name not in fields}
    shared = {"precision": job.precision, "version": version, **fixed}
    return Space.of_blocks(library, cluster, job, fields, [(len(rows), block) for block in blocks or [columns]], shared)


_STEPS = "gradient_accumulation_steps"
_CHECKPOINTING = "activation_checkpointing"
