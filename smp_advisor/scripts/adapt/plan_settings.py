"""Settings of the plan that the adaptation leaves to the script: batch, precision and checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.target import Target

__all__ = ["report_plan_settings"]

_HALF = {"bf16": ("bfloat16", "bf16"), "fp16": ("float16", "fp16", "half(")}
"""Words of a script that trains in 16 bits."""
_CHECKPOINTING = ("checkpoint_wrapper", "utils.checkpoint", "gradient_checkpointing")
_WRAPPERS = {
    "fsdp": "FSDP(..., mixed_precision=MixedPrecision(...))",
    "fsdp2": "fully_shard(..., mp_policy=MixedPrecisionPolicy(...))",
    "ddp": "torch.autocast around the forward pass",
}


def report_plan_settings(draft: Draft, plan: Plan, target: Target) -> None:
    """Add to-dos for a batch, a precision and a checkpointing that the script does not have.

    Memory, speed and fit of the plan are those of its settings. SMP v1 splits the batch itself, and
    scripts for SMP libraries get the precision of the plan.
    """
    code = draft.module.code
    settings = plan.hyperparameters
    batch, accumulated = settings.get("batch_size"), settings.get("gradient_accumulation_steps", 1)
    reads_both = "batch_size" in code and "gradient_accumulation_steps" in code
    if target.kind != "smp_step" and isinstance(accumulated, int) and accumulated > 1 and not reads_both:
        draft.add_todo(
            f"The plan processes {batch} samples per GPU, {accumulated} times before each optimizer step. Set this"
            f" batch size, divide the loss by {accumulated}, and call the optimizer after every {accumulated} batches:"
            " with another batch, memory and speed differ from the estimate."
        )
    precision = settings.get("precision")
    words = _HALF.get(str(precision), ())
    if target.kind in _WRAPPERS and words and not any(word in code for word in words):
        draft.add_todo(
            f"The plan computes in {precision}, and the script in the precision of its parameters, which needs more"
            f" memory than the estimate: use {_WRAPPERS[target.kind]}, or search again with precision='fp32'."
        )
    strategy = settings.get("activation_checkpointing")
    lacks_checkpointing = target.kind in ("ddp", "fsdp2") and not any(word in code for word in _CHECKPOINTING)
    if lacks_checkpointing and strategy not in (None, False, "none"):
        draft.add_todo(
            f"The plan checkpoints activations ({strategy}), and the script does not, which needs more memory than the"
            " estimate: wrap the repeated layers with checkpoint_wrapper before the model is"
            f" {'sharded' if target.kind == 'fsdp2' else 'replicated'}."
        )
