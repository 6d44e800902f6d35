"""Fallback between profiling methods, best first; each figure is labeled with the method that produced it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from torch import Tensor

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.extrapolation import TOLERANCE
from smp_advisor.profiling.failures import EndlessLoopError, is_about_inputs, is_about_types, is_about_values, reason
from smp_advisor.profiling.inferred_inputs import line_to_write
from smp_advisor.profiling.inputs import example_inputs
from smp_advisor.profiling.parts import Provenance
from smp_advisor.profiling.precision import higher_precision, training_precision
from smp_advisor.profiling.recurrent_kernels import has_recurrent_layers
from smp_advisor.profiling.trace import assumed_values, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.profiling.parts import Confidence, Method
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.result import Profile
    from smp_advisor.profiling.trace import _Tracer
    from smp_advisor.profiling.traced_steps import Settings


def profile_with_fallbacks(profiled: ProfiledModel, settings: Settings, *, failed: int = 0) -> Profile:
    """Profile by the first method that works, without the first `failed` ones, which fail in any precision."""
    attempts: list[tuple[str, BaseException]] = []
    methods: tuple[tuple[str, Callable[[ProfiledModel, Settings], Profile]], ...] = (
        ("trace", _traced),
        ("trace with assumed values", _assuming),
        ("real steps", _own_steps),
    )
    for place, (name, method) in enumerate(methods[failed:], failed):
        try:
            profile = method(profiled, settings)
        except _NoBatchError:
            return profile_with_fallbacks(profiled, dataclasses.replace(settings, resized=False))
        except ProfileError as error:
            if name == "trace" and not error.kind:  # an error in the user's input: no other method would succeed
                raise
            attempts.append((name, error))
            if name == "trace" and isinstance(error, EndlessLoopError):  # with any values
                break
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            attempts.append((name, error))
            if is_about_types(error):
                with contextlib.suppress(ProfileError):
                    return _in_higher_precision(profiled, settings, error, failed=place)
        else:
            failures = tuple(f"Method {name!r} failed: {reason(error)}." for name, error in attempts)
            return dataclasses.replace(profile, warnings=(*profile.warnings, *failures))
    endless = any(isinstance(error, EndlessLoopError) for _, error in attempts)
    if _inferred_batch(profiled, settings) and not endless:
        return profile_with_fallbacks(profiled, dataclasses.replace(settings, resized=False))
    raise ProfileError(_failure(profiled, attempts, supplied=settings.inputs is not None), kind="error")


def _failure(profiled: ProfiledModel, attempts: list[tuple[str, BaseException]], *, supplied: bool) -> str:
    """Return the first obstacle, that of real steps, and what to do about it."""
    first = attempts[0][1]
    module = profiled.module
    if module is not None and is_about_inputs(first):
        if supplied:
            fault, remedy = "the inputs that you passed", "If model(*inputs) fails, too, the module is at fault; else "
        else:
            fault, remedy = "the guessed inputs", ""
        guess: dict[str, object] = {}
        with contextlib.suppress(ProfileError):
            guess = {} if supplied else dict(example_inputs(module).make(1, 8))
        ids = {name for name, part in guess.items() if isinstance(part, Tensor) and not part.is_floating_point()}
        return f"{profiled.name}.forward fails with {fault}: {reason(first)}. {remedy}{line_to_write(module, ids=ids)}."
    for _, error in attempts:
        if isinstance(error, EndlessLoopError):
            return f"{profiled.name} cannot be profiled: {reason(error)}; or pass Model.from_shape to advise."
    last = f" Real steps failed too: {reason(attempts[-1][1])}." if attempts[-1][0].startswith("real steps") else ""
    if isinstance(first, MemoryError):
        hint = "Raise memory_bytes="
    elif isinstance(first, ProfileError) or is_about_values(first):
        hint = f"{line_to_write(module)}" if module is not None else "Pass the module itself"
    else:
        hint = "The module is at fault, with any inputs: correct this error"
    return (
        f"{profiled.name} cannot be profiled: {reason(first)}.{last} {hint}; or pass a parameter count or "
        "Model.from_shape to advise."
    )


def _in_higher_precision(profiled: ProfiledModel, settings: Settings, error: BaseException, *, failed: int) -> Profile:
    """Profile a model that fails in 16 bits with autocast, or else in fp32."""
    higher = higher_precision(settings.precision)
    if not higher:
        raise ProfileError(reason(error), kind="error")
    profile = profile_with_fallbacks(profiled, dataclasses.replace(settings, precision=higher), failed=failed)
    if profile.precision != higher:  # the warning of the precision that worked is already there
        return profile
    failing, label = settings.training_precision.title, training_precision(higher).label
    warning = f"The forward pass fails in {failing}: {reason(error)}. The figures are those of {label}."
    return dataclasses.replace(profile, warnings=(*profile.warnings, warning))


class _NoBatchError(Exception):
    """Two of the supplied samples do not make a batch."""


def _traced(profiled: ProfiledModel, settings: Settings) -> Profile:
    samples = _inferred_batch(profiled, settings)
    try:
        traced = trace(profiled, settings)
    except Exception as error:
        if samples and is_about_inputs(error) and not is_about_types(error):  # other precisions take the batch
            raise _NoBatchError from error
        raise
    profile = _labeled(traced, "traced", "exact")
    single, double = (profile.forward_flops(batch, profile.sequence) for batch in (1, 2))
    costs = (profile.saved_bytes, profile.forward_flops)
    is_compared = any(any(row) for cost in costs for row in cost.coefficients[2:])
    if samples and single == double:
        raise _NoBatchError
    if samples > 1 and (traced.is_looped or (is_compared and "tensors" not in profile.inputs)):
        raise _NoBatchError  # rows that are looped over or compared are rather the tokens of one sample
    return profile


def _inferred_batch(profiled: ProfiledModel, settings: Settings) -> int:
    """Return the samples of supplied tensors that are resized; 0 without."""
    if profiled.module is None or settings.inputs is None or not settings.resized:
        return 0
    return example_inputs(profiled.module, settings.inputs).inferred_batch


def _assuming(profiled: ProfiledModel, settings: Settings) -> Profile:
    """Trace with assumed values of data-dependent conditions.

    If all of them are checks, or if the others make no difference, the trace is reliable. Masks that make a difference
    by selecting everything or nothing are left to real steps.
    """
    assumptions, differs = assumed_values(profiled, settings)
    traced = trace(profiled, dataclasses.replace(settings, assumptions=assumptions))
    branches, checks = assumptions.branches, assumptions.checks
    if not branches:
        note = f"{len(checks)} {'checks' if len(checks) > 1 else 'check'} of tensors' values assumed to pass"
        return _labeled(traced, "traced", "high", note)
    are_conditions = all(text.endswith("torch.bool") for text in branches)  # numbers are always 1
    if are_conditions and not differs:
        note = f"data-dependent conditions, which make no difference: {branches[0]}"
        return _labeled(traced, "traced", "high", note)
    if any("nonzero" in text for text in branches):
        raise ProfileError("its work depends on a tensor's values", kind="error")
    note = f"the larger result of both values of data-dependent conditions: {branches[0]}"
    return _labeled(traced, "traced", "low", note)


def _own_steps(profiled: ProfiledModel, settings: Settings) -> Profile:
    """Real steps of the model itself, at a few short sequences; its figures may depend on the inputs' values."""
    real = dataclasses.replace(settings, build="real", assumptions=None)
    traced = trace(profiled, real)
    note = "steps of the model on short random inputs, excluding work in NumPy"
    confirmed = all(abs(check.ratio - 1) <= TOLERANCE for check in traced.profile.agreements)
    return _labeled(traced, "real steps", "high" if confirmed else "low", note)


