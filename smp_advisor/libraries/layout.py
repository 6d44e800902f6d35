"""Plans as arrays: the form in which the cost model reads a configuration of any library."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.core.elementwise import where
from smp_advisor.errors import PlanError
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, plan_defaults
from smp_advisor.libraries.schema import SCHEDULES, default_of
from smp_advisor.libraries.sharding import STRATEGIES
from smp_advisor.libraries.state_bytes import loss_in_parts
from smp_advisor.libraries.version import image, release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.plan import Checkpointing, Plan
    from smp_advisor.libraries.state_bytes import StateBytes
    from smp_advisor.workload.job import Job

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


CONTIGUOUS = -1
"""`Layout.checkpoint_layers` of the strategy with one unit for all layers of a stage."""


EVERYTHING = 2**62
"""More parameters than any model, for strategies that keep all gathered parameters until the backward pass."""


OPERATORS = -2
"""Code of the strategy that keeps the outputs of some operators of every block."""


def checkpoint_code(strategy: Checkpointing) -> int:
    """Code of a strategy in columns: 0 none, 1 each, N group_N, `CONTIGUOUS`, `OPERATORS`, -(N + 1) every_N."""
    if strategy is False or strategy == "none":
        return 0
    if strategy in _NAMED:
        return _NAMED[strategy]
    name, _, digits = str(strategy).partition("_")
    number = digits_as_number(digits)
    if not isinstance(number, int):
        raise PlanError(f"activation_checkpointing cannot be {strategy!r:.80}: use False, 'each' or 'every_2'.")
    return -number - 1 if name == "every" else number


def checkpoint_strategy(code: int) -> Checkpointing:
    """Inverse of `checkpoint_code`."""
    if code == 0:
        return False
    name = next((name for name, number in _NAMED.items() if number == code), None)
    return name or (f"group_{code}" if code > 0 else f"every_{-code - 1}")


def checkpoint_columns(codes: int | Ints) -> dict[str, Any]:
    return {
        "checkpoint_layers": where(codes < CONTIGUOUS, 1, codes),
        "checkpoint_period": where(codes < OPERATORS, -codes - 1, 1),
        "keeps_products": codes == OPERATORS,
    }


_NAMED = {"each": 1, "contiguous": CONTIGUOUS, "operators": OPERATORS}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Many configurations as columns of equal length, one entry per plan."""

    state_bytes: StateBytes
    """Bytes per parameter, the same for every row."""
    stack: str
    """Kind of training code where the job names none (`Job.stack`), the same for every row."""
    saves_frozen: bool
    """Whether checkpoints contain the frozen weights under an adapter, the same for every row."""
    cudnn_attention: bool = False
    """Whether PyTorch's own attention runs cuDNN's kernel, the same for every row."""
    tensor_parallel_degree: Ints
    sequence_parallel: Bools
    """Whether tensor parallelism also divides replicated activations along the sequence (Korthikanti et al. 2022)."""
    pipeline_parallel_degree: Ints
    virtual_stages: Ints
    """Model chunks per GPU in Megatron's interleaved schedule; 1 for none."""
    context_parallel_degree: Ints
    """GPUs that share the tokens of a sample."""
    expert_parallel_degree: Ints
    """GPUs of a data-parallel group that share the experts of a layer."""
    experts_beside_shards: Bools
    """Whether expert parallelism multiplies the GPUs of a shard group (SMP v2) instead of dividing them."""
    shard_level: Ints
    """Parts divided by data parallelism: 0 nothing, 1 optimizer state (ZeRO-1, ``shard_optimizer_state``), 2 also
    gradients (ZeRO-2), 3 also parameters (ZeRO-3, FSDP, sharded data parallelism)."""
    shard_degree: Ints
    """GPUs per shard group; 0 for the full data-parallel group, fewer for hybrid sharding."""
    gather_after_step: Bools
    """Levels 1 and 2: whether updated parameters are gathered before the next forward pass starts, not during it
    (SMP v1; SMP documentation, Introduction to model parallelism)."""
    two_level_gather: Bools
    """Level 3: whether parameters are gathered between nodes, and then inside them (``sdp_hierarchical_allgather``)."""
    overlapped_gather: Bools
    """Level 3: whether they are gathered between nodes and inside them at the same time (SMDDP)."""
    replicas_reduced_once: Bools
    """Level 3 with replicas of the shards: whether they reduce their gradients once per step (MiCS's two-hop
    synchronization, SMP v1), not after every backward pass (FSDP's hybrid strategies)."""
    prefetched_units: Ints
    """Level 3: blocks gathered at a time, including the running one; 0 if `max_live_parameters` limits them."""
    batch_samples: Ints
    """Samples that one replica (one tensor- and context-parallel group) processes in a step."""
    microbatches: Ints
    """Microbatches per step; without a pipeline, steps of gradient accumulation."""
    active_microbatches: Ints
    simple_pipeline: Bools
    """All forward passes before the first backward pass."""
    depth_bounds_activations: Bools
    """Whether a stage stores at most as many microbatches as there are stages from it to the last (1F1B). SMP v1 does
    not document this."""
    checkpoint_layers: Ints
    """Blocks per checkpointed unit; 0 none, `CONTIGUOUS` all blocks of a stage."""
    checkpoint_period: Ints
    """One block of this many is checkpointed: 1 for all, 2 for every other (``every_2``)."""
    keeps_products: Bools
    """Whether checkpointed blocks also keep the outputs of every second matrix product and of fused attention
    (``operators``)."""
    selective_recomputation: Bools
    """Whether the core of eager attention (scores, softmax, dropout) is recomputed."""
    offload_activations: Bools
    offload_running: Bools
    """Whether offloading also moves the inputs of the running microbatch (SMP v2), except `activation_loading_horizon`
    of them; else those stay on the GPU."""
    blocking_offload: Bools
    """Whether offloading copies while the GPU waits, and also moves the head's weight and logits (PyTorch's
    ``offload_wrapper``)."""
    activation_loading_horizon: Ints
    offload_state: Bools
    """Level 3: whether parameters, gradients and optimizer state are stored and updated in host memory (FSDP's
    ``CPUOffload``, ZeRO-3 with its parameters and optimizer on the CPU)."""
    split_checkpoints: Bools
    """Whether checkpointed inputs are divided over tensor parallelism (``optimize="memory"``)."""
    max_live_parameters: Ints
    """Parameters gathered at a time (``sdp_max_live_parameters``)."""
    reduce_bucket_elements: Ints
    """Gradients reduced at a time (``sdp_reduce_bucket_size``)."""
    pipeline_outermost: Bools
    """Whether consecutive stages are furthest apart in rank (Megatron), not next to tensor-parallel groups."""
    host_handover: Bools
    """Whether the hosts of two pipeline stages coordinate every transfer before the GPUs send (SMP v1)."""
    traced_on_gpu: Bools
    """Whether one GPU holds the model, but for the part that tensor parallelism divides, to trace a forward pass before
    the stages are assigned (SMP v1: ``trace_device="gpu"`` is the default of ``smp.DistributedModel``)."""
    spread_placement: Bools
    """Whether consecutive ranks are data-parallel (``placement_strategy="spread"``), not tensor-parallel."""

    @property
    def keeps_gathered(self) -> Bools:
        """Level 3: whether gathered blocks stay gathered from the forward to the backward pass (``shard_grad_op``)."""
        unbounded: Bools = (self.prefetched_units == 0) & (self.max_live_parameters >= EVERYTHING)
        return unbounded

    def __len__(self) -> int:
        return len(self.tensor_parallel_degree)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Layout:
        """Return the layouts of some rows."""
        columns: dict[str, Any] = {name: _taken(getattr(self, name), rows) for name in COLUMNS}
        return replace(self, **columns)

    def part(self, rows: slice) -> Layout:
        """Consecutive rows. A column with one value in all of them is that value, not an array."""
        return replace(self, **{name: _number_if_uniform(getattr(self, name)[rows]) for name in COLUMNS})

    @classmethod
    def concatenate(cls, parts: Sequence[Layout]) -> Layout:
        """Return one layout of many with the same state bytes and stack."""
        if any(getattr(part, name) != getattr(parts[0], name) for part in parts for name in _SHARED):
            raise ValueError("layouts with different state bytes, stacks or checkpoints cannot be concatenated")
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        return replace(parts[0], **columns)

    @classmethod
    def of_columns(
        cls,
        state_bytes: StateBytes,
        rows: int | None = 1,
        *,
        stack: str = "hf-sdpa",
        saves_frozen: bool = False,
        **columns: ArrayLike,
    ) -> Layout:
        """Layouts of `rows` rows. A column is an array or one value for all; missing columns have their default."""
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise ValueError(f"a layout has no column {unknown[0]!r}")
        if rows is None:
            numbers: dict[str, Any] = dict(columns)
            numbers = {name: bool(value) if name in _BOOLEAN else int(value) for name, value in numbers.items()}
            return cls(state_bytes=state_bytes, stack=stack, saves_frozen=saves_frozen, **(_defaults() | numbers))
        arrays: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(value, dtype=np.bool_ if name in _BOOLEAN else np.int64), rows)
            for name, value in (_defaults() | columns).items()
        }
        return cls(state_bytes=state_bytes, stack=stack, saves_frozen=saves_frozen, **arrays)


