"""Costs of one plan: memory by stage and category, time, price."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import brief
from smp_advisor.core.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.costs.effective_time import EffectiveTime
    from smp_advisor.libraries.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """Peak memory per GPU of one pipeline stage, GiB (2**30 bytes)."""

    stage: int
    layers: int
    """Blocks on this stage."""
    parameters_gib: float
    gradients_gib: float
    optimizer_state_gib: float
    """Adam's two moments (8 bytes per parameter)."""
    fp32_copies_gib: float
    """fp32 master parameters and gradients (4 + 4 bytes per parameter)."""
    activations_gib: float
    """Saved activations, or checkpointed inputs with activation checkpointing."""
    recomputation_gib: float
    """Activations of the block (or group) during its recomputation."""
    logits_gib: float
    """Logits and loss, on the last stage."""
    communication_gib: float
    """Buffers of reductions, gathered parameters and NCCL."""
    optimizer_step_gib: float
    """Memory of the optimizer's step in excess of the activations, which are free by then."""
    allocator_reserve_gib: float
    """Memory between allocated blocks that PyTorch's allocator cannot release (fragmentation)."""
    context_gib: float
    """CUDA context and libraries."""
    cached_gib: float = 0.0
    """Memory that the allocator keeps while there is room, and releases before it runs out: not needed."""

    @property
    def total_gib(self) -> float:
        """Memory needed: the sum of the categories."""
        return float(sum(_categories(self)))


