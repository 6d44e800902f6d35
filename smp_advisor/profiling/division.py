"""Whether a plan may divide the steps of a model: a copy's batch against its microbatches, in one process.

A loss that is no mean, samples that depend on each other, state between calls, data that decide which parameters are
used, and weights that pipeline stages share are seen without a second process. The script itself is rehearsed by
`smp_advisor.rehearse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.divided_batches import (
    batch_norms,
    check_division,
    named_batch,
    repeatable,
    restored_buffers,
    seeded,
    unnamed,
    used_by,
)
from smp_advisor.profiling.inputs import example_inputs, filled, mapped, microbatches_of, samples_of, valid_ids
from smp_advisor.profiling.result import Division, Problem
from smp_advisor.profiling.scaled.build import make_copy
from smp_advisor.profiling.step import measure_step
from smp_advisor.profiling.structure import parameter_total, stacks
from smp_advisor.sandbox import Limits, progress, run_isolated
from smp_advisor.sandbox.limits import default_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.inferred_inputs import ExampleInputs
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.profiling.scaled.build import Copy
    from smp_advisor.workload.job import Job


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
    result = run_isolated(
        lambda: _checked(profiled, job, plan, data_parallel_degree, inputs, memory_bytes).as_dict(),
        what=f"the division of {profiled.name}",
        limits=Limits(memory_bytes=memory_bytes, seconds=seconds),
        on_line=on_line,
        on_progress=on_progress,
    )
    return Division.from_dict(result)


def _checked(
    profiled: ProfiledModel, job: Job, plan: Plan, data_parallel_degree: int | None, inputs: Any, memory_bytes: int
) -> Division:
    """Build the copy, and compare; runs in the child process."""
    torch.manual_seed(0)
    progress(0, 2, "building the copy")
    with ExitStack() as stack:
        attention_dropouts: list[float] = []
        stack.enter_context(repeatable(attention_dropouts))
        setup = _set_up(profiled, job, plan, data_parallel_degree, inputs, memory_bytes, stack)
        model, paths = setup.copy.model, setup.paths
        progress(1, 2, "the entire batch and its parts")
        parts = [part for batch in setup.batches for part in microbatches_of(batch, setup.microbatches)]
        problems, not_checked, loss = check_division(model, parts, paths)
        used = [] if any(problem.kind == "NaN" for problem in problems) else [
            used_by(model, batch) for batch in (*parts, *setup.probes)
        ]  # fmt: skip
        usage_problems, notes = _usage(model, used, paths, plan, replicas=len(setup.batches))
        problems = [*usage_problems, *problems]
        if plan.pipeline_parallel_degree > 1:
            problems += _shared_weights(model, paths, min(plan.pipeline_parallel_degree, len(paths)))
        if attention_dropouts:
            rate = max(attention_dropouts)
            not_checked.append(f"Dropout inside the attention kernel (rate {rate:g}), which was disabled.")
        return Division(
            name=profiled.name, parts=len(parts), samples=setup.samples,
            reductions=tuple(map(str, setup.copy.reductions)), loss=loss, problems=tuple(problems), notes=tuple(notes),
            not_checked=(*setup.not_checked, *not_checked),
        )  # fmt: skip


_FLOPS = 2e11
"""FLOPs of all passes."""
_PASSES = 12
"""Forward and backward runs of the entire batch."""
_MAX_SAMPLES = 64
_MAX_TOKENS = 32
_PROBES = 8
_SMALL_PARAMETERS = 3_000_000
_SMALL_BLOCKS = 16
"""A module with at most this many parameters and blocks is checked with all its blocks."""
_MEMORY_DIVISOR = 3
"""Share of the memory limit for the copy: gradients of the batch and of its parts are compared."""
_MAX_MICROBATCHES = 4
_SHOWN_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """The copy and its data, before any comparison."""

    copy: Copy
    paths: tuple[str, ...]
    microbatches: int
    samples: int
    batches: tuple[dict[str, Any], ...]
    """One batch per replica, with all its microbatches."""
    probes: tuple[dict[str, Any], ...]
    """Small batches of other data, which show whether the data decides which parameters are used."""
    not_checked: tuple[str, ...]


def _set_up(
    profiled: ProfiledModel,
    job: Job,
    plan: Plan,
    data_parallel_degree: int | None,
    inputs: Any,
    memory_bytes: int,
    stack: ExitStack,
) -> _Setup:
    """Build the copy, and choose its batches."""
    replicas = min(2, 2 if data_parallel_degree is None else data_parallel_degree)
    microbatches = min(plan.microbatches * plan.gradient_accumulation_steps, _MAX_MICROBATCHES)
    microbatches = max(microbatches, 3 - replicas)  # a batch of one part is not divided
    not_checked: list[str] = []
    stages = plan.pipeline_parallel_degree
    copy = _copy(profiled, stack, memory_bytes // _MEMORY_DIVISOR, max(2, min(stages, 4)), not_checked)
    model = copy.model.train()
    largest = max(stacks(model), key=lambda row: row.parameters, default=None)  # which a pipeline divides
    paths = largest.paths if largest else ()
    seeded(model, paths)
    example = example_inputs(model, inputs)
    planned_sequence = min(job.sequence_length, example.longest or job.sequence_length)
    sequence = min(planned_sequence, _MAX_TOKENS) if example.has_sequence else 1
    source = _BatchSource(
        example=example, supplied=inputs, sequence=sequence, tokens=valid_ids(model),
        is_reduced=any(part.name == "vocabulary" for part in copy.reductions),
    )  # fmt: skip
    planned = max(1, plan.batch_size // plan.microbatches)
    minimum = min(planned, 2) if batch_norms(model) else 1
    samples = _affordable_samples(model, source, replicas * microbatches, planned, memory_bytes, minimum)
    batches = tuple(source.batch(microbatches * samples, seed) for seed in range(replicas))
    first = replicas * microbatches * samples
    probes = tuple(source.batch(minimum, first + seed) for seed in range(_PROBES if replicas > 1 else 0))
    if samples != planned:
        not_checked.append(f"Microbatches of {planned} samples: each had {samples}.")
    if example.has_sequence and not source.has_values and sequence != planned_sequence:
        not_checked.append(f"Sequences of {planned_sequence:,} tokens: each had {sequence}.")
    return _Setup(
        copy=copy, paths=paths, microbatches=microbatches, samples=samples, batches=batches, probes=probes,
        not_checked=tuple(not_checked),
    )  # fmt: skip


def _copy(profiled: ProfiledModel, stack: ExitStack, memory_bytes: int, fewest: int, not_checked: list[str]) -> Copy:
    """The copy, with all blocks of a small module and with every block that shares a weight with another."""

    def copy(blocks: int) -> Copy:
        return make_copy(profiled, stack, memory_bytes=memory_bytes, dtype=torch.float32, blocks=blocks)

    module = profiled.module
    repeated = [] if module is None else stacks(module)
    if module is None or not repeated:
        return copy(fewest)
    longest = max(len(row.names) for row in repeated)
    shared = _shared_by_blocks(module, [path for row in repeated for path in row.paths])
    if shared or (parameter_total([module]) <= _SMALL_PARAMETERS and longest <= _SMALL_BLOCKS):
        try:
            return copy(longest)
        except ProfileError:
            name = next(iter(shared.values()), ("",))[0]
            if shared:
                not_checked.append(f"Weights shared by blocks that are not in the copy, such as {name}.")
    return copy(fewest)


@dataclass(frozen=True, kw_only=True)
class _BatchSource:
    """Source of batches for any number of samples."""

    example: ExampleInputs
    supplied: Any
    """The user's inputs."""
    sequence: int
    tokens: int
    """Number of valid token ids of the copy."""
    is_reduced: bool
    """Whether the copy may have fewer token ids than the model."""

    @property
    def has_values(self) -> bool:
        """Whether the user supplied tensors with values, which keep their shape."""
        if self.supplied is None or callable(self.supplied):
            return False
        return not any(leaf.is_meta for leaf in tree_leaves(self.supplied) if isinstance(leaf, Tensor))

    def batch(self, samples: int, seed: int) -> dict[str, Any]:
        """A batch by name; the user's samples are repeated, and inferred ones are random."""
        if not self.has_values:
            return named_batch(filled(self.example.make(samples, self.sequence), self.tokens, seed=seed))
        own = (self.supplied,) if isinstance(self.supplied, Tensor) else self.supplied
        own = tree_map_only(
            Tensor, lambda leaf: leaf.detach().cpu(), dict(own) if isinstance(own, Mapping) else tuple(own)
        )
        indices = (torch.arange(samples) + seed * samples) % samples_of(own)
        batch = mapped(lambda rows: rows[indices], own)
        return named_batch(filled(batch, self.tokens) if self.is_reduced else batch)


