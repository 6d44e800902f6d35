"""What one training run asks for, whatever the model and the cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from smp_advisor.errors import JobError
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.optimizer import OPTIMIZERS, OptimizerName

__all__ = ["DEFAULT_SEQUENCE_LENGTH", "Job", "Precision"]

Precision = Literal["fp16", "bf16", "fp32"]

DEFAULT_SEQUENCE_LENGTH = 2048
MAX_TOKENS_PER_STEP = 4_000_000
MAX_SAMPLES_PER_STEP = 8_192
"""In place of it where a sample is one image and no text: the largest batch that trains ResNet-50 on ImageNet to the
accuracy of a small one (Goyal et al. 2017, arXiv 1706.02677, figure 1)."""

_MOST = {"sequence_length": 10**9, "global_batch_size": 10**9, "max_tokens_per_step": 10**15}
"""Far beyond any training, and little enough to be searched in seconds and counted in 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Settings of a training run.

    Examples
    --------
    >>> Job(sequence_length=512, precision="fp16").optimizer
    'adam'
    """

    sequence_length: int = DEFAULT_SEQUENCE_LENGTH
    """Tokens per sample."""
    precision: Precision = "fp16"
    """``fp16`` and ``bf16`` keep fp32 master copies (20 bytes a parameter with Adam); ``fp32`` keeps 16."""
    fp8: bool = False
    """Whether matrix products run in fp8 (H100 and later), with everything else in ``bf16``."""
    optimizer: OptimizerName = "adam"
    """By what it keeps of a parameter: ``adam`` (8 bytes), ``adam-8bit`` (2), ``lion`` (4), ``sgd`` with momentum (4),
    ``plain-sgd`` without, ``adafactor`` (rows and columns only)."""
    adapter: Adapter | None = None
    """Trains a low-rank adapter over the frozen model (LoRA, QLoRA) instead of all its parameters."""
    attention: Literal["eager", "fused"] = "eager"
    """``eager`` stores the attention scores (PyTorch 1.x, hence SMP v1); ``fused`` does not (FlashAttention)."""
    global_batch_size: int | None = None
    """Samples per optimizer step over the whole cluster; None lets the search choose."""
    max_tokens_per_step: int = MAX_TOKENS_PER_STEP
    """Upper limit of the global batch in tokens when `global_batch_size` is free; at its default, `advise` takes 8,192
    samples for models of images."""
    tokens: float | None = None
    """Tokens to train on, for days and total cost; None gives rates only."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise JobError(f"{name} must be a whole number of at least 1, not {value!r}.")
            if value > most:
                raise JobError(f"{name} must be at most {most:,}, not {value:,}.")
        for name, allowed in (
            ("precision", ("fp16", "bf16", "fp32")),
            ("optimizer", tuple(OPTIMIZERS)),
            ("attention", ("eager", "fused")),
        ):
            if getattr(self, name) not in allowed:
                raise JobError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}.")
        self._check_training()
        tokens: object = self.tokens  # whatever the annotation says, a notebook may pass text
        if tokens is not None and not (isinstance(tokens, int | float) and tokens > 0):
            raise JobError(f"tokens must be a positive number, not {self.tokens!r}.")

    def _check_training(self) -> None:
        """Refuse what does not go together: fp8 products, adapters and precisions."""
        if not isinstance(self.fp8, bool):
            raise JobError(f"fp8 must be True or False, not {self.fp8!r}.")
        if self.fp8 and self.precision != "bf16":
            raise JobError(f"fp8 products go with precision='bf16', not {self.precision!r}.")
        adapter: object = self.adapter  # whatever the annotation says, a notebook may pass something else
        if adapter is None:
            return
        if not isinstance(adapter, Adapter):
            raise JobError(f"adapter must be an Adapter, such as Adapter(rank=8), not {adapter!r}.")
        if self.precision == "fp32" and adapter.quantized:
            raise JobError("An adapter over a quantised base trains in 16 bits: set precision to bf16 or fp16.")

    @property
    def moment_bytes(self) -> float:
        """Bytes of optimizer state a parameter."""
        return OPTIMIZERS[self.optimizer].moment_bytes()

    def defaulted(self) -> tuple[str, ...]:
        """Names of the settings that are at their default, for showing defaults as defaults."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) == f.default)
