"""Jobs of PyTorch without SageMaker's libraries: how their script divides the model, or that this is unknown."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import json_values
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import (
    SHARDS,
    Gap,
    Setting,
    Strategy,
    count,
    digits_as_number,
    fully_sharded,
    inner_table,
    is_on,
    plain_of,
    replicated,
    undescribed,
)
from smp_advisor.estimators.documents import FETCHES, around_the_script, options_of, yaml_table
from smp_advisor.estimators.readback import BATCH, SEQUENCE
from smp_advisor.estimators.strategies import (
    configuration_of_accelerate,
    looks_like_accelerate,
    strategy_of_deepspeed,
    strategy_of_environment,
)
from smp_advisor.estimators.terms import terms_of
from smp_advisor.libraries.library import get_library
from smp_advisor.review.reading.unused import unused_options
from smp_advisor.review.scripts.releases import default_of, newest
from smp_advisor.review.scripts.settings import CHECKPOINTING

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Siblings

_GENERATING = ("GRPOTrainer", "RLOOTrainer", "PPOTrainer", "OnlineDPOTrainer")
_COMPARING = ("DPOTrainer", "KTOTrainer")
"""Trainers of TRL that generate answers, or compare them with those of a reference model."""
_ARGUMENTS = re.compile(r"TrainingArguments$|^(?:SFT|DPO|GRPO|KTO|ORPO|RLOO|PPO)Config$")
_STRATEGY = ("activation_checkpointing", "activation_strategy")
_BITS = ("load_in_4bit", "load_in_8bit")
_MICRO = "micro_batch_size"
_READ = frozenset([*BATCH, _MICRO, *SEQUENCE, "gradient_accumulation_steps", "bf16", "fp16", *_BITS, *_STRATEGY])
"""Options and arguments of scripts that a plan has."""
_TRAINER_BATCH = 8
"""Default batch size of TrainingArguments."""
_HALF = re.compile(r"bf16|fp16|float16|\bhalf\(|autocast|\bamp\b|mixed_precision|--precision|precision\s*=")
_LONGEST = 20_000
"""Most nodes of a script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
    """Strategy of a script, as far as its code shows it."""

    strategy: Strategy | None = None
    """Strategy in the code; None if its arguments or the launcher decide."""
    trainer: bool = False
    """Whether transformers' Trainer, or accelerate, runs the loop: arguments or the environment choose the strategy."""
    parses_arguments: bool = False
    """Whether its hyperparameters are the Trainer's own arguments (HfArgumentParser)."""
    sets_arguments: bool = False
    """Whether the code itself sets ``fsdp`` or ``deepspeed`` to a value that is not a constant."""
    lora: bool = False
    rank: int | None = None
    targets: str = ""
    """Adapted products that it names."""
    bits: str = ""
    """Argument with which it quantizes the base: one of `_BITS`."""
    upcast: bool = False
    """Whether it casts what is not quantized to fp32, with ``prepare_model_for_kbit_training``."""
    checkpoints_quantized: bool = False
    """Whether this also checkpoints the activations of a quantized base, its default."""
    checkpoints: bool = False
    """Whether it checkpoints activations, by itself or by the default of its option."""
    trains: bool = True
    """Whether it calls anything that trains."""
    settings: dict[str, Any]
    """Values that the script sets, or has as defaults of its options: batch size, accumulation, precision, length."""
    unused: frozenset[str] = frozenset()
    """Options that it parses, and none of its calls receives."""
    unset: bool = False
    """Whether it certainly leaves the batch size of TrainingArguments at its default, unless it is passed."""
    shares: str = ""
    """Other work on the GPUs."""
    compares: bool = False
    """Whether it trains on preferences, with a reference model."""
    full: bool = False
    """Whether it certainly computes in fp32: it names no other precision."""
    maps_devices: bool = False
    """Whether ``device_map`` spreads one model over the GPUs of a process."""


