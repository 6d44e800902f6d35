"""Causes of differences between ranks and one process, and of ranks that wait for each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.rehearsal.division import ranges
from smp_advisor.profiling.rehearsal.result import TOLERANCE, Problem
from smp_advisor.profiling.rehearsal.single_process import by_name, shared_by_blocks
from smp_advisor.profiling.rehearsal.source import line_of_parameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from smp_advisor.profiling.rehearsal.result import Degrees
    from smp_advisor.profiling.rehearsal.single_process import Reference


_SHOWN_NAMES = 3


def usage(
    model: nn.Module, used_sets: Sequence[frozenset[str]], degrees: Degrees, paths: Sequence[str]
) -> tuple[list[Problem], list[str]]:
    """Problems and notes about trainable parameters without a gradient.

    `used_sets` has the names of the parameters with a gradient, by batch: first the microbatches of the ranks.
    """
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    ever = frozenset().union(*used_sets)
    never = [name for name in trainable if name not in ever]
    notes = []
    if never:
        requirement = "; DistributedDataParallel requires find_unused_parameters=True, or freeze them"
        notes.append(f"{_names(never)} never gets a gradient{requirement if degrees.data > 1 else ''}.")
    microbatches = degrees.microbatches
    varying = [name for name in trainable if name in ever and any(name not in used for used in used_sets)]
    if not varying or degrees.data == 1:
        return [], notes
    first = next(i for i, used in enumerate(used_sets) if varying[0] not in used)
    rank = first // microbatches if first < microbatches * degrees.data else None
    count = sum(varying[0] not in used for used in used_sets)
    where = f"unused in {count} of {len(used_sets)} batches"
    blocks = [path for path in paths if any(name.startswith(f"{path}.") for name in varying)]
    skipped = [path for path in blocks if _is_skipped(path, used_sets, trainable)]
    if degrees.sharding == "full":
        if not skipped:
            return [], notes
        text = (
            f"The ranks would wait for each other (a hang): the data decides whether block {skipped[0]} runs "
            f"(parameter {varying[0]} is {where}), and each rank that runs it waits for the shards of all ranks. Run "
            "every block on every rank, for example with its output times zero."
        )
        return [Problem(kind="hang", text=text, parameter=varying[0], rank=rank)], notes
    text = (
        f"The data decides whether {_names(varying)} is used ({where}). Under DistributedDataParallel, the ranks wait "
        "for each other (a hang) unless find_unused_parameters=True."
    )
    return [Problem(kind="data-dependent use", text=text, parameter=varying[0], rank=rank)], notes


def _is_skipped(path: str, used_sets: Sequence[frozenset[str]], trainable: Iterable[str]) -> bool:
    """Whether some microbatch uses no parameter of a block that others use."""
    own = {name for name in trainable if name.startswith(f"{path}.")}
    return bool(own) and any(not own & used for used in used_sets) and any(own & used for used in used_sets)


def shared_weights(model: nn.Module, paths: Sequence[str], degrees: Degrees) -> list[Problem]:
    """Weights that blocks of different pipeline stages share."""
    stage_of = {paths[i]: stage for stage, own in enumerate(ranges(len(paths), degrees.pipeline)) for i in own}
    problems = []
    for name, group in shared_by_blocks(model, paths).items():
        stages = {next(stage for path, stage in stage_of.items() if user.startswith(f"{path}.")) for user in group}
        if len(stages) > 1:
            text = (
                f"{', '.join(group[:4])} are one weight in {len(stages)} pipeline stages. Each stage updates its own "
                "copy with its own gradient, so the copies diverge: keep these blocks in one stage, or sum the "
                "gradients over the stages."
            )
            problems.append(Problem(kind="shared weights", text=text, parameter=name))
    return problems[:1]


def difference_of_ranks(
    model: nn.Module, parts: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]], single: Reference
) -> list[Problem]:
    """The first rank whose step differs from that of one process, and the parameter that differs most there."""
    compared = {name for result in ranks for name in result["compared"]}
    missing = sorted(set(single.gradients) - compared)
    if missing:
        text = f"No rank has a gradient for {_names(missing)}, and one process has."
        return [_located(model, parts, Problem(kind="missing gradient", text=text, parameter=missing[0], rank=0))]
    for result in ranks:
        if not result["difference"] <= TOLERANCE:
            infinite = math.isinf(result["difference"])
            size = "is NaN, or nonzero only there" if infinite else f"differs by {result['difference']:.1e}"
            text = (
                f"The gradients of the ranks are not those of one process: {result['worst']} {size}. The model depends "
                "on the process it runs in, or on the layers' division."
            )
            problem = Problem(kind="ranks differ", text=text, parameter=result["worst"], rank=int(result["rank"]))
            return [_located(model, parts, problem)]
    loss = float(ranks[0]["loss"])
    if not abs(loss - single.loss) <= TOLERANCE * max(1.0, abs(single.loss)):
        text = f"The ranks have loss {loss:.7g}, and one process {single.loss:.7g}, with the same gradients."
        return [Problem(kind="ranks differ", text=text)]
    return []


def _located(model: nn.Module, parts: Sequence[Mapping[str, Any]], problem: Problem) -> Problem:
    return replace(problem, line=line_of_parameter(model, parts[0], by_name, problem.parameter))


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return f"each of {len(names)} parameters ({', '.join(names[:_SHOWN_NAMES])}{more})"
