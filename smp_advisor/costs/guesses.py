"""Guesses behind an estimate: settings that the job leaves open, with the step time that another value gives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import sentence
from smp_advisor.costs.evaluate import as_planned, trained
from smp_advisor.costs.observation import predicted_step
from smp_advisor.costs.wording import seconds as duration
from smp_advisor.costs.world import stack_of
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import get_library
from smp_advisor.workload.stack import AUTO, stack_on, stacks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_LEAST_EFFECT = 0.10
_MOST = 3
_DECODER_SHARE = 114 / 512
"""Length of T5's targets relative to its inputs in pre-training (span corruption of 15 %, spans of 3 tokens)."""


def guesses(model: Model, cluster: Cluster, job: Job, plan: Plan) -> tuple[str, ...]:
    """Sentences on settings that the job leaves open and that move the step time by more than 10 %, largest first.

    There are at most three. Of each setting, the value with the largest effect counts. A measured step of the code has
    its own settings in it.
    """
    if job.calibration is not None and any(run.step_seconds is not None for run in job.calibration.runs):
        return ()
    now = _seconds(model, cluster, job, plan)
    largest: dict[str, tuple[float, str]] = {}
    for what, phrase, changes in _others(model, cluster, job, plan):
        changed = _seconds(model, cluster, replace(job, **changes), plan)
        effect = abs(math.log(changed / now))
        if effect > max(_LEAST_EFFECT, largest.get(what, (0.0, ""))[0]):
            setting = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            parts = {"what": what, "phrase": phrase, "setting": setting}
            largest[what] = effect, sentence("costs", "guess", other=duration(changed), now=duration(now), **parts)
    by_effect = sorted(largest.values(), key=lambda entry: -entry[0])
    return tuple(text for _, text in by_effect[:_MOST])


def assumed(model: Model, cluster: Cluster, job: Job, value: Estimate) -> tuple[str, ...]:
    """Return the assumptions of a plan's figures, a sentence each: guesses with the figure of another choice first."""
    return (*guesses(model, cluster, as_planned(job, value.plan, model), value.plan), *value.assumptions)


def _seconds(model: Model, cluster: Cluster, job: Job, plan: Plan) -> float:
    model, layout = trained(model, job), layout_of_plan(plan, job, cluster)
    return float(sum(predicted_step(model, cluster, job, layout).seconds.values()))


_KERNELS = {
    "flash-2": "with FlashAttention-2",
    "flash-3": "with FlashAttention-3",
    "cudnn": "with cuDNN's attention",
    "memory-efficient": "with PyTorch's memory-efficient attention",
}
_HOPPER = "9.0"


def _others(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(what is guessed, phrase of another value, that value as fields of the job)."""
    layout = layout_of_plan(plan, job, cluster)
    code = stack_of(job, layout)
    if job.attention != "eager" and job.attention_kernel == "auto" and not code.implies:
        for kernel, phrase in _KERNELS.items():
            if kernel != "flash-3" or cluster.instance.architecture == _HOPPER:
                yield "kernel of attention", phrase, {"attention_kernel": kernel}
    if job.stack == AUTO and get_library(plan.library).script == "torch":  # of PyTorch 2
        for name in ("torch-compile", "liger"):
            if stack_on(name, model.family) != name:
                continue
            phrase = f"if your code has {stacks()[name].title}"
            yield "kind of training code", phrase, {"stack": name}
    if model.has_decoder and job.decoder_length is None:
        length = max(1, round(_DECODER_SHARE * job.sequence_length))
        yield "decoder's length", f"with {length:,} tokens", {"decoder_length": length}
    if job.expert_dispatch == "auto" and plan.expert_parallel_degree > 1 and cluster.nodes > 1:
        phrase = "with one copy of a token per node, next to compute"
        yield "dispatch of tokens to experts", phrase, {"expert_dispatch": "per-node"}
    if job.autocast == "auto" and job.precision != "fp32":
        phrase = "without autocast" if layout.state_bytes.cast_bytes else "under autocast"
        yield "form of mixed precision", phrase, {"autocast": "off" if layout.state_bytes.cast_bytes else "on"}
