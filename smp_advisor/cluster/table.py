"""The dated table of GPU instances: its reader, and lookup by name."""

from __future__ import annotations

import csv
import re
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

__all__ = [
    "Source",
    "completed_instance",
    "instance",
    "instances",
    "not_covered",
    "sagemaker_names",
    "sources",
    "table_date",
]

_YES_NO = {"yes": True, "no": False}
_PARSERS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _YES_NO.__getitem__}
"""Reader of a column, by the annotation of its field of `Instance`."""


_MOST_CANDIDATES = 6
"""Instances that an error lists for an incomplete name."""


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
    by_name, full = _by_name(), _full(name)
    if full in by_name:
        return by_name[full]
    if sentence := not_covered(name):
        raise InstanceError(sentence)
    similar = get_close_matches(full, by_name, n=3, cutoff=0.6)
    examples = ", ".join(similar or _sources_file()["examples"])
    hint = f"the most similar are {examples}" if similar else f"supported are, for example, {examples}"
    raise InstanceError(f"Unknown instance type {name!r}: {hint}; Cluster.custom(...) accepts any other hardware.")


def completed_instance(name: str) -> Instance:
    """Instance by the beginning of its name, if only one family and size begins like that.

    Raises
    ------
    InstanceError
        Several instances begin like that, or none.

    Examples
    --------
    >>> completed_instance("p4d").name
    'ml.p4d.24xlarge'
    """
    full = _full(name)
    if full in _by_name() or not full.removeprefix("ml."):
        return instance(name)
    # An entire family, p4d and not p4de, with the number of its size: ml.p4d.24xlarg is misspelled.
    beginning = re.compile(rf"{re.escape(full.rstrip('.'))}([-.]|(?<=\.\d)x|(?<=\.\d\d)x)")
    begins = [entry for entry in instances() if beginning.match(entry.name)]
    if len(begins) == 1:
        return begins[0]
    if not begins:
        return instance(name)
    candidates = ", ".join(entry.name for entry in begins[:_MOST_CANDIDATES])
    more = f" and {len(begins) - _MOST_CANDIDATES} more" if len(begins) > _MOST_CANDIDATES else ""
    raise InstanceError(f"The instance type {name!r} is not complete: choose one of {candidates}{more}.")


def not_covered(name: str) -> str:
    """Sentence on an instance type without NVIDIA GPUs; empty for any other.

    Examples
    --------
    >>> not_covered("ml.trn1.32xlarge")
    'AWS Trainium is not covered (ml.trn1.32xlarge): the advisor plans for NVIDIA GPUs, for example ml.p4d.24xlarge.'
    """
    full = _full(name)
    family = full.removeprefix("ml.").split(".")[0]
    machines = next((title for title, families in _sources_file()["not_covered"].items() if family in families), "")
    if not machines:
        return ""
    example = _sources_file()["examples"][0]
    return f"{machines} is not covered ({full}): the advisor plans for NVIDIA GPUs, for example {example}."


def _full(name: str) -> str:
    return f"ml.{name.strip().lower().removeprefix('ml.')}"


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