def _labeled(traced: _Tracer, method: Method, confidence: Confidence, note: str = "") -> Profile:
    profile = traced.profile
    if confidence == "exact" and profile.warnings and any("polynomial" in text for text in profile.warnings):
        confidence, note = "high", "exact at the traced sizes, estimated in between"
    if confidence == "exact" and traced.mode.has_drawn:
        confidence, note = "high", "random scalars that the model reads were 0.5: layers with a small drop rate run"
    if confidence == "exact" and profile.attention == "fused":
        note = "kernels that a recent GPU would select"
    flops_confidence, flops_note = confidence, note
    if profile.uncounted:
        flops_confidence, flops_note = "low", f"a lower bound: no FLOP formula for {', '.join(profile.uncounted[:5])}"
    if confidence == "exact" and has_recurrent_layers(traced.model):
        confidence, note = "high", "assumes that a recurrent kernel saves its gates and cells"
    inputs = Provenance(
        figure="inputs",
        method="counted",
        confidence="exact" if profile.inputs.endswith("(supplied)") else "high",
        note=profile.inputs,
    )
    peak_confidence, peak_note = confidence, note
    if training_precision(profile.precision).gathers:
        peak_confidence = "high" if confidence == "exact" else confidence
        peak_note = "; ".join(filter(None, [note, "composed: fp32 gradients, and 16-bit parameters of two blocks"]))
    return dataclasses.replace(
        profile,
        provenance=(
            *profile.provenance,
            Provenance(figure="saved bytes", method=method, confidence=confidence, note=note),
            Provenance(figure="FLOPs", method=method, confidence=flops_confidence, note=flops_note),
            Provenance(
                figure="peak memory",
                method=method if profile.timeline else "formula",
                confidence=peak_confidence if profile.timeline else "low",
                note=peak_note if profile.timeline else "no timeline could be traced: sum of state and activations",
            ),
            inputs,
        ),
    )
