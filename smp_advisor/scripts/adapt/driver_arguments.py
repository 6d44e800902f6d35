"""Step: choose sharding by an argument of the library that runs the loop, and list what it does not change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import Edits, call_text, expression, keyword, statements, text_of
from smp_advisor.scripts.adapt.construction import repeated_in
from smp_advisor.scripts.adapt.draft import add_import, add_names
from smp_advisor.scripts.adapt.driver import Driver, driver_of, is_one_device
from smp_advisor.scripts.adapt.survey import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft


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
        draft.add_todo("no_layer_class_of_driver", argument=_WRAPPED_BY_NAME[driver.runner])
    seeded = any(survey.callee(call).rpartition(".")[2] in known_names("seeding_functions") for call in survey.calls)
    if not pretrained and not seeded and driver.runner in ("accelerate", "fabric"):
        draft.add_todo("seed_models")
    if driver.runner == "trainer" and draft.target.kind == "fsdp":
        draft.add_todo("fsdp1_ends")
    if draft.target.kind == "fsdp2" and "hybrid" in draft.target.sharding_strategy:
        draft.add_todo("no_hybrid_argument", title=driver.title)
    for call in survey.calls:
        _caution_about(draft, driver, call)


def _caution_about(draft: Draft, driver: Driver, call: cst.Call) -> None:
    survey = draft.survey
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    owner = text_of(call.func.value).lower() if isinstance(call.func, cst.Attribute) else ""
    if method == "save_pretrained" and "model" in owner and keyword(call, "state_dict") is None:
        argument = ", and pass it as state_dict" if driver.runner == "accelerate" else ""
        draft.add_todo("driver_saves_shards", call, instead=_FULL_STATE[driver.runner], argument=argument)
    elif survey.callee(call) == "torch.save" and call.args and _is_state(text_of(call.args[0].value).lower()):
        draft.add_todo("driver_saves_shards_by_torch", call, instead=_FULL_STATE[driver.runner])
    elif survey.callee(call) in known_names("clipping") and driver.runner in ("accelerate", "fabric"):
        replacement = "accelerator.clip_grad_norm_" if driver.runner == "accelerate" else "fabric.clip_gradients"
        draft.add_todo("driver_clips_shards", call, replacement=replacement)
    for name in ("load_in_8bit", "load_in_4bit", "quantization_config"):
        argument_given = keyword(call, name)
        if argument_given is not None and text_of(argument_given.value) not in ("False", "None"):
            draft.add_todo("driver_quantizes", call)
    for name in ("gradient_checkpointing", "activation_checkpointing") if call in driver.calls else ():
        checkpointing = keyword(call, name)
        if checkpointing is not None and text_of(checkpointing.value) == "True" and driver.runner == "trainer":
            draft.add_todo("driver_checkpoints", name=name)


def _is_state(text: str) -> bool:
    """Whether an argument of ``torch.save`` is the state of the model, and not gathered."""
    return "model" in text and "get_state_dict" not in text


_NODES = 'int(os.environ.get("GROUP_WORLD_SIZE", "1"))'
"""Number of instances, which torchrun sets and Lightning does not read."""


def set_arguments(draft: Draft) -> None:
    """Pass the argument that shards the model, with the class of its repeated layers if the script defines it."""
    survey = draft.survey
    driver = driver_of(survey)
    if driver is None:
        return
    modules = [c for c in survey.classes if any("Module" in text_of(base.value) for base in c.bases)]
    layer = repeated_in(survey, modules)
    layer = layer if layer.split(".")[0] in survey.module_names() else ""
    add_cautions(draft, driver, layer)
    edits = Edits()
    for call in driver.calls:
        arguments = _arguments(draft, driver, call, layer)
        if driver.runner == "accelerate":
            _name_plugin(draft, edits, call, arguments)
        edits.change(call, partial(_with, arguments=arguments))
    draft.apply(edits)
    _import(draft, driver)


def _name_plugin(draft: Draft, edits: Edits, call: cst.Call, arguments: dict[str, str]) -> None:
    """Create the plugin in a statement of its own, if the call is in a simple one."""
    statement = draft.survey.statement(call)
    if isinstance(statement, cst.SimpleStatementLine):
        name = draft.survey.free_name("fsdp_plugin", "sharding_plugin")
        edits.insert_before(statement, statements(f"{name} = {arguments['fsdp_plugin']}\n"))
        arguments["fsdp_plugin"] = name


def _arguments(draft: Draft, driver: Driver, call: cst.Call, layer: str) -> dict[str, str]:
    version = 1 + (draft.target.kind == "fsdp2")
    strategy = draft.target.sharding_strategy.lstrip("_") or "full_shard"
    if driver.runner == "accelerate":
        options = [f"fsdp_version={version}", 'auto_wrap_policy="transformer_based_wrap"']
        options += [f'transformer_cls_names_to_wrap=["{layer.rpartition(".")[2]}"]'] if layer else []
        options += ["use_orig_params=True"] if version == 1 else []
        if version == 1 and strategy != "full_shard":
            options.append(f'reshard_after_forward="{strategy.upper()}"')
        elif strategy == "shard_grad_op":
            options.append("reshard_after_forward=False")
        return {"fsdp_plugin": call_text("FullyShardedDataParallelPlugin", options, width=84)}
    if driver.runner == "trainer":
        settings = [f'"version": {version}']
        settings += [f'"transformer_layer_cls_to_wrap": ["{layer.rpartition(".")[2]}"]'] if layer else []
        # Transformers 4 reshards with FSDP2 only if it is requested.
        settings += [f'"reshard_after_forward": {strategy != "shard_grad_op"}'] if version == 2 else []
        option = strategy if version == 1 or strategy == "shard_grad_op" else "full_shard"
        return {"fsdp": f'"{option} auto_wrap"', "fsdp_config": f"{{{', '.join(settings)}}}"}
    options = [f"auto_wrap_policy={{{layer}}}"] if layer else []
    options += [f'sharding_strategy="{strategy.upper()}"'] if strategy != "full_shard" else []
    arguments = {"strategy": f"FSDPStrategy({', '.join(options)})" if options else '"fsdp"'}
    devices = keyword(call, "devices")
    if devices is not None and is_one_device(devices):
        arguments["devices"] = '"auto"'
    if keyword(call, "num_nodes") is None:
        arguments["num_nodes"] = _NODES
    return arguments


def _with(call: cst.Call, arguments: dict[str, str]) -> cst.Call:
    """The call with these arguments, which replace those of the same name."""
    args = list(call.args)
    for name, text in arguments.items():
        value = expression(text)
        place = next((n for n, arg in enumerate(args) if arg.keyword is not None and arg.keyword.value == name), None)
        if place is not None:
            args[place] = args[place].with_changes(value=value)
        else:
            args = _appended(call, args, name, value)
    return call.with_changes(args=args)


def _appended(call: cst.Call, args: list[cst.Arg], name: str, value: cst.BaseExpression) -> list[cst.Arg]:
    """The arguments and one more, on a line of its own if the others are."""
    equal = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
    added = cst.Arg(keyword=cst.Name(name), value=value, equal=equal)
    if not args:
        return [added]
    last = args[-1]
    between: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        between = call.whitespace_before_args
    trailing = last.comma
    last = last.with_changes(comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace(""))
    added = added.with_changes(comma=trailing, whitespace_after_arg=args[-1].whitespace_after_arg)
    return [*args[:-1], last, added]


def _import(draft: Draft, driver: Driver) -> None:
    if driver.runner == "accelerate":
        add_names(draft, "accelerate", ["FullyShardedDataParallelPlugin"])
    elif driver.runner in ("lightning", "fabric"):
        if _NODES in draft.module.code:
            add_import(draft, "import os", local="os")
        if "FSDPStrategy(" in draft.module.code:
            add_names(draft, _strategies(draft, driver), ["FSDPStrategy"])


def _strategies(draft: Draft, driver: Driver) -> str:
    """Module with the strategies, in the package that the script imports."""
    roots = {origin.split(".")[0] for origin in draft.survey.imported.values()}
    if driver.runner == "fabric":
        return "lightning.fabric.strategies" if "lightning" in roots else "lightning_fabric.strategies"
    return "lightning.pytorch.strategies" if "lightning" in roots else "pytorch_lightning.strategies"
