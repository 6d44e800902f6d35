"""Scripts that stay as they are, with the nearest thing that works: loops of other libraries, and other parallelism."""

from __future__ import annotations

import json
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.libraries.plan import accelerate_settings
from smp_advisor.scripts.adapt.adaptation import sentence
from smp_advisor.scripts.adapt.code import dotted, keyword, positional, text_of
from smp_advisor.scripts.adapt.model import REPLICATING, SHARDING
from smp_advisor.scripts.adapt.plan_settings import AUTOCAST, SCALER
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.survey import known_names
from smp_advisor.scripts.settings import blocks_of

if TYPE_CHECKING:
    import libcst as cst

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.scripts.adapt.adaptation import Draft, Target
    from smp_advisor.scripts.adapt.survey import Survey


_LIGHTNING = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
_TRAINERS = frozenset({"transformers", "trl"})


def _runner_of(survey: Survey) -> tuple[str, list[cst.Call]] | None:
    """The library that runs the loop, and the calls in this file whose arguments choose the parallelism."""
    roots = {origin.split(".")[0] for origin in survey.imported.values()}
    names = {call: survey.callee(call) for call in survey.calls}

    def of(*suffixes: str, libraries: frozenset[str]) -> list[cst.Call]:
        return [
            call
            for call, name in names.items()
            if name.split(".")[0] in libraries and name.rpartition(".")[2].endswith(suffixes)
        ]

    if calls := of("Accelerator", libraries=frozenset({"accelerate"})):
        return "accelerate", calls
    if calls := of("Fabric", "Trainer", "LightningCLI", libraries=_LIGHTNING):
        return "lightning", calls
    if roots & _TRAINERS and any(n.endswith("Trainer") for n in names.values()) and not backward_calls(survey):
        return "trainer", of(*known_names("training_arguments"), libraries=_TRAINERS)
    return None


_OFF = frozenset({"None", "False", '""', "''", "[]"})
"""Values of an argument that are the same as none."""
_CHOICES = (
    "fsdp_plugin", "fsdp", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin", "parallelism_config",
    "deepspeed",
)  # fmt: skip
"""Arguments that choose the parallelism."""
_BY_LAYERS = ('"auto"', '"balanced"', '"balanced_low_0"', '"sequential"')


def _driven(draft: Draft, runner: str, calls: list[cst.Call]) -> tuple[list[str], str]:
    """Arguments for the library that runs the loop, and other changes, for a person; and its configuration file."""
    survey, target = draft.survey, draft.target

    def passed(calls: list[cst.Call], *names: str) -> str:
        """The first argument of these names, unless its value is the same as none."""
        pairs = ((name, arg) for name in names for call in calls if (arg := keyword(call, name)) is not None)
        return next((f"{n}={text_of(arg.value)}" for n, arg in pairs if text_of(arg.value) not in _OFF), "")

    divided = passed(survey.calls, "device_map")
    if divided.partition("=")[2].replace("'", '"') in _BY_LAYERS:
        return [sentence("divided_by_layers", argument=divided)], ""
    if runner == "lightning":
        return [sentence("lightning_runs", function=dotted(calls[0].func))], ""
    argument = passed(calls, *_CHOICES)
    if target.kind not in ("ddp", "fsdp2"):
        return [sentence(f"no_steps_{runner}")], ""
    if argument:
        return [sentence("chooses_parallelism" if target.kind == "ddp" else "chooses_already", argument=argument)], ""
    script = draft.file.name if draft.file is not None else "train.py"
    function = next((dotted(call.func) for call in calls), None)
    sharding = _sharding(survey, target.plan) if target.kind == "fsdp2" else {}
    of_runner = _accelerate if runner == "accelerate" else _trainer
    todo, configuration = of_runner(target, sharding, function, script)
    todo = [sentence(f"{'shard' if sharding else 'replicates'}_{runner}"), *todo]
    todo += [sentence("hybrid_driven")] if "hybrid" in target.sharding_strategy else []
    return [*todo, *([sentence("check_shards")] if sharding else [])], configuration


def _sharding(survey: Survey, plan: Plan) -> dict[str, Any]:
    """Settings of FSDP, with the repeated layers of a model that is loaded by a known name."""
    loaded = [positional(call, 0) for call in survey.calls if survey.callee(call).endswith(".from_pretrained")]
    classes = sorted(blocks_of(text_of(argument.value).strip("\"'") for argument in loaded if argument is not None))
    return accelerate_settings(plan) | ({"transformer_layer_cls_to_wrap": classes} if classes else {})


def _accumulated(target: Target) -> int:
    return int(target.plan.hyperparameters.get("gradient_accumulation_steps", 1))


_PLUGIN = {"version": "fsdp_version", "transformer_layer_cls_to_wrap": "transformer_cls_names_to_wrap"}
"""Names of Accelerate's plugin that are not those of the Trainer."""