def read_training_script(text: str) -> ScriptFacts | None:
    """Read a script; None if it is not Python, or too long."""
    try:
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(nodes) > _LONGEST:
        return None
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    imports = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    aliases = {alias.asname or alias.name: alias.name for alias in imports}
    by_name: dict[str, list[ast.Call]] = {}
    for call in calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        by_name.setdefault(aliases.get(last, last), []).append(call)
    unused = unused_options([tree])
    lora, casts = by_name.get("LoraConfig", []), by_name.get("prepare_model_for_kbit_training", [])
    makers = [call for name, several in by_name.items() if _ARGUMENTS.search(name) for call in several]
    keywords = [keyword for call in makers for keyword in call.keywords]
    adapters = [*lora, *by_name.get("get_peft_model", [])]
    ranks = [value for call in adapters for value in _constants(call, "r") if type(value) is int]
    modules = [word.value for call in adapters for word in call.keywords if word.arg == "target_modules"]
    loads = next((name for name in _BITS if any(True in _constants(call, name) for call in calls)), "")
    parses = "HfArgumentParser" in by_name or "TrlParser" in by_name
    return ScriptFacts(
        strategy=_strategy(by_name, keywords, nodes),
        trainer=any(name.endswith("Trainer") or name == "Accelerator" for name in by_name),
        parses_arguments=parses,
        sets_arguments=any(
            keyword.arg in (SHARDS, "deepspeed") and not isinstance(keyword.value, ast.Constant) for keyword in keywords
        ),
        lora=bool(lora) or "get_peft_model" in by_name,
        rank=ranks[0] if len(set(ranks)) == 1 else None,
        targets=ast.unparse(modules[0]) if len(modules) == 1 else "",
        bits=loads or (_BITS[0] if casts else ""),
        upcast=bool(casts),
        checkpoints_quantized=any(False not in _constants(call, "use_gradient_checkpointing") for call in casts),
        checkpoints=_checkpoints(by_name, keywords, {node.id for node in nodes if isinstance(node, ast.Name)}),
        trains=any(name in ("backward", "fit", "train") or name.endswith("Trainer") for name in by_name),
        maps_devices=any("auto" in _constants(call, "device_map") for call in calls),
        full=_HALF.search(text) is None and "4bit" not in text and "TrlParser" not in by_name,
        settings=_settings(by_name, keywords, nodes, unused),
        unused=unused,
        unset=(parses or bool(makers)) and not any(keyword.arg in (None, *BATCH) for keyword in keywords),
        shares="the generation and the reference model" if any(name in by_name for name in _GENERATING) else "",
        compares=any(name in by_name for name in _COMPARING),
    )


def _settings(
    by_name: dict[str, list[ast.Call]], keywords: list[ast.keyword], nodes: list[ast.AST], unused: frozenset[str]
) -> dict[str, Any]:
    """Constants of options, of fields of dataclasses and, above them, of TrainingArguments."""
    settings = _of_commands(by_name, nodes)
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = next(iter(_constants(node.value, "default")), None) if isinstance(node.value, ast.Call) else None
            settings[node.target.id] = node.value.value if isinstance(node.value, ast.Constant) else default
    for call in by_name.get("add_argument", []):
        for name in _options(call):
            settings[name] = next(iter(_constants(call, "default")), None)
    if any(isinstance(node, ast.Attribute) and node.attr == "load_in_4bit" for node in nodes):
        settings.setdefault("load_in_4bit", False)  # an option of TRL's ModelConfig
    settings = {name: value for name, value in settings.items() if name not in unused}
    batch = next((settings[name] for name in BATCH if settings.get(name) is not None), None)
    for keyword in keywords:
        if isinstance(keyword.value, ast.Constant):
            settings[str(keyword.arg)] = keyword.value.value
            batch = keyword.value.value if keyword.arg in BATCH else batch
    planned = {name: value for name, value in settings.items() if name in _READ and value is not None}
    settings = {name: value for name, value in planned.items() if name not in BATCH}
    return settings | ({"batch_size": batch} if batch else {})


def _of_commands(by_name: dict[str, list[ast.Call]], nodes: list[ast.AST]) -> dict[str, Any]:
    """Defaults of the parameters of functions, which are the options of python-fire."""
    names = {ast.unparse(argument) for call in by_name.get("Fire", []) for argument in call.args}
    return {
        argument.arg: value.value
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in names
        for argument, value in zip(node.args.args[::-1], node.args.defaults[::-1], strict=False)
        if isinstance(value, ast.Constant)
    }


def _options(call: ast.Call) -> list[str]:
    return [str(arg.value).lstrip("-").replace("-", "_") for arg in call.args if isinstance(arg, ast.Constant)]


