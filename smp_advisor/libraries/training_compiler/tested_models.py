"""AWS's tested models of Training Compiler: the largest batch per GPU without and with the compiler."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from smp_advisor.libraries.library import table
from smp_advisor.libraries.support import instance_family

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.workload.model import Model

__all__ = ["TestedModel", "all_tested_models", "nearest_tested"]


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
    """Largest batch per GPU without the compiler."""
    compiled_batch_size: int
    """Largest batch per GPU with the compiler."""

    @property
    def factor(self) -> float:
        """Compiled batch over native batch."""
        return self.compiled_batch_size / self.native_batch_size


@cache
def all_tested_models() -> tuple[TestedModel, ...]:
    """Every row that has both batch sizes."""
    with (files(__package__) / "tested_models.csv").open(encoding="utf-8") as text:
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
            for row in csv.DictReader(text)
        )


def nearest_tested(model: Model, instance: Instance, sequence_length: int, version: str) -> TestedModel | None:
    """The row of this model's shape that is most like the job; None if AWS tested no such model.

    The same instance family counts most (batch sizes are per GPU), then the sequence length, then the version.
    """
    names = {
        name
        for name, (family, layers, hidden) in table(str(__package__), "tested_models.toml")["shapes"].items()
        if (model.family, model.layer_count, model.shape.hidden) == (family, layers, hidden)
    }
    machine = instance_family(instance.name)
    rows = [row for row in all_tested_models() if row.framework == "pytorch" and row.model in names]
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
