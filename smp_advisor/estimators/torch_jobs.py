"""The files of a job, read with it: command, configurations, script; how a job of PyTorch divides its model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.core.files import json_values
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import (
    SHARDS,
    Gap,
    Setting,
    Strategy,
    configuration_of_accelerate,
    count,
    fully_sharded,
    inner_table,
    is_on,
    looks_like_accelerate,
    plain_of,
    replicated,
    strategy_of_deepspeed,
    strategy_of_environment,
    strategy_of_launch,
    undescribed,
)
from smp_advisor.estimators.documents import FETCHES, yaml_table
from smp_advisor.estimators.readback import BATCH, SEQUENCE
from smp_advisor.estimators.script import (
    BITS,
    MICRO_BATCH,
    READ,
    Script,
    passed_names,
    read_script,
    take_from_script,
)
from smp_advisor.estimators.shell import around_the_script, commands_of, exports, options_of, passed_by
from smp_advisor.estimators.strategies import fsdp_option
from smp_advisor.estimators.terms import terms_of
from smp_advisor.libraries.library import get_library
from smp_advisor.review.scripts.following import trainer_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping as Dictionary

    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Siblings
    from smp_advisor.review.reading.source import Source

_TRAINER_BATCH = 8
"""Default batch size of TrainingArguments."""
_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_SHARDS = ("enable_fsdp", "use_fsdp")
_MEGATRON = {"tensor_model_parallel_size", "pipeline_model_parallel_size"}
_CONFIG = ("config", "config_file", "training_config")
_BESIDE = "put that file next to the checked one"
"""Remedy for settings of a script, which are no job by themselves."""
_PEFT_RANK = 8
"""Default rank of an adapter in PEFT."""
_OF_FSDP = ("activation_checkpointing", "fsdp_activation_checkpointing")
_STRATEGY = ("activation_checkpointing", "activation_strategy")
_TRAINER_ARGUMENTS = {"bf16", "fp16", "learning_rate", "num_train_epochs", "optim", "per_device_train_batch_size"}


def read_job(configuration: Configuration, siblings: Siblings) -> Script | None:
    """Read the files that a job names: its settings, its strategy and its library; the script that it starts."""
    plain = configuration.library is None and configuration.framework != "tensorflow"
    plain = plain and "tensorflow_version" not in configuration.settings
    command = configuration.get("command")
    if isinstance(command, str) and configuration.form != "manifest" and (source := _source(configuration, siblings)):
        name = source.path.rpartition("/")[2]
        configuration.leave_out(passed_names(configuration), f"{name} does not receive it")  # of the cell
    started = _read_command(configuration, siblings) if plain else None
    if plain:
        _merge_file(configuration, siblings)
    source = _source(configuration, siblings)
    script = read_script(configuration, source) if source is not None else None
    if plain and source is not None and script is not None and script.arguments_files:
        folder = PurePosixPath(_COMPUTED.sub("", str(configuration.get("entry_point")))).parent
        _merge_file(configuration, siblings, *(str(folder / file) for file in script.arguments_files))
        script = read_script(configuration, source)
    if script is not None:
        take_from_script(configuration, script)
    if plain:
        _read_strategy(configuration, siblings, script, started)
    elif script is not None and "activation_checkpointing" not in configuration.hyperparameters:
        defaults = {name: script.settings[name] for name in _STRATEGY if name in script.settings}
        if "activation_checkpointing" in defaults:
            configuration.set_hyperparameters(**defaults)
            configuration.set(assumes=("activation_checkpointing is the default of the script's option.",))
    return script


def _read_strategy(
    configuration: Configuration, siblings: Siblings, script: Script | None, started: Strategy | None
) -> None:
    """Add the strategy of a job that uses none of SageMaker's libraries, and its library if plans describe it."""
    environment = inner_table(configuration.tables.get("estimator"), "environment")
    strategy = started or _of_settings(configuration, siblings, script) or _of_launcher(configuration, siblings)
    if strategy is None and environment is not None:
        strategy = strategy_of_environment(plain_of(environment))
    strategy = strategy or _of_code(configuration, siblings, script)
    launched = any(map(configuration.get, ("torch_distributed", "starts", "driver")))
    if script is not None and script.spawns and launched and not _ONE.search(str(configuration.get("command"))):
        configuration.set(starts_twice="The launcher")
    arriving = {
        name: value for name, value in configuration.get("passed", {}).items() if name in configuration.hyperparameters
    }
    passed = ", ".join(f"{name} {value}" for name, value in arriving.items())
    assumptions = [f"The command passes {passed}."] if passed else []
    assumptions += [*_defaults(configuration, script), *_accumulated(configuration), *_adapter(configuration, script)]
    assumptions += _of_job(configuration, script)
    if strategy.library is not None:
        strategy = strategy.assuming(*assumptions, _precision(configuration, strategy, script))
        if configuration.hyperparameters.get("activation_checkpointing") == Setting("each"):  # not in the text
            strategy = strategy.assuming("The script turns on activation checkpointing.")
        if (half := _kept_in(strategy, script)) and configuration.get("adapter") is None:
            configuration.set(state_precision="16-bit")
            strategy = strategy.assuming(f"Parameters and Adam's states are in {half}: the script loads the model so.")
        if script is not None:
            configuration.set(shares_gpus=script.shares, trains_on_preferences=script.compares)
        if not any(name in configuration.hyperparameters for name in BATCH):
            strategy = undescribed(strategy.name, "the batch size is neither in the text nor readable in its script")
    configuration.use(strategy)


