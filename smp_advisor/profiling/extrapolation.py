"""Extrapolation of steps of a truncated model at a few sizes to the full model at every size."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from smp_advisor.profiling.operator_log import OperatorMeasure
from smp_advisor.profiling.parts import (
    Agreement,
    BlockProfile,
    ModuleProfile,
    OperatorProfile,
    ProductProfile,
    Segment,
)
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.structure import block_counts, remaining_children, source_children, truncated_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import nn

    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.step_recorder import BlockMeasure, Interval
    from smp_advisor.profiling.structure import Stack

    Points = Mapping[tuple[int, int], StepMeasure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Extrapolated:
    """Measurements of the full model, extrapolated from a truncated one."""

    blocks: tuple[BlockProfile, ...]
    block_paths: tuple[str, ...]
    saved_bytes: Polynomial
    forward_flops: Polynomial
    backward_flops: Polynomial
    timeline: tuple[Segment, ...]
    outside_operators: tuple[OperatorProfile, ...]
    tree: Mapping[str, ModuleProfile]
    unreached: tuple[tuple[str, int], ...]


def stacks_that_ran(step: StepMeasure, stacks: Sequence[Stack], repeats: int) -> list[Stack]:
    """Stacks of which every block ran in a step."""
    ran = {path for path, block in step.blocks.items() if block.calls}
    return [stack for stack in stacks if ran.issuperset(truncated_paths(stack, repeats))]


def extrapolate(points: Points, model: nn.Module, stacks: Sequence[Stack], repeats: int) -> Extrapolated:
    """Fit every figure over the points and add the repeats that were removed."""
    any_step = next(iter(points.values()))
    # Blocks in the order in which they ran, not in that of the module.
    used = stacks_that_ran(any_step, stacks, repeats)
    order = {interval.block: i for i, interval in reversed(list(enumerate(any_step.intervals)))}
    used.sort(key=lambda stack: order.get(truncated_paths(stack, repeats)[0], len(order)))
    saved = Polynomial.fit_each(points, lambda step: step.saved_bytes)
    forward = Polynomial.fit_each(points, lambda step: step.forward_flops)
    backward = Polynomial.fit_each(points, lambda step: step.backward_flops)
    paths = {path for stack in used for path in truncated_paths(stack, repeats)}
    unreached = _unreached(any_step, model, used, repeats)
    blocks: list[BlockProfile] = []
    for stack in used:
        profiles = [
            _profile(points, model.get_submodule(stack.paths[i]), path, stack.paths[i])
            for i, path in zip(remaining_children(stack, repeats), truncated_paths(stack, repeats), strict=True)
        ]
        # Blocks of later repeats are equal to those of the second one; the first may differ.
        for i in range(stack.prefix + 2 * stack.period, len(profiles)):
            earlier = profiles[i - stack.period]
            profiles[i] = earlier if _renamed(profiles[i], earlier.name) == earlier else profiles[i]
        # Each repeat that was left out costs what the repeat it stands for costs.
        sources = source_children(stack, repeats)
        blocks += [profiles[i] for i in sources]
        for i, profile in enumerate(profiles):
            removed = sources.count(i) - 1
            saved += profile.saved_bytes * removed
            forward += profile.forward_flops * removed
            backward += profile.backward_flops * removed
    return Extrapolated(
        blocks=tuple(blocks),
        block_paths=tuple(path for stack in used for path in stack.paths),
        saved_bytes=saved,
        forward_flops=forward,
        backward_flops=backward,
        timeline=timeline(points, used, repeats),
        outside_operators=_operators(points, lambda path: path if _block_of(path, paths) is None else None),
        tree=_tree(points, model, used, repeats, [path for path, _ in unreached]),
        unreached=unreached,
    )


def _full_paths(path: str, stacks: Sequence[Stack], repeats: int) -> list[str]:
    """Return the paths in the full model of the modules that a module of the truncated one represents."""
    for stack in stacks:
        if repeats >= stack.repeats:
            continue
        for place, child in enumerate(truncated_paths(stack, repeats)):
            if path == child or path.startswith(f"{child}."):
                sources = source_children(stack, repeats)
                return [full + path[len(child) :] for full, i in zip(stack.paths, sources, strict=True) if i == place]
    return [path]


def _tree(
    points: Points, model: nn.Module, stacks: Sequence[Stack], repeats: int, unreached: Collection[str]
) -> dict[str, ModuleProfile]:
    """Figures of every module that runs operators, with those that were removed, in the order of execution."""
    steps = list(points.values())
    order = list(next(iter(points.values())).crossing_bytes)
    order += [key.module for step in steps for key in step.operators if key.module not in set(order)]
    order = list(dict.fromkeys(order))
    sums = [_module_sums(step) for step in steps]
    fit = _fitted(points)
    figures = {path: {name: fit(tuple(rows[path][name] for rows in sums)) for name in _SUMS} for path in order}
    names: list[tuple[str, str]] = []  # in the full model and in the truncated one
    for path in order:
        names += [(full, path) for full in _full_paths(path, stacks, repeats)]
    names = _in_order(names, stacks, repeats)
    own = _own_parameters(model, {*(full for full, _ in names), *unreached})
    kinds = {path: type(module).__name__ for path, module in model.named_modules(remove_duplicate=False)}
    shared: dict[ModuleProfile, ModuleProfile] = {}
    tree = {}
    for full, path in names:
        profile = ModuleProfile(kind=kinds.get(full, ""), parameters=own[full], **figures[path])
        tree[full] = shared.setdefault(profile, profile)
    return tree


def _in_order(names: list[tuple[str, str]], stacks: Sequence[Stack], repeats: int) -> list[tuple[str, str]]:
    """Return the modules with those of every further repeat after the ones of the repeat before."""
    for stack in stacks:
        if repeats >= stack.repeats:
            continue
        places = {path: i for i, path in enumerate(stack.paths)}
        inside = [(place, name) for place, name in enumerate(names) if _block_of(name[0], places) is not None]
        ordered = sorted((name for _, name in inside), key=lambda name: places[_block_of(name[0], places) or ""])
        for (place, _), name in zip(inside, ordered, strict=True):
            names[place] = name
    return names


_SUMS = ("forward_flops", "backward_flops", "saved_bytes", "crossing_bytes")


def _module_sums(step: StepMeasure) -> dict[str, Counter[str]]:
    """Return the figures of each module, whose names are `_SUMS`."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for key, measure in step.operators.items():
        sums[key.module][f"{key.phase}_flops"] += measure.flops
    for name, values in (("saved_bytes", step.module_saved_bytes), ("crossing_bytes", step.crossing_bytes)):
        for path, value in values.items():
            sums[path][name] += value
    return sums


