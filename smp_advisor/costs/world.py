"""Contents of each GPU under a layout on a cluster: stage, groups, parameters, batches, tokens, kind of code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

from smp_advisor.core.elementwise import maximum, minimum, where
from smp_advisor.workload.adapter import fp32_parameters
from smp_advisor.workload.stack import AUTO, stack

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model
    from smp_advisor.workload.stack import Stack


def stack_of(job: Job, layout: Layout) -> Stack:
    """Return the job's stack, or that of the script which the advisor exports for the layout's library."""
    return stack(layout.stack if job.stack == AUTO else job.stack)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    index: int
    block_counts: tuple[int, ...]
    """Blocks of each of the model's groups, in their order."""
    first: bool
    last: bool
    """Whether the stage has the final norm, the head and the loss."""

    @property
    def layers(self) -> int:
        """Total number of blocks."""
        return sum(self.block_counts)

    @property
    def kind(self) -> tuple[tuple[int, ...], bool, bool]:
        """Stages of the same kind have the same costs."""
        return self.block_counts, self.first, self.last


@lru_cache(maxsize=4096)
def stages(model: Model, pipeline_parallel_degree: int) -> tuple[Stage, ...]:
    """Split the model's blocks over the stages: evenly if the degree divides their number, else by work.

    The last stage also computes the head, so it has fewer blocks. Remaining blocks are assigned to the middle stages,
    then to the first, which has the embedding. SMP v1 balances measured costs instead (``memory_weight``).
    """
    degree = pipeline_parallel_degree
    groups = list(pairwise(accumulate((group.count for group in model.groups), initial=0)))
    return tuple(
        Stage(
            index=index,
            block_counts=tuple(max(0, min(end, after) - max(start, before)) for start, end in groups),
            first=index == 0,
            last=index == degree - 1,
        )
        for index, (before, after) in enumerate(pairwise(accumulate(_balanced(model, degree), initial=0)))
    )


