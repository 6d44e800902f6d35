"""The files of a job, read with it: command, configurations, script; how a job of PyTorch divides its model."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import json_values, table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import (
    OF_ACCELERATE,
    SHARDS,
    Gap,
    Setting,
    Strategy,
    count,
    fully_sharded,
    inner_table,
    is_on,
    launch_options,
    looks_like_accelerate,
    plain_of,
    replicated,
    strategy_of_deepspeed,
    strategy_of_launch,
    undescribed,
    zero,
)
from smp_advisor.estimators.documents import FETCHES, yaml_table
from smp_advisor.estimators.readback import BATCH
from smp_advisor.estimators.recipes import take_verl_command
from smp_advisor.estimators.script import READ, STRATEGY, Script, passed_names, read_script, take_from_script
from smp_advisor.estimators.shell import VERL, exports, installs, options_of, passed_by
from smp_advisor.estimators.strategies import fsdp_option
from smp_advisor.estimators.terms import gpus_of, terms_of
from smp_advisor.estimators.trainer_settings import (
    TRAINER_ARGUMENTS,
    kept_in,
    take_adapter,
    take_defaults,
    take_job_fields,
    take_micro_batch,
    take_precision,
)
from smp_advisor.libraries.schema import schema
from smp_advisor.review.reading.commands import around_the_script, commands_of, starts_processes
from smp_advisor.review.reading.values import Mapping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping as Dictionary

    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Siblings
    from smp_advisor.review.reading.source import Source, Span

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file")
_SHARDS = ("enable_fsdp", "use_fsdp")
_MEGATRON = {"tensor_model_parallel_size", "pipeline_model_parallel_size"}
_CONFIG = ("config", "config_file", "training_config")
_BESIDE = "put that file next to the checked one"
"""Remedy for settings of a script, which are no job by themselves."""


def read_job(configuration: Configuration, siblings: Siblings) -> Script | None:
    """Read the files that a job names: its settings, its strategy and its library; the script that it starts."""
    plain = configuration.library is None and configuration.framework != "tensorflow"
    plain = plain and "tensorflow_version" not in configuration.settings
    command = configuration.get("command")
    if isinstance(command, str) and configuration.form != "manifest" and (source := _source(configuration, siblings)):
        name = source.path.rpartition("/")[2]
        configuration.leave_out(passed_names(configuration), f"{name} does not receive it")  # of the cell
    if plain:
        _read_command(configuration, siblings)
        if (options := configuration.get("verl")) is not None:
            take_verl_command(configuration, options)
            return None
        _merge_file(configuration, siblings)
    source = _source(configuration, siblings)
    script = read_script(configuration, source) if source is not None else None
    if plain and source is not None and script is not None:
        script = _with_its_files(configuration, siblings, source, script)
    if script is not None:
        take_from_script(configuration, script)
    if plain:
        _read_strategy(configuration, siblings, script)
    elif script is not None:
        read, sentences = configuration.hyperparameters.keys(), []
        if not read & set(BATCH) and (batch := script.settings.get("batch_size")):
            configuration.set_hyperparameters(batch_size=batch)
            sentences = [f"The batch size is {batch}, which the script sets."]
        defaults = {name: script.settings[name] for name in STRATEGY if name in script.settings}
        if "activation_checkpointing" not in read and (defaults or script.checkpoints):
            configuration.set_hyperparameters(**(defaults or {"activation_checkpointing": "each"}))
            by_default = "activation_checkpointing is the default of the script's option."
            sentences += [by_default if defaults else "The script turns on activation checkpointing."]
        configuration.set(assumes=tuple(sentences))
    return script


def _with_its_files(configuration: Configuration, siblings: Siblings, source: Source, script: Script) -> Script | None:
    """Read a script again with the files that its code names: programs, arguments of its parser, configurations."""
    entry = configuration.settings.get("entry_point")
    if script.programs and not script.trains and entry is not None:  # it only starts the script that trains
        del configuration.settings["entry_point"]
        configuration.set(command="\n".join(script.programs))
        _read_command(configuration, siblings)
        if (inner_source := _source(configuration, siblings)) is not None:
            configuration.leave_out(passed_names(configuration), f"{script.name} may not pass it on")
            if (inner := read_script(configuration, inner_source)) is None:
                return None
            source, script = inner_source, inner
        else:
            configuration.settings["entry_point"] = entry
            del configuration.settings["command"]
    if script.arguments_files:
        configuration.leave_out(script.ignored, f"{script.name} does not receive it")
        folder = PurePosixPath(_COMPUTED.sub("", str(configuration.get("entry_point")))).parent
        _merge_file(configuration, siblings, *(str(folder / file) for file in script.arguments_files))
        return read_script(configuration, source)
    folders = [(folder,) for folder in (configuration.get("source_dir"),) if isinstance(folder, str)]
    files = {}
    for path in script.opened:
        texts = filter(None, (siblings.source(*folder, path) for folder in (*folders, ())))
        with suppress(AdvisorError):
            files[path] = dict(_arguments(plain_of(yaml_table(_text(next(texts, None))))))
    return read_script(configuration, source, files) if files else script


def _read_strategy(configuration: Configuration, siblings: Siblings, script: Script | None) -> None:
    """Add the strategy of a job that uses none of SageMaker's libraries, and its library if plans describe it."""
    launched_with = _of_launcher(configuration, siblings, script)
    strategy = _of_settings(configuration, siblings, script) or launched_with
    strategy = strategy or _of_code(configuration, siblings, script)
    launched = any(map(configuration.get, ("torch_distributed", "starts", "driver")))
    if script is not None and script.spawns and launched and not _ONE.search(str(configuration.get("command"))):
        configuration.set(starts_twice="The launcher")
    arriving = [name for name in configuration.get("passed", {}) if name in configuration.hyperparameters]
    passed = ", ".join(f"{name} {configuration.hyperparameters[name].value}" for name in arriving)
    assumptions = [f"The command passes {passed}."] if passed else []
    assumptions += [
        *take_defaults(configuration, script),
        *take_micro_batch(configuration),
        *take_adapter(configuration, script),
    ]
    assumptions += take_job_fields(configuration, script)
    if strategy.library is not None:
        strategy = strategy.assuming(*assumptions, take_precision(configuration, strategy, script))
        if configuration.hyperparameters.get("activation_checkpointing") == Setting("each"):  # not in the text
            strategy = strategy.assuming("The script turns on activation checkpointing.")
        if (half := kept_in(strategy, script)) and configuration.get("adapter") is None:
            configuration.set(state_precision="16-bit")
            strategy = strategy.assuming(f"Parameters and Adam's states are in {half}: the script loads the model so.")
        if script is not None:
            configuration.set(shares_gpus=script.shares, trains_on_preferences=script.compares)
            if script.freezes and configuration.get("adapter") is None:
                strategy = strategy.assuming("The script freezes a part of the model; the estimate trains all of it.")
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


