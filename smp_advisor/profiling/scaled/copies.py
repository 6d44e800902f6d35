"""Copies of a model that are small enough to train here: cut in depth, and narrower by renamed dimensions."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.profiling.failures import Assumptions, checks_of, is_about_values
from smp_advisor.profiling.fake import copy_with, fake_copy, fake_inputs, materialized
from smp_advisor.profiling.gpu_kernels import without_initialization
from smp_advisor.profiling.inputs import cast_inputs, example_inputs, filled, valid_ids
from smp_advisor.profiling.known_values import KnownValuesMode
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.scaled.result import Reduction
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import (
    hidden_size,
    largest_table,
    parameter_total,
    remaining_children,
    stacks,
    truncated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.step import StepMeasure
    from smp_advisor.profiling.structure import Stack


_BYTES_PER_PARAMETER = 20
"""Parameter, gradient and Adam state in fp32, with temporaries."""
_SHARE_OF_MEMORY = 0.5
"""The remaining memory is for activations, logits and temporaries."""
_LEAST_BLOCKS = 2
_SAMPLES = 2
"""Of a batch: the fewest for which norms of batches have statistics."""
_MOST_TOKENS = 64
_MOST_WORK = 40_000_000_000
"""Limit of `StepMeasure.work` of a step: about a second of one core."""
_VOCABULARY = 2048
_LEAST_HEADS = 2
"""With a single head, kernels and views differ, and so does memory."""
_EXPERTS = re.compile(r"(num|n)_(local_|routed_)?experts|moe_num_experts")
_EXPERTS_PER_TOKEN = re.compile(r"num_experts_per_tok|experts_per_token|top_k|moe_(topk|k)|num_selected_experts")
_DIVISORS = (1, 2, 4, 8, 16)
"""1 reduces the vocabulary and the experts alone."""
_CHANNELS = (16, 2)
"""Where heads cannot be divided, channels are multiples of one of these: they remain ones of the groups of
normalization, or the halves of a head that rotary positions turn."""
_FIXED = (
    "image_size", "img_size", "resolution", "seq_len", "length", "position", "kernel", "dilation", "stride", "padding",
    "padded", "token_id", "num_channels",
)  # fmt: skip
"""Parts of names of attributes that are no widths."""
_MOST_ATTRIBUTE = 2**31
_FAST = 25_000_000
"""Parameters of a copy whose steps take seconds."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A scaled copy with its inputs, and the trace of a step with them."""

    model: nn.Module
    inputs: Any
    description: str
    """Text on the inputs for the user."""
    sequence: int
    full_sequence: int
    """Tokens per sample of the job."""
    reductions: tuple[Reduction, ...]
    traced: StepMeasure | None
    """None if the copy could not be traced."""
    error: Exception | None
    """Error of the trace; with assumed values, it still counts the work of a step."""

    @property
    def idle(self) -> frozenset[str]:
        """Layers with parameters that the forward pass does not call; none if that is not known."""
        layers = (name for name, part in self.model.named_modules() if part._parameters and not part._modules)
        return frozenset() if self.traced is None else frozenset(layers) - self.traced.entered


@contextlib.contextmanager
def scaled_copy(profiled: ProfiledModel, inputs: Any, *, sequence: int, memory_bytes: int) -> Iterator[Copy]:
    """Yield the first copy with the same architecture that runs in fp32 and whose step is small.

    A live module is cut in place inside the block, so call this in a child process only. A configuration is built
    without values, and gets random ones.
    """
    model = _built(profiled)
    rows = stacks(model)
    repeats = math.ceil(_LEAST_BLOCKS / min((row.period for row in rows), default=1))
    cut = [row for row in rows if row.repeats > repeats]
    if cut and not _runs_shorter(model, cut, repeats, inputs, sequence):
        cut = []
    depths = tuple(Reduction(row.label, len(row.names), len(remaining_children(row, repeats))) for row in cut)
    limit = int(memory_bytes * _SHARE_OF_MEMORY / _BYTES_PER_PARAMETER)
    with truncated(model, cut, repeats):
        count, works = parameter_total([model]), list[int]()
        for candidate, widths in _candidates(model, limit):
            # A narrower copy may be inconsistent; of the model itself, real steps show errors better than their trace.
            try:
                copy = _traced(candidate, inputs, sequence, (*depths, *(widths or ())))
            except (AdvisorError, RuntimeError, ValueError, TypeError, IndexError):
                if widths is None:
                    raise
                continue
            if widths is not None and copy.error and (copy.traced is None or not is_about_values(copy.error)):
                continue
            works.append(0 if copy.traced is None else copy.traced.work)
            if works[-1] <= _MOST_WORK:
                yield replace(copy, model=materialized(candidate).to(torch.float32))
                return
    if works:
        raise ProfileError(
            f"A step of the smallest copy of {profiled.name} takes {min(works) / 1e9:,.0f} GFLOPs on this machine, over"
            f" the limit of {_MOST_WORK / 1e9:,.0f}: pass smaller inputs for the stage 'copy'."
        )
    raise ProfileError(
        f"A few blocks of {profiled.name} at full width have {count / 1e6:,.0f} million parameters, over the limit of"
        f" {limit / 1e6:,.0f} million for the available memory (memory_bytes=). Its dimensions could not be reduced"
        " consistently: raise this limit, or pass a narrower module."
    )


