"""Model, cluster, job and layout from the columns of a measured run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.layout import Layout, layout_of
from smp_advisor.libraries.state_bytes import amp, fully_sharded, over_frozen
from smp_advisor.workload import Adapter, Job

from .degrees import degrees_of, shard_level
from .frameworks import habits, public_settings
from .machines import cluster_of
from .models import model_of
from .optimizers import leaves_optimizer_open, optimizer_column
from .public import public_form
from .stacks import kernel_of_row, stack_of_row
from .state_bytes import COMPILED_LOGIT_BYTES, PURE_LOGIT_BYTES, deepspeed, megatron, megatron_fp16, pure
from .table import SkippedError

if TYPE_CHECKING:
    from smp_advisor.cluster import Cluster
    from smp_advisor.libraries import Plan
    from smp_advisor.libraries.state_bytes import StateBytes
    from smp_advisor.workload import Model
    from smp_advisor.workload.adapter import AdapterTargets

    from .degrees import Degrees
    from .optimizers import OptimizerColumn
    from .table import Row

__all__ = ["Run", "run_of"]

_RECOMPUTE = {"": 0, "none": 0, "full": 1, "selective-attention": 0}
PREFETCHED_UNITS = 2
"""Gathered units in FSDP and ZeRO-3: the running one and the next."""


@dataclass(frozen=True)
class Run:
    """One configuration as input of the cost model."""

    model: Model
    cluster: Cluster
    job: Job
    layout: Layout
    stage: int | None = None
    """The pipeline stage with measured memory; None for the largest."""
    plan: Plan | None = None
    """Plan with the layout, if public settings describe the row (`public_form`); None for the private mapping."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Key of the configuration, equal for rows of other stages or tables with the same configuration."""
        columns = tuple(
            sorted((name, value.item()) for name, value in vars(self.layout).items() if isinstance(value, np.ndarray))
        )
        return self.model, self.cluster, self.job, self.layout.state_bytes, columns


def run_of(row: Row) -> Run:
    """Configuration of a row of the tables of throughput and of memory, in public settings if they describe it."""
    cluster = cluster_of(row)
    degrees = degrees_of(row, cluster.gpus, cluster.gpus_per_node)
    column = optimizer_column(row)
    job = _job(row, column)
    task = "pre-training" if habits(row).pretrains else ""
    model = model_of(row, task=task, dropout=not _modern(row))
    if any(word in row.text("model") for word in habits(row).loss_in_16_bits):
        model = replace(model, head=replace(model.head, loss_in_fp32=False))
    if degrees.pipeline * degrees.chunks > model.layer_count:
        raise SkippedError("more pipeline stages than layers")
    stage = _stage(row, degrees.pipeline)
    form = public_form(row, model, cluster, job, degrees, column)
    if form is not None:
        job, plan = form
        layout = layout_of([plan], job, cluster)
        state = replace(layout.state_bytes, reduces_late=habits(row).reduces_late)
        if (logit_bytes := _logit_bytes(row, degrees)) is not None and job.precision != "fp32":
            state = replace(state, logit_bytes=min(state.logit_bytes * degrees.tensor, logit_bytes))
        return Run(model, cluster, job, replace(layout, state_bytes=state), stage, plan)
    return Run(model, cluster, job, _private_layout(row, job, degrees, column), stage)


def _private_layout(row: Row, job: Job, degrees: Degrees, column: OptimizerColumn) -> Layout:
    """Layout of a row that no plan of a library describes."""
    try:
        state = over_frozen(_state_bytes(row, job, column, degrees), job)
        if row.text("attention_class") == "flash":
            # Runs with FlashAttention also use other fused kernels.
            pure = row.text("precision_class").endswith("pure") or job.adapter is not None
            state = replace(state, logit_bytes=PURE_LOGIT_BYTES if pure else COMPILED_LOGIT_BYTES, fused_kernels=True)
        state = _by_habit(row, state, job, degrees)
        if shard_level(row) < 3 and row.text("offload").startswith("optimizer"):  # ZeRO-Offload
            on_host = state.moment_bytes + state.copy_bytes
            state = replace(state, moment_bytes=0, copy_bytes=0, paged_moment_bytes=on_host)
        if _keeps_gathered(row, degrees):
            state = replace(state, extra_gradient_bytes=4)
        return Layout.of_columns(state, **_columns(row, degrees))
    except ValueError as error:
        raise SkippedError(f"plan that cannot be expressed: {error}") from error