def _balanced(model: Model, degree: int) -> list[int]:
    """Return the blocks of each stage: equal if the degree divides their number, else fewer in the stage with the head.

    Blocks that do not repeat are cut where the sum of their costs comes closest to an equal share (SMP v1:
    Karakus et al. 2021, arXiv 2111.05972, with the default ``memory_weight``).
    """
    if 2 * len({group.block for group in model.groups}) > model.layer_count > 1:
        costs = [_MEMORY_WEIGHT * memory + (1 - _MEMORY_WEIGHT) * time for memory, time in _shares(model)]
        sums, cuts = list(accumulate(costs)), [0]
        for stage in range(1, degree):
            possible = range(cuts[-1] + 1, model.layer_count - degree + stage + 1)
            cuts.append(min(possible, key=lambda cut: abs(sums[cut - 1] - stage / degree)))
        return [after - before for before, after in pairwise([*cuts, model.layer_count])]
    if model.layer_count % degree == 0:
        return [model.layer_count // degree] * degree
    work = max(sum(m.flops_per_token for m in group.block.matmuls) for group in model.groups)
    head = 2 * model.shape.hidden * model.head.outputs / max(work, 1.0) if model.head.per_token else 0.0
    last = model.layer_count if degree == 1 else max(1, round((model.layer_count + head) / degree - head))
    base, remainder = divmod(model.layer_count - last, max(degree - 1, 1))
    # The first stage has the embedding, so the middle stages receive remaining blocks before it.
    extra = set([*range(1, degree - 1), 0][:remainder])
    return [*(base + (index in extra) for index in range(degree - 1)), last]


_MEMORY_WEIGHT = 0.8
_STATE_BYTES = 20
"""Bytes of parameters, gradients and Adam's state in fp16 (SMP v1)."""


def _shares(model: Model) -> list[tuple[float, float]]:
    """Share of the state and saved activations of one token, and share of the FLOPs, of each block."""
    memory = [
        _STATE_BYTES * b.parameters + 2 * (b.saved.split_elements + b.saved.replicated_elements) for b in model.blocks
    ]
    flops = [sum(m.flops_per_token for m in block.matmuls) for block in model.blocks]
    return [(a / max(sum(memory), 1), b / max(sum(flops), 1)) for a, b in zip(memory, flops, strict=True)]


@lru_cache(maxsize=4096)
def stage_kinds(model: Model, pipeline_parallel_degree: int) -> tuple[Stage, ...]:
    unique: dict[tuple[tuple[int, ...], bool, bool], Stage] = {}
    for stage in stages(model, pipeline_parallel_degree):
        unique.setdefault(stage.kind, stage)
    return tuple(unique.values())


@lru_cache(maxsize=4096)
def stage_runs(model: Model, pipeline_parallel_degree: int) -> tuple[tuple[int, int], ...]:
    """(position in `stage_kinds`, number of consecutive stages of this kind), in the order of the stages."""
    kinds = {stage.kind: position for position, stage in enumerate(stage_kinds(model, pipeline_parallel_degree))}
    line = (kinds[stage.kind] for stage in stages(model, pipeline_parallel_degree))
    return tuple((kind, len(list(run))) for kind, run in groupby(line))


@dataclass(frozen=True, kw_only=True)
class World:
    """Groups and batches of n layouts on one cluster, arrays of shape (n,)."""

    gpus: int
    gpus_per_node: int
    replicas: Floats
    """Groups with different samples (the reduced data-parallel degree)."""
    reduction_degree: Floats
    """GPUs that reduce the gradients of divided modules: replicas times context parallelism."""
    data_parallel_degree: Floats
    """GPUs that reduce the gradients of modules that tensor parallelism replicates."""
    shards: Floats
    """GPUs that share the state that the sharding level divides; 1 at level 0."""
    microbatch_samples: Floats
    """Samples per microbatch and replica."""
    microbatch_tokens: Floats
    """Tokens per microbatch on one GPU: samples times sequence length over context parallelism."""
    global_batch_size: Floats
    sequence_length: int
    bytes_per_element: int
    usable_bytes: float
    """Memory per GPU that a process can use."""
    fp8_copy_bytes: float
    """Bytes per weight of copies in fp8."""
    tensor_stride: Floats
    """Distance in ranks between adjacent members of a tensor-parallel group."""
    pipeline_stride: Floats
    data_stride: Floats

    @classmethod
    def of(cls, model: Model, cluster: Cluster, job: Job, layout: Layout) -> World:
        """Derive the figures. Source of group sizes and placement: SMP documentation, Ranking Basics."""
        tp, pp, cp = layout.tensor_parallel_degree, layout.pipeline_parallel_degree, layout.context_parallel_degree
        dp = cluster.gpus // pp
        reduction = dp // tp
        replicas = reduction // cp
        sequence = model.sequence_length(job.sequence_length)
        samples = layout.batch_samples / layout.microbatches
        sharded = where(layout.shard_degree == 0, reduction, layout.shard_degree)
        # "cluster" is DPT: tensor parallelism varies fastest over adjacent ranks; "spread" is TPD.
        spread, outermost = layout.spread_placement, layout.pipeline_outermost
        return cls(
            gpus=cluster.gpus,
            gpus_per_node=cluster.instance.gpus,
            data_parallel_degree=dp,
            replicas=replicas,
            reduction_degree=reduction,
            shards=where(layout.shard_level == 0, 1, sharded),
            microbatch_samples=samples,
            microbatch_tokens=samples * sequence / cp,
            global_batch_size=layout.batch_samples * replicas,
            sequence_length=sequence,
            bytes_per_element=layout.state_bytes.compute_bytes,
            fp8_copy_bytes=_fp8_copy_bytes(job, layout),
            usable_bytes=cluster.instance.usable_gpu_memory_gib * 2**30,
            tensor_stride=where(spread, reduction * pp, 1),
            pipeline_stride=where(spread, reduction, where(outermost, tp * reduction, tp)),
            data_stride=where(spread, 1, where(outermost, tp, tp * pp)),
        )


def _fp8_copy_bytes(job: Job, layout: Layout) -> float:
    """Bytes per weight of fp8 copies. Stored in fp8 alone, a frozen weight has none, a trained one is the copy."""
    copies = stack_of(job, layout).divided.fp8_weight_bytes if job.fp8 else 0.0
    if not job.fp8_weights:
        return copies
    return 0.0 if job.adapter is not None else copies - layout.state_bytes.parameter_bytes


def in_flight(layout: Layout, stage: int = 0) -> Floats:
    """Maximum number of microbatches with saved activations on one GPU of a stage, shape (n,).

    ``pipeline="simple"``: all of them. ``"interleaved"``: at most min(active_microbatches, microbatches). The SMP v1
    documentation does not describe a limit by the depth of the pipeline, so none is assumed. With that limit (1F1B),
    the number is that of the stages from this one to the last; with v virtual stages it is ``(2 (p - i - 1) + (v - 1) p
    + 1) / v`` (Narayanan et al. 2021, arXiv 2104.04473, figure 4).
    """
    degree, chunks = layout.pipeline_parallel_degree, layout.virtual_stages
    bound: Floats = 1.0 * minimum(layout.active_microbatches, layout.microbatches)
    remaining = degree - minimum(stage, degree - 1)
    warm = where(chunks > 1, (2 * (remaining - 1) + (chunks - 1) * degree + 1) / chunks, remaining)
    bound = where(layout.depth_bounds_activations, minimum(warm, layout.microbatches), bound)
    bound = where(layout.simple_pipeline, layout.microbatches, bound)
    return where(degree > 1, bound, 1.0)


def vocabulary_shards(model: Model, layout: Layout) -> Floats:
    """Return the number of GPUs that share embedding, head and logits, shape (n,).

    This is the tensor-parallel degree if it divides the vocabulary, else 1: tensor parallelism skips modules whose
    sizes it does not divide. The division of the head is not documented; `memory_error_squares` includes this doubt.
    """
    vocabulary = max(model.shape.vocab, 1)
    degree = layout.tensor_parallel_degree
    divides = (vocabulary % degree == 0) & (model.head.per_token)
    return where(divides, degree, 1.0)


@dataclass(frozen=True)
class LocalParameters:
    """Parameters on one GPU of a stage before any sharding, shape (n,) each."""

    split: Floats
    replicated: Floats
    """Parameters replicated on every GPU of the tensor-parallel group."""
    experts: Floats
    """Parameters of a mixture of experts, divided by expert and tensor parallelism. Not part of the other fields."""
    root: Floats
    """Parameters outside the blocks: embedding, final norm and head. Included in `split` and `replicated`."""
    embedding: Floats
    """Parameters of the token embedding, part of `root`."""
    adapters: Floats
    """Parameters of an adapter, divided like the product they adapt. Not part of the other fields."""
    unpacked: Floats = 0.0
    fp32: Floats = 0.0
    """Parameters of the blocks that a quantized base keeps in 16 bits. Included in the other fields."""

    @property
    def total(self) -> Floats:
        """All parameters without those of an adapter."""
        return self.split + self.replicated + self.experts


def local_parameters(model: Model, layout: Layout, stage: Stage) -> LocalParameters:
    """Return the parameters on one GPU of a stage; a tied embedding counts on the first and on the last."""
    tp, shards = layout.tensor_parallel_degree, vocabulary_shards(model, layout)
    blocks = [(group.block, count) for group, count in zip(model.groups, stage.block_counts, strict=True)]
    experts = float(sum(block.expert_parameters * count for block, count in blocks))
    tokens = model.token_embedding_parameters
    vocabulary = outside = 0  # embedding and head, which tensor parallelism may divide, and other parameters
    if stage.first:
        vocabulary += tokens
        outside += model.embedding_parameters - tokens
    if stage.last:
        outside += model.final_parameters
        if model.head.tied:
            outside += model.head.parameters
            vocabulary += 0 if stage.first else tokens
        else:
            vocabulary += model.head.parameters
    divided = vocabulary / shards
    replicated = float(sum(block.replicated_parameters * count for block, count in blocks) + outside)
    split = sum(block.split_parameters * count for block, count in blocks) - experts
    return LocalParameters(
        split=split / tp + where(shards > 1, divided, 0.0),
        replicated=replicated + where(shards > 1, 0.0, divided),
        experts=experts / (tp * layout.expert_parallel_degree),
        root=outside + divided,
        embedding=(tokens if stage.first or (stage.last and model.head.tied) else 0) / shards,
        adapters=float(sum(block.adapter_parameters * count for block, count in blocks)) / tp,
        unpacked=float(sum(block.unpacked_parameters * count for block, count in blocks)) / tp,
        fp32=float(sum(fp32_parameters(block, model.family) * count for block, count in blocks)),
    )


def trained_parameters(local: LocalParameters, layout: Layout) -> LocalParameters:
    """Return the parameters with gradients: all, or only those of an adapter."""
    if layout.state_bytes.frozen_bytes is None:
        return local
    nothing = 0.0
    return LocalParameters(
        split=local.adapters, replicated=nothing, experts=nothing, root=nothing, embedding=nothing, adapters=nothing
    )


def _outside_state_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Optimizer state on one GPU that parameters outside the blocks have beyond that of a parameter in them, bytes."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is not None:
        return 0.0
    total = state_bytes.outside_moment_bytes * local.root + state_bytes.embedding_moment_bytes * local.embedding
    return where(layout.offload_state, 0.0, total / world.shards)


def _frozen_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Bytes of frozen parameters: the blocks' linear modules in their own type, the others in the compute type."""
    state_bytes = layout.state_bytes
    if state_bytes.frozen_bytes is None:
        return 0.0
    wide = local.root + local.unpacked
    packed = local.total - wide
    scales = state_bytes.frozen_scale_bytes * packed  # bitsandbytes keeps them outside the parameter
    total = state_bytes.frozen_bytes * packed + state_bytes.compute_bytes * wide - scales
    total = total + (4 - state_bytes.compute_bytes) * local.fp32
    return scales + where(layout.shard_level >= 3, total / world.shards, total)


def owned_parameters(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Return the parameters with optimizer state on one GPU, shape (n,); replicated modules are not divided further."""
    trained = trained_parameters(local, layout)
    # Expert parallelism already divides the experts over part of the group.
    within = maximum(world.shards / layout.expert_parallel_degree, 1)
    of_expert = where(layout.shard_level > 0, where(layout.experts_beside_shards, world.shards, within), 1.0)
    return (trained.split + trained.replicated) / world.shards + trained.experts / of_expert


def state_bytes(local: LocalParameters, layout: Layout, world: World) -> dict[str, Floats]:
    """Parameters, gradients, optimizer state and fp32 copies, bytes by category, shape (n,) each."""
    state_bytes, level = layout.state_bytes, layout.shard_level
    owned = owned_parameters(local, layout, world)
    trained = trained_parameters(local, layout).total
    on_gpu = where(layout.offload_state, 0.0, owned)
    frozen = where(layout.offload_state, 0.0, _frozen_bytes(local, layout, world))
    undivided = state_bytes.extra_gradient_bytes * trained + _unsharded_gradient_bytes(local, trained, layout)
    return {
        "parameters": frozen
        + state_bytes.parameter_bytes * where(level >= 3, on_gpu, trained)
        + state_bytes.cast_bytes * where((level >= 3) & (layout.checkpoint_layers != 0), 0.0, trained),
        "gradients": state_bytes.gradient_bytes * where(level >= 2, on_gpu, trained) + undivided,
        "optimizer_state": state_bytes.moment_bytes * on_gpu + _outside_state_bytes(local, layout, world),
        "fp32_copies": (state_bytes.copy_bytes - where(level >= 3, state_bytes.late_copy_bytes, 0.0)) * on_gpu,
    }


def _unsharded_gradient_bytes(local: LocalParameters, trained: Floats, layout: Layout) -> Floats:
    """Return the gradients that stay unsharded while batches are accumulated, in the type of their reduction, bytes.

    Source: PyTorch, ``FullyShardedDataParallel.no_sync``, ``FSDPParam.to_accumulated_grad_if_needed``.
    A flat parameter that an adapter shares with frozen weights has a gradient for all of them (Lightning-AI/litgpt
    issue 1417).
    """
    if not layout.state_bytes.accumulates_unsharded:
        return 0.0
    parameters = trained if layout.state_bytes.frozen_bytes is None else trained + local.total
    accumulating = (layout.shard_level >= 3) & (layout.microbatches > 1)
    return where(accumulating, layout.state_bytes.reduced_bytes * parameters, 0.0)


def paged_state_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Optimizer state of one GPU in pageable host memory, bytes."""
    return layout.state_bytes.paged_moment_bytes * owned_parameters(local, layout, world)


def offloaded_state_bytes(local: LocalParameters, layout: Layout, world: World) -> Floats:
    """Bytes per GPU that `Layout.offload_state` moves to the host: its shard of parameters, gradients and moments."""
    owned = owned_parameters(local, layout, world)
    return where(
        layout.offload_state, layout.state_bytes.total_bytes * owned + _frozen_bytes(local, layout, world), 0.0
    )