def _own_parameters(model: nn.Module, paths: Collection[str]) -> Counter[str]:
    """Parameters of each of the modules, with those of children that are not among them."""
    counts = Counter[str]()
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        while path and path not in paths:
            path = path.rpartition(".")[0]
        counts[path] += parameter.numel()
    return counts


def _unreached(
    step: StepMeasure, model: nn.Module, stacks: Sequence[Stack], repeats: int
) -> tuple[tuple[str, int], ...]:
    """Largest parts whose modules did not run and whose parameters got no gradient, with their parameters."""
    ran = {full for path in step.entered for full in _full_paths(path, stacks, repeats)}
    missing = {full for name in step.without_gradient for full in _full_paths(name, stacks, repeats)}
    idle: dict[str, int] = {}
    reached: set[str] = set()
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        if path not in ran and (name in missing or not parameter.requires_grad):
            idle[path] = idle.get(path, 0) + parameter.numel()
        else:
            while path not in reached:
                reached.add(path)
                path = path.rpartition(".")[0]
    parts: dict[str, int] = {}
    for path, size in idle.items():
        part = path
        while part and part.rpartition(".")[0] not in reached:
            part = part.rpartition(".")[0]
        parts[part] = parts.get(part, 0) + size
    return tuple(sorted(parts.items(), key=lambda row: -row[1]))