def _built(profiled: ProfiledModel) -> nn.Module:
    model = profiled.module
    if model is None:
        with torch.device("meta"), without_initialization():
            model = profiled.build(attention="eager")
    if any(p.device.type not in {"cpu", "meta"} for p in model.parameters()):
        raise ProfileError(f"{profiled.name} is on a GPU, which the child process cannot access: move it with .cpu().")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ProfileError(f"{profiled.name} has lazy layers: call it once on example inputs before profiling.")
    return model


def _runs_shorter(model: nn.Module, cut: list[Stack], repeats: int, inputs: Any, sequence: int) -> bool:
    """Return whether the model runs with fewer blocks: a fixed number of layers or skips between them prevent it."""
    with truncated(model, cut, repeats):
        shorter = _traced(model, inputs, sequence, ())
        if shorter.error is not None and not is_about_values(shorter.error):
            return False
        idle = shorter.idle
    # A loop over several lists ends with the shortest one, and leaves layers of the others idle.
    return not idle or idle <= _traced(model, inputs, sequence, ()).idle


def _traced(model: nn.Module, inputs: Any, sequence: int, reductions: tuple[Reduction, ...]) -> Copy:
    """Return a copy with the trace of a step; with assumed values, if it reads some."""
    example = example_inputs(model.train(), inputs)
    full = min(sequence, example.longest or sequence) if example.has_sequence else 1
    tokens = min(full, _MOST_TOKENS)
    batch = cast_inputs(filled(example.make(_SAMPLES, tokens), valid_ids(model)), torch.float32)

    def step(assumptions: Assumptions | None, *, backward: bool = True) -> StepMeasure:
        mode = KnownValuesMode()
        mode.assumptions = assumptions
        fake, sample = fake_copy(model, mode, torch.float32), fake_inputs(batch, mode, torch.float32)
        with mode:
            return measure_step(
                fake, sample, attention="eager", operators=True, assumptions=assumptions, backward=backward
            )

    traced, failure = None, None
    with quiet():
        try:
            traced = step(None)
        except Exception as error:  # noqa: BLE001 - a model may raise anything under a trace
            failure = error
            with contextlib.suppress(Exception):
                checks = checks_of(lambda assumptions: step(assumptions, backward=False))
                traced = step(Assumptions(value=True, checks=checks))
    return Copy(
        model=model, inputs=batch, description=example.description, sequence=tokens, full_sequence=full,
        reductions=reductions, traced=traced, error=failure,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Renaming:
    """Smaller sizes for the multiples of a number, for the vocabulary and for experts; other sizes remain."""

    multiple: int
    divisor: int
    vocabulary: int
    experts: tuple[int, int]
    """Before and after; zeros without experts in one tensor."""
    heads: bool
    """Whether heads are divided, too; otherwise their width is."""

    def __call__(self, value: int) -> int:
        """Return the new size for a size."""
        if self.vocabulary and value == self.vocabulary:
            return min(value, _VOCABULARY)
        if value and value == self.experts[0]:
            return self.experts[1]
        return value // self.divisor if value and value % self.multiple == 0 else value


def _candidates(model: nn.Module, most_parameters: int) -> Iterator[tuple[nn.Module, tuple[Reduction, ...] | None]]:
    """Yield the model, and then narrower copies with their reductions, the widest that trains fast first.

    The hidden size and its multiples in parameters, buffers and integer attributes, also those of configurations, are
    divided. Heads are divided by the same number so that their width remains, and other dimensions remain. If that is
    not consistent, as in convolutional networks, all multiples of 16 times the divisor are divided. Whether a copy is
    consistent shows in its trace.
    """
    if parameter_total([model]) <= most_parameters:
        yield model, None
    hidden, rows = hidden_size(model), largest_table(model, nn.Embedding, nn.EmbeddingBag)
    values = [(name, value) for owner in _attributes(model) for name, value in owner.items() if type(value) is int]
    heads = sorted({value for name, value in values if _counts_heads(name, value)})
    experts = _experts(model, values)
    # Widest first: the smallest of the grouped heads has the smallest width.
    widths = [hidden * heads[0] // heads[-1], hidden] if heads else [hidden]
    plans: dict[_Renaming, int] = {}
    for divisor in _DIVISORS:
        for multiple in dict.fromkeys((*widths, *(divisor * channels for channels in _CHANNELS))):
            by_heads = multiple in widths
            if not multiple or multiple % divisor:
                continue
            if by_heads and any(value % divisor or value // divisor < _LEAST_HEADS for value in heads):
                continue
            plan = _Renaming(multiple, divisor, vocabulary=rows, experts=experts, heads=by_heads)
            count = sum(math.prod(map(plan, p.shape)) for p in model.parameters())
            if count <= most_parameters:
                plans[plan] = count
    fast = [plan for plan, count in plans.items() if count <= _FAST]
    for plan in [*fast, *(plan for plan in reversed(plans) if plan not in fast)]:
        widest = hidden if plan.heads else max((p.shape[1] for p in model.parameters() if p.ndim > 1), default=0)
        changes = [("hidden size" if plan.heads else "channels", widest, plan(widest))]
        changes += [("heads", value, value // plan.divisor) for value in heads if plan.heads]
        changes += [("vocabulary", rows, min(rows, _VOCABULARY)), ("experts", *experts)]
        changed = tuple(Reduction(*change) for change in changes if change[1] != change[2])
        if changed or plan.divisor > 1:
            yield _renamed(model, plan), changed


def _attributes(model: nn.Module) -> list[dict[str, Any]]:
    """Attributes of every module and of every configuration, which can be changed."""
    modules = [vars(module) for module in model.modules()]
    configurations = {id(value): vars(value) for own in modules for value in own.values() if hasattr(value, "to_dict")}
    return [*modules, *configurations.values()]


def _counts_heads(name: str, value: object) -> bool:
    return type(value) is int and 1 < value < 1024 and "head" in name and not re.search("dim|size|width", name)


def _experts(model: nn.Module, values: list[tuple[str, int]]) -> tuple[int, int]:
    """Experts whose weights are one tensor, and a smaller number: at least two for each one of a token."""
    counts = [value for name, value in values if _EXPERTS.fullmatch(name) and value > 1]
    count = next((count for count in counts if any(p.ndim > 2 and p.shape[0] == count for p in model.parameters())), 0)
    fewest = 2 * max((value for name, value in values if _EXPERTS_PER_TOKEN.fullmatch(name)), default=1)
    smaller = count
    while smaller % 2 == 0 and smaller // 2 >= fewest:
        smaller //= 2
    return count, smaller


def _renamed(model: nn.Module, plan: _Renaming) -> nn.Module:
    """Copy of the module with the renamed dimensions; parameters and buffers are cut to their new shapes."""

    def cut(tensor: Tensor) -> Tensor:
        shape = [plan(size) if size else size for size in tensor.shape]
        values = tensor.detach()[tuple(slice(size) for size in shape)].clone()
        return nn.Parameter(values, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values

    narrow = copy_with(model, cut)
    for own in _attributes(narrow):
        for name, value in list(own.items()):
            if _counts_heads(name, value):
                own[name] = value // plan.divisor if plan.heads else value
            elif any(part in name for part in _FIXED) or _EXPERTS_PER_TOKEN.fullmatch(name):
                continue
            elif isinstance(value, tuple) and value and all(type(part) is int for part in value):
                own[name] = tuple(plan(part) if part else part for part in value)
            elif type(value) is int and 0 < value < _MOST_ATTRIBUTE:
                own[name] = plan(value)
    return narrow