CATEGORIES: tuple[str, ...] = tuple(f.name for f in fields(StageMemory) if f.name.endswith("_gib"))[:-1]
"""Parts of the memory needed: without what is cached."""
_categories = attrgetter(*CATEGORIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory per GPU, one entry per pipeline stage."""

    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> StageMemory:
        """The stage that needs the most memory; the first of them."""
        return max(self.stages, key=lambda stage: round(stage.total_gib, 6))

    def to_frame(self) -> pd.DataFrame:
        """Return the table with one row per stage, one column per category (GiB), and the total."""
        rows = [{name: getattr(s, name) for name in ("stage", "layers", *CATEGORIES)} for s in self.stages]
        frame = frame_of(rows).set_index("stage")
        frame["total_gib"] = frame[list(CATEGORIES)].sum(axis=1)
        return frame


PhaseName = Literal["load", "trace", "first update", "steps", "save"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Peaks of one phase, GiB: of a GPU, of a node's host memory, and of a node's disk."""

    name: PhaseName
    gpu_gib: float
    host_gib_per_node: float = 0.0
    disk_gib_per_node: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds per optimizer step on the critical path. The parts add up to the total."""

    forward_seconds: float
    backward_seconds: float
    recomputation_seconds: float
    tensor_parallel_seconds: float
    """All-reduces of tensor parallelism."""
    pipeline_bubble_seconds: float
    """Idle time of the slowest stage, and transfers between stages."""
    data_parallel_seconds: float
    """Reductions and all-gathers that forward and backward passes do not hide."""
    optimizer_seconds: float
    offload_seconds: float
    """Host transfers that compute does not hide."""
    allocator_seconds: float = 0.0
    """Freeing and reserving memory again near full memory."""

    @property
    def total_seconds(self) -> float:
        """Seconds per step."""
        return float(sum(_time_parts(self)))


TIME_PARTS: tuple[str, ...] = tuple(f.name for f in fields(StepTime))
_time_parts = attrgetter(*TIME_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Costs of one plan for one model, cluster and job.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> estimate = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp").estimate
    >>> estimate.fits, estimate.usable_gpu_memory_gib > estimate.needed_gib
    (True, True)
    >>> low, high = estimate.step_seconds_range  # 95 % of measured runs
    >>> low < estimate.step_seconds < high
    True
    """

    plan: Plan
    memory: Memory
    time: StepTime
    phases: tuple[Phase, ...]
    """Peaks of loading, of the first update, of the steps and of saving; the worst decides whether the plan fits."""
    usable_gpu_memory_gib: float
    needed_gib: float
    """Required GPU memory of the worst phase and stage: its peak without memory that the allocator can release."""
    host_memory_gib_per_node: float
    """Host memory per node in the phase with the most: offloaded activations, a paged optimizer, a model that loads."""
    host_memory_fits: bool
    fit_probability: float
    """Probability that every stage fits in usable memory, by the error of the cost model (normal in GiB)."""
    memory_error_gib: float
    """One standard deviation of the prediction error, for the stage with the lowest fit probability."""
    global_batch_size: int
    """Samples per optimizer step over the cluster."""
    tokens_per_step: int
    microbatches_in_flight: int
    tflops_per_gpu: float
    """Model FLOPs (without recomputation) per GPU and second, in 1e12."""
    mfu: float
    """Model FLOPs utilization: `tflops_per_gpu` over the GPU's dense peak."""
    usd_per_hour: float | None
    """USD per hour of the cluster; None if the on-demand price is unknown."""
    effective: EffectiveTime
    """Share of the elapsed time that is spent in training steps, which days and cost count (`Job.overheads`)."""
    days: float | None
    """Elapsed days to train on `Job.tokens`; None if they are not set."""
    step_factors: tuple[float, float]
    """Factors of the predicted step time between which 95 % of published runs are, for a step with these parts; the
    lower end is cut at the peak of the GPUs."""
    assumptions: tuple[str, ...]
    """Assumptions of the figures that no source confirms, one sentence each."""

    def __repr__(self) -> str:
        memory = f"{self.needed_gib:.1f} of {self.usable_gpu_memory_gib:.1f} GiB"
        return brief("Estimate", [f"fits={self.fits}", memory, f"{self.step_seconds:.3g} s per step", repr(self.plan)])

    @property
    def headroom_gib(self) -> float:
        """Usable minus required memory. Negative if and only if `fit_probability` is below one half."""
        return self.usable_gpu_memory_gib - self.needed_gib

    @property
    def fits(self) -> bool:
        """Whether the point estimate is within usable GPU and host memory."""
        return self.headroom_gib >= 0 and self.host_memory_fits

    @property
    def step_seconds(self) -> float:
        """Seconds per optimizer step."""
        return self.time.total_seconds

    @property
    def step_seconds_range(self) -> tuple[float, float]:
        """95 % prediction interval of the step time."""
        return self._of_duration(self.step_seconds)

    @property
    def tokens_per_second_range(self) -> tuple[float, float]:
        """95 % prediction interval of the throughput."""
        return self._of_rate(self.tokens_per_second)

    @property
    def samples_per_second_range(self) -> tuple[float, float]:
        """95 % prediction interval of the samples per second."""
        return self._of_rate(self.samples_per_second)

    @property
    def tflops_per_gpu_range(self) -> tuple[float, float]:
        """95 % prediction interval of `tflops_per_gpu`."""
        return self._of_rate(self.tflops_per_gpu)

    @property
    def mfu_range(self) -> tuple[float, float]:
        """95 % prediction interval of the utilization; above 1 where causal kernels or fp8 leave out what it counts."""
        return self._of_rate(self.mfu)

    @property
    def days_range(self) -> tuple[float, float] | None:
        """95 % prediction interval of the days to train on `Job.tokens`; None if they are not set."""
        return None if self.days is None else self._of_duration(self.days)

    @property
    def usd_total_range(self) -> tuple[float, float] | None:
        """95 % prediction interval of the cost of training on `Job.tokens`; None if tokens or price are unknown."""
        return None if self.usd_total is None else self._of_duration(self.usd_total)

    @property
    def usd_per_million_tokens_range(self) -> tuple[float, float] | None:
        """95 % prediction interval of the cost per million tokens; None if the price is unknown."""
        price = self.usd_per_million_tokens
        return None if price is None else self._of_duration(price)

    def _of_duration(self, value: float) -> tuple[float, float]:
        low, high = self.step_factors
        return value * low, value * high

    def _of_rate(self, value: float) -> tuple[float, float]:
        low, high = self.step_factors
        return value / high, value / low

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the cluster."""
        return self.global_batch_size / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the cluster."""
        return self.tokens_per_step / self.step_seconds

    @property
    def usd_total(self) -> float | None:
        """Cost of training on `Job.tokens`; None if tokens or price are unknown."""
        if self.usd_per_hour is None or self.days is None:
            return None
        return self.usd_per_hour * 24 * self.days

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Cost per million tokens of the elapsed time; None if the price is unknown."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / 3600 / (self.tokens_per_second * self.effective.share) * 1e6