_ONE = re.compile(r"--(?:num|nproc)[_-](?:processes|per[_-]node)[= ]1\b")
"""A launcher's option for one process."""
_WORDS = re.compile(r"[\s\"'=]+")
_SETTINGS = re.compile(r"\$(?!\{?[@*])|[^-].*\.toml$")
"""An argument that has the settings of a script and is not read."""
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
        lines = _text(_named(configuration, siblings, shell, setting))
        configuration.set(fetches=configuration.get("fetches") or FETCHES.search(lines) is not None)
        words = [
            *((word, replace(setting, key=shell)) for word in _words_of_shell(lines)),
            *words,
        ]  # before others
    _take_options(configuration, siblings, [str(setting.value) for setting in started])
    strategy, option = None, ""
    configuration.set(starts=any(re.search("launch|torchrun|distributed.run", word) for word, _ in words))
    for word, setting in words[:_MOST_WORDS]:
        before, option = option, word
        if before.endswith(".py") and _SETTINGS.match(word) and not setting.key.endswith(".sh"):
            configuration.settings["unread_file"] = Setting(f"{word!r}: {_BESIDE}")
        if word.endswith(".py") and not str(configuration.get("entry_point")).endswith(".py"):
            configuration.settings["entry_point"] = replace(setting, value=word)
        if not word.endswith((".yaml", ".yml", ".txt")):
            continue
        text = _named(configuration, siblings, word, setting, before) if before != ">" else None
        if word.endswith(".txt"):
            continue
        try:
            table = yaml_table(_text(text))
        except AdvisorError:
            advice = _BESIDE if text is None else "it is not valid YAML"
            configuration.settings["unread_file"] = Setting(f"{word!r}: {advice}")
            continue
        if looks_like_accelerate(table):
            configuration.settings["starts"] = Setting(value=True)
            launch = configuration_of_accelerate(table)
            strategy = strategy or launch.strategy
            half = launch.hyperparameters["precision"].value
            _take_launch(configuration, half, checkpoints="activation_checkpointing" in launch.hyperparameters)
            continue
        for key, value in _arguments(plain_of(table)):
            configuration.hyperparameters.setdefault(key, Setting(value))
    if strategy is not None and "unread_file" in configuration.settings:
        file = configuration.get("unread_file")
        return undescribed(strategy.name, f"the settings of the script are in the file {file}")
    on_one = strategy is not None and terms_of(configuration).gpus == 1
    return replicated("One GPU") if on_one else strategy


def _take_options(configuration: Configuration, siblings: Siblings, commands: list[str]) -> None:
    """Options that a command, or a line of the shell script that it starts, passes to the Python file."""
    folder, first = configuration.get("source_dir"), ""
    for command in list(commands):
        for word in command.split():
            places = [(folder, word)] if isinstance(folder, str) and "://" not in folder else []
            texts = [siblings.source(*parts) for parts in (*places, (word,))] if word.endswith(".sh") else []
            commands += [source.text for source in texts if source is not None][:1]
    for command in commands:
        for words in commands_of(command):
            before, entry, after = around_the_script(words)
            first = first or (entry if before or len(commands) == 1 else "")
            if entry and entry == first:  # another file is not read
                passed = passed_by(after)
                configuration.set_hyperparameters(**passed)
                launcher = exports(command) | options_of(before)
                configuration.set(launcher=configuration.get("launcher", {}) | launcher)
                read = {name: value for name, value in passed.items() if name in READ}
                configuration.set(passed=configuration.get("passed", {}) | read)