def _read_command(configuration: Configuration, siblings: Siblings) -> None:
    """Read the command of a job and the shell scripts that it starts: launcher, script, its options and files.

    Accelerate's configuration is its launcher's; other YAML files have hyperparameters, a Python file is the script.
    """
    started = [configuration.settings[name] for name in ("command", "entry_point") if configuration.get(name)]
    if not isinstance(configuration.get("command"), str) and not str(configuration.get("entry_point")).endswith(".sh"):
        return
    outer = [(words, setting) for setting in started for words in commands_of(str(setting.value))]
    texts = [str(setting.value) for setting in started]
    inner: list[tuple[list[str], Setting]] = []
    for shell, setting in [(word, setting) for words, setting in outer for word in words if word.endswith(".sh")][:2]:
        texts.append(_text(_named(configuration, siblings, shell, setting)))
        inner += [(words, replace(setting, key=shell)) for words in commands_of(texts[-1])]
    configuration.set(fetches=any(map(FETCHES.search, texts)))
    of_verl = (words for words, _ in (*outer, *inner) if any(map(VERL.match, words)))
    configuration.set(verl=next(of_verl, None))
    starts = [(words, setting) for words, setting in (*outer, *inner)
              if around_the_script(words)[1] and words[0] != "echo"]  # fmt: skip
    configuration.set(starts=any(starts_processes(words) for words, _ in (*outer, *starts)))
    first = next((around_the_script(words)[1] for words, _ in starts if around_the_script(words)[0]), "")
    for words, setting in starts:
        if around_the_script(words)[1] == first or len(starts) == 1:  # another file is not read
            _take_start(configuration, words, setting)
    for text in texts:
        configuration.set(launcher=exports(text) | configuration.get("launcher", {}))
        configuration.set(installs=configuration.get("installs", {}) | installs(text))
    own = [(word, setting) for words, setting in starts if setting.key.endswith(".sh") for word in words]
    own += [(word, setting) for words, setting in outer for word in words]
    parts = [(part, setting) for word, setting in own[:_MOST_WORDS] for part in _WORDS.split(word.rpartition("}/")[2])]
    for (before_it, _), (word, setting) in pairwise([("", Setting("")), *parts]):
        if before_it.endswith(".py") and _SETTINGS.match(word) and not setting.key.endswith(".sh"):
            configuration.settings["unread_file"] = Setting(f"{word!r}: {_BESIDE}")
        if word.endswith(".py") and not str(configuration.get("entry_point")).endswith(".py"):
            configuration.settings["entry_point"] = replace(setting, value=word)
        if word.endswith((".yaml", ".yml", ".txt")) and before_it != ">":
            _take_file(configuration, word, _named(configuration, siblings, word, setting, before_it))


