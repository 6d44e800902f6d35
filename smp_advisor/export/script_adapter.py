"""Adapters (LoRA, QLoRA) in the generated PyTorch script, by the PEFT library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export.architectures import adapter_packages
from smp_advisor.export.literal import Comment
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from smp_advisor.export.script_parts import Training

__all__ = ["flags", "require", "requirements", "values"]

_SHARDED_SINCE = (2, 6)
"""PyTorch release whose ``fully_shard`` keeps frozen parameters and those of an adapter in types of their own."""
_ALPHA_PER_RANK = 2
"""``lora_alpha`` over the rank (Hugging Face PEFT, examples; LoRA's own experiments use 1 to 2)."""
_DROPOUT = 0.05


def require(training: Training) -> None:
    """Raise `ExportError` for jobs whose adapter the script does not support."""
    job = training.job
    if training.architecture.task != "causal":
        raise ExportError(
            f"The generated script trains adapters of language models, not of {training.architecture.title}: pass"
            " script= with your own script."
        )
    if release(training.container.framework_version)[:2] < _SHARDED_SINCE:
        raise ExportError(
            f"The generated script trains adapters with PyTorch 2.6 or later, and the container has"
            f" {training.container.framework_version}: choose a newer version of the library."
        )
    if job.loss != "plain" or job.state_precision != "mixed":
        raise ExportError(
            "The generated script trains adapters with the loss of the model and 32-bit states: leave loss and"
            " state_precision out of the job, or pass script= with your own script."
        )


def requirements(training: Training) -> list[str]:
    """Packages for the adapter."""
    adapter = training.job.adapter
    if adapter is None:
        return []
    return adapter_packages(training.container.framework_version, quantized=adapter.quantized)


def values(training: Training) -> dict[str, object]:
    """Template values."""
    adapter = training.job.adapter
    if adapter is None:
        return {}
    return {
        "adapter_rank": adapter.rank,
        "adapter_alpha": _ALPHA_PER_RANK * adapter.rank,
        "adapter_dropout": _DROPOUT if adapter.dropout else 0.0,
        "adapter_modules": sorted(adapter.module_names),
        "adapter_base": Comment(f" over {adapter.base_bits} bits" if adapter.quantized else ""),
        "base_bits": Comment(str(adapter.base_bits)),
        "double_quantization": adapter.double_quantization,
    }


def flags(training: Training) -> dict[str, bool]:
    """Template flags."""
    adapter = training.job.adapter
    return {
        "adapter": adapter is not None,
        "quantized": adapter is not None and adapter.quantized,
        "four_bits": adapter is not None and adapter.base_bits == 4,
        "all_linear": adapter is not None and adapter.targets == "all-linear",
    }