def _job(row: Row, column: OptimizerColumn) -> Job:
    precision = row.text("precision_class") or row.text("precision")
    sequence = row.count("seq")
    if not sequence:
        raise SkippedError("sequence length not given")
    try:
        return Job(
            sequence_length=sequence,
            precision="fp32" if precision.startswith("fp32") else "fp16" if precision.startswith("fp16") else "bf16",
            fp8=precision.startswith("fp8"),
            optimizer=column.optimizer,
            attention="eager" if row.text("attention_class").startswith("eager") else "fused",
            stack=stack_of_row(row),
            **_named_kernel(row),
            fp8_weights=precision.startswith("fp8") and bool(public_settings(row).get("fp8_weights")),
            decoder_length=row.count("decoder_seq"),
            adapter=_adapter(row),
        )
    except AdvisorError as error:
        raise SkippedError(f"job that cannot be expressed: {error}") from error


def _named_kernel(row: Row) -> dict[str, Any]:
    """The kernel of fused attention that the row or its library's documentation names."""
    if row.text("attention_class").startswith("eager"):
        return {}
    kernel = kernel_of_row(row)
    known = public_settings(row).get("attention_kernel", "auto")
    return {"attention_kernel": known if kernel == "auto" else kernel}


def _adapter(row: Row) -> Adapter | None:
    quantized = row.text("precision_class") == "quantized-base"
    if row.text("family") != "lora" and not quantized:
        return None
    recipe = habits(row)
    targets: AdapterTargets = "query-value"
    if any(word in row.text("model") for word in recipe.all_linear):
        targets = "all-linear"
    rank, named = 8, re.search(r"lora r=(\d+) on (q, k, v, o)?", row.text("model"))
    if named:
        rank, targets = int(named.group(1)), "attention" if named.group(2) else "all-linear"
    if not quantized:
        return Adapter(rank=rank, targets=targets, before_transformers_5=True)
    precision = row.text("precision")
    bits: Literal[4, 8] = 8 if "int8" in precision or "8bit" in precision else 4
    doubly = "dq" in precision or recipe.double_quantization
    return Adapter(
        rank=rank,
        targets=targets,
        base_bits=bits,
        double_quantization=bits == 4 and doubly,
        upcast=recipe.upcast and not shard_level(row),
        before_transformers_5=True,  # as all rows of these tables
    )


def _state_bytes(row: Row, job: Job, column: OptimizerColumn, degrees: Degrees) -> StateBytes:
    """Bytes per parameter of the kind of run.

    A run that divides neither model nor state is plain PyTorch (autocast). A fully sharded run is FSDP, or ZeRO-3 if it
    also has model parallelism. Other runs have Megatron's or DeepSpeed's optimizers over 16-bit parameters. Gradients
    in the optimizer column have priority.
    """
    precision, level = row.text("precision_class"), shard_level(row)
    if precision == "fp32":
        return amp(job)
    if precision.endswith("pure") or job.adapter is not None:
        return pure(job, fp32_state=column.state_bits == 32)
    if column.master_gradients:
        return megatron_fp16(job)
    if column.fp32_accumulation:
        return deepspeed(job, fp32_accumulation=True)
    if column.gradient_bits == 32:
        return megatron(job)
    if column.gradient_bits == 16 or column.deepspeed:
        return deepspeed(job, zero=level > 0)
    return _habitual_recipe(row, job, level, parallel=degrees.tensor > 1 or degrees.pipeline > 1)


def _by_habit(row: Row, state: StateBytes, job: Job, degrees: Degrees) -> StateBytes:
    """State bytes with the habits of the row's library."""
    library = habits(row)
    if (logit_bytes := _logit_bytes(row, degrees)) is not None:
        state = replace(state, logit_bytes=logit_bytes)
    if library.default_optimizer == "paged-in-backward" and job.adapter is None and leaves_optimizer_open(row):
        state = replace(state, gradient_bytes=0, moment_bytes=0)
    state = replace(state, root_stays_gathered=not library.root_units, reduces_late=library.reduces_late)
    # A row with one microbatch accumulates no gradients.
    if library.accumulates_unsharded and row.count("num_microbatches") != 1:
        state = replace(state, gradients_persist=True)
        if shard_level(row) == 3:
            state = replace(state, extra_gradient_bytes=float(state.compute_bytes))
    return state


def _logit_bytes(row: Row, degrees: Degrees) -> float | None:
    """Bytes of a logit by the library's loss; if tensor parallelism does not divide them, of each that it would."""
    library = habits(row)
    copies = degrees.tensor if library.gathers_logits else 1
    return None if library.logit_bytes is None else copies * library.logit_bytes


