"""Causes of differences between ranks and one process, with the user's line."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.rehearsal.division import ranges
from smp_advisor.profiling.rehearsal.result import TOLERANCE, Problem
from smp_advisor.profiling.rehearsal.single_process import by_name, shared_by_blocks
from smp_advisor.profiling.sandbox.failure import user_source_line
from smp_advisor.profiling.step import loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Call = Callable[[nn.Module, Mapping[str, Any]], Any]
    from collections.abc import Iterable, Mapping

    from torch import nn

    from smp_advisor.profiling.rehearsal.result import Degrees
    from smp_advisor.profiling.rehearsal.single_process import Reference

__all__ = ["difference_of_ranks", "line_of_loss", "line_of_parameter", "nonfinite_line", "shared_weights", "usage"]


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ENTRY = "profiling/step.py"
"""Frames before this module's call of the model belong to the kernel and to the rehearsal."""
_MAX_NODES = 100_000


def line_of_loss(model: nn.Module, batch: Mapping[str, Any], call: Call) -> str:
    """Line of the last operation of the loss in the user's own code; empty if there is none."""
    for node in _nodes(_recorded_loss(model, batch, call)):
        line = _line(node)
        if line:
            return line
    return ""


def line_of_parameter(model: nn.Module, batch: Mapping[str, Any], call: Call, name: str) -> str:
    """Line in the user's own code of the operation that uses a parameter; empty if there is none."""
    parameter = dict(model.named_parameters()).get(name)
    if parameter is None:
        return ""
    pending: dict[Any, str] = {}
    for node in _nodes(_recorded_loss(model, batch, call)):
        line = _line(node) or pending.get(node, "")
        for inner, _ in node.next_functions:
            if inner is None:
                continue
            if getattr(inner, "variable", None) is parameter:
                return line
            pending.setdefault(inner, line)
    return ""


def nonfinite_line(model: nn.Module, batch: Mapping[str, Any], call: Call) -> tuple[str, str]:
    """Line of the first operation with a NaN or infinite result, and ``NaN`` or ``infinite``; empty if unknown."""
    finder = _NonFinite()
    with finder:
        loss = loss_of(call(model, batch))
    if not loss.isfinite().all():
        return finder.first_nan or finder.first_infinite or "", "NaN" if finder.first_nan else "infinite"
    return _backward_line(model, batch, call), "NaN"


class _NonFinite(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the first operation that has NaN or infinite results from finite operands."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first_nan: str | None = None
        self.first_infinite: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        operands = (args, kwargs)
        if self.first_nan is None and _any(torch.isnan, output) and not _any(torch.isnan, operands):
            self.first_nan = _current_line()
        is_mask = "fill" in str(func) or "full" in str(func)  # masks are filled with -inf on purpose
        is_first = self.first_infinite is None and not is_mask
        if is_first and _any(torch.isinf, output) and not _any(torch.isinf, operands):
            self.first_infinite = _current_line()
        return output


def _any(test: Callable[[Tensor], Tensor], values: Any) -> bool:
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return any(bool(test(leaf.detach()).any()) for leaf in leaves)


def _backward_line(model: nn.Module, batch: Mapping[str, Any], call: Call) -> str:
    """Line of the forward operation whose backward pass has the first NaN."""
    with warnings.catch_warnings(record=True) as messages, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            loss_of(call(model, batch)).backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            return _user_line([text for message in messages for text in str(message.message).splitlines()])
        finally:
            model.zero_grad(set_to_none=True)
    return ""


def _recorded_loss(model: nn.Module, batch: Mapping[str, Any], call: Call) -> Tensor:
    """Loss whose graph has the Python stack of every operation."""
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("ignore")
        return loss_of(call(model, batch))


def _nodes(loss: Tensor) -> Iterator[Any]:
    """Nodes of a loss's graph, breadth first."""
    queue: deque[Any] = deque([loss.grad_fn])
    visited: set[Any] = set()
    while queue and len(visited) < _MAX_NODES:
        node = queue.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        queue.extend(inner for inner, _ in node.next_functions)


def _line(node: Any) -> str:
    return _user_line(node.metadata.get("traceback_", ()))


def _user_line(texts: Sequence[str]) -> str:
    return _shown([(match["file"], int(match["line"])) for text in texts for match in _FRAME.finditer(text)])


def _current_line() -> str:
    return _shown([(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()])


def _shown(frames: list[tuple[str, int]]) -> str:
    entries = [i for i, (file, _) in enumerate(frames) if file.endswith(_ENTRY)]
    line = user_source_line(frames[entries[-1] + 1 :] if entries else frames)
    return "" if line is None else str(line)


_SHOWN_NAMES = 3


def usage(
    model: nn.Module, used_sets: Sequence[frozenset[str]], degrees: Degrees, paths: Sequence[str]
) -> tuple[list[Problem], list[str]]:
    """Problems and notes about trainable parameters without a gradient.

    `used_sets` has the names of the parameters with a gradient, by batch: first the microbatches of the ranks. A
    problem of the kind "hang" means that ranks with sharded parameters would wait for each other forever: they run
    different blocks.
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
    model: nn.Module,
    parts: Sequence[Mapping[str, Any]],
    ranks: Sequence[Mapping[str, Any]],
    single: Reference,
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