def _affordable_samples(
    model: nn.Module, source: _BatchSource, parts: int, planned: int, memory_bytes: int, minimum: int
) -> int:
    """Samples per microbatch: as planned, or fewer if the steps are too large or have too many FLOPs."""
    if planned <= minimum:
        return max(planned, 1)
    with restored_buffers(model):
        step = measure_step(model, unnamed(source.batch(2, 0)), attention="eager")
    by_memory = memory_bytes / 2 / max(step.saved_bytes / 2 * parts, 1)
    by_flops = _FLOPS / max((step.forward_flops + step.backward_flops) / 2 * parts * _PASSES, 1)
    return max(minimum, min(planned, _MAX_SAMPLES, int(by_memory), int(by_flops)))


def _usage(
    model: nn.Module, used_sets: Sequence[frozenset[str]], paths: Sequence[str], plan: Plan, *, replicas: int
) -> tuple[list[Problem], list[str]]:
    """Problems and notes about trainable parameters without a gradient, from the names that each batch used."""
    if not used_sets:
        return [], []
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    ever = frozenset().union(*used_sets)
    never = [name for name in trainable if name not in ever]
    notes = []
    if never:
        requirement = "; DistributedDataParallel requires find_unused_parameters=True, or freeze them"
        notes.append(f"{_names(never)} never gets a gradient{requirement if replicas > 1 else ''}.")
    varying = [name for name in trainable if name in ever and any(name not in used for used in used_sets)]
    if not varying or replicas == 1:
        return [], notes
    count = sum(varying[0] not in used for used in used_sets)
    where = f"unused in {count} of {len(used_sets)} batches"
    if plan.shards_parameters:
        blocks = [path for path in paths if any(name.startswith(f"{path}.") for name in varying)]
        skipped = [path for path in blocks if _is_skipped(path, used_sets, trainable)]
        if not skipped:
            return [], notes
        text = (
            f"The ranks would wait for each other (a hang): the data decides whether block {skipped[0]} runs "
            f"(parameter {varying[0]} is {where}), and each rank that runs it waits for the shards of all ranks. Run "
            "every block on every rank, for example with its output times zero."
        )
        return [Problem(kind="hang", text=text, parameter=varying[0])], notes
    text = (
        f"The data decides whether {_names(varying)} is used ({where}). Under DistributedDataParallel, the ranks wait "
        "for each other (a hang) unless find_unused_parameters=True."
    )
    return [Problem(kind="data-dependent use", text=text, parameter=varying[0])], notes


