"""Profile of a model that cannot be traced, extrapolated from real steps of small copies."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.result import BlockProfile, Profile, Provenance
from smp_advisor.profiling.scaled.build import removable
from smp_advisor.profiling.scaled.extrapolated import Measuring, polynomials_of
from smp_advisor.profiling.step import optimizer_rise_bytes
from smp_advisor.profiling.structure import block_counts, dimensions, stacks
from smp_advisor.profiling.trace import counted_profile, versions
from smp_advisor.profiling.traced_steps import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.traced_steps import Settings

    Points = Mapping[tuple[int, int], StepMeasure]

__all__ = ["profile_by_copies"]

_MOST_WORK = 1_200_000_000_000
"""Limit of `StepMeasure.work` of the steps of all copies: one to two minutes of one core."""


def profile_by_copies(profiled: ProfiledModel, settings: Settings) -> Profile:
    """Profile a model by real steps of narrower and shallower copies.

    A live module is truncated in place during a build, so call this in a child process only.

    Raises
    ------
    ProfileError
        The model's dimensions cannot be reduced consistently, or its copies do not determine the full size.
    """
    module = profiled.module
    measuring = Measuring(
        precision=settings.precision,
        dtype=compute_dtype(settings.training_precision),
        attention=settings.attention,
        sequence=settings.sequence,
        inputs=settings.inputs,
        most_work=_MOST_WORK,
    )
    extrapolated = polynomials_of(profiled, removable(module, settings.inputs) if module else (), measuring)
    if module is None:
        with torch.device("meta"), without_initialization():
            module = profiled.build()
    figures, per_block = extrapolated.figures, extrapolated.of_a_block
    profile = _assembled(profiled, settings, module, figures, per_block, extrapolated.basis)
    return replace(profile, uncounted=extrapolated.uncounted)


def _assembled(
    profiled: ProfiledModel,
    settings: Settings,
    model: nn.Module,
    figures: Mapping[str, Polynomial],
    per_layer: Mapping[str, Polynomial],
    note: str,
) -> Profile:
    example = example_inputs(model, settings.inputs, config=profiled.config)
    size = dimensions(model)
    stack = max(stacks(model), key=lambda candidate: candidate.parameters, default=None)
    element = settings.training_precision.element_bytes
    blocks: tuple[BlockProfile, ...] = ()
    if stack is not None:
        module = model.get_submodule(stack.paths[-1])
        input_bytes = Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(element * size.hidden))))
        block = BlockProfile(
            name=stack.paths[-1],
            **block_counts(module),
            hidden=size.hidden,
            saved_bytes=per_layer["saved bytes"],
            input_bytes=input_bytes,
            forward_flops=per_layer["forward FLOPs"],
            backward_flops=per_layer["backward FLOPs"],
        )
        blocks = (block,) * len(stack.paths)
    inputs = tree_leaves(example.make(1, 1))
    counted = counted_profile(profiled, settings, model)
    return replace(
        counted,
        vocab=size.vocab,
        outputs=size.vocab,
        inputs=example.description,
        blocks=blocks,
        saved_bytes=figures["saved bytes"],
        forward_flops=figures["forward FLOPs"],
        backward_flops=figures["backward FLOPs"],
        input_bytes=Polynomial(((Fraction(0),) * 2, (Fraction(0), Fraction(8 * len(inputs))))),
        gradient_bytes=settings.training_precision.gradient_bytes * counted.trainable_parameter_count,
        optimizer_rise_bytes=optimizer_rise_bytes(model, settings.optimizer, settings.training_precision),
        largest_parameter=max((p.numel() for p in model.parameters()), default=0),
        provenance=(
            *counted.provenance,
            Provenance(figure="saved bytes", method="real steps", confidence="high", note=note),
            Provenance(figure="FLOPs", method="real steps", confidence="high", note=note),
            Provenance(
                figure="peak memory",
                method="formula",
                confidence="low",
                note="sum of state and activations, excluding temporaries of the loss",
            ),
            Provenance(figure="inputs", method="counted", confidence="high", note=example.description),
        ),
        versions=versions(),
    )
