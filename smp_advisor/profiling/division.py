"""Whether a plan may divide the steps of a model: a copy's batch against its microbatches, in one process.

A loss that is no mean, samples that depend on each other, state between calls, data that decide which parameters are
used, and weights that pipeline stages share are seen without a second process. The script itself is rehearsed by
`smp_advisor.rehearse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from smp_advisor.profiling.divided_batches import (
    batch_norms,
    check_division,
    named_batch,
    restored_buffers,
    unnamed,
    used_by,
    without_dropout,
)
from smp_advisor.profiling.inputs import example_inputs, filled, mapped, microbatches_of, samples_of, valid_ids
from smp_advisor.profiling.result import Division, Problem
from smp_advisor.profiling.scaled.build import make_copy
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import parameter_total, stacks
from smp_advisor.sandbox import Limits, progress, run_isolated
from smp_advisor.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.workload.job import Job

_FLOPS = 2e11
"""FLOPs of all passes."""
_PASSES = 12
"""Forward and backward runs of the entire batch."""
_MAX_SAMPLES = 64
_MAX_TOKENS = 32
_MAX_MICROBATCHES = 4
_PROBES = 8
"""Small batches of other data, which show whether the data decides which parameters are used."""
_SMALL_PARAMETERS = 3_000_000
_SMALL_BLOCKS = 16
"""Most blocks of the copy of a module with at most this many parameters."""
_MEMORY_DIVISOR = 3
"""Share of the memory limit for the copy: gradients of the batch and of its parts are compared."""
_SHOWN_NAMES = 3


def run(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    *,
    data_parallel_degree: int | None = None,
    inputs: Any = None,
    memory_bytes: int | None = None,
    seconds: float = 1800.0,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Division:
    """Train one step of a scaled copy with an entire batch and with its parts, and compare both.

    Sizes follow from counts of bytes and FLOPs, so no result depends on the speed of the machine; `seconds` is a last
    guard, whose error names it.
    """
    memory_bytes = default_memory_bytes() if memory_bytes is None else memory_bytes
    replicas = min(2, 2 if data_parallel_degree is None else data_parallel_degree)
    result = run_isolated(
        lambda: _checked(profiled, job, plan, replicas, inputs, memory_bytes).as_dict(),
        what=f"the division of {profiled.name}",
        limits=Limits(memory_bytes=memory_bytes, seconds=seconds),
        on_line=on_line,
        on_progress=on_progress,
    )
    return Division.from_dict(result)


def _checked(profiled: ProfiledModel, job: Job, plan: Plan, replicas: int, inputs: Any, memory_bytes: int) -> Division:
    """Build the copy, and compare; runs in the child process."""
    progress(0, 2, "building the copy")
    module, stages = profiled.module, plan.pipeline_parallel_degree
    problems = [] if module is None or stages == 1 else _shared_weights(module, stages)
    blocks = max(2, min(stages, 4))
    if module is not None and parameter_total([module]) <= _SMALL_PARAMETERS:
        blocks = max([blocks, *(min(len(row.names), _SMALL_BLOCKS) for row in stacks(module))])
    with ExitStack() as stack:
        torch.manual_seed(0)
        copy = make_copy(
            profiled, stack, memory_bytes=memory_bytes // _MEMORY_DIVISOR, dtype=torch.float32, blocks=blocks
        )
        model, not_checked, rates = copy.model.train(), list[str](), [0.0]
        stack.enter_context(without_dropout(rates))
        example = example_inputs(model, inputs)
        planned_length = min(job.sequence_length, example.longest or job.sequence_length)
        length = min(planned_length, _MAX_TOKENS) if example.has_sequence else 1
        vocab = valid_ids(model)

        def batch_of(count: int, seed: int) -> dict[str, Any]:
            """A batch by name; the user's samples are repeated, and inferred ones are random."""
            if not _has_values(inputs):
                return named_batch(filled(example.make(count, length), vocab, seed=seed))
            rows = (torch.arange(count) + seed * count) % samples_of(_plain(inputs))
            batch = mapped(lambda values: values[rows], _plain(inputs))
            is_reduced = any(part.name == "vocabulary" for part in copy.reductions)
            return named_batch(filled(batch, vocab) if is_reduced else batch)

        count = min(plan.microbatches * plan.gradient_accumulation_steps, _MAX_MICROBATCHES)
        count = max(count, 3 - replicas)  # a batch of one part is not divided
        planned, fewest = max(1, plan.batch_size // plan.microbatches), 1
        if planned > 1:
            fewest = 2 if batch_norms(model) else 1
            samples = _affordable_samples(model, batch_of(2, 0), replicas * count, planned, memory_bytes, fewest)
        else:
            samples = 1
        if samples != planned:
            not_checked.append(f"Microbatches of {planned} samples: each had {samples}.")
        if example.has_sequence and not _has_values(inputs) and length != planned_length:
            not_checked.append(f"Sequences of {planned_length:,} tokens: each had {length}.")
        progress(1, 2, "the entire batch and its parts")
        batches = [batch_of(count * samples, seed) for seed in range(replicas)]
        parts = [part for batch in batches for part in microbatches_of(batch, count)]
        first = replicas * count * samples
        probes = [batch_of(fewest, first + seed) for seed in range(_PROBES if replicas > 1 else 0)]
        used = [used_by(model, batch) for batch in (*parts, *probes)]
        of_usage, notes = _usage(model, used, copy.blocks, plan, replicas)
        of_batch, sentences, loss = check_division(model, parts)
        not_checked += sentences
        if max(rates):
            not_checked.append(f"Dropout (rate {max(rates):g}), which was off.")
        return Division(
            name=profiled.name, parts=len(parts), samples=samples, reductions=tuple(map(str, copy.reductions)),
            loss=loss, problems=(*of_usage, *of_batch, *problems), notes=tuple(notes), not_checked=tuple(not_checked),
        )  # fmt: skip


def _has_values(inputs: Any) -> bool:
    """Whether the user supplied tensors with values, which keep their shape."""
    if inputs is None or callable(inputs):
        return False
    return not any(leaf.is_meta for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))