def _checkpoints(by_name: dict[str, list[ast.Call]], keywords: list[ast.keyword], configs: set[str]) -> bool:
    """Whether activations are checkpointed: by the default of an option for it, or by a call or argument."""
    for call in by_name.get("add_argument", []):
        if not set(CHECKPOINTING).isdisjoint(_options(call)):
            return True in _constants(call, "default")
    fast = any(ast.unparse(call.func).startswith("Fast") for call in by_name.get("get_peft_model", []))  # of Unsloth
    passed = [keyword.value for keyword in keywords if keyword.arg in CHECKPOINTING]
    if not passed and any(default_of(f"trl.{name}", CHECKPOINTING[0], newest("trl")) is True for name in configs):
        return True
    by_argument = any(isinstance(value, ast.Constant) and value.value for value in passed)
    return fast or by_argument or any(f"{name}_enable" in by_name for name in CHECKPOINTING)


def _strategy(by_name: dict[str, list[ast.Call]], keywords: list[ast.keyword], nodes: list[ast.AST]) -> Strategy | None:
    if "fully_shard" in by_name:
        return fully_sharded("full_shard", name="FSDP2")
    if "FullyShardedDataParallel" in by_name or "FSDP" in by_name:
        chosen = {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] == "ShardingStrategy"
        }
        if len(chosen) == 1:
            return fully_sharded(chosen.pop())
        if chosen:
            return undescribed("FSDP", "the script chooses between several sharding strategies")
        return fully_sharded("full_shard").assuming("FSDP shards with full_shard, its default.")
    for keyword in keywords:
        if keyword.arg == SHARDS and isinstance(keyword.value, ast.Constant) and keyword.value.value:
            return fsdp_option(keyword.value.value)
    if any(name in by_name for name in ("DistributedDataParallel", "DDP")):
        return replicated()
    if any("deepspeed" in ast.unparse(call.func) for call in by_name.get("initialize", [])):
        return undescribed("DeepSpeed", "its configuration is in another file: paste that file")
    return None


def fsdp_option(value: object) -> Strategy:
    """The option ``fsdp`` of transformers' Trainer: "full_shard auto_wrap offload"."""
    words = str(value).strip("\"' ").lower().split()
    sharding = ["full_shard"] if value is True else [word for word in words if word not in ("auto_wrap", "offload")]
    return fully_sharded(sharding[0] if sharding else "", offloads="offload" in words)


def _constants(call: ast.Call, name: str) -> list[object]:
    return [word.value.value for word in call.keywords if word.arg == name and isinstance(word.value, ast.Constant)]


_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_CONFIG = ("config", "config_file", "training_config")
_BESIDE = "put that file next to the checked one"
"""Remedy for settings of a script, which are no job by themselves."""
_PEFT_RANK = 8
"""Default rank of an adapter in PEFT."""
_OF_FSDP = ("activation_checkpointing", "fsdp_activation_checkpointing")
_TRAINER_ARGUMENTS = {"bf16", "fp16", "learning_rate", "num_train_epochs", "optim", "per_device_train_batch_size"}


def read_defaults(configuration: Configuration, siblings: Siblings) -> None:
    """Add the checkpointing that is the default of the options of a script for one of SageMaker's libraries."""
    script = _script(configuration, siblings)
    defaults = script.settings if script is not None else {}
    if "activation_checkpointing" in defaults and "activation_checkpointing" not in configuration.hyperparameters:
        configuration.set_hyperparameters(**{name: defaults[name] for name in _STRATEGY if name in defaults})
        configuration.set(assumes=("activation_checkpointing is the default of the script's option.",))


