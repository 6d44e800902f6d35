"""Scripts that stay as they are, with the nearest thing that works: loops of other libraries, and other parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.adaptation import sentence
from smp_advisor.scripts.adapt.code import dotted, keyword, text_of
from smp_advisor.scripts.adapt.model import REPLICATING, SHARDING
from smp_advisor.scripts.adapt.plan_settings import AUTOCAST, SCALER
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.survey import known_names

if TYPE_CHECKING:
    import libcst as cst

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


def _driven(draft: Draft, runner: str, calls: list[cst.Call]) -> list[str]:
    """Arguments for the library that runs the loop, and other changes, for a person."""
    survey, target = draft.survey, draft.target

    def passed(calls: list[cst.Call], *names: str) -> str:
        """The first argument of these names, unless its value is the same as none."""
        pairs = ((name, arg) for name in names for call in calls if (arg := keyword(call, name)) is not None)
        return next((f"{n}={text_of(arg.value)}" for n, arg in pairs if text_of(arg.value) not in _OFF), "")

    divided = passed(survey.calls, "device_map")
    if divided.partition("=")[2].replace("'", '"') in _BY_LAYERS:
        return [sentence("divided_by_layers", argument=divided)]
    if runner == "lightning":
        return [sentence("lightning_runs", function=dotted(calls[0].func))]
    argument = passed(calls, *_CHOICES)
    if target.kind == "ddp":
        return [sentence("chooses_parallelism" if argument else f"replicates_{runner}", argument=argument)]
    if target.kind != "fsdp2":
        return [sentence(f"no_steps_{runner}")]
    if argument:
        return [sentence("chooses_already", argument=argument)]
    function = next((dotted(call.func) for call in calls), None) or "TrainingArguments"
    reshards = "grad_op" not in target.sharding_strategy
    settings = f'{{"version": 2, "reshard_after_forward": {str(reshards).lower()}}}'
    arguments = f"--fsdp \"{'full_shard' if reshards else 'shard_grad_op'} auto_wrap\" --fsdp_config '{settings}'"
    if runner == "accelerate":
        options = f'fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward={reshards}'
        arguments = f"fsdp_plugin=FullyShardedDataParallelPlugin({options})"
    return [sentence(f"shard_{runner}", function=function, arguments=arguments), sentence("check_shards")]


_PARALLEL = (
    "deepspeed", "megatron", "colossalai", "fairscale", "horovod", "torch.distributed.pipelining",
    "torch.distributed.tensor", "torch.distributed.rpc", "torchtitan", "torch_xla",
)  # fmt: skip


def obstacles_to_adapting(draft: Draft) -> list[str]:
    """Why the steps do not apply, and what a person does instead; empty if they apply."""
    survey, target = draft.survey, draft.target
    runner = _runner_of(survey)
    obstacle = _obstacle(survey, target)
    if obstacle or runner is None:
        obstacle = obstacle or _already(survey, target)
        return [obstacle] if obstacle else []
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