def _plain(inputs: Any) -> Any:
    own = (inputs,) if isinstance(inputs, Tensor) else dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    return tree_map_only(Tensor, lambda leaf: leaf.detach().cpu(), own)


def _affordable_samples(
    model: nn.Module, pair: Mapping[str, Any], parts: int, planned: int, memory_bytes: int, fewest: int
) -> int:
    """Samples per microbatch: as planned, or fewer if the steps are too large or have too many FLOPs."""
    with restored_buffers(model):
        step = measure_step(model, unnamed(pair), attention="eager")
    by_memory = memory_bytes / 2 / max(step.saved_bytes / 2 * parts, 1)
    by_flops = _FLOPS / max((step.forward_flops + step.backward_flops) / 2 * parts * _PASSES, 1)
    return max(fewest, min(planned, _MAX_SAMPLES, int(by_memory), int(by_flops)))


def _usage(
    model: nn.Module, used: Sequence[frozenset[str]], blocks: Sequence[str], plan: Plan, replicas: int
) -> tuple[list[Problem], list[str]]:
    """Problems and notes about trainable parameters without a gradient, from the names that each batch used."""
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    ever = frozenset().union(*used)
    notes = []
    if never := [name for name in trainable if name not in ever]:
        requirement = "; DistributedDataParallel requires find_unused_parameters=True, or freeze them"
        notes.append(f"{_names(never)} never gets a gradient{requirement if replicas > 1 else ''}.")
    varying = [name for name in trainable if name in ever and any(name not in of for of in used)]
    if not varying or replicas == 1:
        return [], notes
    where = f"unused in {sum(varying[0] not in of for of in used)} of {len(used)} batches"
    if not plan.shards_parameters:
        text = (
            f"The data decides whether {_names(varying)} is used ({where}). Under DistributedDataParallel, the ranks "
            "wait for each other (a hang) unless find_unused_parameters=True."
        )
        return [Problem(kind="data-dependent use", text=text, parameter=varying[0])], notes
    for block in blocks:
        own = {name for name in trainable if name.startswith(f"{block}.")} & ever
        if own and any(not own & of for of in used):
            text = (
                f"The ranks would wait for each other (a hang): the data decides whether block {block} runs "
                f"(parameter {varying[0]} is {where}), and each rank that runs it waits for the shards of all ranks. "
                "Run every block on every rank, for example with its output times zero."
            )
            return [Problem(kind="hang", text=text, parameter=varying[0])], notes
    return [], notes


def _shared_weights(model: nn.Module, stages: int) -> list[Problem]:
    """Weights that blocks of different pipeline stages share; earlier stages get fewer blocks."""
    paths = max((row.paths for row in stacks(model)), key=len, default=())
    users: dict[int, list[tuple[int, str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        blocks = [number for number, path in enumerate(paths) if name.startswith(f"{path}.")]
        users.setdefault(id(parameter), []).extend((number, name) for number in blocks)
    for group in users.values():
        if len({number * stages // len(paths) for number, _ in group}) > 1:
            names = [name for _, name in group]
            text = (
                f"{', '.join(names[:4])} are one weight in several pipeline stages. Each stage updates its own copy "
                "with its own gradient, so the copies diverge: keep these blocks in one stage, or sum the gradients "
                "over the stages."
            )
            return [Problem(kind="shared weights", text=text, parameter=names[0])]
    return []


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return f"each of {len(names)} parameters ({', '.join(names[:_SHOWN_NAMES])}{more})"