def read_strategy(configuration: Configuration, siblings: Siblings) -> None:
    """Add the strategy of a job that uses none of SageMaker's libraries, and its library if plans describe it."""
    if configuration.framework == "tensorflow" or "tensorflow_version" in configuration.settings:
        return
    started = _read_command(configuration, siblings)
    _merge_file(configuration, siblings)
    script = _script(configuration, siblings)
    environment = inner_table(configuration.tables.get("estimator"), "environment")
    strategy = started or _of_settings(configuration, siblings)
    if strategy is None and environment is not None:
        strategy = strategy_of_environment(plain_of(environment))
    strategy = strategy or _of_code(configuration, script)
    arriving = {
        name: value for name, value in configuration.get("passed", {}).items() if name in configuration.hyperparameters
    }
    passed = ", ".join(f"{name} {value}" for name, value in arriving.items())
    assumptions = [f"The command passes {passed}."] if passed else []
    assumptions += [*_defaults(configuration, script), *_accumulated(configuration), *_adapter(configuration, script)]
    if strategy.library is not None:
        strategy = strategy.assuming(*assumptions, _precision(configuration, script))
        if configuration.hyperparameters.get("activation_checkpointing") == Setting("each"):  # not in the text
            strategy = strategy.assuming("The script turns on activation checkpointing.")
        if script is not None:
            configuration.set(shares_gpus=script.shares, trains_on_preferences=script.compares)
        if not any(name in configuration.hyperparameters for name in BATCH):
            strategy = undescribed(strategy.name, "the batch size is neither in the text nor readable in its script")
    configuration.use(strategy)


_WORDS = re.compile(r"[\s\"'=]+")
_MOST_WORDS = 200
"""Words of a command that may name files."""


def _read_command(  # noqa: C901 - a list of cases
    configuration: Configuration, siblings: Siblings
) -> Strategy | None:
    """Read the command of a ModelTrainer and the shell script that it starts.

    Accelerate's configuration is the strategy; other YAML files have hyperparameters, and a Python file is the script.
    """
    command, entry = configuration.get("command"), configuration.get("entry_point")
    started = [configuration.settings[name] for name in ("command", "entry_point") if configuration.get(name)]
    if not isinstance(command, str) and not str(entry).endswith(".sh"):
        return None
    configuration.set(fetches=FETCHES.search(str(command)) is not None)
    words = [(word, setting) for setting in started for word in _WORDS.split(str(setting.value))]
    for shell, setting in [pair for pair in words if pair[0].endswith(".sh")][:2]:
        lines = _named(configuration, siblings, shell, setting) or ""
        configuration.set(fetches=configuration.get("fetches") or FETCHES.search(lines) is not None)
        words = [*((word, replace(setting, key=shell)) for word in _words_of_shell(lines)), *words]  # before others
    _take_options(configuration, siblings, [str(setting.value) for setting in started])
    strategy, option = None, ""
    configuration.settings["starts"] = Setting(any("launch" in word or "torchrun" in word for word, _ in words))
    for word, setting in words[:_MOST_WORDS]:
        before, option = option, word
        if word.endswith(".py") and not str(configuration.get("entry_point")).endswith(".py"):
            configuration.settings["entry_point"] = replace(setting, value=word)
        if not word.endswith((".yaml", ".yml", ".txt")):
            continue
        text = _named(configuration, siblings, word, setting, before) if before != ">" else ""
        if word.endswith(".txt"):
            continue
        try:
            table = yaml_table(text or "")
        except AdvisorError:
            advice = _BESIDE if text is None else "it is not valid YAML"
            configuration.settings["unread_file"] = Setting(f"{word!r}: {advice}")
            continue
        if looks_like_accelerate(table):
            configuration.settings["starts"] = Setting(value=True)
            launch = configuration_of_accelerate(table)
            strategy = strategy or launch.strategy
            if (half := launch.hyperparameters["precision"]).value != "fp32":
                configuration.hyperparameters.setdefault(str(half.value), Setting(value=True))
            continue
        for key, value in plain_of(table).items():
            if isinstance(value, str | int | float | bool):
                configuration.hyperparameters.setdefault(key, Setting(value))
    if strategy is not None and "unread_file" in configuration.settings:
        file = configuration.get("unread_file")
        return undescribed(strategy.name, f"the settings of the script are in the file {file}")
    on_one = strategy is not None and terms_of(configuration).gpus == 1
    return replicated("One GPU") if on_one else strategy


