"""Keywords of `advise` and of an advice's cells, for type checkers, editors and completion in notebooks."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from smp_advisor.libraries.plan import PlanSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from smp_advisor.workload.adapter import Adapter
    from smp_advisor.workload.calibration import Calibration
    from smp_advisor.workload.job import Loss, OptimizerName, OptimizerStep, Overheads, StatePrecision, Training

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["AdviseSettings", "JobOptionSettings", "completes"]


class AdviseSettings(PlanSettings, total=False):
    """Fields of `Job`, of an inferred shape, and of plans (fixed values)."""

    # of the job, which shares precision and fp8 with plans
    sequence_length: int
    optimizer: OptimizerName
    optimizer_step: OptimizerStep
    paged_optimizer: bool
    state_precision: StatePrecision
    loss: Loss
    unsharded_accumulation: bool
    separate_embeddings: bool
    adapter: Adapter | None
    training: Training
    attention: Literal["auto", "eager", "fused"]
    stack: str
    global_batch_size: int | None
    max_tokens_per_step: int
    tokens: float | str | None
    overheads: Overheads | str | Sequence[str]
    calibration: Calibration | str | Path | None
    # of an inferred shape
    family: str | None
    layers: int | None
    hidden: int | None
    heads: int | None
    vocab: int | None
    activation: str | None


class JobOptionSettings(TypedDict, total=False):
    """Fields of `smp_advisor.export.options.JobOptions`."""

    script: str | None
    source_dir: str | None
    data: Mapping[str, str] | str | None
    checkpoints: str | bool | None
    long_run_without_checkpoints: bool
    job_name: str | None
    max_run_seconds: int | None
    spot: bool
    max_wait_seconds: int | None
    keep_alive_seconds: int | None
    subnets: Sequence[str]
    security_group_ids: Sequence[str]
    volume_gb: int | None
    region: str | None
    role: str | None
    tags: Mapping[str, str] | None
    training_plan: str | None
    output_path: str | None
    output_kms_key: str | None
    volume_kms_key: str | None
    input_mode: str | None
    packages: Sequence[str]
    environment: Mapping[str, str] | None
    image_uri: str | None
    metrics: Mapping[str, str] | None
    retry_attempts: int | None
    extra_hyperparameters: Mapping[str, Any] | None
    plan_hyperparameters: bool


def completes(keywords: type) -> Callable[[Function], Function]:
    """Replace ``**keywords`` by the keywords of a TypedDict, in the signature from which notebooks complete."""

    def complete(function: Function) -> Function:
        positional = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in keywords.__annotations__]
        function.__signature__ = Signature([*positional, *more])  # type: ignore[attr-defined]
        return function

    return complete
