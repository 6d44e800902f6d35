"""Building the scaled copy and its inputs; runs in the child process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.profiling.failures import Assumptions, checks_of, is_about_values
from smp_advisor.profiling.fake import fake_copy, fake_inputs, materialized
from smp_advisor.profiling.gpu_kernels import gpu_kernels, without_initialization
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.known_values import KnownValuesMode
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.scaled.reduction import narrow_copy
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.step import call_model, measure_step
from smp_advisor.profiling.structure import (
    callable_parts,
    parameter_total,
    remaining_children,
    stacks,
    truncated,
    truncated_paths,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.structure import Stack


_BYTES_PER_PARAMETER = 20
"""Parameter, gradient and Adam state; upper bound over all precisions."""
_SHARE_OF_MEMORY = 0.5
"""The remaining memory is for activations, logits and temporaries."""
_LEAST_BLOCKS = 2
_MOST_STACKS = 4
"""Stacks that are tried one by one, if not all of them can be cut at once."""
_MOST_PARAMETERS = 240_000_000
"""Parameters of a copy whose few steps of short sequences take one core two minutes."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A scaled copy to train on this machine."""

    model: nn.Module
    how: str
    reductions: tuple[Reduction, ...]
    blocks: tuple[str, ...]
    """Paths of the repeated blocks."""


def make_copy(
    profiled: ProfiledModel, stack: ExitStack, *, memory_bytes: int, dtype: torch.dtype, inputs: Any = None
) -> Copy:
    """Make the smallest copy with the same architecture: with fewer blocks, and narrower if these exceed the memory.

    A live module is truncated in place until `stack` is closed, so call this in a child process only. It keeps at least
    two repeats of each block. A configuration is built without values, and gets random ones.
    """
    model, source = profiled.module, "its own weights"
    if model is None:
        source = "random weights"
        with torch.device("meta"), without_initialization():
            model = profiled.build(attention="eager")
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        raise ProfileError(f"{profiled.name} is on a GPU, which the child process cannot access: move it with .cpu().")
    rows = stacks(model)
    repeats = math.ceil(_LEAST_BLOCKS / min((row.period for row in rows), default=1))
    repeated = _removable(model, rows, inputs, repeats)
    depths = {row.label: (len(row.names), len(remaining_children(row, repeats))) for row in repeated}
    reductions = [Reduction(label, *sizes) for label, sizes in depths.items() if sizes[0] != sizes[1]]
    stack.enter_context(truncated(model, repeated, repeats))
    count = parameter_total([model])
    paths = [path for row in rows for path in (truncated_paths(row, repeats) if row in repeated else row.paths)]
    copy = Copy(
        model=model,
        how=f"{'truncated to a few blocks at full width' if reductions else 'full model'}, with {source}",
        reductions=tuple(reductions),
        blocks=tuple(part for path in paths for part in callable_parts(model, path)),
    )
    limit = min(int(memory_bytes * _SHARE_OF_MEMORY / _BYTES_PER_PARAMETER), _MOST_PARAMETERS)
    if count > limit:
        narrowed = narrower(copy, limit, inputs)
        if narrowed is None:
            reason = "available memory (memory_bytes=)" if limit < _MOST_PARAMETERS else "steps of a copy"
            raise ProfileError(
                f"A few blocks of {profiled.name} at full width have {count / 1e6:,.0f} million parameters, over the"
                f" limit of {limit / 1e6:,.0f} million for the {reason}. Its dimensions could not be reduced"
                " consistently: raise this limit, or pass a narrower module."
            )
        return dataclasses.replace(narrowed, model=narrowed.model.to(dtype))
    materialized(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ProfileError(f"{profiled.name} has lazy layers: call it once on example inputs before profiling.")
    return dataclasses.replace(copy, model=model.to(dtype))


def narrower(copy: Copy, most_parameters: int, inputs: Any) -> Copy | None:
    """Return the copy with renamed dimensions; None if no consistent one is found."""
    narrowed = narrow_copy(copy.model, most_parameters, lambda model: _accepts(model, inputs))
    if narrowed is None:
        return None
    full = {(part.name, part.copy): part.full for part in copy.reductions}  # where it is narrower for the second time
    merged = {part.name: part for part in copy.reductions}
    merged |= {
        part.name: Reduction(part.name, full.get((part.name, part.full), part.full), part.copy) for part in narrowed[1]
    }
    how = "a few blocks, narrowed by renaming dimensions"
    return dataclasses.replace(copy, model=narrowed[0], reductions=tuple(merged.values()), how=how)


def _removable(model: nn.Module, repeated: list[Stack], inputs: Any, repeats: int) -> list[Stack]:
    """Stacks whose blocks can be removed: none if the forward pass then fails, as with a fixed number of layers."""
    if all(row.repeats <= repeats for row in repeated):
        return repeated
    example = example_inputs(model, inputs)

    def works(rows: Sequence[Stack]) -> bool:
        with truncated(model, rows, repeats):
            idle = idle_layers(model, example)
        # A loop over several lists ends with the shortest one, and leaves layers of the others idle.
        return idle is not None and (not idle or idle <= (idle_layers(model, example) or frozenset()))

    if works(repeated):
        return repeated
    selected: list[Stack] = []
    for row in sorted(repeated, key=lambda row: -row.parameters)[:_MOST_STACKS]:
        selected += [row] if row.repeats > repeats and works([*selected, row]) else []
    return selected


_TRIAL_BATCH = 2
_TRIAL_TOKENS = 48


def _accepts(model: nn.Module, inputs: Any) -> bool:
    """Return whether the model's forward pass accepts the inputs, or inferred ones; reading values decides nothing."""
    try:
        return idle_layers(model, example_inputs(model, inputs)) is not None
    except (AdvisorError, RuntimeError, ValueError, TypeError, IndexError):
        return False


def idle_layers(model: nn.Module, example: ExampleInputs) -> frozenset[str] | None:
    """Return the layers with parameters that a forward pass does not call; None if it fails."""
    mode = KnownValuesMode()
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    called: set[str] = set()
    tokens = max(1, min(_TRIAL_TOKENS, example.longest * 3 // 4 or _TRIAL_TOKENS))
    try:
        with quiet(), torch.no_grad(), gpu_kernels("fused", lambda *_: None):
            copy = fake_copy(model, mode, None).train()
            layers = {name: part for name, part in copy.named_modules() if part._parameters and not part._modules}
            for name, part in layers.items():
                part.register_forward_pre_hook(lambda *_, name=name: called.add(name))
            inputs = fake_inputs(example.make(_TRIAL_BATCH, tokens), mode, dtype)
            with mode:
                call_model(copy, inputs)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return frozenset() if is_about_values(error) else None
    return frozenset(layers) - called


def trace_copy(
    model: nn.Module, inputs: Any, dtype: torch.dtype, options: Mapping[str, Any]
) -> tuple[StepMeasure | None, str]:
    """Trace a step of the copy; also the error of the trace, after which assumed values still count the work."""

    def step(assumptions: Assumptions | None, *, backward: bool = True) -> StepMeasure:
        mode = KnownValuesMode()
        mode.assumptions = assumptions
        fake, sample = fake_copy(model, mode, None), fake_inputs(inputs, mode, dtype)
        with mode:
            return measure_step(fake, sample, **options, assumptions=assumptions, backward=backward)

    try:
        return step(None), ""
    except Exception as error:  # noqa: BLE001 - a model may raise anything under a trace
        failure = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    with contextlib.suppress(Exception):
        checks = checks_of(lambda assumptions: step(assumptions, backward=False))
        return step(Assumptions(value=True, checks=checks)), failure
    return None, failure