def _take_options(configuration: Configuration, siblings: Siblings, commands: list[str]) -> None:
    """Options that a command, or a line of the shell script that it starts, passes to the Python file."""
    folder = configuration.get("source_dir")
    for command in list(commands):
        for word in command.split():
            places = [(folder, word)] if isinstance(folder, str) and "://" not in folder else []
            texts = [siblings.text(*parts) for parts in (*places, (word,))] if word.endswith(".sh") else []
            commands += [text for text in texts if text is not None][:1]
    for command in commands:
        for line in command.replace("\\\n", " ").split("\n"):
            before, entry, after = around_the_script(line.split())
            if entry and (before or len(commands) == 1) and not line.lstrip().startswith("#"):
                passed = {name: value for name, value in options_of(after).items() if "$" not in str(value)}
                configuration.set_hyperparameters(**passed)
                read = {name: value for name, value in passed.items() if name in _READ}
                configuration.set(passed=configuration.get("passed", {}) | read)


def _words_of_shell(text: str) -> list[str]:
    """Words of the lines that start the script, or that assign what is started."""
    marks = ("ACCELERATE_CONFIG=", "TRAINING_SCRIPT=", "--config_file", "torchrun")
    lines = [line for line in text.split("\n") if any(mark in line for mark in marks)]
    return [word.rpartition("}/")[2] for line in lines for word in _WORDS.split(line)]


_UNREAD = {
    ".py": "the strategy and the settings in its code",
    ".sh": "the script that it starts, and its options",
    ".json": "the ZeRO stage, offloading, batch and precision",
    ".txt": "the packages that the job installs",
    "accelerate": "the strategy and the precision that accelerate launches",
}
"""Settings that are unknown without a file, by its suffix or for accelerate; otherwise those of the trainer."""
_OF_ACCELERATE = ("--config_file", "ACCELERATE_CONFIG")


def _named(
    configuration: Configuration, siblings: Siblings, name: str, setting: Setting, option: str = ""
) -> str | None:
    """Text of a file by its path in the source folder, or next to the text; a missing one is noted."""
    folder, path = configuration.get("source_dir"), PurePosixPath(name)
    local = not isinstance(folder, str) or "://" not in folder
    places = [(folder, name)] if local and isinstance(folder, str) else []
    texts = (siblings.text(*parts) for parts in (*places, (name,), (path.name,)))
    text = next((text for text in texts if text is not None), None)
    elsewhere = configuration.get("git_config") or configuration.unknown("source_dir") or configuration.get("fetches")
    plain_path = bool(path.suffix) and not path.is_absolute() and not re.search(r"[$*{:\s]", name)
    if text is None and local and not elsewhere and plain_path and siblings.complete():
        kind = "accelerate" if option in _OF_ACCELERATE else path.suffix
        unread = _UNREAD.get(kind, "the batch, sequence length and precision in it")
        configuration.missing.append(Gap(name, f"{setting.key or 'The text'} names {name}: {unread}", setting.span))
    return text


def _merge_file(configuration: Configuration, siblings: Siblings) -> None:
    for name in _CONFIG:
        setting = configuration.hyperparameters.get(name)
        if setting is None or not str(setting.value).endswith((".yaml", ".yml")):
            continue
        text = _named(configuration, siblings, str(setting.value), setting)
        try:
            data = plain_of(yaml_table(text or ""))
        except AdvisorError:
            configuration.settings["unread_file"] = Setting(f"{setting.value!r}: {_BESIDE}", setting.span)
            continue
        for key, value in data.items():
            if isinstance(value, str | int | float | bool | dict):
                configuration.hyperparameters.setdefault(key, Setting(value, setting.span))


def _script(configuration: Configuration, siblings: Siblings) -> ScriptFacts | None:
    packages, entry = (configuration.settings.get(name) for name in ("requirements", "entry_point"))
    if packages is not None and str(packages.value).endswith(".txt"):
        _named(configuration, siblings, str(packages.value), packages)
    name = configuration.hyperparameters.get("training_script")
    entry = name if name is not None and isinstance(name.value, str) else entry
    if entry is None or not isinstance(entry.value, str) or "git_config" in configuration.settings:
        return None
    text = _named(configuration, siblings, entry.value, entry)
    script = None if text is None else read_training_script(text)
    if script is not None:
        configuration.leave_out(sorted(script.unused), f"{entry.value} reads it, but no call receives it")
    return script