def _words_of_shell(text: str) -> list[str]:
    """Return the words of the lines that start the script, or that assign what is started."""
    marks = ("ACCELERATE_CONFIG=", "TRAINING_SCRIPT=", "--config_file", "torchrun")
    lines = [line for line in text.split("\n") if any(mark in line for mark in marks)]
    if not any(".py" in line for line in lines):
        lines += [" ".join(words) for words in commands_of(text) if around_the_script(words)[1]]
    return [word.rpartition("}/")[2] for line in lines for word in _WORDS.split(line)]


_UNREAD = {
    ".py": "the strategy and the settings in its code",
    ".sh": "the script that it starts, and its options",
    ".json": "the ZeRO stage, offloading, batch and precision",
    ".txt": "the packages that the job installs",
    "accelerate": "the strategy and the precision that accelerate launches",
}
"""Settings that are unknown without a file, by its suffix or for accelerate; otherwise those of the trainer."""
_COMPUTED = re.compile(r"^.*[$)}`][^/]*/")
_OF_ACCELERATE = ("--config_file", "ACCELERATE_CONFIG")


def _named(
    configuration: Configuration, siblings: Siblings, name: str, setting: Setting, option: str = ""
) -> Source | None:
    """Return a file by its path in the source folder, or next to the text; a missing one is noted."""
    name = name.removeprefix("/opt/ml/code/")  # where the container has the source folder
    # A folder that is known when the job runs: its files may be near the text.
    name, computed = _COMPUTED.subn("", name)
    folder, path = configuration.get("source_dir"), PurePosixPath(name)
    local = not isinstance(folder, str) or "://" not in folder
    places: list[tuple[str, ...]] = [(folder, name)] if local and isinstance(folder, str) else [(name,)]
    if path.suffix != ".py" or path.is_absolute():  # a script next to the text is not that of its source folder
        places += [(name,), (path.name,)]
    text = next((source for parts in places if (source := siblings.source(*parts)) is not None), None)
    elsewhere = computed or configuration.get("git_config") or configuration.unknown("source_dir")
    elsewhere = elsewhere or configuration.get("fetches")
    plain_path = bool(path.suffix) and not path.is_absolute() and not re.search(r"[$*{:\s]", name)
    if text is None and local and not elsewhere and plain_path and siblings.complete():
        kind = "accelerate" if option in _OF_ACCELERATE else path.suffix
        unread = _UNREAD.get(kind, "the batch, sequence length and precision in it")
        configuration.missing.append(Gap(name, f"{setting.key or 'The text'} names {name}: {unread}", setting.span))
    return text


def _text(source: Source | None) -> str:
    return "" if source is None else source.text


_ELSEWHERE = re.compile("(?:^|_)(?:eval|val|test|predict|infer|generat|serv|deploy|sampl)", re.IGNORECASE)
"""Sections of a file of arguments that are not of the training."""