def _habitual_recipe(row: Row, job: Job, level: int, *, parallel: bool) -> StateBytes:
    """State bytes of libraries with this division of model and state, if the optimizer column does not have them."""
    if level == 2 and "deepspeed" in row.text("framework"):
        return deepspeed(job)
    if level >= 2 and not (parallel and job.precision == "fp16"):
        return fully_sharded(job)
    if level == 0 and not parallel:
        return amp(job)
    if level and job.precision == "bf16" and "megatron-bridge" in row.text("framework"):
        # Its performance recipes reduce gradients in 16 bits, and the distributed optimizer keeps them in that type.
        return replace(megatron(job), gradient_bytes=2, reduced_bytes=2)
    if job.precision == "bf16" and parallel and (_modern(row) or not level):
        return megatron(job)
    if not level:
        return megatron_fp16(job)
    # Megatron-DeepSpeed's model parallelism uses BF16_Optimizer. ZeRO alone reduces 16-bit gradients.
    return deepspeed(job, fp32_accumulation=parallel and job.precision == "bf16")


def _modern(row: Row) -> bool:
    """Whether the run is from 2022 or later, with FlashAttention or selective recomputation.

    Since then Megatron-LM has sequence parallelism, and pre-training does not use dropout.
    """
    return row.text("attention_class").startswith("flash") or row.text("recompute_class") == "selective-attention"


def _keeps_gathered(row: Row, degrees: Degrees) -> bool:
    """Whether a fully sharded pipeline stage stays gathered, with its gradients in fp32, until its last microbatch.

    Repeated gathers for every microbatch would cost more than the pipeline saves (torchtitan, ``parallelize_llama``).
    """
    return shard_level(row) == 3 and degrees.pipeline > 1


def _gathered_units(row: Row, degrees: Degrees) -> int:
    layers = row.count("layers")
    return -(-layers // degrees.pipeline) if layers and _keeps_gathered(row, degrees) else habits(row).gathered_units


def _columns(row: Row, degrees: Degrees) -> dict[str, int | bool]:
    recompute = row.text("recompute_class")
    if recompute not in _RECOMPUTE:
        raise SkippedError(f"recomputation {recompute!r}")
    selective, fused = recompute == "selective-attention", row.text("attention_class").startswith("flash")
    level = shard_level(row)
    group = degrees.replicas * degrees.context
    degree = row.count("shard_degree") or 0
    return {
        "tensor_parallel_degree": degrees.tensor,
        "sequence_parallel": degrees.tensor > 1 and _modern(row) and habits(row).divides_sequence,
        "pipeline_parallel_degree": degrees.pipeline,
        "virtual_stages": degrees.chunks,
        "context_parallel_degree": degrees.context,
        "expert_parallel_degree": row.count("ep") or 1,
        "shard_level": level,
        "shard_degree": degree if level and 1 < degree < group and group % degree == 0 else 0,
        "prefetched_units": _gathered_units(row, degrees) if level == 3 else 0,
        "batch_samples": degrees.micro_batch * degrees.microbatches,
        "microbatches": degrees.microbatches,
        "active_microbatches": degrees.microbatches,
        "depth_bounds_activations": True,
        # Fused attention saves no scores. There, "selective" is PyTorch's checkpointing of every other block.
        "checkpoint_layers": 1 if selective and fused else _RECOMPUTE[recompute],
        "checkpoint_period": 2 if selective and fused else 1,
        "selective_recomputation": selective and not fused,
        "offload_activations": "activation" in row.text("offload"),
        "offload_state": level == 3 and _on_host(row.text("offload")),
        # DeepSpeed's ZeRO-3 partitions them over model parallelism. With FSDP2, the sequence is divided.
        "split_checkpoints": level == 3 and degrees.tensor > 1,
        "offload_running": True,
        # PyTorch's pipeline reduces gradients after the last microbatch.
        "replicas_reduced_once": _keeps_gathered(row, degrees),
        "blocking_offload": "offload_wrapper" in row.text("offload"),
        # Only SMP v1's hosts coordinate the passes of stages. It places consecutive stages next to each other.
        "host_handover": "smp v1" in row.text("framework"),
        "pipeline_outermost": "smp v1" not in row.text("framework"),
    }


def _on_host(offload: str) -> bool:
    """Whether parameters and gradients, and so the optimizer's state, are on the CPU."""
    return "param" in offload and ("cpu" in offload or "host" in offload)


def _stage(row: Row, stages: int) -> int | None:
    """Stage of ``pp stage 3 of 8 (...)``; None if the row covers all stages."""
    words = row.text("rank_or_stage").split()
    if words[:2] != ["pp", "stage"] or len(words) < 5:
        return None
    stage = int(words[2])
    return stage if stage < stages else None
