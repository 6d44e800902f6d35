"""AWS's tested models of Training Compiler: the largest batch a GPU took natively and compiled."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.support import instance_family

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.workload.model import Model

__all__ = ["TestedModel", "compiler_rows", "nearest_tested"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TestedModel:
    """One row of AWS's table."""

    framework: str
    version: str
    model: str
    instance_type: str
    sequence_length: int | None
    """None for images."""
    precision: str
    native_batch_size: int
    """Largest batch of a GPU that fits without the compiler."""
    compiled_batch_size: int

    @property
    def factor(self) -> float:
        """How many times the native batch the compiler allows."""
        return self.compiled_batch_size / self.native_batch_size


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.guidance") / "data" / "training_compiler.toml").read_text("utf-8"))


@cache
def compiler_rows() -> tuple[TestedModel, ...]:
    """Every row that states both batch sizes."""
    with (files("smp_advisor.guidance") / "data" / "training_compiler_tested.csv").open(encoding="utf-8") as table:
        return tuple(
            TestedModel(
                framework=row["framework"],
                version=row["version"],
                model=row["model"],
                instance_type=row["instance_type"],
                sequence_length=int(row["sequence_length"]) if row["sequence_length"] else None,
                precision=row["precision"],
                native_batch_size=int(row["native_batch_size"]),
                compiled_batch_size=int(row["compiled_batch_size"]),
            )
            for row in csv.DictReader(table)
        )


def nearest_tested(model: Model, instance: Instance, sequence_length: int, version: str) -> TestedModel | None:
    """The row of this model's shape that is most like the job, None where AWS tested no such model.

    The same family of instance counts most (batch sizes are a GPU's), then the sequence length, then the version.
    """
    own = {
        name
        for name, (family, layers, hidden) in _file()["shapes"].items()
        if (model.family, model.layer_count, model.shape.hidden) == (family, layers, hidden)
    }
    machine = instance_family(instance.name)
    rows = [row for row in compiler_rows() if row.framework == "pytorch" and row.model in own]
    return min(
        rows,
        key=lambda row: (
            instance_family(row.instance_type) != machine,
            abs((row.sequence_length or 0) - sequence_length),
            row.version != version,
            row.model,
        ),
        default=None,
    )