def _renamed(block: BlockProfile, path: str) -> BlockProfile:
    """Return the block at another path, with its products."""
    products = tuple(
        dataclasses.replace(product, name=path + product.name.removeprefix(block.name)) for product in block.products
    )
    return dataclasses.replace(block, name=path, products=products)


def _block_of(module: str, paths: Collection[str]) -> str | None:
    """Return the path of the block that contains a module; None outside the blocks."""
    while module and module not in paths:
        module = module.rpartition(".")[0]
    return module if module in paths else None


def _fitted(points: Points) -> Callable[[tuple[int, ...]], Polynomial]:
    """Polynomial through the points by its values, most of which are equal."""
    return cache(lambda values: Polynomial.fit(dict(zip(points, values, strict=True))))


def _operators(points: Points, place: Callable[[str], str | None]) -> tuple[OperatorProfile, ...]:
    """Fitted operators of the modules for which `place` returns a path."""
    keys = dict.fromkeys(key for step in points.values() for key in step.operators)
    fit = _fitted(points)
    operators = []
    for key in keys:
        module = place(key.module)
        if module is None:
            continue
        measures = [step.operators.get(key, _NOTHING) for step in points.values()]
        operators.append(
            OperatorProfile(
                module=module,
                operator=key.operator,
                kind=key.kind,
                phase="forward" if key.phase == "forward" else "backward",
                count=fit(tuple(measure.count for measure in measures)),
                flops=fit(tuple(measure.flops for measure in measures)),
                bytes=fit(tuple(measure.bytes for measure in measures)),
            )
        )
    return tuple(operators)


_NOTHING = OperatorMeasure()


def _profile(points: Points, module: nn.Module, path: str, name: str) -> BlockProfile:
    measures = {point: step.blocks[path] for point, step in points.items()}
    sample = next(iter(measures.values()))

    def fit(read: Callable[[BlockMeasure], int]) -> Polynomial:
        return Polynomial.fit_each(measures, read)

    # Products are compared by position: a shape that changes their number has none.
    same_products = len({len(measure.products) for measure in measures.values()}) == 1
    return BlockProfile(
        name=name,
        **block_counts(module),
        hidden=sample.hidden,
        saved_bytes=fit(lambda measure: measure.saved_bytes),
        input_bytes=fit(lambda measure: measure.input_bytes),
        forward_flops=fit(lambda measure: measure.forward_flops),
        backward_flops=fit(lambda measure: measure.backward_flops),
        products=tuple(
            ProductProfile(
                name=product.name,
                inputs=product.inputs,
                outputs=product.outputs,
                experts=product.experts,
                flops=fit(lambda measure, i=i: measure.products[i].flops),  # type: ignore[misc]
            )
            for i, product in enumerate(sample.products)
        )
        if same_products
        else (),
        attentions=tuple(sample.attentions),
        attention_flops=fit(lambda measure: measure.attention_flops),
        operators=_operators(points, lambda module: _within(module, path)),
    )


def _within(module: str, block: str) -> str | None:
    """Return the path of a module within a block; None outside it."""
    if module == block:
        return ""
    return module[len(block) + 1 :] if module.startswith(f"{block}.") else None