def _of_settings(configuration: Configuration, siblings: Siblings) -> Strategy | None:
    for name in _DEEPSPEED:
        setting = configuration.hyperparameters.get(name)
        if setting is not None and setting.value not in (None, "", False):
            return _deepspeed(configuration, setting, siblings)
    option = configuration.hyperparameters.get(SHARDS)
    if option is not None and option.value not in (None, "", False, '""'):
        return fsdp_option(option.value)
    option = configuration.hyperparameters.get("sharding_strategy")
    if option is not None and isinstance(option.value, str):
        sharded = fully_sharded(f"{option.value}_shard" if option.value in ("full", "hybrid") else option.value)
        return sharded.assuming("The option sharding_strategy is FSDP's.")
    return None


def _deepspeed(configuration: Configuration, setting: Setting, siblings: Siblings) -> Strategy:
    value = text = setting.value
    if isinstance(value, dict):
        return strategy_of_deepspeed(value)
    if not str(value).lstrip().startswith("{"):
        text = _named(configuration, siblings, str(value), setting)
    try:
        data = json_values(text) if isinstance(text, str) else None
    except ValueError:
        data = None
    if isinstance(data, dict):
        return strategy_of_deepspeed(data)
    return undescribed("DeepSpeed", f"its configuration is in the file {str(value)[:80]!r}: paste that file")


def _of_code(configuration: Configuration, script: ScriptFacts | None) -> Strategy:
    terms = terms_of(configuration)
    if script is not None and script.strategy is not None:
        return script.strategy
    # Hyperparameters of plans without shards are those of an exported script.
    own = set(getattr(get_library(str(replicated().library)).plan, "SCRIPT_SETTINGS", ())) - {"batch_size"}
    exported = bool(own) and own <= configuration.hyperparameters.keys()
    if configuration.get("dataparallel") or configuration.get("pytorchddp") or exported:
        return replicated()
    launched = any(configuration.get(name) for name in ("torch_distributed", "mpi", "driver", "starts"))
    if script is not None and script.maps_devices and not launched and (terms.gpus or 0) > 1:
        return undescribed("A model spread over the GPUs of one process (device_map)", "it runs one GPU at a time")
    if "unread_file" in configuration.settings and (launched or terms.gpus == 1):
        return undescribed("The strategy", f"its settings are in the file {configuration.get('unread_file')}")
    if terms.gpus == 1 and (script is None or script.trains):
        return replicated("One GPU")
    if script is not None and not script.trains and not script.trainer:
        return undescribed("The script next to the text", "it calls nothing that trains")
    if not launched and terms.launched is False and terms.gpus is not None:
        return undescribed("One process", f"it has {terms.gpus} GPUs and no launcher")
    if launched and script is not None and script.trainer and not script.sets_arguments:
        return replicated().assuming("The Trainer replicates the model, because neither fsdp nor deepspeed is set.")
    arguments = _TRAINER_ARGUMENTS & configuration.hyperparameters.keys()
    if launched and "git_config" in configuration.settings and len(arguments) > 1:
        assumption = "The example script of transformers replicates the model without fsdp or deepspeed."
        return replicated().assuming(assumption)
    why = "starts a script whose strategy is unknown, so there is no plan: its hyperparameters and environment set"
    searched = _searched(configuration, script)
    return Strategy(name="", why_no_plan=f"{configuration.title} {why} neither fsdp nor deepspeed, and {searched}.")


def _searched(configuration: Configuration, script: ScriptFacts | None) -> str:
    """Where a strategy was looked for, as a clause."""
    if script is not None:
        return "the script shows no strategy"
    if configuration.form == "manifest":
        return "its script is in the image or on a volume: check the script itself with check_script"
    return "there is no readable script next to the text"


def _adapter(configuration: Configuration, script: ScriptFacts | None) -> list[str]:
    """Set LoRA or QLoRA, in the hyperparameters (TRL's names) or in the script; its assumptions."""
    values = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    ranks = [values[name] for name in ("lora_r", "lora_rank") if name in values]
    lora = is_on(values.get("use_peft")) or ranks or (script is not None and script.lora)
    if not lora:
        return []
    bits = next((name for name in _BITS if is_on(values.get(name, script is not None and script.bits == name))), "")
    rank = count(digits_as_number(ranks[0] if ranks else script.rank if script is not None else None))
    modules = str(values.get("lora_target_modules") or (script.targets if script is not None else ""))
    targets = modules if "_proj" in modules else "all-linear"
    configuration.set(adapter=f"lora{bits[-5:]}", adapter_rank=rank or _PEFT_RANK, adapter_targets=targets)
    if script is not None and script.upcast:
        configuration.set(adapter_upcast=True)
    return [
        "" if rank else f"The adapter's rank is {_PEFT_RANK}, PEFT's default.",
        "" if "_proj" in modules else "The adapter is on all linear products, because its target modules are not read.",
    ]


