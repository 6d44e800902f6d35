"""Whether a batch may be divided: repeatable steps of one process over a batch, and over its parts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from smp_advisor.profiling.inputs import mapped, microbatches_of, samples_of
from smp_advisor.profiling.loss_lines import line_of_loss, line_of_parameter, nonfinite_line
from smp_advisor.profiling.patching import patched
from smp_advisor.profiling.result import Problem
from smp_advisor.profiling.step import call_model, loss_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_MAX_PERIOD = 64


@contextlib.contextmanager
def repeatable(attention_dropouts: list[float] | None = None) -> Iterator[None]:
    """Replace dropout by one with the same mask for every sample, so that runs in training mode are comparable.

    Every 2nd, 4th, ... element of the last dimension is dropped, by the power of two closest to the dropout rate. A
    divided dimension has the same mask as the entire one if its part is a multiple of that power. The dropout of
    PyTorch's attention kernel is skipped; its rates are appended to `attention_dropouts`.
    """
    attend = F.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
        **keywords: Any,
    ) -> Tensor:
        if dropout_p and attention_dropouts is not None:
            attention_dropouts.append(dropout_p)
        attended: Tensor = attend(query, key, value, attn_mask, 0.0, is_causal, **keywords)
        return attended

    def direct(tensor: Tensor, p: float, train: bool) -> Tensor:  # noqa: FBT001 (PyTorch's signature)
        return _dropout(tensor, p, train)

    with (
        patched(F, "dropout", _dropout),
        patched(torch, "dropout", direct),
        patched(F, "scaled_dot_product_attention", attention),
    ):
        yield


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002, ARG001, FBT001, FBT002 (PyTorch's signature)
    if not training or not 0 < p < 1 or not input.ndim:
        return input * 0 if training and p == 1 else input
    period = min(2 ** max(1, round(-math.log2(p))), _MAX_PERIOD)
    mask = (torch.arange(input.shape[-1], device=input.device) % period != period - 1).to(input.dtype)
    scaled: Tensor = mask * (period / (period - 1))
    return input * scaled


def seeded(model: nn.Module, paths: Sequence[str], *, offset: int = 0) -> Callable[[], None]:
    """Seed each forward pass, and each block's, with the same numbers in every run; the result removes the seeds."""
    handles = [
        module.register_forward_pre_hook(_seed(offset + number))
        for number, module in enumerate([model, *(model.get_submodule(path) for path in paths)])
    ]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def _seed(number: int) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        torch.manual_seed(number)

    return hook


def batch_norms(model: nn.Module) -> list[str]:
    """Paths of the layers that normalize with statistics of the batch."""
    kinds = nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.training]


