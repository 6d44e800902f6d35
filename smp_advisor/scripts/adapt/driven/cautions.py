"""To-dos of a script whose loop another library runs: what its argument does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import keyword, text_of
from smp_advisor.scripts.adapt.known_names import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.driven.driver import Driver

__all__ = ["add_cautions"]

_WRAPPED_BY_NAME = {
    "accelerate": 'transformer_cls_names_to_wrap=["..."] of the plugin',
    "trainer": '"transformer_layer_cls_to_wrap" of fsdp_config',
    "lightning": "FSDPStrategy(auto_wrap_policy={...}) as strategy",
    "fabric": "FSDPStrategy(auto_wrap_policy={...}) as strategy",
}
_FULL_STATE = {
    "accelerate": "take the state from accelerator.get_state_dict(model) on every rank",
    "trainer": "use save_model of the Trainer on every rank",
    "lightning": "use save_checkpoint of the Trainer on every rank",
    "fabric": "use fabric.save on every rank",
}


def add_cautions(draft: Draft, driver: Driver, layer: str) -> None:
    """List what has to be changed by hand."""
    survey = draft.survey
    pretrained = any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("from_pretrained", "from_config")
        and "Model" in text_of(call.func.value)
        for call in survey.calls
    )
    # Models of transformers name their layers themselves; Lightning does not read these names.
    if not layer and not (pretrained and driver.runner in ("accelerate", "trainer")):
        draft.add_todo(
            "The class of the repeated layers was not found in this file, and FSDP gathers a model without it at once:"
            f" name it in {_WRAPPED_BY_NAME[driver.runner]}."
        )
    seeded = any(survey.callee(call).rpartition(".")[2] in known_names("seeding_functions") for call in survey.calls)
    if not pretrained and not seeded and driver.runner in ("accelerate", "fabric"):
        draft.add_todo("Seed PyTorch with the same number in every process before the model is created.")
    if driver.runner == "trainer" and draft.target.kind == "fsdp":
        draft.add_todo(
            "Transformers 5 announces that it removes FSDP1: with its next versions, adapt the script with"
            " library='fsdp2'."
        )
    if draft.target.kind == "fsdp2" and "hybrid" in draft.target.sharding_strategy:
        draft.add_todo(
            f"{driver.title} has no argument for a hybrid strategy with FSDP2, so the model is sharded over all"
            " processes: use library='fsdp' for a hybrid one."
        )
    for call in survey.calls:
        _caution_about(draft, driver, call)


def _caution_about(draft: Draft, driver: Driver, call: cst.Call) -> None:
    survey = draft.survey
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    owner = text_of(call.func.value).lower() if isinstance(call.func, cst.Attribute) else ""
    if method == "save_pretrained" and "model" in owner and keyword(call, "state_dict") is None:
        argument = ", and pass it as state_dict" if driver.runner == "accelerate" else ""
        draft.add_todo(
            f"`{draft.excerpt(call)}` would save the shards of one rank: {_FULL_STATE[driver.runner]}{argument}."
        )
    elif survey.callee(call) == "torch.save" and call.args and _is_state(text_of(call.args[0].value).lower()):
        draft.add_todo(f"`{draft.excerpt(call)}` would save the shards of one rank: {_FULL_STATE[driver.runner]}.")
    elif survey.callee(call) in known_names("clipping") and driver.runner in ("accelerate", "fabric"):
        replacement = "accelerator.clip_grad_norm_" if driver.runner == "accelerate" else "fabric.clip_gradients"
        draft.add_todo(f"`{draft.excerpt(call)}` would clip by the norm of one rank: use {replacement}.")
    for name in ("load_in_8bit", "load_in_4bit", "quantization_config"):
        argument_given = keyword(call, name)
        if argument_given is not None and text_of(argument_given.value) not in ("False", "None"):
            draft.add_todo(
                f"`{draft.excerpt(call)}` quantizes the model: FSDP shards only weights that are stored as"
                " floating-point numbers (bnb_4bit_quant_storage), and not those of 8 bits."
            )
    for name in ("gradient_checkpointing", "activation_checkpointing") if call in driver.calls else ():
        checkpointing = keyword(call, name)
        if checkpointing is not None and text_of(checkpointing.value) == "True" and driver.runner == "trainer":
            draft.add_todo(
                f"{name}=True gathers the parameters of each layer once more in the backward pass: replace it by"
                ' "activation_checkpointing": True in fsdp_config.'
            )


def _is_state(text: str) -> bool:
    """Whether an argument of ``torch.save`` is the state of the model, and not gathered."""
    return "model" in text and "get_state_dict" not in text
