"""Verdicts of a profile: findings of its stages, as warnings of the advice built on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.profiling.copy_comparison import comparisons
from smp_advisor.profiling.profiled_model import has_formulas_of_head
from smp_advisor.uninterrupted import uninterrupted
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from smp_advisor.profiling.result import Profile

__all__ = ["TOLERANCE", "verdicts"]

TOLERANCE = 0.05
"""Relative difference between the profile and the formulas of its configuration, or real steps of copies, above which
there is a verdict."""


def verdicts(profile: Profile) -> tuple[str, ...]:
    """One sentence for each finding; empty if no stage found anything.

    These are a stage that failed, a copy that does not train, a local run that fails, a rehearsal that disagrees with
    one process, FLOPs of low confidence, and figures that differ by more than 5 % from the formulas of the
    configuration, or from real steps of copies at the full size. A stage that was not run has no verdict.
    """
    return (
        *profile.failures,
        *_of_stages(profile),
        *_of_copies(profile),
        *_of_confidence(profile),
        *_of_formulas(profile),
    )


def _of_copies(profile: Profile) -> list[str]:
    """Figures of the trace that differ from real steps of copies at the full size."""
    far = [
        f"{row.figure} {(row.ratio - 1) * 100:+.0f} %" for row in comparisons(profile) if abs(row.ratio - 1) > TOLERANCE
    ]
    if not far:
        return []
    verdict = (
        f"The trace of {profile.name} differs from real steps of copies, extrapolated to the full size:"
        f" {', '.join(far)}. Either its cost does not grow with width and depth as in the copies, or a kernel of this"
        " machine differs from that of a GPU."
    )
    return [verdict]


def _of_stages(profile: Profile) -> list[str]:
    titles = ((profile.scaled, "Scaled copy"), (profile.rehearsal, "Rehearsal"), (profile.local, "Local run"))
    return [f"{title}: {stage.summary}" for stage, title in titles if stage is not None and not stage.ok]


def _of_confidence(profile: Profile) -> list[str]:
    """Low confidence of FLOPs. That of saved bytes widens the estimate of memory."""
    notes = [entry.note for entry in profile.provenance if entry.figure == "FLOPs" and entry.confidence == "low"]
    return [
        f"The FLOPs of {profile.name}, times and cost have low confidence{f': {note}' if note else ''}."
        for note in notes
    ]


def _of_formulas(profile: Profile) -> list[str]:
    """Figures that differ from the formulas of the configuration's family."""
    config = json.loads(profile.config_json)
    if not config.get("model_type") or not profile.is_traced or not has_formulas_of_head(profile.name):
        return []
    try:
        model = Model.from_config(config)
        pairs = _pairs(profile, model)
    except AdvisorError:
        return []  # the family has no formulas, or they do not cover the job
    far = [
        f"{figure} {(measured / formula - 1) * 100:+.0f} %"
        for figure, measured, formula in pairs
        if formula and abs(measured / formula - 1) > TOLERANCE
    ]
    if not far:
        return []
    verdict = (
        f"The profile of {profile.name} differs from the formulas of its configuration ({model.family}):"
        f" {', '.join(far)}. Either the module is not the configuration's, or PyTorch or transformers runs other"
        " kernels on this machine than the formulas assume."
    )
    return [verdict]


def _pairs(profile: Profile, model: Model) -> list[tuple[str, float, float]]:
    """(figure, by the profile, by the formulas) for one sample of the profile's sequence."""
    from smp_advisor.costs.compute import model_flops_per_sample

    tokens = model.sequence_length(profile.sequence)
    pairs: list[tuple[str, float, float]] = [
        ("parameters", profile.parameter_count, model.parameter_count),
        ("forward FLOPs", profile.forward_flops(1, profile.sequence), model_flops_per_sample(model, tokens) / 3),
    ]
    # Under autocast, copies of weights that the trace counts as saved are no activations to the formulas.
    if profile.precision != "amp" and profile.trainable_parameter_count == profile.parameter_count:
        measured = sum(block.saved_bytes(1, profile.sequence) for block in profile.blocks)
        pairs.append(("saved bytes of the blocks", measured, _saved_bytes(profile, model)))
    return pairs


def _saved_bytes(profile: Profile, model: Model) -> float:
    """Saved bytes of all blocks by the formulas, for one sample on one GPU without parallelism."""
    with uninterrupted():
        import numpy as np

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.activations import block_saved_bytes
    from smp_advisor.costs.world import World
    from smp_advisor.libraries.layouts import layout_of
    from smp_advisor.libraries.plan import Plan

    precision = "bf16" if profile.precision == "mixed" else profile.precision
    settings: dict[str, Any] = {"precision": precision, "attention": profile.attention}
    job = Job(sequence_length=profile.sequence, **settings)
    layout = layout_of([Plan(batch_size=1, microbatches=1)], job)
    world = World.of(model, Cluster("ml.p4d.24xlarge", 1), job, layout)
    return float(
        sum(np.sum(group.count * block_saved_bytes(group.block, layout, world, job)) for group in model.groups)
    )
