"""The dated table of GPU instances: its reader, and lookup by name."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.boards import board_rows
from smp_advisor.cluster.instance import Instance
from smp_advisor.errors import InstanceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Source", "instance", "instances", "sagemaker_names", "sources", "table_date"]

_YES_NO = {"yes": True, "no": False}
_PARSERS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _YES_NO.__getitem__}
"""Reader of a column, by the annotation of its field of `Instance`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The source of some columns of the instance table."""

    id: str
    title: str
    date: str
    columns: tuple[str, ...]
    assumed: bool
    """Unconfirmed general knowledge. Users see it as assumed."""


@cache
def instances() -> tuple[Instance, ...]:
    """Every GPU training instance, in the order of the table."""
    table = (files("smp_advisor.cluster") / "data" / "instances.csv").read_text(encoding="utf-8")
    return tuple(_instance(row) for row in csv.DictReader(table.splitlines()))


@cache
def sources() -> tuple[Source, ...]:
    """Sources of the table's columns."""
    return tuple(Source(**{**entry, "columns": tuple(entry["columns"])}) for entry in _sources_file()["source"])


@cache
def sagemaker_names() -> frozenset[str]:
    """Every instance type of SageMaker training jobs, with and without GPUs (botocore's model of the API)."""
    text = (files("smp_advisor.cluster") / "data" / "instance_types.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def table_date() -> str:
    """Date of the table (ISO 8601)."""
    return str(_sources_file()["table_date"])


def instance(name: str) -> Instance:
    """Instance by its name, with or without ``ml.``.

    Examples
    --------
    >>> instance("p4d.24xlarge").name
    'ml.p4d.24xlarge'
    """
    by_name = _by_name()
    full = f"ml.{name.strip().lower().removeprefix('ml.')}"
    if full in by_name:
        return by_name[full]
    similar = get_close_matches(full, by_name, n=3, cutoff=0.6)
    examples = ", ".join(similar or _sources_file()["examples"])
    hint = f"the most similar are {examples}" if similar else f"supported are, for example, {examples}"
    raise InstanceError(f"Unknown instance type {name!r}: {hint}; Cluster.custom(...) accepts any other hardware.")


@cache
def _by_name() -> dict[str, Instance]:
    return {entry.name: entry for entry in instances()}


@cache
def _sources_file() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.cluster") / "data" / "sources.toml").read_text(encoding="utf-8"))


def _instance(row: dict[str, str]) -> Instance:
    assumed = [column for source in sources() if source.assumed for column in source.columns]
    price = float(row["usd_per_hour"]) if row["usd_per_hour"] else None
    if price is not None and not _YES_NO[row["price_confirmed"]]:
        assumed.append("usd_per_hour")
    figures = {
        field.name: _PARSERS[str(field.type)](row[field.name])
        for field in fields(Instance)
        if field.name in row and field.name != "usd_per_hour"
    }
    return Instance(
        name=row["instance_type"],
        architecture=board_rows()[row["gpu"]]["architecture"],
        fp8_tflops=float(board_rows()[row["gpu"]]["fp8_tflops"]),
        board_watts=float(board_rows()[row["gpu"]]["board_watts"]),
        usd_per_hour=price,
        source="; ".join(f"{source.title} ({source.date})" for source in sources()),
        assumed=tuple(assumed),
        **figures,
    )