def _take_start(configuration: Configuration, words: list[str], setting: Setting) -> None:
    """Take the options of a command that starts the script, and of its launcher, unless the last start has others."""
    before, entry, after = around_the_script(words)
    read = {name: value for name, value in passed_by(after).items() if name in READ}
    if read and configuration.get("passed", read) not in ({}, read):
        configuration.gaps.append(Gap(entry, "the command starts it again with other options, not read", setting.span))
        return
    configuration.set_hyperparameters(**passed_by(after))
    configuration.set(launcher=configuration.get("launcher", {}) | options_of(before))
    configuration.set(passed=configuration.get("passed", {}) | read)


def _take_file(configuration: Configuration, name: str, source: Source | None, span: Span | None = None) -> None:
    """Take accelerate's configuration, or the arguments of the script, from a file of a command."""
    if name.endswith(".txt"):
        return
    try:
        data = plain_of(table := yaml_table(_text(source)))
    except AdvisorError:
        advice = _BESIDE if source is None else "it is not valid YAML"
        configuration.settings["unread_file"] = Setting(f"{name!r}: {advice}")
        return
    if looks_like_accelerate(table):
        configuration.set(starts=True, launcher=launch_options(data) | configuration.get("launcher", {}))
        if configuration.title == "The shell script" and (nodes := count(data.get("num_machines"))):
            per_node = count((count(data.get("num_processes")) or 0) // nodes)
            configuration.settings.setdefault("processes_per_host", Setting(per_node))
            configuration.set(instance_count=nodes)
        return
    for key, value in _arguments(data):
        configuration.hyperparameters.setdefault(key, Setting(value, span))


BESIDE = "next to it"
"""Instead of what is unknown: the file is next to the text, and not in the source folder."""
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
    if text is not None and text.file is not None:
        configuration.set(paths={**configuration.get("paths", {}), name: str(text.file)})
    elsewhere = computed or configuration.get("git_config") or configuration.unknown("source_dir")
    elsewhere = elsewhere or configuration.get("fetches") or configuration.form == "request"
    plain_path = bool(path.suffix) and not path.is_absolute() and not re.search(r"[$*{:\s]", name)
    if text is None and local and not elsewhere and plain_path and siblings.complete():
        kind = "accelerate" if option in _OF_ACCELERATE else path.suffix
        unread = _FORMS["unread"].get(kind, "the batch, sequence length and precision in it")
        unread = BESIDE if kind == ".py" and siblings.source(name) is not None else unread
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
        source = _named(configuration, siblings, str(setting.value), setting)
        _take_file(configuration, str(setting.value), source, setting.span)


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
    if configuration.get("neuron") or (script is not None and script.neuron):
        return undescribed("A job on AWS Trainium", "no library here runs there")
    if _MEGATRON & configuration.hyperparameters.keys():
        return undescribed("Megatron-LM", "no library here has its tensor and pipeline parallelism")
    for name in _DEEPSPEED:
        setting = configuration.hyperparameters.get(name)
        if setting is not None and setting.value not in (None, "", False, True):
            return _deepspeed(configuration, setting, siblings)
    option = configuration.hyperparameters.get(SHARDS)
    if option is not None and option.value not in (None, "", False, '""') and not isinstance(option.value, dict):
        return fsdp_option(option.value).assuming(f"The sharding strategy is read from the option {SHARDS}.")
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


_STAGES = {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "config_file", "distributed_type"}


def _of_launcher(configuration: Configuration, siblings: Siblings, script: Script | None) -> Strategy | None:
    """Return the strategy that options, file or variables of ``accelerate launch`` choose, and take their precision."""
    environment = inner_table(configuration.tables.get("estimator"), "environment")
    names = plain_of(environment or Mapping())
    launch = {name: names[name] for name in names if name.startswith(OF_ACCELERATE)} | configuration.get("launcher", {})
    if (half := launch.get("mixed_precision", launch.get("ACCELERATE_MIXED_PRECISION"))) in ("bf16", "fp16"):
        configuration.hyperparameters.setdefault(half, Setting(value=True))
    for name, why in _FORMS["unplanned"].items():
        if name == "config_file" and "distributed_type" in launch:
            continue  # it was found
        if "$" in str(chosen := launch.get(name, "")) or is_on(chosen):
            return undescribed(f"accelerate launch --{name} {chosen}", why)
    if is_on(launch.get("use_deepspeed")) or launch.get("distributed_type", "DEEPSPEED") == "DEEPSPEED":
        deep = is_on(launch.get("use_deepspeed")) or "distributed_type" in launch
        steps = count(launch.get("gradient_accumulation_steps")) if deep else None
        if steps and script is not None and script.accelerates:
            configuration.set_hyperparameters(gradient_accumulation_steps=steps)
        if file := launch.get("deepspeed_config_file"):
            return _deepspeed(configuration, Setting(file), siblings)
        if "use_deepspeed" in launch and not _STAGES & launch.keys():
            in_code = script is not None and (script.strategy is not None or script.deepspeed_file)
            return None if in_code else zero(2).assuming("The ZeRO stage is 2, accelerate's default.")
    strategy = strategy_of_launch(launch)
    return strategy if strategy is None else _of_file(configuration, launch, strategy)


def _of_file(configuration: Configuration, launch: Dictionary[str, Any], strategy: Strategy) -> Strategy:
    """Return a strategy of accelerate, and take its checkpointing; without a plan if the script's file was not read."""
    if strategy.name.startswith("FSDP") and is_on(launch.get("fsdp_activation_checkpointing")):
        configuration.hyperparameters.setdefault("activation_checkpointing", Setting("each"))
    if "distributed_type" not in launch:  # of options
        return strategy
    if "unread_file" in configuration.settings:
        unread = configuration.get("unread_file")
        return undescribed(strategy.name, f"the settings of the script are in the file {unread}")
    alone = terms_of(configuration).gpus == 1
    return replace(replicated("One GPU"), offloads=strategy.offloads) if alone else strategy


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


_IN_IMAGE = "its script is in the image or on a volume: check the script itself with check_script"


def _of_code(configuration: Configuration, siblings: Siblings, script: Script | None) -> Strategy:
    gpus, _ = gpus_of(configuration)
    if script is not None and script.strategy is not None:
        in_file = Setting(script.deepspeed_file)
        return _deepspeed(configuration, in_file, siblings) if script.deepspeed_file else script.strategy
    # Hyperparameters of plans without shards are those of an exported script.
    own = {entry.key for entry in schema(str(replicated().library)).settings} - {"batch_size"}
    exported = bool(own) and own <= configuration.hyperparameters.keys()
    if configuration.get("dataparallel") or configuration.get("pytorchddp") or exported:
        return replicated()
    launched = any(map(configuration.get, ("torch_distributed", "mpi", "driver", "starts", "script_starts")))
    if script is not None and script.maps_devices and not launched and (gpus or 0) > 1:
        return undescribed("A model spread over the GPUs of one process (device_map)", "it runs one GPU at a time")
    if "unread_file" in configuration.settings and (launched or gpus == 1):
        return undescribed("The strategy", f"its settings are in the file {configuration.get('unread_file')}")
    if gpus == 1 and (script is None or script.trains):
        return replicated("One GPU")
    if script is not None and not script.trains and not script.trainer:
        programs = "it starts other programs, which are not followed"
        why = programs if script.programs else "it calls nothing that trains"
        return undescribed(f"The script {script.name}", why)
    if not launched and terms_of(configuration).launched is False and gpus is not None:
        return undescribed("One process", f"it has {gpus} GPUs and no launcher")
    if launched and script is not None and script.trainer and not script.sets_arguments:
        return replicated().assuming("The Trainer replicates the model, because neither fsdp nor deepspeed is set.")
    arguments = TRAINER_ARGUMENTS & configuration.hyperparameters.keys()
    if launched and "git_config" in configuration.settings and len(arguments) > 1:
        assumption = "The example script of transformers replicates the model without fsdp or deepspeed."
        return replicated().assuming(assumption)
    why = "starts a script whose strategy is unknown, so there is no plan: its hyperparameters and environment set"
    searched = _IN_IMAGE if configuration.form == "manifest" else "there is no readable script next to the text"
    searched = searched if script is None else "the script shows no strategy"
    return Strategy(name="", why_no_plan=f"{configuration.title} {why} neither fsdp nor deepspeed, and {searched}.")
