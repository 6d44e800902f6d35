"""What an engine keeps of every parameter: bytes by purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.workload.job import Job

__all__ = ["Recipe", "amp", "fully_sharded", "smp_v1"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Bytes a trained parameter takes, by purpose, before any sharding.

    Sharding level 1 divides `moment_bytes` and `copy_bytes`, level 2 also `gradient_bytes`, level 3 all but
    `extra_gradient_bytes`.
    """

    compute_bytes: int
    """Element of activations, gathered parameters and messages between GPUs."""
    parameter_bytes: float
    """The stored parameter that training computes with, or is cast from."""
    gradient_bytes: float
    """The gradient that is kept until the optimizer's step."""
    moment_bytes: float
    """Optimizer state: 8 for Adam's two moments in fp32."""
    copy_bytes: float
    """fp32 copies of parameters (and gradients) beside the 16-bit ones."""
    reduced_bytes: float
    """Element in which gradients are reduced over data parallelism."""
    extra_gradient_bytes: float = 0.0
    """fp32 accumulation of gradients that no sharding divides."""
    cast_bytes: float = 0.0
    """16-bit casts of the weights that autocast keeps during forward and backward pass."""
    step_bytes: float = 0.0
    """Temporaries of the optimizer's step, a parameter it updates (a ``foreach`` optimizer takes one whole copy)."""

    @property
    def total_bytes(self) -> float:
        """Bytes a parameter held between backward pass and step, unsharded."""
        return (
            self.parameter_bytes + self.gradient_bytes + self.moment_bytes + self.copy_bytes + self.extra_gradient_bytes
        )


def smp_v1(job: Job) -> Recipe:
    """SMP v1: 2 + 2 + 8 + (4 + 4) = 20 bytes in half precision with Adam, 16 in fp32.

    Source: SMP documentation, Introduction to model parallelism.
    """
    if job.precision == "fp32":
        return Recipe(
            compute_bytes=4,
            parameter_bytes=4,
            gradient_bytes=4,
            moment_bytes=job.moment_bytes,
            copy_bytes=0,
            reduced_bytes=4,
        )
    return Recipe(
        compute_bytes=2,
        parameter_bytes=2,
        gradient_bytes=2,
        moment_bytes=job.moment_bytes,
        copy_bytes=8,
        reduced_bytes=2,
    )


def amp(job: Job) -> Recipe:
    """Autocast over fp32 parameters (plain DDP): 4 + 4 + 8 bytes and 2 of casts (facts: PyTorch AMP)."""
    half = job.precision != "fp32"
    return Recipe(
        compute_bytes=2 if half else 4,
        parameter_bytes=4,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=0,
        reduced_bytes=4,
        cast_bytes=2 if half else 0,
    )


def fully_sharded(job: Job) -> Recipe:
    """FSDP with mixed precision: fp32 shards of parameter, gradient and state (16 bytes), 16-bit gathered units."""
    half = job.precision != "fp32"
    return Recipe(
        compute_bytes=2 if half else 4,
        parameter_bytes=4,
        gradient_bytes=4,
        moment_bytes=job.moment_bytes,
        copy_bytes=0,
        reduced_bytes=2 if half else 4,
    )
