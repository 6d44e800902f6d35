"""Scripts that stay as they are, with the nearest thing that works, and loops that a library runs by its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_names, sentence
from smp_advisor.scripts.adapt.code import Edits, call_text, dotted, keyword, statements, text_of, walk, with_arguments
from smp_advisor.scripts.adapt.construction import repeated_in
from smp_advisor.scripts.adapt.plan_settings import AUTOCAST, SCALER
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.survey import known_names
from smp_advisor.scripts.adapt.wrappers import REPLICATING, SHARDING

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft, Target
    from smp_advisor.scripts.adapt.survey import Survey


Runner = Literal["accelerate", "trainer", "lightning"]
"""Accelerate, the Trainer of transformers, or Lightning and its Fabric, whose arguments a person sets."""

_LIGHTNING = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
_TRAINERS = frozenset({"transformers", "trl"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The library that runs the loop."""

    runner: Runner
    title: str
    """Name of the library in a sentence."""
    calls: tuple[cst.Call, ...]
    """Calls whose arguments choose the parallelism; empty if they are in another file or made by a parser."""
    parsed: bool = False
    """Whether a parser of the command line makes the arguments."""


def driver_of(survey: Survey) -> Driver | None:
    """The library that runs the loop; None if the script runs it."""
    roots = {origin.split(".")[0] for origin in survey.imported.values()}
    names = {call: survey.callee(call) for call in survey.calls}

    def of(*suffixes: str, libraries: frozenset[str]) -> tuple[cst.Call, ...]:
        return tuple(
            call
            for call, name in names.items()
            if name.split(".")[0] in libraries and name.rpartition(".")[2].endswith(suffixes)
        )

    if "accelerate" in roots and (calls := of("Accelerator", libraries=frozenset({"accelerate"}))):
        return Driver(runner="accelerate", title="Accelerate", calls=calls)
    if calls := of("Fabric", "Trainer", "LightningCLI", libraries=_LIGHTNING):
        return Driver(runner="lightning", title="Lightning", calls=calls)
    trains = any(name.rpartition(".")[2].endswith("Trainer") for name in names.values())
    if roots & _TRAINERS and trains and not backward_calls(survey):
        calls = of(*known_names("training_arguments"), libraries=_TRAINERS)
        parsed = any(
            name.rpartition(".")[2] in ("HfArgumentParser", "TrlParser", "parse_args_into_dataclasses")
            for name in names.values()
        )
        return Driver(runner="trainer", title="The Trainer of transformers", calls=calls, parsed=parsed)
    return None


_OFF = frozenset({"None", "False", '""', "''", "[]"})
"""Values of an argument that are the same as none."""
_ARGUMENT = {"accelerate": "fsdp_plugin", "trainer": "fsdp"}
_POSITIONAL = {"trainer": 1, "accelerate": 5}
"""Arguments by position that choose no parallelism."""
_COMPETING = ("deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin", "parallelism_config", "deepspeed")


def driven_refusal(survey: Survey, target: Target) -> str:
    """Sentence that explains why no argument is set; empty if one can be, or if the script runs its own loop."""
    driver = driver_of(survey)
    if driver is None:
        return ""
    divided = _divided_by_layers(survey)
    if divided is not None and target.kind in ("ddp", "fsdp", "fsdp2"):
        return sentence("divided_by_layers", argument=_spelled(divided))
    if driver.runner == "lightning":
        return sentence("lightning_runs", function=dotted(driver.calls[0].func))
    if target.kind == "ddp":
        return _replicates(driver)
    if target.kind == "smp_step" and driver.runner == "trainer":
        # https://github.com/huggingface/transformers/issues/23390
        return sentence("trainer_steps_v1")
    if target.kind not in ("fsdp", "fsdp2"):
        return sentence("no_steps_for_driver", title=driver.title)
    version = 1 + (target.kind == "fsdp2")
    if driver.calls:
        return next((reason for call in driver.calls if (reason := _refusal_of_call(driver, call, version))), "")
    # A parser or another file makes the arguments.
    if not driver.parsed:
        return sentence("no_training_arguments", version=version)
    return sentence("arguments_of_command_line", version=version, reshard="true" if version == 2 else '"full_shard"')


def _divided_by_layers(survey: Survey) -> cst.Arg | None:
    """``device_map="auto"`` and the like."""
    for call in survey.calls:
        argument = keyword(call, "device_map")
        if argument is not None and isinstance(argument.value, cst.SimpleString):
            value = argument.value.raw_value
            if value in ("auto", "balanced", "balanced_low_0", "sequential"):
                return argument
    return None


def _replicates(driver: Driver) -> str:
    """Sentence for replicas, which these libraries use unless their arguments choose otherwise."""
    for call in driver.calls:
        function, name = dotted(call.func) or "", _ARGUMENT[driver.runner]
        for competing in (_given(call, rival) for rival in (name, *_COMPETING)):
            if competing is not None:
                return sentence("chooses_parallelism", function=function, argument=_spelled(competing))
        if any(arg.star for arg in call.args):
            return sentence("replicates_unless_variable", title=driver.title, function=function, name=name)
    launcher = " or `accelerate launch --multi_gpu train.py`" if driver.runner == "accelerate" else ""
    return sentence("replicates_in_each_process", title=driver.title, launcher=launcher)