def _accumulated(configuration: Configuration) -> list[str]:
    """With a micro batch size, the batch size is that of an update (alpaca-lora): set both as a plan has them."""
    values, gpus = configuration.hyperparameters, terms_of(configuration).gpus
    micro, batch = (count(digits_as_number(values[name].value)) if name in values else 0 for name in (_MICRO, BATCH[0]))
    if not micro:
        return []
    values[BATCH[0]] = Setting(micro, values[_MICRO].span)
    if batch and gpus:
        values["gradient_accumulation_steps"] = Setting(max(batch // (micro * gpus), 1))
    return [f"The batch size is {_MICRO}, and {BATCH[0]} is that of an update."]


def _defaults(configuration: Configuration, script: ScriptFacts | None) -> list[str]:
    """Set what the script sets and the text does not; a sentence for the batch size and one for the others."""
    values = configuration.hyperparameters
    present = {"batch_size"} if any(name in values for name in BATCH) else set()
    present |= set(SEQUENCE) if any(name in values for name in SEQUENCE) else set()
    settings = _of_options(configuration, script)
    taken = {name: value for name, value in settings.items() if name not in present and name not in values}
    for name, value in taken.items():
        values[name] = Setting(value)
    sentences = [f"{name} {value}" for name, value in taken.items() if name != "batch_size"]
    assumed = [f"The script sets {', '.join(sentences)}."] if sentences else []
    if "batch_size" in present:
        return assumed
    if "batch_size" in settings:
        return [f"The batch size is {settings['batch_size']}, which the script sets.", *assumed]
    example = script is None and "git_config" in configuration.settings and _TRAINER_ARGUMENTS & values.keys()
    if example or (script is not None and script.unset):
        configuration.set_hyperparameters(batch_size=_TRAINER_BATCH)
        return [f"The batch size is {_TRAINER_BATCH}, the default of TrainingArguments.", *assumed]
    return assumed


def _of_options(configuration: Configuration, script: ScriptFacts | None) -> dict[str, Any]:
    """Settings in the code of the script, and defaults of its options, which other files may declare."""
    declared = configuration.get("script_options", {})
    settings = {name: value for name, value in declared.items() if name in _READ and value is not None}
    batch = next((settings.pop(name) for name in BATCH if name in settings), None)
    settings |= {"batch_size": batch} if batch else {}
    return settings | (script.settings if script is not None else {})


def _precision(configuration: Configuration, script: ScriptFacts | None) -> str:
    """Set precision and checkpointing by the Trainer's arguments; the assumption about the precision, if any."""
    values = configuration.hyperparameters
    new = values.get("activation_checkpointing")
    setting = values.get("gradient_checkpointing") if new is None else new
    inner = values.get("fsdp_config")
    if new is None and inner is not None and isinstance(inner.value, dict):
        on = next((inner.value[name] for name in _OF_FSDP if name in inner.value), None)
        if is_on(on):
            values["activation_checkpointing"] = setting = new = Setting("true", inner.span)
    if setting is not None and (new is None or str(new.value).lower() in ("true", "false", "1", "0")):
        values["activation_checkpointing"] = Setting("each" if is_on(setting.value) else "none", setting.span)
    elif script is not None and (
        script.checkpoints or (script.checkpoints_quantized and "bit" in configuration.get("adapter", ""))
    ):
        values.setdefault("activation_checkpointing", Setting("each"))
    if any(is_on(values[name].value) for name in ("bf16", "fp16") if name in values) or "precision" in values:
        return ""
    example = script is None and "git_config" in configuration.settings
    if example or (script is not None and (script.parses_arguments or script.full)):
        values["precision"] = Setting("fp32")
        default = script is None or script.parses_arguments
        return f"The precision is fp32: {'the default of the Trainer' if default else 'the script names no other'}."
    machine = terms_of(configuration).instance
    precision = "bf16" if machine is None or machine.bf16 else "fp32"
    values["precision"] = Setting(precision)
    return f"The precision is {precision}, because the text has none."
