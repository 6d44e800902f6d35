"""Summary of a profile as text and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.copy_comparison import comparison_text
from smp_advisor.profiling.precision import PRECISIONS
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.profiling.result import Profile

__all__ = ["rows", "summary", "summary_html"]

_ROUNDING = 1e-6
"""Relative difference below which two figures differ only by rounding."""


def summary(profile: Profile) -> str:
    """Figures of the profile, with the method that produced each."""
    labeled = rows(profile)
    width = max((len(label) for label, _ in labeled), default=0)
    lines = [f"Profile of {profile.name}"]
    lines += [f"  {label:<{width}}  {text}" for label, text in labeled]
    lines += [f"  {label}: {text}" for label, text in _notes(profile)]
    lines += [str(stage) for stage in _stages(profile)]
    return "\n".join(lines)


def summary_html(profile: Profile) -> str:
    """HTML form of `summary`, for a notebook."""
    from smp_advisor.profiling.result_html import box, table

    parts = [table([*rows(profile), *_notes(profile)])]
    parts += [stage.as_html() if hasattr(stage, "as_html") else "" for stage in _stages(profile)]
    return box(f"Profile of {profile.name}", *parts)


def _notes(profile: Profile) -> list[tuple[str, str]]:
    """Verdicts, and what the trace assumed."""
    return [*(("Warning", verdict) for verdict in profile.verdicts), *(("Note", text) for text in profile.warnings)]


def _stages(profile: Profile) -> list[Any]:
    return [stage for stage in (profile.scaled, profile.local, profile.rehearsal) if stage is not None]


def rows(profile: Profile) -> list[tuple[str, str]]:
    """Label and text of each figure: parameters, blocks, activations, FLOPs, peak memory, and their sources."""
    if not profile.is_traced:
        return [("Parameters", _parameters(profile))] if profile.parameter_count else []
    batch, sequence = profile.batch, profile.sequence
    size = f"batch {batch}, {sequence:,} tokens" if profile.has_sequence else f"batch {batch}"
    figures = [
        ("Parameters", _parameters(profile)),
        ("Blocks", _blocks(profile)),
        (
            "Settings",
            f"{PRECISIONS[profile.precision].label}, {profile.attention} attention, {profile.optimizer}; {size}",
        ),
        *([("Attention", f"{profile.attention}: {profile.attention_reason}")] if profile.attention_reason else []),
        ("Inputs", profile.inputs),
        ("Activations", _activations(profile)),
        ("FLOPs", _flops(profile)),
        ("Peak per GPU", _peak(profile)),
    ]
    for source in profile.provenance:
        if source.figure != "inputs":
            method = f"{source.method}, confidence {source.confidence}" + (f" ({source.note})" if source.note else "")
            figures.append((f"Source of {source.figure}", method))
    checks = [check for check in profile.agreements if check.measured]
    if checks:
        worst = max(checks, key=lambda check: abs(check.ratio - 1))
        error = 100 * (worst.ratio - 1)
        outcome = f"largest error {error:+.2g} %" if abs(worst.ratio - 1) > _ROUNDING else "all equal"
        figures.append(("Checks", f"{len(checks)} figures against the full trace and an unseen size: {outcome}"))
    if extrapolated := comparison_text(profile):
        figures.append(("Real steps of copies", extrapolated))
    figures.append(("Trace", f"{profile.operations:,} operations"))
    return figures


def _parameters(profile: Profile) -> str:
    text = f"{format_count(profile.parameter_count)} ({profile.parameter_count:,})"
    if profile.trainable_parameter_count != profile.parameter_count:
        text += f", {format_count(profile.trainable_parameter_count)} trainable"
    if profile.tied:
        text += "; tied: " + "; ".join(" = ".join(group) for group in profile.tied[:2])
    return text


def _blocks(profile: Profile) -> str:
    kinds: dict[tuple[str, int], int] = {}
    for block in profile.blocks:
        key = (block.kind, block.parameters)
        kinds[key] = kinds.get(key, 0) + 1
    texts = [f"{count} x {kind} of {format_count(size)}" for (kind, size), count in kinds.items()]
    return ", ".join(texts) or "no repeated blocks"


def _flops(profile: Profile) -> str:
    size = profile.batch, profile.sequence
    return f"{_scaled(profile.forward_flops(*size))} forward, {_scaled(profile.backward_flops(*size))} backward"


def _scaled(flops: float) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if flops >= scale:
            return f"{flops / scale:.4g} {unit}"
    return f"{flops:.0f}"


def _size(count: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= 0.01 * scale:
            return f"{count / scale:.3f} {unit}"
    return f"{count / 2**10:.3g} KiB"


def _peak(profile: Profile) -> str:
    peak = profile.peak_memory(profile.batch, profile.sequence)
    phase = "optimizer step" if peak.phase == "optimizer" else f"{peak.phase} pass"
    return f"{_size(peak.peak_bytes)} in the {phase}, excluding the allocator's reserve and the CUDA context"


def _activations(profile: Profile) -> str:
    batch, sequence = profile.batch, profile.sequence
    text = _size(profile.activation_bytes(batch, sequence))
    if profile.checkpointed_bytes is not None:
        text += f", {_size(profile.activation_bytes(batch, sequence, checkpointing=True))} with checkpointing"
    return text
