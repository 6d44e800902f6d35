"""The user's line of a loss, of a parameter's use, and of the first NaN."""

from __future__ import annotations

import re
import traceback
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.step import loss_of
from smp_advisor.sandbox.failure import user_source_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Call = Callable[[nn.Module, Mapping[str, Any]], Any]


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ENTRY = "profiling/step.py"
"""Frames before this module's call of the model belong to the kernel and to the check."""


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
    while queue:
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
