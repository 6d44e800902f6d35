"""The requests of the comparison, drawn from a data file: the same ones in every run, on every machine."""

from __future__ import annotations

import hashlib
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import smp_advisor as smpa
from smp_advisor.workload import Adapter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["advice_requests", "cell_requests", "digest", "make_cluster", "make_job", "make_model", "plan_requests"]

Request = dict[str, Any]

_DATA = Path(__file__).parent / "data"


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((_DATA / "requests.toml").read_text("utf-8"))


def digest(value: object) -> str:
    """Twelve hexadecimal digits that differ where values differ."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _pick(options: Sequence[Any], *key: object) -> Any:
    """One of the options, always the same for a key. Random generators may change between versions of Python."""
    return options[int(digest([str(part) for part in key]), 16) % len(options)]


def advice_requests() -> dict[str, Request]:
    """The requests for advice: keywords of `smpa.advise`, with the names of model and cluster."""
    requests: dict[str, Request] = {}
    for library, table in _tables()["advice"].items():
        for number in range(table["requests"]):
            name = f"{library} {number:03d}"
            settings = _pick(table["jobs"], name, "job") | _pick(table["settings"], name, "settings")
            requests[name] = {
                "model": _pick(table["models"], name, "model"),
                "cluster": _pick(table["clusters"], name, "cluster"),
                "settings": {"library": library} | settings,
            }
    for number, request in enumerate(_tables()["advice_also"]):
        requests[f"also {number:03d}"] = request
    return requests


def cell_requests() -> dict[str, Request]:
    """The requests for cells: of some of the requests for advice, with options of the job."""
    table = _tables()["cells"]
    requests = list(advice_requests().items())[:: table["every"]]
    return {name: request | {"options": _pick(table["options"], name, "options")} for name, request in requests}


def plan_requests() -> dict[str, Request]:
    """The plans to estimate: a job's settings and a plan's, with the names of model and cluster."""
    requests: dict[str, Request] = {}
    tables = _tables()["plan"]
    for library, table in tables.items():
        if library == "jobs":
            continue
        for number in range(table["requests"]):
            name = f"{library} {number:03d}"
            job = {**_pick(tables["jobs"], name, "job"), "precision": _pick(table["precisions"], name, "precision")}
            requests[name] = {
                "model": _pick(table["models"], name, "model"),
                "cluster": _pick(table["clusters"], name, "cluster"),
                "job": job,
                "plan": {"library": library} | dict(_plan_settings(name, number, table, job["precision"])),
            }
    return requests


def _plan_settings(name: str, number: int, table: dict[str, Any], precision: str) -> Iterator[tuple[str, Any]]:
    """Fields of one plan. Every third plan sets no field beyond the core, every third one, every third two."""
    core = {field: _pick(values, name, field) for field, values in table["core"].items()}
    samples = _pick(table["samples_per_microbatch"], name, "samples")
    yield from core.items()
    yield "batch_size", core.get("microbatches", 1) * samples
    if core.get("precision") is not None:
        yield "precision", precision
    elif precision != "fp32":
        yield precision, True
        if precision == "bf16":  # the library takes bf16 only with sharded data parallelism
            yield "sharded_data_parallel_degree", 2
            yield "pipeline_parallel_degree", 1
    fields = list(table["fields"])
    for step in range(number % 3):
        field = fields[(number // 3 + step * (1 + number // (3 * len(fields)))) % len(fields)]
        yield field, _pick(table["fields"][field], name, field, "changed")


def make_model(name: str) -> tuple[Any, dict[str, Any]]:
    """A model as `smpa.advise` takes it, with keywords of its shape."""
    entry = dict(_tables()["models"][name])
    if "config" in entry:
        return entry["config"], {}
    if "shape" in entry:
        return smpa.Model.from_shape(**entry["shape"]), {}
    return entry.pop("count"), entry


@cache
def estimated_model(name: str) -> smpa.Model:
    """The same model, built."""
    source, shape = make_model(name)
    if isinstance(source, smpa.Model):
        return source
    return smpa.Model.from_config(source) if isinstance(source, dict) else smpa.Model.from_parameters(source, **shape)


@cache
def make_cluster(name: str) -> smpa.Cluster:
    """A cluster of an instance type, or of custom hardware."""
    entry = _tables()["clusters"][name]
    return smpa.Cluster(entry["instance"], entry["nodes"]) if "instance" in entry else smpa.Cluster.custom(**entry)


def make_job(settings: dict[str, Any]) -> dict[str, Any]:
    """Keywords of a job, with the adapter built."""
    if "adapter" not in settings:
        return settings
    return {**settings, "adapter": Adapter(**settings["adapter"])}