@contextlib.contextmanager
def evaluated(model: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Set some modules to evaluation mode inside the block."""
    modules = [model.get_submodule(path) for path in paths]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


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


Batch = Mapping[str, Any]

_DIVIDED_TOLERANCE = 1e-3
"""Relative difference between a batch and its parts; sums over more elements are rounded differently."""
_NEGLIGIBLE = 0.01
"""Elements that are smaller on average, relative to those of all gradients, are compared with this share instead."""
_DIVISIONS = 3
_WEIGHTED_TOLERANCE = 0.02
"""The same with weights that were derived from differences of losses."""


def named_batch(inputs: Any) -> dict[str, Any]:
    """Inputs by name; positional inputs are numbered."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {f"_{i}": value for i, value in enumerate(inputs)}


def unnamed(batch: Batch) -> Batch | list[Any]:
    """Inverse of `named_batch`."""
    is_positional = all(name[:1] == "_" and name[1:].isdigit() for name in batch)
    return [batch[f"_{i}"] for i in range(len(batch))] if is_positional else batch


def by_name(model: nn.Module, batch: Batch) -> Any:
    """Call the model with a batch from `named_batch`."""
    return call_model(model, unnamed(batch))


def joined(parts: Sequence[Batch]) -> dict[str, Any]:
    """Inverse of `microbatches_of`."""
    batch: dict[str, Any] = mapped(lambda *rows: torch.cat(rows), *map(dict, parts))
    return batch


def used_by(model: nn.Module, batch: Batch) -> frozenset[str]:
    """Names of the parameters that get a gradient from a batch."""
    return frozenset(_restored(model, batch)[1])


def _gradients(model: nn.Module, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one forward and backward pass."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(by_name(model, batch))
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), gradients


def check_division(
    model: nn.Module, parts: Sequence[Batch], paths: Sequence[str]
) -> tuple[list[Problem], list[str], float | None]:
    """Problems of the entire batch against the mean of its parts, what cannot be compared, and its loss or None."""
    loss, gradients = _restored(model, parts[0])
    unsound = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if not math.isfinite(loss) or unsound:
        return [_nonfinite(model, parts[0], loss, unsound)], [], None
    again, again_gradients = _restored(model, parts[0])
    different, name = largest_difference(again_gradients, gradients)
    if _differs(again, loss) or different > _DIVIDED_TOLERANCE:
        text = (
            f"The same microbatch gives loss {loss:.7g} at its first pass and {again:.7g} at its second: the model "
            "keeps state outside its buffers, which differs between ranks and in recomputed blocks."
        )
        line = line_of_parameter(model, parts[0], by_name, name)
        return [Problem(kind="state between calls", text=text, parameter=name, line=line)], [], None
    remove = seeded(model, paths, offset=1000)  # instead of the seeds of the callers
    try:
        reseeded, _ = _restored(model, parts[0])
    finally:
        remove()
    if reseeded != loss and abs(reseeded - loss) > 1e-6 * max(abs(loss), 1e-3):
        sentence = (
            "The entire batch against its microbatches: the model draws random numbers of its own, which differ when a "
            "batch is divided."
        )
        return [], [sentence], None
    norms = batch_norms(model)
    sentences = []
    if norms:
        count = f"{len(norms)} layers normalize" if len(norms) > 1 else "1 layer normalizes"
        sentences.append(
            f"Statistics of the entire batch: {count} each microbatch by its own statistics ({norms[0]}), so the step "
            "depends on the microbatch size by design."
        )
    batch = joined(parts)
    with evaluated(model, norms):
        entire, entire_gradients = _restored(model, batch)
        # Other divisions of the same samples: one may agree by chance.
        for division in (parts, *(_shuffled(batch, len(parts), seed) for seed in range(_DIVISIONS - 1))):
            results = [_restored(model, part) for part in division]
            losses = [result for result, _ in results]
            invalid = next((i for i, result in enumerate(losses) if not math.isfinite(result)), None)
            if invalid is not None:
                problem = _nonfinite(model, division[invalid], losses[invalid], [])
                text = f"{problem.text} The first microbatch is finite, and microbatch {invalid} is not."
                return [replace(problem, text=text)], sentences, None
            means = _weighted([own for _, own in results], [1.0] * len(parts))
            difference, worst = largest_difference(entire_gradients, means)
            if _differs(entire, sum(losses) / len(losses)) or difference > _DIVIDED_TOLERANCE:
                return [_classified(model, division, results, (entire, entire_gradients), worst)], sentences, entire
    return [], sentences, entire


def _shuffled(batch: Batch, count: int, seed: int) -> list[dict[str, Any]]:
    """Divide the samples of a batch, in random order, into `count` microbatches."""
    order = torch.randperm(samples_of(batch), generator=torch.Generator().manual_seed(seed))
    return microbatches_of(mapped(lambda rows: rows[order], dict(batch)), count)


def _weighted(gradients: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Weighted mean of gradients; a missing one is zero."""
    total = sum(weights)
    mean: dict[str, Tensor] = {}
    for own, weight in zip(gradients, weights, strict=True):
        for name, gradient in own.items():
            term = gradient * (weight / total)
            mean[name] = mean[name] + term if name in mean else term
    return mean


def _restored(model: nn.Module, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    with restored_buffers(model):
        return _gradients(model, batch)


def _differs(value: float, expected: float) -> bool:
    return not abs(value - expected) <= _DIVIDED_TOLERANCE * max(abs(expected), 1e-3)


def _classified(
    model: nn.Module,
    parts: Sequence[Batch],
    results: Sequence[tuple[float, Mapping[str, Tensor]]],
    entire_result: tuple[float, Mapping[str, Tensor]],
    worst: str,
) -> Problem:
    """The reason why a batch differs from the mean of its parts, from losses of pairs of parts."""
    losses = [loss for loss, _ in results]
    entire, entire_gradients = entire_result
    line = line_of_loss(model, parts[0], by_name)
    mean = sum(losses) / len(losses)
    figures = f"the entire batch has loss {entire:.6g}, its {len(parts)} microbatches {mean:.6g} on average"
    twice, _ = _restored(model, joined([parts[0], parts[0]]))
    if not _differs(entire, sum(losses)) and not _differs(twice, 2 * losses[0]):
        return Problem(
            kind="sum loss",
            text=f"The loss is a sum over samples, not a mean: {figures}. Gradients grow with the batch, and "
            "microbatches and data-parallel ranks average them: divide the loss by the number of samples.",
            line=line,
        )
    if not _differs(twice, losses[0]):
        weights = _weights(model, parts, losses)
        if weights is not None:
            # Losses of two parts have a weighted mean by chance; gradients have none.
            difference, _ = largest_difference(entire_gradients, _weighted([own for _, own in results], weights))
            if difference <= _WEIGHTED_TOLERANCE:
                shares = ", ".join(f"{weight / sum(weights):.0%}" for weight in weights[:4])
                return Problem(
                    kind="unequal mean",
                    text="The loss is a mean over unequal numbers of tokens or samples per microbatch "
                    f"({shares} of the batch): {figures}. Divide each sum by the count of the entire batch.",
                    line=line,
                )
    return Problem(
        kind="batch dependence",
        text=f"A sample's loss depends on the other samples of its microbatch (a contrastive loss, statistics of the "
        f"batch): {figures}. Dividing the batch changes the training; gather the samples of all ranks first.",
        parameter=worst,
        line=line,
    )


def _weights(model: nn.Module, parts: Sequence[Batch], losses: Sequence[float]) -> list[float] | None:
    """Weights of the parts in a weighted mean, relative to the first one; None if a pair is no weighted mean."""
    anchor = max(range(len(losses)), key=lambda i: abs(losses[i] - losses[0]))
    weights: dict[int, float] = {0: 1.0}
    for origin in (0, anchor):
        for i in range(len(parts)):
            if i in weights or origin not in weights or not _differs(losses[i], losses[origin]):
                continue
            pair, _ = _restored(model, joined([parts[origin], parts[i]]))
            if pair == losses[i] or not (pair - losses[origin]) / (losses[i] - pair) > 0:
                return None
            weights[i] = weights[origin] * (pair - losses[origin]) / (losses[i] - pair)
    return [weights.get(i, 1.0) for i in range(len(parts))]


def _nonfinite(model: nn.Module, part: Batch, loss: float, unsound: Sequence[str]) -> Problem:
    with restored_buffers(model):
        line, phase = nonfinite_line(model, part, by_name)
    name = "NaN" if math.isnan(loss) or math.isfinite(loss) else "infinite"
    if math.isfinite(loss):
        kind = "NaN" if phase == "NaN" else "NaN or infinite"
        text = f"The loss is {loss:.6g}, but {len(unsound)} gradients are {kind} in one process already."
    else:
        text = f"The loss is {name} in one process already, so no parallelism is the cause."
    return Problem(kind="NaN", text=text, parameter=unsound[0] if unsound else "", line=line)


def largest_difference(values: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
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
