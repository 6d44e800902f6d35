"""From the best method down to the one that works, each figure labelled with the method that gave it."""

from __future__ import annotations

import dataclasses
import traceback
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.measured import Provenance
from smp_advisor.profiling.trace import trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.profiling.measured import Confidence, Method, Profile
    from smp_advisor.profiling.subject import Subject
    from smp_advisor.profiling.trace import Settings, Traced

__all__ = ["climb_down", "reason"]


def climb_down(subject: Subject, settings: Settings) -> Profile:
    """Profile by the first method that works: trace, trace built otherwise, guided trace, real steps.

    Raises
    ------
    ProfileError
        None does: one sentence that names the first obstacle and what the user can supply.
    """
    attempts: list[tuple[str, BaseException]] = []
    rungs: list[tuple[str, Callable[[Subject, Settings], Profile]]] = [("trace", _traced)]
    if subject.module is None:
        rungs.append(("trace of a model built with fake tensors", _traced_otherwise))
    rungs.append(("guided trace", _guided))
    if subject.model_class is not None:
        rungs.append(("real steps", _real_steps))
    for name, rung in rungs:
        try:
            return _with_attempts(rung(subject, settings), attempts)
        except ProfileError as error:
            if name == "trace" and not error.kind:  # about the user's input: no method would do better
                raise
            attempts.append((name, error))
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            attempts.append((name, error))
    first = attempts[0][1]
    later = f" Real steps failed too: {reason(attempts[-1][1])}." if attempts[-1][0] == "real steps" else ""
    raise ProfileError(
        f"{subject.name} cannot be profiled: {reason(first)}.{later} Pass inputs= that its forward accepts, or its "
        "transformers configuration; or give advise a parameter count or Model.from_shape.",
        kind="error",
    )


def _traced(subject: Subject, settings: Settings) -> Profile:
    return _labelled(trace(subject, settings), "traced", "exact")


def _traced_otherwise(subject: Subject, settings: Settings) -> Profile:
    return _labelled(trace(subject, dataclasses.replace(settings, build="fake")), "traced", "exact")


def _guided(subject: Subject, settings: Settings) -> Profile:
    """Both answers to every data-dependent test; the one with more work is kept.

    One answer alone may skip layers (layerdrop), so neither is trusted by itself.
    """
    found: list[Traced] = []
    failure: Exception | None = None
    for answer in (True, False):
        try:
            found.append(trace(subject, dataclasses.replace(settings, answer=answer)))
        except Exception as error:  # noqa: BLE001 - one of the answers may lead nowhere
            failure = error
    if not found:
        raise failure or ProfileError("no answer led anywhere", kind="error")
    best = max(found, key=lambda traced: _work(traced.profile))
    tests = best.assumed[0] if best.assumed else "a test"
    note = f"data-dependent tests were answered both ways ({tests}) and the larger result kept"
    return _labelled(best, "guided trace", "low", note)


def _work(profile: Profile) -> int:
    return profile.forward_flops(profile.batch, profile.sequence)


def _real_steps(subject: Subject, settings: Settings) -> Profile:
    from smp_advisor.profiling.real_steps import profile_by_real_steps

    return profile_by_real_steps(subject, settings)


def _labelled(traced: Traced, method: Method, confidence: Confidence, note: str = "") -> Profile:
    profile = traced.profile
    if confidence == "exact" and profile.warnings and any("polynomial" in text for text in profile.warnings):
        confidence, note = "high", "exact at the traced sizes, estimated between"
    if confidence == "exact" and profile.attention == "fused":
        note = "kernels as a recent GPU chooses them"
    inputs = Provenance(
        figure="inputs",
        method="counted",
        confidence="exact" if profile.inputs.endswith("(given)") else "high",
        note=profile.inputs,
    )
    return dataclasses.replace(
        profile,
        provenance=(
            Provenance(figure="parameters", method="counted", confidence="exact"),
            Provenance(figure="saved bytes", method=method, confidence=confidence, note=note),
            Provenance(figure="FLOPs", method=method, confidence=confidence, note=note),
            Provenance(
                figure="peak memory",
                method=method if profile.timeline else "formula",
                confidence=confidence if profile.timeline else "low",
                note=note if profile.timeline else "no timeline could be followed: state and activations were added",
            ),
            inputs,
        ),
    )


def _with_attempts(profile: Profile, attempts: list[tuple[str, BaseException]]) -> Profile:
    if not attempts:
        return profile
    said = tuple(f"Not by {name}: {reason(error)}." for name, error in attempts)
    return dataclasses.replace(profile, warnings=(*profile.warnings, *said))


_MEANINGS = (
    ("DataDependentOutputException", "its forward pass depends on a tensor's values"),
    ("DynamicOutputShapeException", "its forward pass makes shapes that depend on values"),
    ("_local_scalar_dense", "its forward pass depends on a tensor's values"),
    ("nonzero", "its forward pass makes shapes that depend on values"),
    (".numpy() is not supported", "its forward pass leaves PyTorch for NumPy"),
    ("is not supported for tensor subclasses", "its forward pass leaves PyTorch for Python values"),
)


def reason(error: BaseException) -> str:
    """What an error means, with the line of the model's own code that it came from."""
    if isinstance(error, ProfileError):
        return error.sentence.rstrip(".")
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
    said = next((meaning for sign, meaning in _MEANINGS if sign in text), text.rstrip(": ."))
    frame = _own_frame(error)
    return f"{said} ({frame})" if frame else said


def _own_frame(error: BaseException) -> str:
    """Last line outside torch and this package: ``modeling.py:41``."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = frame.filename.replace("\\", "/")
        if "/torch/" in path or "/smp_advisor/profiling/" in path or path.startswith("<frozen"):
            continue
        return f"{path.rsplit('/', 1)[-1]}:{frame.lineno}"
    return ""
