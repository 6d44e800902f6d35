"""A batch against its microbatches: whether they agree, the cause if they do not, and the user's line."""

from __future__ import annotations

import contextlib
import math
import re
import traceback
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own name for it)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smp_advisor.profiling.inputs import mapped, microbatches_of, samples_of
from smp_advisor.profiling.patching import patched
from smp_advisor.profiling.result import Problem
from smp_advisor.profiling.step import call_model, loss_of
from smp_advisor.sandbox.failure import user_source_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


Batch = Mapping[str, Any]
Gradients = Mapping[str, Tensor]

_TOLERANCE = 1e-3
"""Relative difference between a batch and its parts; sums over more elements are rounded differently."""
_NEGLIGIBLE = 0.01
"""Elements that are smaller on average, relative to those of all gradients, are compared with this share instead."""
_DIVISIONS = 3
_OF_WEIGHTS = 0.005
"""The same of the weights with which gradients of the parts add up to that of the batch."""


@contextlib.contextmanager
def without_dropout(rates: list[float]) -> Iterator[None]:
    """Skip dropout, whose masks differ where a batch is divided; its rates are appended to `rates`."""
    attend = F.scaled_dot_product_attention

    def passed(input: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any) -> Tensor:  # noqa: A002, FBT001, FBT002 (PyTorch's signature)
        rates.append(p * training)
        return input

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *arguments: Any,
        **keywords: Any,
    ) -> Tensor:
        rates.append(dropout_p)
        attended: Tensor = attend(query, key, value, attn_mask, 0.0, *arguments, **keywords)
        return attended

    with (
        patched(F, "dropout", passed),
        patched(torch, "dropout", passed),
        patched(F, "scaled_dot_product_attention", attention),
    ):
        yield


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that normalize with statistics of the batch, by path."""
    kinds = nn.modules.batchnorm._BatchNorm
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds) and module.training}


@contextlib.contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the values of the model's buffers after the block."""
    saved = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


def named_batch(inputs: Any) -> dict[str, Any]:
    """Inputs by name; positional inputs are numbered."""
    return dict(inputs) if isinstance(inputs, Mapping) else {f"_{i}": value for i, value in enumerate(inputs)}


def unnamed(batch: Batch) -> Batch | list[Any]:
    """Inverse of `named_batch`."""
    is_positional = all(name[:1] == "_" and name[1:].isdigit() for name in batch)
    return [batch[f"_{i}"] for i in range(len(batch))] if is_positional else batch


def used_by(model: nn.Module, batch: Batch) -> frozenset[str]:
    """Names of the parameters that get a gradient from a batch."""
    return frozenset(_gradients(model, batch)[1])


