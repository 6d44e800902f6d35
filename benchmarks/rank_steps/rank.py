"""One rank of a plan as plain data: its groups, batches, types and strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.costs.world import World, in_flight, stages
from smp_advisor.errors import ProfileError
from smp_advisor.libraries.layout import OPERATORS, checkpoint_code, layout_of_plan
from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.state_bytes import HALF_LOGIT_BYTES

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Rank", "rank_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One GPU of a plan: the first of a pipeline stage."""

    world: int
    """GPUs of the job."""
    stage: int
    stages: int
    stage_blocks: tuple[int, ...]
    """Blocks of each stage."""
    tensor: int
    """GPUs that share each layer's matrices."""
    sequence_parallel: bool
    """Whether they also share the tokens between the matrices."""
    shards: int
    """GPUs that share the state."""
    replicas: int
    """Groups of GPUs with the same shards."""
    shard_level: int
    """0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."""
    samples: int
    """Samples of one forward pass."""
    sequence: int
    microbatches: int
    """Forward passes of a step that are traced. More would repeat the last ones."""
    in_flight: int
    """Forward passes before the first backward pass, and afterwards the limit of both."""
    half: bool
    """Whether activations have 16 bits."""
    half_parameters: bool
    """Whether stored parameters and gradients have 16 bits."""
    autocast: bool
    copy_bytes: float
    """Bytes per parameter of fp32 copies of parameters and gradients."""
    moments: int
    """Values of optimizer state per parameter."""
    flat_parameters: bool
    """Whether FullyShardedDataParallel shards parameters (FSDP1), not ``fully_shard`` (FSDP2)."""
    keeps_gathered: bool
    """Whether gathered parameters stay gathered until the backward pass."""
    root_stays_gathered: bool
    accumulates_unsharded: bool
    foreach: bool
    """Whether the optimizer updates all parameters together."""
    checkpoint: int
    """Code of the strategy (`checkpoint_code`)."""
    attention: str

    @property
    def process(self) -> int:
        """Process of the trace, whose groups are in the order stages, replicas, shards, tensor parallelism."""
        return self.stage * (self.world // self.stages)


def rank_of(model: Model, cluster: Cluster, job: Job, plan: Plan, stage: int) -> tuple[Rank, tuple[str, ...]]:
    """The first rank of a pipeline stage, and one sentence for each difference from the plan."""
    layout = layout_of_plan(plan, job, cluster)
    world = World.of(model, cluster, job, layout)
    # The library's own layers, which tensor parallelism divides, run fused attention.
    is_fusible = plan.tensor_parallel_degree > 1 or all(
        attention.fusible for group in model.groups for attention in group.block.attentions
    )
    degree = plan.pipeline_parallel_degree
    if type(stage) is not int or not 0 <= stage < degree:
        raise ProfileError(f"stage must be between 0 and {degree - 1}, not {stage!r}.")
    _require_expressible(job, plan)
    state, level = layout.state_bytes, int(layout.shard_level)
    microbatches = int(layout.microbatches)
    # The last stage of an interleaved pipeline starts each backward pass at once.
    alone = stage == degree - 1 and not layout.simple_pipeline
    flight = 1 if alone else int(in_flight(layout, stage))
    rank = Rank(
        world=cluster.gpus,
        stage=stage,
        stages=degree,
        stage_blocks=tuple(part.layers for part in stages(model, degree)),
        tensor=plan.tensor_parallel_degree,
        sequence_parallel=bool(layout.sequence_parallel),
        shards=int(world.shards),
        replicas=max(1, int(world.reduction_degree) // int(world.shards)),
        shard_level=level,
        samples=max(1, int(world.microbatch_samples)),
        sequence=int(world.sequence_length),
        microbatches=min(microbatches, flight + 1),
        in_flight=flight,
        half=state.compute_bytes == 2,
        half_parameters=state.parameter_bytes == 2,
        autocast=state.cast_bytes > 0,
        copy_bytes=state.copy_bytes - (state.late_copy_bytes if level >= 3 else 0.0),
        moments=_MOMENTS[job.optimizer],
        flat_parameters=get_library(plan.library).flat_parameters(plan),
        keeps_gathered=bool(layout.keeps_gathered),
        root_stays_gathered=state.root_stays_gathered,
        accumulates_unsharded=state.accumulates_unsharded,
        foreach=state.step_bytes > 0,
        checkpoint=checkpoint_code(plan.activation_checkpointing),
        attention=job.attention if is_fusible else "eager",
    )
    return rank, tuple(_differences(layout, job, plan))


_MOMENTS = {"adam": 2, "sgd": 1, "lion": 1, "plain-sgd": 0}


def _require_expressible(job: Job, plan: Plan) -> None:
    """Refuse what PyTorch has no form of for any model."""
    obstacles = {
        "context parallelism": plan.context_parallel_degree > 1,
        "expert parallelism": plan.expert_parallel_degree > 1,
        "an adapter": job.adapter is not None,
        "fp8": job.fp8,
        f"the optimizer {job.optimizer!r}": job.optimizer not in _MOMENTS,
        "optimizer steps in the backward pass": job.optimizer_step == "backward",
        "a paged optimizer": job.paged_optimizer,
        "offloading of activations": plan.offload_activations,
    }
    for name, is_obstacle in obstacles.items():
        if is_obstacle:
            raise ProfileError(f"A rank with {name} cannot be traced: PyTorch has no form of it for any model.")


def _differences(layout: Layout, job: Job, plan: Plan) -> list[str]:
    """Parts of the plan that the trace replaces or leaves out."""
    sentences = []
    if job.has_fused_operations or job.has_fused_loss:
        sentences.append(f"The kernels of {job.stack!r}: the model's own PyTorch operations were traced.")
    if job.loss != "plain":
        sentences.append(f"The {job.loss} loss: the model's own loss was traced.")
    if get_library(plan.library).script == "smp_step" and layout.state_bytes.logit_bytes == HALF_LOGIT_BYTES:
        sentences.append(
            "The library's loss on 16-bit logits: the model's own loss was traced, which copies them to fp32."
        )
    code = checkpoint_code(plan.activation_checkpointing)
    if code > 1 or (code < 0 and code != OPERATORS and get_library(plan.library).script == "smp_step"):
        sentences.append(
            f"activation_checkpointing={plan.activation_checkpointing!r}: each block was recomputed by itself."
        )
    if layout.state_bytes.bucket_elements or plan.sharded_data_parallel_degree > 1:
        sentences.append("The library's buffers for gathered parameters and reduced gradients.")
    return sentences
