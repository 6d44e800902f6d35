"""A profile in a few lines, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.recipe import RECIPES
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.profiling.measured import Profile, Provenance

__all__ = ["rows", "summary", "summary_html"]

_EQUAL = 1e-6
"""Of a figure: what differs by less differs by how sums are rounded."""


def summary(profile: Profile) -> str:
    """Figures with the method that gave each."""
    found = rows(profile)
    width = max((len(label) for label, _ in found), default=0)
    lines = [f"Profile of {profile.name}"]
    lines += [f"  {label:<{width}}  {text}" for label, text in found]
    lines += [f"  Note: {warning}" for warning in profile.warnings]
    lines += [str(stage) for stage in _stages(profile)]
    return "\n".join(lines)


def summary_html(profile: Profile) -> str:
    """The same for a notebook."""
    from smp_advisor.profiling.showing import box, table

    notes = [("Note", warning) for warning in profile.warnings]
    parts = [table([*rows(profile), *notes])]
    parts += [stage.as_html() if hasattr(stage, "as_html") else "" for stage in _stages(profile)]
    return box(f"Profile of {profile.name}", *parts)


def _stages(profile: Profile) -> list[Any]:
    return [stage for stage in (profile.scaled, profile.local, profile.rehearsal) if stage is not None]


def rows(profile: Profile) -> list[tuple[str, str]]:
    """Labels and texts: parameters, blocks, activations, FLOPs, peak, how each was obtained."""
    if not profile.is_traced:
        return [("Parameters", _parameters(profile))] if profile.parameter_count else []
    batch, sequence = profile.batch, profile.sequence
    size = f"batch {batch}, {sequence:,} tokens" if profile.has_sequence else f"batch {batch}"
    found = [
        ("Parameters", _parameters(profile)),
        ("Blocks", _blocks(profile)),
        ("Settings", f"{RECIPES[profile.precision].label}, {profile.attention} attention, {profile.optimizer}; {size}"),
        ("Inputs", profile.inputs),
        ("Activations", _activations(profile)),
        ("FLOPs", _flops(profile)),
        ("Peak, one GPU", _peak(profile)),
    ]
    found += [(f"Source of {one.figure}", _method(one)) for one in profile.provenance if one.figure != "inputs"]
    checks = [one for one in profile.agreements if one.measured]
    if checks:
        worst = max(checks, key=lambda one: abs(one.ratio - 1))
        off = f"the worst is off by {100 * (worst.ratio - 1):+.2g} %" if abs(worst.ratio - 1) > _EQUAL else "all equal"
        found.append(("Checked", f"{len(checks)} figures against the full trace and an unseen size: {off}"))
    found.append(("Took", f"{profile.seconds:.1f} s, {profile.operations:,} operations"))
    return found


def _method(one: Provenance) -> str:
    return f"{one.method}, confidence {one.confidence}" + (f" ({one.note})" if one.note else "")


def _parameters(profile: Profile) -> str:
    text = f"{format_count(profile.parameter_count)} ({profile.parameter_count:,})"
    if profile.trainable_parameter_count != profile.parameter_count:
        text += f", {format_count(profile.trainable_parameter_count)} to be trained"
    if profile.tied:
        text += "; tied: " + "; ".join(" = ".join(group) for group in profile.tied[:2])
    return text


def _blocks(profile: Profile) -> str:
    kinds: dict[tuple[str, int], int] = {}
    for block in profile.blocks:
        key = (block.kind, block.parameters)
        kinds[key] = kinds.get(key, 0) + 1
    said = [f"{count} x {kind} of {format_count(size)}" for (kind, size), count in kinds.items()]
    return ", ".join(said) or "none repeat"


def _flops(profile: Profile) -> str:
    at = profile.batch, profile.sequence
    return f"{_scaled(profile.forward_flops(*at))} forward, {_scaled(profile.backward_flops(*at))} backward"


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
    where = "optimizer's step" if peak.phase == "optimizer" else f"{peak.phase} pass"
    return f"{_size(peak.peak_gib * 2**30)} in the {where}, before the allocator's reserve and CUDA's context"


def _activations(profile: Profile) -> str:
    batch, sequence = profile.batch, profile.sequence
    text = _size(profile.activation_bytes(batch, sequence))
    if profile.checkpointed_bytes is not None:
        text += f", {_size(profile.activation_bytes(batch, sequence, checkpointing=True))} with checkpointing"
    return text
