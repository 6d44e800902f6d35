"""One job: the script that a cell starts, read with the hyperparameters as they arrive, and what it leaves behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Setting
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.unused import unused_options
from smp_advisor.review.reading.values import Argument, Constant
from smp_advisor.review.scripts.check import report_of
from smp_advisor.review.scripts.checks.outputs import flags_of, in_model_folder
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.queries import constant
from smp_advisor.review.scripts.settings import from_plan
from smp_advisor.workload.from_config import is_model_name

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Siblings
    from smp_advisor.review.findings.report import Report
    from smp_advisor.review.scripts.context import Context

_OF_LAUNCHERS = ("sagemaker_", "mp_", "smp_")
_MOST_CHARACTERS = 400_000
"""Longest script that is followed with a cell."""
_LAUNCHED = ("DistributedDataParallel", "init_process_group", "Accelerator", "fully_shard", "FullyShardedDataParallel")
_TRAINERS = ("Trainer", "Fabric")


@dataclass(frozen=True, slots=True)
class Received:
    """The part of a job that its script gets."""

    path: Path
    context: Context
    report: Report
    ignored: tuple[str, ...]
    """Hyperparameters of the job that it does not receive."""
    unused: frozenset[str]
    """Options that it parses, and none of its calls receives."""
    distributed: bool
    """Whether it is written for several processes."""
    model: str
    """Name of the model that it loads; empty if it is not known."""
    keeps_checkpoints: bool | None
    """Whether its checkpoints are in the folder that SageMaker copies; None if they are not seen."""
    resumes: bool
    """Whether it may load a checkpoint at its start; true unless it certainly does not."""


def read_received(configuration: Configuration, siblings: Siblings) -> Received | None:
    """Follow the script of a job; None if it is not here, or not Python."""
    path = _script_of(configuration, siblings)
    if path is None:
        return None
    by_command = isinstance(configuration.get("command"), str)
    passed = {} if by_command and configuration.form != "manifest" else _written(configuration)
    versions = {
        name: str(value)
        for name, value in (
            ("transformers", configuration.get("transformers_version")),
            ("torch", configuration.get("framework_version")),
        )
        if value
    }
    try:
        source = read(path)
        settings = from_plan(None, None, passed)
        context = follow(source, replace(settings, versions=versions))
        report = report_of(context)
    except (AdvisorError, OSError, ValueError):
        return None
    return Received(
        path,
        context,
        report,
        tuple(passed_names(configuration)) if by_command else _ignored(context, passed),
        unused_options(module.tree for module in context.trace.modules),
        _is_distributed(context),
        _model_of(context),
        _keeps(context),
        _resumes(context),
    )


def leave_out(configuration: Configuration, received: Received) -> None:
    """Settings that the script does not receive are none of the job's; what its code shows is."""
    configuration.leave_out(received.ignored, f"{received.path.name} does not receive it")
    configuration.leave_out(received.unused, f"{received.path.name} reads it, but no call receives it")
    take_from_script(configuration, received)


def take_from_script(configuration: Configuration, received: Received) -> None:
    """Take the model of the script, the defaults of its options, and whether it is for several processes."""
    configuration.settings["script_is_distributed"] = Setting(received.distributed)
    defaults = {name: call.argument("default") for name, call in received.context.trace.options.items() if call.reached}
    values = {
        name: value.value
        for name, value in defaults.items()
        if isinstance(value, Constant) and name not in received.unused
    }
    configuration.settings["script_options"] = Setting(values)
    if received.model:
        configuration.settings["script_model"] = Setting(received.model)


