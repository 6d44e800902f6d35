"""SageMaker Training Compiler, and the models that AWS tested with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from smp_advisor.core.files import columns, rows, table
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.library import Library
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.space import replica_space
from smp_advisor.libraries.state_bytes import amp, trained
from smp_advisor.libraries.version import instance_family

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.libraries.layout import PlanColumns
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TrainingCompilerPlan(Plan):
    """A configuration of Training Compiler: data parallelism with one compiled replica per GPU."""

    library: str = "training-compiler"
    version: str = "1.13.1"
    enabled: bool = True
    debug: bool = False
    # script settings
    batch_size: int = 1
    precision: Precision = "fp16"


def layout(plans: PlanColumns, job: Job, _: Cluster | None = None) -> Layout:
    return Layout.of_columns(trained(amp(job), job), rows=plans.rows, batch_samples=plans["batch_size"])


@dataclass(frozen=True, kw_only=True, slots=True)
class TestedModel:
    framework: str
    version: str
    model: str
    instance_type: str
    sequence_length: int | None
    """None for images."""
    precision: str
    native_batch_size: int
    compiled_batch_size: int

    @property
    def factor(self) -> float:
        return self.compiled_batch_size / self.native_batch_size


@cache
def all_tested_models() -> tuple[TestedModel, ...]:
    """Return every row that has both batch sizes."""
    return tuple(TestedModel(**columns(TestedModel, row)) for row in rows(__name__, "tested_models.csv"))


def nearest_tested(model: Model, instance: Instance, sequence_length: int, version: str) -> TestedModel | None:
    """Return the row of this model's shape that is most like the job; None if AWS tested no such model."""
    names = {
        name
        for name, (family, layers, hidden) in table(__name__, "tested_models.toml")["shapes"].items()
        if (model.family, model.layer_count, model.shape.hidden) == (family, layers, hidden)
    }
    machine = instance_family(instance.name)
    tested = [row for row in all_tested_models() if row.framework == "pytorch" and row.model in names]
    return min(
        tested,
        key=lambda row: (
            instance_family(row.instance_type) != machine,
            abs((row.sequence_length or 0) - sequence_length),
            row.version != version,
            row.model,
        ),
        default=None,
    )


LIBRARY = Library(
    name="training-compiler",
    optimizers=("adam",),
    package=__name__,
    plan=TrainingCompilerPlan,
    layout=layout,
    stack="xla",
    space=partial(replica_space, "training-compiler"),
    launcher="xla",
    default_precision="fp16",
    half_precision="amp",
    default_attention="eager",
    divides_model=False,
    compiles=True,
    script="trainer",
    controls=("batch_size",),
    alternatives=("batch_size",),
)