def timeline(points: Points, stacks: Sequence[Stack], repeats: int) -> tuple[Segment, ...]:
    """Live memory over the full model's step; empty if the intervals differ between points."""
    orders = {tuple((s.phase, s.block) for s in _passes(step)) for step in points.values()}
    if len(orders) != 1:
        return ()
    order = list(next(iter(orders)))
    passes = {point: _passes(step) for point, step in points.items()}
    segments = [
        Segment(
            phase="forward" if order[i][0] == "forward" else "backward",
            change_bytes=Polynomial.fit_each(passes, lambda intervals, i=i: intervals[i].change_bytes),  # type: ignore[misc]
            rise_bytes=Polynomial.fit_each(passes, lambda intervals, i=i: intervals[i].rise_bytes),  # type: ignore[misc]
        )
        for i in range(len(order))
    ]
    inserted: dict[int, list[Segment]] = {}
    for stack in stacks:
        removed = stack.repeats - min(repeats, stack.repeats)
        if not removed:
            continue
        last = stack.prefix + min(repeats, stack.repeats) * stack.period
        period = truncated_paths(stack, repeats)[last - stack.period : last]
        for phase in ("forward", "backward"):
            indices = [i for i, mark in enumerate(order) if mark[0] == phase and mark[1] in period]
            between = {mark[1] for mark in order[indices[0] : indices[-1]]} if indices else set()
            if {order[i][1] for i in indices} != set(period) or not between <= {*period, ""}:
                return ()
            # In the forward pass, the interval between two blocks belongs to the second one.
            start = indices[0] - (phase == "forward")
            inserted[indices[-1]] = segments[start : indices[-1] + 1] * removed
    result: list[Segment] = []
    for i, segment in enumerate(segments):
        result += [segment, *inserted.get(i, ())]
    return tuple(result)


def _passes(step: StepMeasure) -> list[Interval]:
    return [interval for interval in step.intervals if interval.phase in {"forward", "backward"}]


TOLERANCE = 1e-4
"""Maximum relative error of the extrapolated trace in saved bytes and FLOPs."""
_PEAK_TOLERANCE = 1e-3
"""Maximum relative error in the peak: when autocast ends, it frees the 16-bit copies of the biases all at once."""

FIGURES: dict[str, Callable[[StepMeasure], int]] = {
    "saved bytes": lambda step: step.saved_bytes,
    "forward FLOPs": lambda step: step.forward_flops,
    "backward FLOPs": lambda step: step.backward_flops,
}


def agrees(agreement: Agreement) -> bool:
    """Return whether the prediction is within the tolerance of its figure."""
    limit = _PEAK_TOLERANCE if agreement.figure.startswith("peak") else TOLERANCE
    return abs(agreement.ratio - 1) <= limit


def against_full(extrapolated: Extrapolated, full: StepMeasure, batch: int, sequence: int) -> list[Agreement]:
    """Compare the extrapolated figures with a trace of the full model."""
    predicted = (extrapolated.saved_bytes, extrapolated.forward_flops, extrapolated.backward_flops)
    agreements = [
        Agreement(figure=figure, predicted=value(batch, sequence), measured=read(full), against="the full trace")
        for (figure, read), value in zip(FIGURES.items(), predicted, strict=True)
    ]
    if extrapolated.timeline:
        live = peak = 0
        for segment in extrapolated.timeline:
            peak = max(peak, live + segment.rise_bytes(batch, sequence))
            live += segment.change_bytes(batch, sequence)
        measured = full.peak_bytes - full.resident_bytes
        agreements.append(
            Agreement(figure="peak of a pass", predicted=peak, measured=measured, against="the full trace")
        )
    return agreements


def against_unseen(
    points: Mapping[tuple[int, int], StepMeasure], unseen: StepMeasure, batch: int, sequence: int
) -> tuple[list[Agreement], list[str]]:
    """Compare the fitted polynomials with a step at a size that was not fitted; also returns warnings."""
    agreements = [
        Agreement(
            figure=figure,
            predicted=Polynomial.fit_each(points, read)(batch, sequence),
            measured=read(unseen),
            against=f"a trace at batch {batch}, sequence {sequence}",
        )
        for figure, read in FIGURES.items()
    ]
    warnings = [
        f"{agreement.figure} at batch {batch}, sequence {sequence}: the fitted polynomial is off by "
        f"{100 * (agreement.ratio - 1):+.2f} %, so figures far from the traced sizes are estimates."
        for agreement in agreements
        if abs(agreement.ratio - 1) > TOLERANCE
    ]
    return agreements, warnings
