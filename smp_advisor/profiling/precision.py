"""Training precisions: bytes of state per parameter, the compute type, and the precision of a job in its library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.errors import ProfileError
from smp_advisor.libraries.library import get_library, library_with

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = [
    "PRECISIONS",
    "Precision",
    "TrainingPrecision",
    "higher_precision",
    "precision_of_job",
    "training_precision",
    "usual_library",
]

Precision = Literal["fp32", "amp", "bf16", "fp16", "mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPrecision:
    """Bytes per parameter between steps, and the size of activations."""

    precision: Precision
    label: str
    """Text shown to the user."""
    parameter_bytes: int
    """Bytes of a stored parameter."""
    gradient_bytes: int
    """Bytes of a gradient between the backward pass and the optimizer step."""
    moment_bytes: int
    """Bytes of one moment: Adam has two, SGD with momentum has one."""
    element_bytes: int
    """Bytes per element of the activations."""
    copy_bytes: int = 0
    """fp32 master parameters and gradients, in addition to the 16-bit ones."""
    gathers: bool = False
    """Whether layers compute with 16-bit copies of stored fp32 parameters, which exist for a few blocks at a time."""
    scales_loss: bool = False
    """Whether the loss is scaled, so that small gradients are no zeros."""

    @property
    def title(self) -> str:
        """Its name within a sentence."""
        return "FSDP's mixed precision" if self.gathers else self.precision

    @property
    def computes_in_16_bits(self) -> bool:
        """Whether the parameters with which layers compute have 16 bits; autocast converts fp32 ones."""
        return self.parameter_bytes == 2 or self.gathers

    def state_bytes(self, optimizer: str = "adam") -> int:
        """Bytes of optimizer state per parameter, including master copies; an unlisted optimizer counts as Adam."""
        if optimizer == "adam-8bit":
            return _QUANTIZED_MOMENTS + self.copy_bytes
        return _MOMENTS.get(optimizer, _MOMENTS["adam"]) * self.moment_bytes + self.copy_bytes


_MOMENTS = {"adam": 2, "sgd": 1, "lion": 1, "plain-sgd": 0, "adafactor": 0}
_QUANTIZED_MOMENTS = 2
"""Bytes: two moments of one byte each."""


PRECISIONS: dict[str, TrainingPrecision] = {
    entry.precision: entry
    for entry in (
        TrainingPrecision(
            precision="fp32", label="fp32", parameter_bytes=4, gradient_bytes=4, moment_bytes=4, element_bytes=4
        ),
        TrainingPrecision(
            precision="amp",
            label="mixed precision by torch.autocast",
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=4,
            element_bytes=2,
        ),
        TrainingPrecision(
            precision="bf16", label="pure bf16", parameter_bytes=2, gradient_bytes=2, moment_bytes=2, element_bytes=2
        ),
        # SMP v1's fp16 enables FP16_Module and FP16_Optimizer: 20 bytes per parameter (SMP documentation,
        # Introduction to model parallelism).
        TrainingPrecision(
            precision="fp16",
            label="fp16 with fp32 master copies, as SMP v1 wraps the model",
            parameter_bytes=2,
            gradient_bytes=2,
            moment_bytes=4,
            element_bytes=2,
            copy_bytes=8,
            scales_loss=True,
        ),
        # FSDP's MixedPrecision and MixedPrecisionPolicy store and update fp32 shards: 16 bytes per parameter with Adam.
        TrainingPrecision(
            precision="mixed",
            label="16-bit layers over fp32 parameters, as FSDP gathers them",
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=4,
            element_bytes=2,
            gathers=True,
        ),
    )
}


def training_precision(precision: object) -> TrainingPrecision:
    """TrainingPrecision by name."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ProfileError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}.")
    return PRECISIONS[precision]


def higher_precision(precision: str) -> str:
    """The precision to try if a forward pass fails in this one: autocast for 16 bits, then fp32; empty after that."""
    return {"fp16": "amp", "bf16": "amp", "mixed": "amp", "amp": "fp32"}.get(precision, "")


def usual_library() -> str:
    """Library that stands for those from which `advise` chooses: PyTorch's own that divides the model.

    SMP v2 has the same stack and the same form of mixed precision.
    """
    return library_with(framework="pytorch", smdistributed=False, divides_model=True).name


def precision_of_job(
    job: Job, *, requested: str | None = None, library: str | None = None, plan: Plan | None = None
) -> Precision:
    """Key of `PRECISIONS` for a job.

    Parameters
    ----------
    requested
        A precision that the user requested; None derives it.
    library
        None and ``auto`` stand for the libraries from which `advise` chooses. The plan's library comes first.
    plan
        Decides between 16 and 32 bits, if it is passed.
    """
    if requested is not None:
        return training_precision(requested).precision
    name = plan.library if plan is not None else usual_library() if library in {None, "auto"} else str(library)
    record = get_library(name)
    if plan is not None:
        precision = plan.precision
    else:
        precision = record.default_precision if "precision" in job.defaulted() else job.precision
    if precision == "fp32":
        return "fp32"
    return "bf16" if job.state_precision == "16-bit" else record.half_precision
