"""What one plan costs: memory by stage and category, time, money."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.libraries.plan import Plan

__all__ = ["CATEGORIES", "Estimate", "Memory", "StageMemory", "StepTime"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Peak memory of one GPU of one pipeline stage, GiB (2**30 bytes)."""

    stage: int
    layers: int
    """Blocks this stage holds."""
    parameters_gib: float
    gradients_gib: float
    optimizer_state_gib: float
    """Adam's two moments (8 bytes a parameter)."""
    fp32_copies_gib: float
    """fp32 master parameters and gradients (4 + 4 bytes a parameter)."""
    activations_gib: float
    """Saved activations, or checkpointed inputs where activation checkpointing is on."""
    recomputation_gib: float
    """The block (or group) that is live while it is recomputed."""
    logits_gib: float
    """Logits and loss, on the last stage."""
    communication_gib: float
    """Buffers of reductions, gathered parameters and NCCL."""
    optimizer_step_gib: float
    """What the optimizer's step needs for itself beyond the activations, which are gone by then."""
    allocator_reserve_gib: float
    """What PyTorch's allocator reserves beyond what is allocated."""
    context_gib: float
    """CUDA context and libraries."""

    @property
    def total_gib(self) -> float:
        """Sum of the categories."""
        return sum(float(getattr(self, name)) for name in CATEGORIES)


CATEGORIES: tuple[str, ...] = tuple(f.name for f in fields(StageMemory) if f.name.endswith("_gib"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory per GPU, one entry a pipeline stage."""

    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> StageMemory:
        """The stage with the highest total; of those that fill the GPU, the one that allocates the most."""
        # Rounded, so that what differs in the last bits only is equal.
        return max(self.stages, key=lambda one: (round(one.total_gib, 6), one.total_gib - one.allocator_reserve_gib))

    def to_frame(self) -> pd.DataFrame:
        """One row a stage, one column a category (GiB), and the total."""
        import pandas as pd

        rows = [{name: getattr(s, name) for name in ("stage", "layers", *CATEGORIES)} for s in self.stages]
        frame = pd.DataFrame(rows).set_index("stage")
        frame["total_gib"] = frame[list(CATEGORIES)].sum(axis=1)
        return frame


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on the critical path; the parts add up to the total."""

    forward_seconds: float
    backward_seconds: float
    recomputation_seconds: float
    tensor_parallel_seconds: float
    """All-reduces of tensor parallelism."""
    pipeline_bubble_seconds: float
    """Waiting of the slowest stage, and transfers between stages."""
    data_parallel_seconds: float
    """Reductions and gathers that backward and forward passes do not hide."""
    optimizer_seconds: float
    offload_seconds: float
    """Host transfers that compute does not hide."""

    @property
    def total_seconds(self) -> float:
        """Step time."""
        return sum(float(getattr(self, f.name)) for f in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Costs of one plan for one model, cluster and job."""

    plan: Plan
    memory: Memory
    time: StepTime
    usable_gpu_memory_gib: float
    needed_gib: float
    """What the tightest stage's GPU must have: its peak but for what the allocator gives back under pressure."""
    host_memory_gib_per_node: float
    """Host memory that offloaded activations take on one node."""
    host_memory_fits: bool
    fit_probability: float
    """Probability that every stage's need stays within usable memory, by the model's error (normal in GiB)."""
    memory_error_gib: float
    """One standard deviation of the prediction error, of the stage that is least sure to fit."""
    global_batch_size: int
    """Samples per optimizer step over the whole cluster."""
    tokens_per_step: int
    microbatches_in_flight: int
    tflops_per_gpu: float
    """Model FLOPs (recomputation not counted) per GPU and second, in 1e12."""
    mfu: float
    """Model FLOPs utilisation: `tflops_per_gpu` over the GPU's dense peak."""
    usd_per_hour: float | None
    """Of the whole cluster; None where no on-demand price is known."""
    days: float | None
    """To train `Job.tokens`; None where the job does not say."""
    step_factors: tuple[float, float]
    """95 % of the published runs of this kind of plan took between these factors of the predicted step time."""
    assumptions: tuple[str, ...]
    """What the figures rest on that no source states, one sentence each."""

    @property
    def headroom_gib(self) -> float:
        """Usable memory minus what is needed; negative exactly where `fit_probability` is below one half."""
        return self.usable_gpu_memory_gib - self.needed_gib

    @property
    def fits(self) -> bool:
        """Point estimate within usable GPU and host memory."""
        return self.headroom_gib >= 0 and self.host_memory_fits

    @property
    def step_seconds(self) -> float:
        """Seconds of one optimizer step."""
        return self.time.total_seconds

    @property
    def step_seconds_range(self) -> tuple[float, float]:
        """95 % prediction interval of the step time."""
        low, high = self.step_factors
        return self.step_seconds * low, self.step_seconds * high

    @property
    def tokens_per_second_range(self) -> tuple[float, float]:
        """95 % prediction interval of the throughput."""
        low, high = self.step_factors
        return self.tokens_per_second / high, self.tokens_per_second / low

    @property
    def days_range(self) -> tuple[float, float] | None:
        """95 % prediction interval of the time to train `Job.tokens`; None where the job does not say."""
        low, high = self.step_factors
        return None if self.days is None else (self.days * low, self.days * high)

    @property
    def usd_total_range(self) -> tuple[float, float] | None:
        """95 % prediction interval of the cost of training `Job.tokens`; None where tokens or price are unknown."""
        low, high = self.step_factors
        return None if self.usd_total is None else (self.usd_total * low, self.usd_total * high)

    @property
    def samples_per_second(self) -> float:
        """Over the whole cluster."""
        return self.global_batch_size / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """Over the whole cluster."""
        return self.tokens_per_step / self.step_seconds

    @property
    def usd_total(self) -> float | None:
        """Cost of training `Job.tokens`; None where tokens or price are unknown."""
        if self.usd_per_hour is None or self.days is None:
            return None
        return self.usd_per_hour * 24 * self.days

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Cost per million tokens; None where the price is unknown."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / 3600 / self.tokens_per_second * 1e6