def _taken(column: NDArray[Any], rows: NDArray[np.intp] | NDArray[np.bool_]) -> NDArray[Any]:
    if column.strides != (0,) or rows.dtype == np.bool_ or len(rows) > len(column):
        return column[rows]
    return column[: len(rows)]


def _number_if_uniform(column: NDArray[Any]) -> Any:
    first = column[0]
    return first.item() if column.strides == (0,) or len(column) == 1 or (column == first).all() else column


_SHARED = ("state_bytes", "stack", "saves_frozen", "cudnn_attention")


COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(Layout) if f.name not in _SHARED)


_BOOLEAN = frozenset(f.name for f in fields(Layout) if f.type == "Bools")


@cache
def _defaults() -> dict[str, int | bool]:
    ones = {
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "virtual_stages",
        "context_parallel_degree",
        "expert_parallel_degree",
        "batch_samples",
        "microbatches",
        "active_microbatches",
        "checkpoint_period",
    }
    special = {
        "activation_loading_horizon": default_of("activation_loading_horizon"),
        "max_live_parameters": default_of("sdp_max_live_parameters"),
        "reduce_bucket_elements": default_of("sdp_reduce_bucket_size"),
    }
    return {name: False if name in _BOOLEAN else special.get(name, int(name in ones)) for name in COLUMNS}