def _model_of(context: Context) -> str:
    """The one model that the script loads by its name; empty if there is none, or a choice."""
    names = set()
    for call in context.trace.calls:
        value = call.argument("pretrained_model_name_or_path", 0) if call.method == "from_pretrained" else None
        if call.called.endswith("Trainer") and isinstance(call.argument("model", 0), Constant):
            value = call.argument("model", 0)
        if value is None or not call.reached or "okenizer" in call.name or "Processor" in call.name:
            continue
        if isinstance(value, Argument):
            passed = context.settings.hyperparameters.get(value.name)
            value = Constant(passed) if passed is not None else value.default
        text = constant(value)
        names.add(text if isinstance(text, str) and is_model_name(text) else "")
    return names.pop() if len(names) == 1 else ""


def passed_names(configuration: Configuration) -> list[str]:
    """Hyperparameters of the script by the names in the text."""
    table = configuration.tables.get("hyperparameters")
    names = [str(key) for key in table.entries] if table is not None else []
    return [name for name in names if not name.startswith(_OF_LAUNCHERS)]


def _written(configuration: Configuration) -> dict[str, Any]:
    values = {name: setting.value for name, setting in configuration.hyperparameters.items()}
    return {name: values[key] for name in passed_names(configuration) if (key := name.replace("-", "_")) in values}


def _script_of(configuration: Configuration, siblings: Siblings) -> Path | None:
    entry, folder = configuration.get("entry_point"), configuration.get("source_dir")
    script_setting = configuration.hyperparameters.get("training_script")
    if script_setting is not None and isinstance(script_setting.value, str):
        entry = script_setting.value
    command = configuration.get("command")
    if not isinstance(entry, str) and isinstance(command, str):
        entry = next((word for word in command.split() if word.endswith(".py")), None)
    local = not isinstance(folder, str) or "://" not in folder
    if not isinstance(entry, str) or not entry.endswith(".py") or not local or "git_config" in configuration.settings:
        return None
    if siblings.file is None or "\0" in entry:
        return None
    parts = [folder] if isinstance(folder, str) and "\0" not in folder else [""]
    of_container = PurePosixPath(entry).is_absolute()
    places = siblings.places(PurePosixPath(entry)) if of_container else [siblings.file.parent.joinpath(*parts, entry)]
    for path in places:
        try:
            if path.is_file() and path.stat().st_size < _MOST_CHARACTERS:
                return path
        except OSError:
            return None
    return None


def _ignored(context: Context, passed: dict[str, Any]) -> tuple[str, ...]:
    """Names that the parser of the script drops or refuses."""
    parses = [call for call in context.trace.methods("parse_args", "parse_known_args") if call.reached]
    flags = flags_of(context, parses) if parses else None
    if flags is None:
        return ()
    skips_unknown = all(call.method == "parse_known_args" for call in parses)
    names = [name for name in passed if f"--{name}" not in flags]
    return tuple(name for name in names if skips_unknown or not any(flag.startswith(f"--{name}") for flag in flags))


def _is_distributed(context: Context) -> bool:
    names = {call.called for call in context.trace.calls if call.reached}
    if any("spawn" in name or name == "notebook_launcher" for name in names):
        return False
    return bool(names & set(_LAUNCHED)) or any(name.endswith(_TRAINERS) for name in names)


_LOADS = re.compile(
    r"resume|restore|last_checkpoint|load_state|load_checkpoint|torch\.load|dcp\.load|ckpt_path|from_checkpoint"
)


def _resumes(context: Context) -> bool:
    trains = any(call.reached and call.method in ("train", "fit", "backward") for call in context.trace.calls)
    texts = (module.source.text for module in context.trace.modules)
    return not trains or bool(context.unresolved) or any(_LOADS.search(text) for text in texts)


def _keeps(context: Context) -> bool | None:
    """Where the Trainer's checkpoints are."""
    for call in trainer_arguments(context):
        folder = call.argument("output_dir", 0)
        source = folder.default if isinstance(folder, Argument) else folder
        if isinstance(folder, Argument) and folder.name in context.settings.hyperparameters:
            source = Constant(context.settings.hyperparameters[folder.name])
        if in_model_folder(source):
            return False
        if isinstance(source, Constant):
            return str(source.value).startswith("/opt/ml/checkpoints")
    return None