def _is_skipped(path: str, used_sets: Sequence[frozenset[str]], trainable: Iterable[str]) -> bool:
    """Whether some microbatch uses no parameter of a block that others use."""
    own = {name for name in trainable if name.startswith(f"{path}.")}
    return bool(own) and any(not own & used for used in used_sets) and any(own & used for used in used_sets)


def _shared_by_blocks(model: nn.Module, paths: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Names of each parameter that several blocks share, by its first name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(name.startswith(f"{path}.") for path in paths):
            names.setdefault(id(parameter), []).append(name)
    return {group[0]: tuple(group) for group in names.values() if len(group) > 1}


def _shared_weights(model: nn.Module, paths: Sequence[str], stages: int) -> list[Problem]:
    """Weights that blocks of different pipeline stages share; earlier stages get fewer blocks."""
    for name, group in _shared_by_blocks(model, paths).items():
        users = [number for number, path in enumerate(paths) for user in group if user.startswith(f"{path}.")]
        if len({number * stages // len(paths) for number in users}) > 1:
            text = (
                f"{', '.join(group[:4])} are one weight in several pipeline stages. Each stage updates its own "
                "copy with its own gradient, so the copies diverge: keep these blocks in one stage, or sum the "
                "gradients over the stages."
            )
            return [Problem(kind="shared weights", text=text, parameter=name)]
    return []


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = ", …" if len(names) > _SHOWN_NAMES else ""
    return f"each of {len(names)} parameters ({', '.join(names[:_SHOWN_NAMES])}{more})"