def _given(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of this name, unless its value is the same as none."""
    argument = keyword(call, name)
    return argument if argument is not None and text_of(argument.value) not in _OFF else None


def _spelled(argument: cst.Arg) -> str:
    name = f"{argument.keyword.value}=" if argument.keyword is not None else ""
    return name + text_of(argument.value)


def _refusal_of_call(driver: Driver, call: cst.Call, version: int) -> str:
    """Reason for which the arguments of a call stay as they are; empty if they can choose FSDP (1 or 2)."""
    function, name = dotted(call.func) or "", _ARGUMENT[driver.runner]

    # The argument may be there already, hidden in a variable or passed by position.
    if any(arg.star for arg in call.args):
        instead = sentence(f"by_hand_{driver.runner}", version=version)
        return sentence("arguments_of_variable", function=function, argument=name, instead=instead)
    if sum(arg.keyword is None for arg in call.args) > _POSITIONAL.get(driver.runner, 0):
        return sentence("positional_arguments", function=function)

    # Another choice of parallelism, or the same one.
    for rival in _COMPETING:
        if _given(call, rival) is not None:
            return sentence("other_choice", function=function, name=rival)
    if _given(call, name) is not None:
        return sentence("driver_shards_already", function=function, name=name)

    # Settings that FSDP does not go with.
    if driver.runner == "trainer" and _given(call, "fsdp_config") is not None:
        return sentence("configuration_without_fsdp", function=function)
    processor = keyword(call, "cpu")
    if processor is not None and text_of(processor.value) == "True":
        return sentence("driver_on_cpu", function=function, title=driver.title)
    return ""


_WRAPPED_BY_NAME = {
    "accelerate": 'transformer_cls_names_to_wrap=["..."] of the plugin',
    "trainer": '"transformer_layer_cls_to_wrap" of fsdp_config',
}
_FULL_STATE = {
    "accelerate": "take the state from accelerator.get_state_dict(model) on every rank",
    "trainer": "use save_model of the Trainer on every rank",
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
    # Models of transformers name their layers themselves.
    if not layer and not pretrained:
        draft.add_todo("no_layer_class_of_driver", argument=_WRAPPED_BY_NAME[driver.runner])
    seeded = any(survey.callee(call).rpartition(".")[2] in known_names("seeding_functions") for call in survey.calls)
    if not pretrained and not seeded and driver.runner == "accelerate":
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
    elif survey.callee(call) in known_names("clipping") and driver.runner == "accelerate":
        draft.add_todo("driver_clips_shards", call)
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
        arguments = _arguments(draft, driver, layer)
        statement = survey.statement(call)
        if driver.runner == "accelerate" and isinstance(statement, cst.SimpleStatementLine):
            name = survey.free_name("fsdp_plugin", "sharding_plugin")
            edits.insert_before(statement, statements(f"{name} = {arguments['fsdp_plugin']}\n"))
            arguments["fsdp_plugin"] = name
        edits.change(call, partial(with_arguments, arguments=arguments))
    draft.apply(edits)
    if driver.runner == "accelerate":
        add_names(draft, "accelerate", ["FullyShardedDataParallelPlugin"])


def _arguments(draft: Draft, driver: Driver, layer: str) -> dict[str, str]:
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
    settings = [f'"version": {version}']
    settings += [f'"transformer_layer_cls_to_wrap": ["{layer.rpartition(".")[2]}"]'] if layer else []
    # Transformers 4 reshards with FSDP2 only if it is requested.
    settings += [f'"reshard_after_forward": {strategy != "shard_grad_op"}'] if version == 2 else []
    option = strategy if version == 1 or strategy == "shard_grad_op" else "full_shard"
    return {"fsdp": f'"{option} auto_wrap"', "fsdp_config": f"{{{', '.join(settings)}}}"}


_LIBRARIES = ("smdistributed.modelparallel", "torch.sagemaker")
_PARALLEL = (
    "deepspeed", "megatron", "colossalai", "fairscale", "horovod", "torch.distributed.pipelining",
    "torch.distributed.tensor", "torch.distributed.rpc", "torchtitan", "torch_xla",
)  # fmt: skip


def obstacle_to_adapting(survey: Survey, target: Target) -> str:
    """Sentence that explains why the steps do not apply; empty if they do."""
    for library in _LIBRARIES:
        if any(origin.startswith(library) for origin in survey.imported.values()):
            return f"The script already uses {library}, so it is unchanged: run check_script to find what is missing."
    for library in _PARALLEL:
        if any(origin == library or origin.startswith(f"{library}.") for origin in survey.imported.values()):
            return sentence("other_parallelism", library=library)
    if target.kind != "ddp" and any(survey.callee(call) == "torch.optim.LBFGS" for call in survey.calls):
        return sentence("lbfgs")
    half = next((c for c in survey.calls if survey.callee(c) in SCALER | AUTOCAST), None)
    if target.kind == "smp_step" and target.half and half is not None:
        return sentence("own_precision", call=text_of(half), dtype=target.dtype)
    refusal = driven_refusal(survey, target)
    if refusal or driver_of(survey) is not None:
        return refusal
    return _already(survey, target) or _no_loop(survey)


def _already(survey: Survey, target: Target) -> str:
    """Scripts that have the parallelism of the target."""
    called = {survey.callee(call) for call in survey.calls}
    sharded = called & SHARDING or any(name.endswith("fsdp.fully_shard") for name in called)
    if target.kind in ("ddp", "fsdp", "fsdp2") and sharded:
        return sentence("shards_already")
    if target.kind == "ddp" and any(name in REPLICATING and "Distributed" in name for name in called):
        return sentence("replicates_already")
    return ""


def _no_loop(survey: Survey) -> str:
    if optimizers(survey) and backward_calls(survey):
        return ""
    updates = backward_calls(survey)
    if updates:
        return sentence("no_optimizer_here", call=dotted(updates[0].func) or "backward")
    if any(isinstance(node, cst.FunctionDef) and node.name.value == "training_step" for node in walk(survey.module)):
        return sentence("lightning_module")
    return sentence("no_training_loop")