BACKENDS = ("nccl", "smddp")
"""Libraries of collectives of SMP v2; their positions are their codes in columns."""


def _unless_false(value: object) -> bool:
    return value is not False


_CODES: dict[str, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    "activation_checkpointing": (checkpoint_code, checkpoint_strategy),
    "ddp_dist_backend": (lambda backend: int(backend == "nccl"), ("auto", "nccl").__getitem__),
    "distributed_backend": (BACKENDS.index, BACKENDS.__getitem__),
    "pipeline": (SCHEDULES.index, SCHEDULES.__getitem__),
    "sdp_hierarchical_allgather": (_unless_false, bool),
    "sharding_strategy": (STRATEGIES.index, STRATEGIES.__getitem__),
    "sm_activation_offloading": (_unless_false, bool),
}


def encoded(name: str, value: Any) -> Any:
    """Return the number for a field's value in a column: 0 for None, codes for texts."""
    return _CODES[name][0](value) if name in _CODES else 0 if value is None else value


def decoded(name: str, code: Any) -> Any:
    """Inverse of `encoded`, except for None."""
    return _CODES[name][1](code) if name in _CODES else code


@dataclass(frozen=True)
class PlanColumns:
    """Fields of n plans; `columns[name]` is an array of shape (n,) or one number for all."""

    rows: int | None
    """Number of plans; None for one plan whose fields are numbers."""
    read: Callable[[str], Any]
    """Each is read on first use."""

    def __getitem__(self, name: str) -> Any:
        return self.read(name)

    @classmethod
    def of_fields(cls, kind: type[Plan], rows: int, fields: Mapping[str, Any]) -> PlanColumns:
        """Columns of fields that are arrays of codes or values shared by all plans. Others have their default."""
        defaults = plan_defaults(kind)

        def read(name: str) -> Any:
            value = fields.get(name, defaults[name])
            return value if isinstance(value, np.ndarray) else encoded(name, value)

        return cls(rows, read)