def _loss(model: nn.Module, batch: Batch, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return loss_of(call_model(model, unnamed(batch)))


def _gradients(model: nn.Module, batch: Batch, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one forward and backward pass, which leaves the buffers as they are."""
    with restored_buffers(model):
        model.zero_grad(set_to_none=True)
        loss = _loss(model, batch, seed)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
    return float(loss.detach()), gradients


def check_division(model: nn.Module, parts: Sequence[Batch]) -> tuple[list[Problem], list[str], float | None]:
    """Problems of the entire batch against the mean of its parts, what cannot be compared, and its loss or None."""
    loss, gradients = _gradients(model, parts[0])
    unsound = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if not math.isfinite(loss) or unsound:
        return [_nonfinite(model, parts[0], loss, unsound)], [], None
    again, again_gradients = _gradients(model, parts[0])
    different, name = largest_difference(again_gradients, gradients)
    if _differs(again, loss) or different > _TOLERANCE:
        text = (
            f"The same microbatch gives loss {loss:.7g} at its first pass and {again:.7g} at its second: the model "
            "keeps state outside its buffers, which differs between ranks and in recomputed blocks."
        )
        line = _line_of(model, parts[0])
        return [Problem(kind="state between calls", text=text, parameter=name, line=line)], [], None
    reseeded, _ = _gradients(model, parts[0], seed=1)
    if abs(reseeded - loss) > 1e-6 * max(abs(loss), 1e-3):
        sentence = (
            "The entire batch against its microbatches: the model draws random numbers of its own, which differ when a "
            "batch is divided."
        )
        return [], [sentence], None
    norms, sentences = batch_norms(model), list[str]()
    if norms:
        count = f"{len(norms)} layers normalize" if len(norms) > 1 else "1 layer normalizes"
        sentences.append(
            f"Statistics of the entire batch: {count} each microbatch by its own statistics ({next(iter(norms))}), so "
            "the step depends on the microbatch size by design."
        )
    for module in norms.values():
        module.eval()
    batch: dict[str, Any] = mapped(lambda *rows: torch.cat(rows), *map(dict, parts))
    entire = _gradients(model, batch)
    # Other divisions of the same samples: one may agree by chance.
    for division in (parts, *(_shuffled(batch, len(parts), seed) for seed in range(_DIVISIONS - 1))):
        results = [_gradients(model, part) for part in division]
        losses = [result for result, _ in results]
        invalid = next((i for i, result in enumerate(losses) if not math.isfinite(result)), None)
        if invalid is not None:
            problem = _nonfinite(model, division[invalid], losses[invalid], [])
            text = f"{problem.text} The first microbatch is finite, and microbatch {invalid} is not."
            return [replace(problem, text=text)], sentences, None
        difference, worst = largest_difference(entire[1], _mean([own for _, own in results]))
        if _differs(entire[0], sum(losses) / len(losses)) or difference > _TOLERANCE:
            line = _line_of(model, division[0])
            return [replace(_classified(results, entire, worst), line=line)], sentences, entire[0]
    return [], sentences, entire[0]


def _shuffled(batch: Batch, count: int, seed: int) -> list[dict[str, Any]]:
    """Divide the samples of a batch, in random order, into `count` microbatches."""
    order = torch.randperm(samples_of(batch), generator=torch.Generator().manual_seed(seed))
    return microbatches_of(mapped(lambda rows: rows[order], dict(batch)), count)


def _mean(gradients: Sequence[Gradients]) -> dict[str, Tensor]:
    """Mean of gradients; a missing one is zero."""
    mean: dict[str, Tensor] = {}
    for own in gradients:
        for name, gradient in own.items():
            mean[name] = mean[name] + gradient / len(gradients) if name in mean else gradient / len(gradients)
    return mean


def _differs(value: float, expected: float, tolerance: float = _TOLERANCE) -> bool:
    return not abs(value - expected) <= tolerance * max(abs(expected), 1e-3)


def _classified(results: Sequence[tuple[float, Gradients]], entire: tuple[float, Gradients], worst: str) -> Problem:
    """The reason why a batch differs from the mean of its parts, by the weights with which its gradient is their sum.

    Every gradient is a sum of the parts' for some weights only if no sample's loss depends on samples of other parts:
    there are far more parameters than parts.
    """
    losses = [loss for loss, _ in results]
    figures = (
        f"the entire batch has loss {entire[0]:.6g}, its {len(losses)} microbatches {sum(losses) / len(losses):.6g} on "
        "average"
    )
    every = [*(gradients for _, gradients in results), entire[1]]
    products = torch.tensor(
        [[sum(float((a[name] * b[name]).sum()) for name in a if name in b) for b in every] for a in every],
        dtype=torch.float64,
    )
    weights = torch.linalg.pinv(products[:-1, :-1]) @ products[:-1, -1]
    unexplained = float((products[-1, -1] - weights @ products[:-1, -1]) / products[-1, -1].clamp(min=1e-30))
    total = sum(weight * loss for weight, loss in zip(weights.tolist(), losses, strict=True))
    is_weighted = unexplained < _OF_WEIGHTS**2 and not _differs(total, entire[0], _OF_WEIGHTS)
    if is_weighted and float((weights - 1).abs().max()) < _OF_WEIGHTS:
        return Problem(
            kind="sum loss",
            text=f"The loss is a sum over samples, not a mean: {figures}. Gradients grow with the batch, and "
            "microbatches and data-parallel ranks average them: divide the loss by the number of samples.",
        )
    if is_weighted and abs(float(weights.sum()) - 1) < _OF_WEIGHTS and float(weights.min()) > -_OF_WEIGHTS:
        shares = ", ".join(f"{weight:.0%}" for weight in weights[:4].tolist())
        return Problem(
            kind="unequal mean",
            text="The loss is a mean over unequal numbers of tokens or samples per microbatch "
            f"({shares} of the batch): {figures}. Divide each sum by the count of the entire batch.",
        )
    return Problem(
        kind="batch dependence",
        text="A sample's loss depends on the other samples of its microbatch (a contrastive loss, statistics of the "
        f"batch): {figures}. Dividing the batch changes the training; gather the samples of all ranks first.",
        parameter=worst,
    )


def _nonfinite(model: nn.Module, part: Batch, loss: float, unsound: Sequence[str]) -> Problem:
    if not math.isfinite(loss):
        with restored_buffers(model), _NonFinite() as finder:
            _loss(model, part)
        name = "NaN" if math.isnan(loss) else "infinite"
        text = f"The loss is {name} in one process already, so no parallelism is the cause."
        return Problem(kind="NaN", text=text, line=finder.lines.get("NaN") or finder.lines.get("infinite", ""))
    kind = ""
    with restored_buffers(model), warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        try:
            _loss(model, part).backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # Function 'SqrtBackward0' returned nan values in its 0th output
            kind = str(error).partition("'")[2].partition("'")[0]
    model.zero_grad(set_to_none=True)
    text = f"The loss is {loss:.6g}, but {len(unsound)} gradients are {'NaN' if kind else 'NaN or infinite'}"
    line = _line_of(model, part, kind) if kind else ""
    return Problem(kind="NaN", text=f"{text} in one process already.", parameter=unsound[0], line=line)


class _NonFinite(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the lines of the first operations with a NaN, or an infinite result, from operands without one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for name, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
            is_mask = name == "infinite" and (
                "fill" in str(func) or "full" in str(func)
            )  # masks are filled with -inf on purpose
            if name not in self.lines and not is_mask and _any(test, output) and not _any(test, (args, kwargs)):
                self.lines[name] = _user_line(traceback.format_stack())
        return output


def _any(test: Callable[[Tensor], Tensor], values: Any) -> bool:
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return any(bool(test(leaf.detach()).any()) for leaf in leaves)


def _line_of(model: nn.Module, batch: Batch, kind: str = "") -> str:
    """The user's line of the last operation of the loss, or of that with a kind of backward pass; empty if unknown."""
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        warnings.simplefilter("ignore")
        queue: deque[Any] = deque([_loss(model, batch).grad_fn])
    visited: set[Any] = set()
    while queue:
        node = queue.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        line = _user_line(node.metadata.get("traceback_", ())) if node.name().startswith(kind) else ""
        if line:
            return line
        queue.extend(inner for inner, _ in node.next_functions)
    return ""


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ENTRY = "profiling/step.py"
"""Frames before this module's call of the model belong to the kernel and to the check."""


def _user_line(texts: Iterable[str]) -> str:
    frames = [(match["file"], int(match["line"])) for text in texts for match in _FRAME.finditer(text)]
    entries = [i for i, (file, _) in enumerate(frames) if file.endswith(_ENTRY)]
    line = user_source_line(frames[entries[-1] + 1 :] if entries else frames)
    return "" if line is None else str(line)


def largest_difference(values: Gradients, expected: Gradients) -> tuple[float, str]:
    """Largest relative difference and its name; infinite for a nonzero value without an expected one, or for NaN."""
    largest, worst = 0.0, next(iter(values), "")
    elements = sum(target.numel() for target in expected.values())
    usual = math.sqrt(sum(float(target.norm()) ** 2 for target in expected.values()) / max(elements, 1))
    for name, value in values.items():
        target = expected.get(name)
        if target is None:
            difference = 0.0 if not value.any() else float("inf")
        else:
            # The norm of a gradient that is zero except for rounding (a key's bias) is no basis for comparison.
            norm = max(float(target.norm()), _NEGLIGIBLE * usual * value.numel() ** 0.5, 1e-30)
            difference = float((value - target).norm()) / norm
        if math.isnan(difference):
            difference = float("inf")
        if difference > largest:
            largest, worst = difference, name
    return largest, worst