def _accelerate(target: Target, sharding: dict[str, Any], function: str | None, script: str) -> tuple[list[str], str]:
    file, todo, variables = f"{PurePath(script).stem}_plan.yaml", [], ""
    settings = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP" if sharding else "MULTI_GPU"}
    if target.planned:
        settings["mixed_precision"] = target.plan.precision.replace("fp32", "no")
        variables = f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={_accumulated(target)} "
        todo.append(sentence("batch_accelerate", batch=target.plan.batch_size))
    texts = {f"fsdp_{key}": ",".join(value) if isinstance(value, list) else value for key, value in sharding.items()}
    names = {"script": shlex.quote(script), "file": shlex.quote(file)}
    todo.append(sentence("start_accelerate", variables=variables, **names))
    if sharding:
        arguments = ", ".join(f"{_PLUGIN.get(name, name)}={value!r}" for name, value in sharding.items())
        todo.append(sentence("plugin_accelerate", function=function, arguments=arguments))
    return todo, yaml.safe_dump(settings | ({"fsdp_config": texts} if sharding else {}), sort_keys=False)


def _trainer(target: Target, sharding: dict[str, Any], function: str | None, script: str) -> tuple[list[str], str]:
    settings, options, file = dict[str, Any](), "", f"{PurePath(script).stem}_plan.json"
    if target.planned:
        settings = {
            "per_device_train_batch_size": target.plan.batch_size,
            "gradient_accumulation_steps": _accumulated(target),
            **{half: target.plan.precision == half for half in ("bf16", "fp16")},
            # FSDP has its own.
            "gradient_checkpointing": bool(target.plan.activation_checkpointing) and not sharding,
        }
    if sharding:
        kind = "full_shard" if sharding["reshard_after_forward"] else "shard_grad_op"
        settings |= {"fsdp": f"{kind} auto_wrap", "fsdp_config": sharding}
    todo = [sentence("values_trainer" if function else "parser_trainer", function=function, file=file)]
    if function is None:
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
        options = "".join(f" --{name} {shlex.quote(text)}" for name, text in texts.items())
    todo = [*(todo if settings else []), sentence("start_trainer", options=options, script=shlex.quote(script))]
    return todo, f"{json.dumps(settings, indent=2)}\n" if settings else ""


_PARALLEL = (
    "deepspeed", "megatron", "colossalai", "fairscale", "horovod", "torch.distributed.pipelining",
    "torch.distributed.tensor", "torch.distributed.rpc", "torchtitan", "torch_xla",
)  # fmt: skip


def obstacles_to_adapting(draft: Draft) -> tuple[list[str], str]:
    """Why the steps do not apply, and what a person does instead, with a configuration file; empty if they apply."""
    survey, target = draft.survey, draft.target
    runner = _runner_of(survey)
    obstacle = _obstacle(survey, target)
    if obstacle or runner is None:
        obstacle = obstacle or _already(survey, target)
        return [obstacle] if obstacle else [], ""
    return _driven(draft, *runner)


def _obstacle(survey: Survey, target: Target) -> str:
    """Another library, optimizer or precision that the steps do not go with; empty without one."""
    imported, called = survey.imported.values(), {survey.callee(call) for call in survey.calls}
    for library in ("smdistributed.modelparallel", "torch.sagemaker"):
        if any(origin.startswith(library) for origin in imported):
            return f"The script already uses {library}, so it is unchanged: run check_script to find what is missing."
    for library in _PARALLEL:
        if any(origin == library or origin.startswith(f"{library}.") for origin in imported):
            return sentence("other_parallelism", library=library)
    if target.kind == "smp_step" and "torch.distributed.init_process_group" in called:
        return sentence("own_processes")
    if target.kind != "ddp" and "torch.optim.LBFGS" in called:
        return sentence("lbfgs")
    half = next((c for c in survey.calls if survey.callee(c) in SCALER | AUTOCAST), None)
    if target.kind == "smp_step" and target.half and half is not None:
        return sentence("own_precision", call=text_of(half), dtype=target.dtype)
    return ""


def _already(survey: Survey, target: Target) -> str:
    """Scripts that have the parallelism of the target, or no loop; empty for others."""
    called = {survey.callee(call) for call in survey.calls}
    sharded = called & SHARDING or any(name.endswith("fsdp.fully_shard") for name in called)
    if target.kind in ("ddp", "fsdp2") and sharded:
        return sentence("shards_already")
    if target.kind == "ddp" and any(name in REPLICATING and "Distributed" in name for name in called):
        return sentence("replicates_already")
    updates = backward_calls(survey)
    if updates:
        return "" if optimizers(survey) else sentence("no_optimizer_here", call=dotted(updates[0].func) or "backward")
    return sentence("lightning_module" if survey.named("training_step") else "no_training_loop")
