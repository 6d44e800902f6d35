"""Settings of a plan that the text of a script lacks: batch, precision and checkpointing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.libraries.plan import Plan

__all__ = ["missing_batch", "missing_checkpointing", "missing_precision"]

_HALF = {"bf16": ("bfloat16", "bf16"), "fp16": ("float16", "fp16", "half(")}
"""Words of a script that trains in 16 bits."""
_CHECKPOINTING = ("checkpoint_wrapper", "utils.checkpoint", "utils import checkpoint", "gradient_checkpointing")
_WRAPPERS = {
    "fsdp": "FSDP(..., mixed_precision=MixedPrecision(...))",
    "fsdp2": "fully_shard(..., mp_policy=MixedPrecisionPolicy(...))",
    "ddp": "torch.autocast around the forward pass",
}


def missing_batch(code: str, plan: Plan) -> Iterator[str]:
    """A sentence if the plan accumulates gradients, and the script has neither both options nor both numbers."""
    settings = plan.hyperparameters
    batch, accumulated = settings.get("batch_size"), settings.get("gradient_accumulation_steps", 1)
    reads_both = "batch_size" in code and "gradient_accumulation_steps" in code
    numbers = (rf"batch_size\s*=\s*{batch}\b", rf"%\s*{accumulated}\b")
    has_both = all(re.search(number, code) for number in numbers)
    if isinstance(accumulated, int) and accumulated > 1 and not (reads_both or has_both):
        yield (
            f"The plan processes {batch} samples per GPU, {accumulated} times before each optimizer step. Set this"
            f" batch size, divide the loss by {accumulated}, and call the optimizer after every {accumulated} batches:"
            " with another batch, memory and speed differ from the estimate."
        )


def missing_precision(code: str, plan: Plan, kind: str) -> Iterator[str]:
    """A sentence if the plan computes in 16 bits, and the script (``ddp``, ``fsdp`` or ``fsdp2``) does not."""
    precision = plan.hyperparameters.get("precision")
    words = _HALF.get(str(precision), ())
    if kind in _WRAPPERS and words and not any(word in code for word in words):
        yield (
            f"The plan computes in {precision}, and the script in the precision of its parameters, which needs more"
            f" memory than the estimate: use {_WRAPPERS[kind]}, or search again with precision='fp32'."
        )


def missing_checkpointing(code: str, plan: Plan, kind: str) -> Iterator[str]:
    """A sentence if the plan checkpoints activations, and the script does not."""
    strategy = plan.hyperparameters.get("activation_checkpointing")
    if kind in _WRAPPERS and strategy not in (None, False, "none") and not any(word in code for word in _CHECKPOINTING):
        yield (
            f"The plan checkpoints activations ({strategy}), and the script does not, which needs more memory than the"
            " estimate: wrap the repeated layers with checkpoint_wrapper before the model is"
            f" {'replicated' if kind == 'ddp' else 'sharded'}."
        )
