"""The tree of modules of a profiled model by parameters, FLOPs and the memory that its backward pass needs."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from smp_advisor.charts.chart import Chart
from smp_advisor.errors import AdvisorError
from smp_advisor.marks import frame, label, rect, short, text_width
from smp_advisor.wording import gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.recommended import Recommended
    from smp_advisor.profiling.result import Profile

__all__ = ["MEASURES", "modules_chart", "profile_of"]

MEASURES = ("saved memory", "parameters", "FLOPs")
_DEEPEST = 5
_LANE = 26


class _Module(NamedTuple):
    """A module with everything inside it."""

    path: str
    kind: str
    depth: int
    start: tuple[float, ...]
    """Sums of the modules before it, in the order of `MEASURES`."""
    figures: tuple[float, ...]
    """GiB, number, FLOPs."""
    block: bool

    @property
    def texts(self) -> tuple[str, ...]:
        """The figures as texts."""
        return gib(self.figures[0]), short(self.figures[1]), short(self.figures[2])


def profile_of(advice: Recommended) -> Profile | None:
    """The traced profile from which an advice was made; None if it was made from anything else."""
    model = None if advice.call is None else advice.call.keywords.get("model")
    return model if getattr(model, "tree", None) else None


def modules_chart(advice: Recommended, estimate: Estimate, by: int = 0) -> Chart:
    """Modules below those that contain them, as wide as their share of the measure `by`."""
    profile = profile_of(advice)
    if profile is None:
        raise AdvisorError("The chart of modules requires advice from a profile: advise(smp_advisor.profile(model)).")
    by = by if 0 <= by < len(MEASURES) else 0
    modules = _modules(profile)
    blocks = sum(module.block for module in modules)
    saved = sum(module.figures[0] for module in modules if module.block)
    plan = "checkpoints" if getattr(estimate.plan, "activation_checkpointing", False) else "does not checkpoint"
    inputs = f"{profile.batch} x {profile.sequence:,} tokens" if profile.sequence > 1 else "the inputs of the profile"
    return Chart(
        title=f"Modules of {profile.name}",
        draw=partial(_icicle, modules, by),
        columns=("Module", *(f"{measure[:1].upper()}{measure[1:]}" for measure in MEASURES), "Block"),
        rows=tuple((module.path or profile.name, *module.texts, "yes" if module.block else "") for module in modules),
        notes=(
            f"With {inputs}, the {blocks} repeated blocks save {saved:.2f} of {modules[0].figures[0]:.2f} GiB for their"
            f" backward pass. The plan on the screen {plan} them: select one to checkpoint all of them, or move"
            " the setting Activation checkpointing to leave some out."
            if blocks
            else "The model has no repeated blocks.",
        ),
        key=("", "inside a block", "repeated block", *[""] * 7, "other modules"),
        choices=MEASURES,
    )


def _modules(profile: Profile) -> list[_Module]:
    """Every module with the sums of what it contains, in the order of the model."""
    from smp_advisor.profiling.tables import block_paths

    size, blocks = (profile.batch, profile.sequence), set(block_paths(profile))
    sums: dict[str, tuple[float, ...]] = {}
    children: dict[str, list[str]] = {}
    for path, own in profile.tree.items():
        flops = own.forward_flops(*size) + own.backward_flops(*size)
        figures = own.saved_bytes(*size) / 2**30, own.parameters, float(flops)
        parts = path.split(".") if path else []
        for depth in range(len(parts) + 1):
            of = ".".join(parts[:depth])
            if of not in sums and depth:
                children.setdefault(".".join(parts[: depth - 1]), []).append(of)
            sums[of] = tuple(map(add, sums.get(of, (0.0, 0.0, 0.0)), figures))
    result: list[_Module] = []

    def walk(path: str, start: tuple[float, ...]) -> None:
        kind = profile.tree[path].kind if path in profile.tree else ""
        result.append(_Module(path, kind, len(path.split(".")) if path else 0, start, sums[path], path in blocks))
        for child in children.get(path, []):
            walk(child, start)
            start = tuple(map(add, start, sums[child]))

    walk("", (0.0, 0.0, 0.0))
    return result


def _icicle(modules: Sequence[_Module], by: int, width: float) -> str:
    total = modules[0].figures[by] or 1.0
    parts: list[str] = []
    inside = ""
    for row, module in enumerate(modules):
        wide = width * module.figures[by] / total
        inside = module.path if module.block else inside if inside and module.path.startswith(f"{inside}.") else ""
        if module.depth > _DEEPEST or wide < 0.5:
            continue
        x, y = width * module.start[by] / total, _LANE * module.depth
        color = 2 if module.block else 1 if inside else 10
        share = f"{100 * module.figures[by] / total:.1f} % of the {MEASURES[by]}"
        name = f"{module.path or 'the model'}{module.kind and f' ({module.kind})'}"
        figures = ", ".join(f"{text} {measure}" for text, measure in zip(module.texts, MEASURES, strict=True))
        parts.append(rect(f"smp-part smp-c{color}", x, y, wide, _LANE - 2, f"{name}: {figures}; {share}", row))
        text = module.path.rpartition(".")[2] or "model"
        if text_width(text) + 6 < wide:
            parts.append(label("smp-on-part", x + 4, y + 16, text))
    deepest = min(max(module.depth for module in modules), _DEEPEST)
    description = f"{len(modules)} modules by {MEASURES[by]}"
    return frame(width, _LANE * (deepest + 1), description, parts)
