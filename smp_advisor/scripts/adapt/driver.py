"""The library that runs the loop of a script, and the reasons for which its arguments stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, keyword, text_of
from smp_advisor.scripts.adapt.draft import sentence
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

    @property
    def of_lightning(self) -> bool:
        """Whether it takes the arguments of Lightning: a strategy, and the devices."""
        return self.runner in ("lightning", "fabric")


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
    if target.kind == "ddp":
        return _replicates(driver)
    if target.kind == "smp_step" and driver.runner == "trainer":
        # https://github.com/huggingface/transformers/issues/23390
        return sentence("trainer_steps_v1")
    if target.kind not in ("fsdp", "fsdp2"):
        return sentence("no_steps_for_driver", title=driver.title)
    if driver.of_lightning and target.kind == "fsdp2":
        return sentence("driver_fsdp1_only", title=driver.title)
    version = 1 + (target.kind == "fsdp2")
    if driver.calls:
        return next((reason for call in driver.calls if (reason := _refusal_of_call(driver, call, version))), "")
    # A parser or another file makes the arguments.
    if driver.runner != "trainer":
        return sentence("trainer_of_command_line")
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
            if competing is None or (
                driver.of_lightning and ("ddp" in text_of(competing.value).lower() or _is_default(competing))
            ):
                continue
            return sentence("chooses_parallelism", function=function, argument=_spelled(competing))
        if any(arg.star for arg in call.args):
            return sentence("replicates_unless_variable", title=driver.title, function=function, name=name)
        for argument in (keyword(call, "devices"), keyword(call, "gpus")):
            if driver.of_lightning and argument is not None and is_one_device(argument):
                return sentence("one_device", title=driver.title, argument=_spelled(argument))
    if driver.of_lightning:
        return sentence("replicates_over_gpus", title=driver.title)
    launcher = " or `accelerate launch --multi_gpu train.py`" if driver.runner == "accelerate" else ""
    return sentence("replicates_in_each_process", title=driver.title, launcher=launcher)


def _given(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of this name, unless its value is the same as none."""
    argument = keyword(call, name)
    return argument if argument is not None and text_of(argument.value) not in _OFF else None


def _is_default(argument: cst.Arg) -> bool:
    return isinstance(argument.value, cst.SimpleString) and argument.value.raw_value in _REPLACED


def _spelled(argument: cst.Arg) -> str:
    name = f"{argument.keyword.value}=" if argument.keyword is not None else ""
    return name + text_of(argument.value)


def is_one_device(argument: cst.Arg) -> bool:
    """Whether an argument selects one GPU."""
    return text_of(argument.value) in ("1", "[0]", '"1"', "'1'")


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
    present = _given(call, name)
    if present is not None and not (driver.of_lightning and _is_default(present)):
        if driver.of_lightning and "fsdp" not in text_of(present.value).lower():
            return sentence("pass_strategy", function=function, argument=_spelled(present))
        return sentence("driver_shards_already", function=function, name=name)

    # Settings that FSDP does not go with. A strategy of Lightning that is replaced decides before them.
    if present is None and driver.runner == "trainer" and _given(call, "fsdp_config") is not None:
        return sentence("configuration_without_fsdp", function=function)
    processor = keyword(call, "accelerator" if driver.of_lightning else "cpu") if present is None else None
    if processor is not None and text_of(processor.value) in ('"cpu"', "'cpu'", "True"):
        return sentence("driver_on_cpu", function=function, title=driver.title)
    return ""
