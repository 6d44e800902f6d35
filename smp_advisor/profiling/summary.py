"""A profile in a few lines, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.recipe import RECIPES
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.profiling.measured import Profile, Provenance

__all__ = ["rows", "summary", "summary_html"]

_GIB = 2**30


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
    found += [
        (f"{one.figure[:1].upper()}{one.figure[1:]} by", _method(one))
        for one in profile.provenance
        if one.figure != "inputs"
    ]
    checks = [one for one in profile.agreements if one.measured]
    if checks:
        worst = max(checks, key=lambda one: abs(one.ratio - 1))
        off = f"the worst {100 * (worst.ratio - 1):+.4f} %"
        found.append(("Checked", f"{len(checks)} figures against the full trace and an unseen size, {off}"))
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
    return f"{profile.forward_flops(*at) / 1e12:.4g} T forward, {profile.backward_flops(*at) / 1e12:.4g} T backward"


def _peak(profile: Profile) -> str:
    peak = profile.peak_memory(profile.batch, profile.sequence)
    where = "optimizer's step" if peak.phase == "optimizer" else f"{peak.phase} pass"
    return f"{peak.peak_gib:.2f} GiB in the {where}, before the allocator's reserve and CUDA's context"


def _activations(profile: Profile) -> str:
    batch, sequence = profile.batch, profile.sequence
    text = f"{profile.activation_bytes(batch, sequence) / _GIB:.3f} GiB"
    if profile.checkpointed_bytes is not None:
        text += f", {profile.activation_bytes(batch, sequence, checkpointing=True) / _GIB:.3f} GiB with checkpointing"
    return text