def _arguments(data: Dictionary[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a file of arguments, with those in sections of its training, unless two of them differ."""
    inner_values: dict[str, list[Any]] = {}
    for key, value in data.items():
        if isinstance(value, str | int | float | bool | dict | list):
            yield key, value
        own = isinstance(value, dict) and key not in _TABLES and not _ELSEWHERE.search(str(key))
        for name, inner in _arguments(value) if own and is_on(value.get("enabled", True)) else ():
            inner_values.setdefault(name, []).append(inner)
    yield from ((name, values[0]) for name, values in inner_values.items() if values == values[:1] * len(values))


_TABLES = ("fsdp_config", "deepspeed", "model_init_kwargs", "gradient_checkpointing_kwargs")
"""Arguments that are tables themselves."""


def _merge_file(configuration: Configuration, siblings: Siblings, *files: str) -> None:
    for setting in [*map(configuration.hyperparameters.get, _CONFIG), *map(Setting, files)]:
        if setting is None or not str(setting.value).endswith((".yaml", ".yml", ".json")):
            continue
        text = _named(configuration, siblings, str(setting.value), setting)
        try:
            data = plain_of(yaml_table(_text(text)))
        except AdvisorError:
            configuration.settings["unread_file"] = Setting(f"{setting.value!r}: {_BESIDE}", setting.span)
            continue
        for key, value in _arguments(data):
            configuration.hyperparameters.setdefault(key, Setting(value, setting.span))


def _source(configuration: Configuration, siblings: Siblings) -> Source | None:
    """Return the Python file that the job starts, if it is here."""
    if configuration.form == "remote":
        return siblings.text
    packages, entry = (configuration.settings.get(name) for name in ("requirements", "entry_point"))
    if packages is not None and str(packages.value).endswith(".txt"):
        _named(configuration, siblings, str(packages.value), packages)
    command = configuration.settings.get("command")
    if entry is None and command is not None:
        words = [word for word in str(command.value).split() if word.endswith(".py")]
        entry = replace(command, value=words[0]) if words else None
    name = configuration.hyperparameters.get("training_script")
    entry = name if name is not None and isinstance(name.value, str) else entry
    if entry is None or not isinstance(entry.value, str) or "git_config" in configuration.settings:
        return None
    return _named(configuration, siblings, entry.value, entry) if entry.value.endswith(".py") else None


def _of_settings(configuration: Configuration, siblings: Siblings, script: Script | None) -> Strategy | None:
    if configuration.get("neuron"):
        return undescribed("A job on AWS Trainium", "no library here runs there")
    if _MEGATRON & configuration.hyperparameters.keys():
        return undescribed("Megatron-LM", "no library here has its tensor and pipeline parallelism")
    for name in _DEEPSPEED:
        setting = configuration.hyperparameters.get(name)
        if setting is not None and setting.value not in (None, "", False, True):
            return _deepspeed(configuration, setting, siblings)
    option = configuration.hyperparameters.get(SHARDS)
    if option is not None and option.value not in (None, "", False, '""') and not isinstance(option.value, dict):
        return fsdp_option(option.value)
    passed = configuration.hyperparameters
    shards = [name for name in _SHARDS if name in passed and is_on(passed[name].value)]
    in_code = script is not None and script.strategy is not None and bool(script.strategy.settings)
    if shards and not in_code and "sharding_strategy" not in passed:
        return fully_sharded("full_shard").assuming(f"The option {shards[0]} is FSDP's.")
    option = configuration.hyperparameters.get("sharding_strategy")
    if option is not None and isinstance(option.value, str):
        sharded = fully_sharded(f"{option.value}_shard" if option.value in ("full", "hybrid") else option.value)
        return sharded.assuming("The option sharding_strategy is FSDP's.")
    return None


def _take_launch(configuration: Configuration, half: Any, *, checkpoints: bool = False) -> None:
    """Take the precision and the checkpointing of accelerate, unless the options of its launcher differ."""
    launch = configuration.get("launcher", {})
    if (half := launch.get("mixed_precision", half)) in ("bf16", "fp16"):
        configuration.hyperparameters.setdefault(half, Setting(value=True))
    if is_on(launch.get("fsdp_activation_checkpointing", checkpoints)):
        configuration.hyperparameters.setdefault("activation_checkpointing", Setting("each"))


_UNPLANNED = {
    "config_file": _BESIDE,
    "mixed_precision": "the precision is known when the job runs",
    "use_megatron_lm": "no library here has its tensor and pipeline parallelism",
    "use_parallelism_config": "no library here has its other kinds of parallelism",
}
"""Options of ``accelerate launch`` without a plan, those of the first two if the shell computes them."""


def _of_launcher(configuration: Configuration, siblings: Siblings) -> Strategy | None:
    """Return the strategy that the options of ``accelerate launch`` choose, and take their precision."""
    launch = configuration.get("launcher", {})
    _take_launch(configuration, launch.get("ACCELERATE_MIXED_PRECISION"))
    for name, why in _UNPLANNED.items():
        if "$" in str(chosen := launch.get(name, "")) or is_on(chosen):
            return undescribed(f"accelerate launch --{name} {chosen}", why)
    if file := launch.get("deepspeed_config_file"):
        return _deepspeed(configuration, Setting(file), siblings)
    return strategy_of_launch(launch)


def _deepspeed(configuration: Configuration, setting: Setting, siblings: Siblings) -> Strategy:
    value = text = setting.value
    if isinstance(value, dict):
        return strategy_of_deepspeed(value)
    if not str(value).lstrip().startswith("{"):
        text = _text(_named(configuration, siblings, str(value), setting))
    try:
        data = json_values(text) if isinstance(text, str) else None
    except ValueError:
        data = None
    if isinstance(data, dict):
        return strategy_of_deepspeed(data)
    return undescribed("DeepSpeed", f"its configuration is in the file {str(value)[:80]!r}: paste that file")


def _of_code(configuration: Configuration, siblings: Siblings, script: Script | None) -> Strategy:
    terms = terms_of(configuration)
    if script is not None and script.strategy is not None:
        in_file = Setting(script.deepspeed_file)
        return _deepspeed(configuration, in_file, siblings) if script.deepspeed_file else script.strategy
    # Hyperparameters of plans without shards are those of an exported script.
    own = set(getattr(get_library(str(replicated().library)).plan, "SCRIPT_SETTINGS", ())) - {"batch_size"}
    exported = bool(own) and own <= configuration.hyperparameters.keys()
    if configuration.get("dataparallel") or configuration.get("pytorchddp") or exported:
        return replicated()
    launched = any(map(configuration.get, ("torch_distributed", "mpi", "driver", "starts", "script_starts")))
    if script is not None and script.maps_devices and not launched and (terms.gpus or 0) > 1:
        return undescribed("A model spread over the GPUs of one process (device_map)", "it runs one GPU at a time")
    if "unread_file" in configuration.settings and (launched or terms.gpus == 1):
        return undescribed("The strategy", f"its settings are in the file {configuration.get('unread_file')}")
    if terms.gpus == 1 and (script is None or script.trains):
        return replicated("One GPU")
    if script is not None and not script.trains and not script.trainer:
        programs = "it starts other programs, which are not followed"
        why = programs if script.runs_others else "it calls nothing that trains"
        return undescribed(f"The script {script.name}", why)
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


def _searched(configuration: Configuration, script: Script | None) -> str:
    """Return where a strategy was looked for, as a clause."""
    if script is not None:
        return "the script shows no strategy"
    if configuration.form == "manifest":
        return "its script is in the image or on a volume: check the script itself with check_script"
    return "there is no readable script next to the text"


def _adapter(configuration: Configuration, script: Script | None) -> list[str]:
    """Set LoRA or QLoRA, in the hyperparameters (TRL's names) or in the script; its assumptions."""
    values = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    ranks = [values[name] for name in ("lora_r", "lora_rank") if name in values]
    lora = is_on(values.get("use_peft")) or ranks or (script is not None and script.lora)
    if not lora:
        return []
    bits = next((name for name in BITS if is_on(values.get(name, script is not None and script.bits == name))), "")
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


def _of_job(configuration: Configuration, script: Script | None) -> list[str]:
    """Set the optimizer and the loss, by the options of the job or by the script; a sentence on them."""
    values = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    fields = {**(script.of_job if script is not None else {}), **trainer_optimizer(values.get("optim"))}
    fields |= {"loss": "fused"} if is_on(values.get("use_liger_kernel", values.get("use_liger"))) else {}
    fields.pop("optimizer_step", None)
    configuration.set(of_job=fields)
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return [f"The job's optimizer and loss are read as {text}."] if fields else []


def _accumulated(configuration: Configuration) -> list[str]:
    """With a micro batch size, the batch size is that of an update (alpaca-lora): set both as a plan has them."""
    values, gpus = configuration.hyperparameters, terms_of(configuration).gpus
    micro, batch = (
        count(digits_as_number(values[name].value)) if name in values else 0 for name in (MICRO_BATCH, BATCH[0])
    )
    if not micro:
        return []
    values[BATCH[0]] = Setting(micro, values[MICRO_BATCH].span)
    if batch and gpus:
        values["gradient_accumulation_steps"] = Setting(max(batch // (micro * gpus), 1))
    return [f"The batch size is {MICRO_BATCH}, and {BATCH[0]} is that of an update."]


def _defaults(configuration: Configuration, script: Script | None) -> list[str]:
    """Set what the script sets and the text does not; a sentence for the batch size and one for the others."""
    values = configuration.hyperparameters
    unused_names = (
        [name for name in BATCH if name in values and digits_as_number(values[name].value) != script.batch]
        if script is not None and script.batch is not None
        else []
    )
    configuration.leave_out(unused_names, f"{script.name if script is not None else ''} trains with a batch of its own")
    present = {"batch_size"} if any(name in values for name in BATCH) else set()
    present |= set(SEQUENCE) if any(name in values for name in SEQUENCE) else set()
    settings = script.settings if script is not None and "unread_file" not in configuration.settings else {}
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


def _kept_in(strategy: Strategy, script: Script | None) -> str:
    """The 16 bits in which parameters stay as they are loaded; DeepSpeed, and FSDP by accelerate, train fp32 copies."""
    if script is None or strategy.library is None or strategy.name.startswith("DeepSpeed"):
        return ""
    return script.loads_in if script.wraps or not get_library(strategy.library).divides_model else ""


def _precision(configuration: Configuration, strategy: Strategy, script: Script | None) -> str:
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
    if half := _kept_in(strategy, script):
        values["precision"] = Setting(half)
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
