"""How much a measured run teaches about another run: correlations by the differences of their conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smp_advisor.core.elementwise import where
from smp_advisor.core.files import data_file
from smp_advisor.costs.uncertainty import plan_kinds
from smp_advisor.costs.world import World, stack_of
from smp_advisor.workload.calibration import FEATURES, Conditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

    Floats = NDArray[np.float64]


_SAME = 0.9999
"""Correlation above which conditions are equal, but for the rounding of their figures."""
_MEMORY = re.compile(r"(?<!\s)\s*+(?<!\d)\d++\s*+GB$")
"""End of a GPU's name: variants with more memory compute alike."""
_NAMES = {
    "gpu": "GPU",
    "instance": "instance",
    "stack": "kind of code",
    "family": "model family",
    "kind": "kind of plan",
    "training": "training with",
}
_CATEGORIES = tuple(_NAMES)


@cache
def rule(of: str) -> SimpleNamespace:
    """Correlations between runs that differ in one condition, which ``data/transfer.toml`` explains."""
    return SimpleNamespace(**data_file("costs", "transfer")[of])


class Correlations(NamedTuple):
    """Correlations of n plans with measured runs, arrays of shape (n or 1, runs)."""

    shared: Floats
    """Of the learned quantities."""
    close: Floats
    """Of the remaining error."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Conditions of n runs or plans: arrays of shape (n,), or (1,) if all are equal; `configuration` (n, features)."""

    texts: dict[str, NDArray[np.str_]]
    parameters: Floats
    nodes: Floats
    configuration: Floats
    """Logarithms, base 2."""

    @classmethod
    def of_runs(cls, conditions: Sequence[Conditions]) -> Targets:
        return cls(
            texts={name: np.array([getattr(c, name) for c in conditions]) for name in _CATEGORIES},
            parameters=np.log2([c.parameters for c in conditions]),
            nodes=np.log2([c.nodes for c in conditions]),
            configuration=np.log2([c.configuration for c in conditions]),
        )

    @property
    def first(self) -> Conditions:
        return Conditions(
            **{name: str(values[0]) for name, values in self.texts.items()},
            parameters=round(2 ** self.parameters[0]),
            nodes=round(2 ** self.nodes[0]),
            configuration=tuple(float(f"{2**value:.9g}") for value in self.configuration[0]),
        )

    def correlations(self, runs: Targets, by: SimpleNamespace) -> Correlations:
        shared = np.ones((1, len(runs.parameters)))
        for name in _CATEGORIES:
            differs = self.texts[name][:, np.newaxis] != runs.texts[name][np.newaxis, :]
            shared = shared * np.where(differs, getattr(by, name), 1.0)
        another_model = np.abs(self.parameters[:, np.newaxis] - runs.parameters[np.newaxis, :]) > 1 - _SAME
        shared = shared * np.where(another_model, by.model, 1.0)
        for mine, theirs, share in (
            (self.parameters, runs.parameters, by.parameters_per_doubling),
            (self.nodes, runs.nodes, by.nodes_per_doubling),
        ):
            shared = shared * share ** np.abs(mine[:, np.newaxis] - theirs[np.newaxis, :])
        distance = np.abs(self.configuration[:, np.newaxis, :] - runs.configuration[np.newaxis, :, :]).sum(axis=2)
        shared = shared * by.shared_per_doubling**distance
        another = np.where(shared < _SAME, by.another, 1.0)
        return Correlations(shared, shared * by.configuration_per_doubling**distance * another)


def targets(model: Model, cluster: Cluster, job: Job, layout: Layout) -> Targets:
    world = World.of(model, cluster, job, layout)
    figures = {
        "tensor_parallel_degree": layout.tensor_parallel_degree,
        "pipeline_parallel_degree": layout.pipeline_parallel_degree,
        "context_parallel_degree": layout.context_parallel_degree,
        "sharding_level": 1 + layout.shard_level,
        "sharding_groups": where(layout.shard_level > 0, world.reduction_degree / world.shards, 1),
        "microbatch_samples": world.microbatch_samples,
        # Without a pipeline, accumulated microbatches repeat the same work.
        "microbatches": where(layout.pipeline_parallel_degree > 1, layout.microbatches, 1),
        "sequence_length": world.sequence_length,
        "checkpointed": 1 + (layout.checkpoint_layers != 0),
        "offloaded": 1 + (layout.offload_activations | layout.offload_state),
    }
    same = {
        "gpu": _MEMORY.sub("", cluster.instance.gpu),
        "instance": cluster.instance.name,
        "stack": stack_of(job, layout).name,
        "family": model.family,
        "training": _training(job),
    }
    columns = np.broadcast_arrays(*(np.atleast_1d(figures[name]) for name in FEATURES))
    return Targets(
        texts={
            **{name: np.array([text]) for name, text in same.items()},
            "kind": np.atleast_1d(plan_kinds(layout, cluster)),
        },
        parameters=np.log2([model.parameter_count]),
        nodes=np.log2([cluster.nodes]),
        configuration=np.log2(np.stack(columns, axis=1)),
    )


_SETTINGS = ("optimizer_step", "paged_optimizer", "state_precision", "loss", "unsharded_accumulation")


def _training(job: Job) -> str:
    """Settings of a job that change its work."""
    defaults = job.defaulted()
    words = [job.precision, *(["fp8"] if job.fp8 else []), job.optimizer, f"{job.attention} attention"]
    words += [f"{name}={getattr(job, name)}" for name in _SETTINGS if name not in defaults]
    if job.adapter is not None:
        words.append(f"adapter of rank {job.adapter.rank} over {job.adapter.base_bits} bits")
    return ", ".join(words)


def differences(measured: Conditions, target: Conditions) -> tuple[str, ...]:
    texts = [
        f"{_NAMES[name]} {getattr(target, name)} instead of {getattr(measured, name)}"
        for name in _CATEGORIES
        if getattr(measured, name) != getattr(target, name) and name != "instance"
    ]
    if measured.instance != target.instance and measured.gpu == target.gpu:
        texts.append(f"{target.instance} instead of {measured.instance}")
    ratio = target.parameters / measured.parameters
    if not 0.99 < ratio < 1.01:
        texts.append(f"{ratio:.3g} times the parameters")
    if target.nodes != measured.nodes:
        texts.append(f"{target.nodes} nodes instead of {measured.nodes}")
    for name, mine, theirs in zip(FEATURES, target.configuration, measured.configuration, strict=True):
        if not 0.999 < mine / theirs < 1.001:
            texts.append(_change(name, mine, theirs))
    return tuple(texts)


def _change(name: str, mine: float, theirs: float) -> str:
    if name in ("checkpointed", "offloaded"):
        return f"{'activation checkpointing' if name == 'checkpointed' else 'offloading'} {'on' if mine > 1 else 'off'}"
    return f"{name.replace('_', ' ')} {mine:g} instead of {theirs:g}"
