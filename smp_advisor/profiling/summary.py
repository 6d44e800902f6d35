"""Summary of a profile: its figures, verdicts, and how far to trust them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.core.tables import Table
from smp_advisor.profiling.precision import PRECISIONS
from smp_advisor.workload.counts import format_count

if TYPE_CHECKING:
    from smp_advisor.profiling.parts import PeakMemory
    from smp_advisor.profiling.result import Profile


TOLERANCE = 0.05
"""Relative difference between the trace and steps of the copy up to which these confirm a figure."""


def verdicts(profile: Profile) -> tuple[str, ...]:
    """Return one sentence for each finding; empty if no stage found anything."""
    parts = ", ".join(f"{path or 'the module'} ({format_count(size)})" for path, size in profile.unreached[:5])
    idle = [f"The inputs did not reach parameters of {parts}: their costs are missing."] if parts else []
    notes = [entry.note for entry in profile.provenance if entry.figure == "FLOPs" and entry.confidence == "low"]
    return (
        *idle,
        *profile.failures,
        *(f"Scaled copy: {stage.summary}" for stage in _stages(profile) if not stage.ok),
        *(
            f"The FLOPs of {profile.name}, times and cost have low confidence{f': {note}' if note else ''}."
            for note in notes
        ),
    )


_ROUNDING = 1e-6
"""Relative difference below which two figures differ only by rounding."""


def summary(profile: Profile) -> str:
    """Return the profile in a dozen lines: figures, how far to trust them, warnings, and the next line to type."""
    return _text(profile, report(profile))


def details(profile: Profile) -> str:
    """Return the summary with the source of every figure, all warnings, and the results of the stages."""
    text = _text(profile, [*report(profile, most_lines=None), *_sources(profile)])
    return "\n".join([text, *(str(stage) for stage in _stages(profile))])


def _text(profile: Profile, labeled: list[tuple[str, str]]) -> str:
    width = max((len(label) for label, _ in labeled), default=0)
    return "\n".join([f"Profile of {profile.name}", *(f"  {label:<{width}}  {text}" for label, text in labeled)])


def summary_html(profile: Profile) -> str:
    """Return the HTML form of `summary`, with the details in a closed section."""
    title = f"Profile of {profile.name}"
    stages = "".join(stage._repr_html_() for stage in _stages(profile))
    more = Table(columns=("Details", ""), rows=[*_sources(profile), *_notes(profile)]).html()
    figures = Table(columns=(title, ""), rows=report(profile)).html()
    return f"{figures}<details><summary>Details</summary>{more}{stages}</details>"


_MOST_LINES = 11
"""Lines after the title."""
_PHASES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer step"}


def _at_peak(peak: PeakMemory) -> list[tuple[str, int]]:
    """Return the memory at the peak by content; the parts add up to it."""
    parts = [("parameters", peak.parameters_bytes), ("optimizer state", peak.optimizer_state_bytes)]
    if peak.phase == "optimizer":
        parts.append(("gradients", peak.gradients_bytes))
    remainder = peak.peak_bytes - sum(value for _, value in parts)
    temporaries = "temporaries and inputs" if peak.phase == "optimizer" else "activations, gradients and temporaries"
    return [*parts, (temporaries, remainder)]


def report(profile: Profile, most_lines: int | None = _MOST_LINES) -> list[tuple[str, str]]:
    """Label and text of each line of the summary, with as many warnings as fit; None shows all."""
    lines = []
    if profile.parameter_count:
        lines.append(("Parameters", _parameters(profile)))
    if profile.is_traced:
        size = profile.batch, profile.sequence
        unit = "sample" if profile.scales else "call with the inputs"
        shape = f"batch {size[0]}" if profile.scales else "these inputs" if size[0] == 1 else f"{size[0]} such calls"
        peak = profile.peak_memory(*size)
        precision = PRECISIONS[profile.precision].title
        work = profile.forward_flops(1, size[1]), profile.backward_flops(1, size[1])
        lines += [
            ("Inputs", profile.inputs),
            ("Repeated parts", _blocks(profile)),
            ("FLOPs", f"{_scaled(work[0])} forward and {_scaled(work[1])} backward per {unit}"),
            (
                "Memory on one GPU",
                f"{_size(peak.peak_bytes)} at {shape}"
                + (f" of {size[1]:,} tokens" if profile.has_sequence else "")
                + f" ({precision}), in the {_PHASES[peak.phase]}: "
                + " + ".join(f"{name} {_size(value)}" for name, value in _at_peak(peak)),
            ),
        ]
        if profile.checkpointed_bytes is not None:
            less = _size(profile.checkpointed_bytes(*size))
            saved = f"activations of {less} instead of {_size(peak.activations_bytes)}"
            lines.append(("With checkpointing", f"{saved}, for a second forward pass"))
        lines.append(("Trust", _trust(profile)))
    stages = [stage.summary for stage in _stages(profile)]
    if stages:
        lines.append(("Ran here", " ".join(stages)))
    missing = "times and memory of a GPU"
    missing += ', training steps (stages=["copy"])' if profile.scaled is None else ""
    last = [("Next", f'smpa.advise(profile, "ml.p4d.24xlarge"). Not measured: {missing}')]
    warnings = [row for row in _notes(profile) if row[1].partition(": ")[2] not in stages]  # which are above
    room = len(warnings) if most_lines is None else max(1, most_lines - len(lines) - 1)
    if len(warnings) > room:
        warnings[room - 1 :] = [("Warnings", f"{len(warnings) - room + 1} more in profile.details()")]
    return [*lines, *warnings, *(last if profile.is_traced else [])]


def _trust(profile: Profile) -> str:
    """Confidence of each figure, and those that real steps confirmed."""
    sources = [source for source in profile.provenance if source.figure != "inputs"]
    by_confidence: dict[str, list[str]] = {}
    for source in sources:
        by_confidence.setdefault(source.confidence, []).append(source.figure)
    words = {"exact": "exact", "high": "good estimate"}
    text = "; ".join(f"{words.get(level, level)}: {', '.join(figures)}" for level, figures in by_confidence.items())
    text = f"{text[:1].upper()}{text[1:]}"
    comparisons = getattr(profile.scaled, "comparisons", ())
    confirmed = [row.figure for row in comparisons if abs(row.ratio - 1) <= TOLERANCE]
    unconfirmed = [f"{row.figure} ({row.ratio - 1:+.0%})" for row in comparisons if row.figure not in confirmed]
    text += f"; confirmed by steps of the copy: {', '.join(confirmed)}" if confirmed else ""
    return text + (f"; not confirmed: {', '.join(unconfirmed)}" if unconfirmed else "")


def _notes(profile: Profile) -> list[tuple[str, str]]:
    """Verdicts, and what the trace assumed."""
    return [*(("Warning", verdict) for verdict in profile.verdicts), *(("Note", text) for text in profile.warnings)]


def _stages(profile: Profile) -> list[Any]:
    return [] if profile.scaled is None else [profile.scaled]


def _sources(profile: Profile) -> list[tuple[str, str]]:
    """Return the settings of the trace, and the source of each figure."""
    if not profile.is_traced:
        return []
    settings = f"{PRECISIONS[profile.precision].label}, {profile.optimizer}"
    attends = any(row.kind == "attention" or row.operator == "aten._softmax" for row in profile.outside_operators)
    if attends or any(block.attention_flops(1, profile.sequence) for block in profile.blocks):
        settings += f"; {profile.attention} attention: {profile.attention_reason}"
    rows = [("Settings", settings)]
    for source in profile.provenance:
        if source.figure != "inputs":
            method = f"{source.method}, confidence {source.confidence}" + (f" ({source.note})" if source.note else "")
            rows.append((f"Source of {source.figure}", method))
    checks = [check for check in profile.agreements if check.measured]
    if checks:
        worst = max(checks, key=lambda check: abs(check.ratio - 1))
        error = 100 * (worst.ratio - 1)
        outcome = f"largest error {error:+.2g} %" if abs(worst.ratio - 1) > _ROUNDING else "all equal"
        rows.append(("Checks", f"{len(checks)} figures against the full trace and an unseen size: {outcome}"))
    excluded = "Memory on one GPU excludes the allocator's reserve and the CUDA context"
    return [*rows, ("Trace", f"{profile.operations:,} operations. {excluded}.")]


def _parameters(profile: Profile) -> str:
    text = f"{format_count(profile.parameter_count)} ({profile.parameter_count:,})"
    if profile.trainable_parameter_count != profile.parameter_count:
        text += f", {format_count(profile.trainable_parameter_count)} trainable"
    if profile.tied:
        text += "; tied: " + "; ".join(" = ".join(group) for group in profile.tied[:2])
    return text


def _blocks(profile: Profile) -> str:
    """Return the number and sizes of each kind of block, and what they mean for dividing the model."""
    kinds: dict[str, list[int]] = {}
    for block in profile.blocks:
        kinds.setdefault(block.kind, []).append(block.parameters)
    texts = []
    for kind, sizes in kinds.items():
        smallest, largest = format_count(min(sizes)), format_count(max(sizes))
        classes = list(dict.fromkeys(kind.split(" + ")))
        short = " + ".join(classes[:3]) + (" and others" if len(classes) > 3 else "")
        texts.append(f"{len(sizes)} x {short} of {smallest}" + (f" to {largest}" if largest != smallest else ""))
    if not texts:
        return "none: the model is divided along its layers, by size"
    return f"{', '.join(texts)}: it is divided block by block"


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
