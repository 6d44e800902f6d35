"""The library that runs the loop of a script, and the reasons for which its arguments stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, keyword, text_of
from smp_advisor.scripts.adapt.roles import backward_calls
from smp_advisor.scripts.adapt.survey import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Target
    from smp_advisor.scripts.adapt.survey import Survey


Runner = Literal["accelerate", "trainer", "lightning", "fabric"]
"""Accelerate, the Trainer of transformers, the Trainer of Lightning, or Lightning Fabric."""

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
    if calls := of("Fabric", libraries=_LIGHTNING):
        return Driver(runner="fabric", title="Lightning Fabric", calls=calls)
    if roots & _LIGHTNING:
        calls = of("Trainer", libraries=_LIGHTNING)
        parsed = any(name.rpartition(".")[2] in ("LightningCLI", "from_argparse_args") for name in names.values())
        if calls or parsed:
            return Driver(runner="lightning", title="The Trainer of Lightning", calls=calls, parsed=parsed)
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
_REPLACED = frozenset({"auto", "ddp"})
"""Strategies of Lightning that make no other choice than the number of processes."""
_ARGUMENT = {"accelerate": "fsdp_plugin", "trainer": "fsdp", "lightning": "strategy", "fabric": "strategy"}
_COMPETING = ("deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin", "parallelism_config", "deepspeed")


def driven_refusal(survey: Survey, target: Target) -> str:
    """Sentence that explains why no argument is set; empty if one can be, or if the script runs its own loop."""
    driver = driver_of(survey)
    if driver is None:
        return ""
    divided = _divided_by_layers(survey)
    if divided is not None and target.kind in ("ddp", "fsdp", "fsdp2"):
        return (
            f"`{_spelled(divided)}` divides the model by layers over all GPUs of an instance, and each process of"
            " torchrun would do so: remove the argument, then adapt the script."
        )
    if target.kind == "ddp":
        return _replicates(driver)
    if target.kind == "smp_step" and driver.runner == "trainer":
        # https://github.com/huggingface/transformers/issues/23390
        return (
            "The Trainer of transformers has its own steps for SMP v1, which fail in transformers 4.29 and later:"
            " adapt the script with library='fsdp' to shard the model, or run it as it is with an older release."
        )
    if target.kind not in ("fsdp", "fsdp2"):
        return (
            f"{driver.title} runs this loop, and the library has no steps for it: adapt it with library='fsdp' to"
            " shard the model, or run it as it is to replicate the model."
        )
    if driver.runner in ("lightning", "fabric") and target.kind == "fsdp2":
        return (
            f"{driver.title} runs this loop, and its argument for sharding is FSDP1: use library='fsdp'. Its FSDP2 is"
            " ModelParallelStrategy, for which the script must call fully_shard in configure_model or before setup."
        )
    if not driver.calls:
        return _elsewhere(driver, target)
    return next((reason for call in driver.calls if (reason := _against(driver, call, target))), "")


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
        for competing in (keyword(call, rival) for rival in (name, *_COMPETING)):
            if competing is None or text_of(competing.value) in _OFF or _replicating(driver, competing):
                continue
            return (
                f"`{function}` passes {_spelled(competing)}, which chooses the parallelism: remove the argument to"
                " replicate the model."
            )
        if any(arg.star for arg in call.args):
            return (
                f"{driver.title} runs this loop, and replicates the model unless the variable that `{function}` takes"
                f" its arguments from contains {name}. Nothing else has to change."
            )
        for argument in (keyword(call, "devices"), keyword(call, "gpus")):
            if driver.runner in ("lightning", "fabric") and argument is not None and is_one_device(argument):
                return (
                    f"{driver.title} runs this loop and replicates the model over its devices, but"
                    f" `{_spelled(argument)}` is one GPU: pass devices=8. Nothing else has to change."
                )
    if driver.runner in ("lightning", "fabric"):
        return (
            f"{driver.title} runs this loop and replicates the model over all GPUs that it finds: nothing has to"
            " change on one instance. On several, pass num_nodes."
        )
    launcher = " or `accelerate launch --multi_gpu train.py`" if driver.runner == "accelerate" else ""
    return (
        f"{driver.title} runs this loop and replicates the model in each process: nothing has to change. Start it with"
        f" `torchrun --nproc-per-node=8 train.py`{launcher}."
    )


def _replicating(driver: Driver, argument: cst.Arg) -> bool:
    """Whether an argument is a strategy of Lightning that replicates the model."""
    return driver.runner in ("lightning", "fabric") and (
        "ddp" in text_of(argument.value).lower() or _is_default(argument)
    )


def _is_default(argument: cst.Arg) -> bool:
    return isinstance(argument.value, cst.SimpleString) and argument.value.raw_value in _REPLACED


def _spelled(argument: cst.Arg) -> str:
    name = f"{argument.keyword.value}=" if argument.keyword is not None else ""
    return name + text_of(argument.value)


def is_one_device(argument: cst.Arg) -> bool:
    """Whether an argument selects one GPU."""
    return text_of(argument.value) in ("1", "[0]", '"1"', "'1'")


def _elsewhere(driver: Driver, target: Target) -> str:
    """Arguments that a parser or another file makes."""
    version = 1 + (target.kind == "fsdp2")
    if driver.runner == "trainer" and driver.parsed:
        return (
            "The training arguments come from the command line, so the script is unchanged. Start it with: torchrun"
            ' --nproc-per-node=8 train.py --fsdp "full_shard auto_wrap" --fsdp_config'
            f""" '{{"version": {version}, "reshard_after_forward": {"true" if version == 2 else '"full_shard"'}}}'"""
        )
    if driver.runner == "trainer":
        return (
            "No TrainingArguments are created in this file: where they are created, pass"
            f' fsdp="full_shard auto_wrap", fsdp_config={{"version": {version}}}.'
        )
    return (
        "The arguments of the Trainer come from the command line, so the script is unchanged: pass --trainer.strategy"
        " fsdp to LightningCLI, or --strategy fsdp to the parser."
    )


def _against(driver: Driver, call: cst.Call, target: Target) -> str:
    """Reason for which an argument of this call cannot be set."""
    function, argument = dotted(call.func) or "", _ARGUMENT[driver.runner]
    if any(arg.star for arg in call.args):
        return (
            f"`{function}` takes arguments from a variable, which may contain {argument}: {_by_hand(driver, target)}."
        )
    positional = sum(arg.keyword is None for arg in call.args)
    if positional > (1 if driver.runner == "trainer" else 5 if driver.runner == "accelerate" else 0):
        return f"`{function}` takes positional arguments: name them, then adapt the script."
    for name in _COMPETING:
        competing = keyword(call, name)
        if competing is not None and text_of(competing.value) not in _OFF:
            return f"`{function}` passes {name}, which chooses another parallelism: remove it, then adapt the script."
    present = keyword(call, argument)
    if present is not None and text_of(present.value) not in _OFF:
        return _chosen(driver, function, present)
    settings = keyword(call, "fsdp_config") if driver.runner == "trainer" else None
    if settings is not None and text_of(settings.value) not in _OFF:
        return f'`{function}` passes fsdp_config without fsdp: pass fsdp="full_shard auto_wrap" next to it.'
    processor = keyword(call, "accelerator" if driver.runner in ("lightning", "fabric") else "cpu")
    if processor is not None and text_of(processor.value) in ('"cpu"', "'cpu'", "True"):
        return f"`{function}` selects the CPU, and {driver.title} shards a model only on GPUs: remove the argument."
    return ""


def _chosen(driver: Driver, function: str, present: cst.Arg) -> str:
    """Reason for which an argument that is there is left; empty if it is a default that is replaced."""
    name = present.keyword.value if present.keyword is not None else ""
    if driver.runner in ("lightning", "fabric"):
        if _is_default(present):
            return ""
        if "fsdp" not in text_of(present.value).lower():
            return (
                f'`{function}` passes {_spelled(present)}: pass strategy="fsdp" instead if the model is to be sharded.'
            )
    return (
        f"`{function}` already shards its model through {name}, so it is unchanged: run check_script to find what is"
        " missing."
    )


def _by_hand(driver: Driver, target: Target) -> str:
    version = 1 + (target.kind == "fsdp2")
    if driver.runner == "accelerate":
        return (
            "start the script with `accelerate launch --use_fsdp"
            f" --fsdp_version {version} --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP train.py`"
        )
    if driver.runner == "trainer":
        return f'put fsdp="full_shard auto_wrap" and fsdp_config={{"version": {version}}} there'
    return 'put strategy="fsdp" there'