@lru_cache(maxsize=4096)
def layout_of_plan(plan: Plan, job: Job, cluster: Cluster | None = None) -> Layout:
    numbers = PlanColumns(None, lambda name: encoded(name, getattr(plan, name)))
    return layout_of_columns(plan.library, numbers, job, cluster)


def layout_of(plans: Sequence[Plan], job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of some plans, all of one library. FSDP's hybrid strategies, which shard in a node, need a cluster."""
    names = {plan.library for plan in plans} or {DEFAULT_LIBRARY}
    if len(names) > 1:
        raise ValueError(f"a layout cannot contain plans of different libraries: {', '.join(sorted(names))}")
    columns = PlanColumns(len(plans), lambda name: np.array([encoded(name, getattr(plan, name)) for plan in plans]))
    return layout_of_columns(names.pop(), columns, job, cluster)


def _exports_script(library: str, job: Job) -> bool:
    """Whether the code of the job is the exported script for FSDP or DDP, unless the job states other settings."""
    record = get_library(library)
    return record.script == "torch" and not record.smdistributed and job.stack == "auto"


def of_own_code(job: Job, library: str) -> Job:
    """Return the job with a script of the user's, whose loss and optimizer need not be those of the exported one."""
    if not _exports_script(library, job):
        return job
    record = get_library(library)
    if not record.divides_model and job.optimizer == "adam" and job.optimizer_step == "auto":
        job = replace(job, optimizer_step="foreach")  # PyTorch's default
    return replace(job, stack=record.stack) if loss_in_parts(job) else job


def layout_of_columns(library: str, plans: PlanColumns, job: Job, cluster: Cluster | None = None) -> Layout:
    """Columns of the cost model for fields of n plans, with stack and checkpoints of the generated script."""
    record = get_library(library)
    layout: Layout = record.layout(plans, job, cluster)
    state, cudnn = layout.state_bytes, False
    if _exports_script(library, job):
        step_bytes = 0.0 if job.optimizer_step == "auto" else state.step_bytes  # in one kernel
        state = _of_script(state, loss_in_parts(job), step_bytes)
    if cluster is not None and (job.stack, record.stack) == ("auto", "hf-sdpa"):
        architecture, versions = cluster.instance.architecture, plans["version"]
        different = np.unique(versions) if isinstance(versions, np.ndarray) else (versions,)
        cudnn = all(_prefers_cudnn(library, str(version), architecture) for version in different)
    saves = not record.adapter_bases
    # `dataclasses.replace` takes as long as a tenth of an estimate.
    result = object.__new__(Layout)
    result.__dict__.update(layout.__dict__)
    result.__dict__.update(state_bytes=state, stack=record.stack, saves_frozen=saves, cudnn_attention=cudnn)
    return result


@lru_cache(maxsize=1024)
def _of_script(state: StateBytes, in_parts: bool, step_bytes: float) -> StateBytes:  # noqa: FBT001 - of a cache
    """State bytes of the exported script, with its loss and its update."""
    return replace(state, loss_in_parts=in_parts, step_bytes=step_bytes)


@cache
def _prefers_cudnn(library: str, version: str, architecture: str) -> bool:
    """Return whether scaled_dot_product_attention is cuDNN's: from PyTorch 2.11 on sm_90 and sm_100 (sdp_utils.cpp)."""
    return architecture in ("9.0", "10.0") and release(image(library, version).framework_version) >= (2, 11)
