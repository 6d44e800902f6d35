"""Statements of a job about its start: a plan, an advice, a cell of either SDK, a command, or settings."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core import files
from smp_advisor.core.files import user_path
from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal.contract import Job
from smp_advisor.review.reading.commands import around_the_script, commands_of, exact_words, started, starts_processes
from smp_advisor.review.reading.data import plain
from smp_advisor.review.reading.following import follow
from smp_advisor.review.reading.run import TooLongError
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import Mapping as Table
from smp_advisor.review.reading.values import Result

if TYPE_CHECKING:
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value

_CELLS = ("ModelTrainer", "PyTorch", "HuggingFace", "Estimator", "TensorFlow", "Framework")
_VERSIONS = (("framework_version", "torch"), ("pytorch_version", "torch"), ("transformers_version", "transformers"))
"""Arguments of estimators, and the library whose version each is."""
_IMAGES = ((r"pytorch-training:(\d[\d.]*)", "torch"), (r"-transformers(\d[\d.]*)", "transformers"))
"""Parts of the addresses of images."""
_UNKNOWN = object()


def job_of(job: Any) -> tuple[Job, dict[str, Any]]:
    """Return the start of a job, and what its cell states besides: ``folder``, ``source_dir``, ``versions``.

    Raises
    ------
    AdvisorError
        It is none of the forms.
    """
    if job is None:
        return Job(), {}
    if isinstance(job, Job):
        return job, {}
    if isinstance(job, Mapping):
        return _of_settings(job)
    if isinstance(job, str | os.PathLike):
        return _of_text(os.fspath(job))
    plan = getattr(job, "plan", job)
    hyperparameters = getattr(plan, "hyperparameters", None)
    if isinstance(hyperparameters, Mapping):
        return Job(hyperparameters=dict(hyperparameters), is_given=True), {}
    raise AdvisorError(
        f"rehearse() takes a plan, an advice, a cell, a command or settings as its job, not {type(job).__name__}."
    )


_SETTINGS = ("hyperparameters", "sdk", "command", "environment", "checkpoints", "launches", "input_mode", "channels")


def _of_settings(job: Mapping[str, Any]) -> tuple[Job, dict[str, Any]]:
    unknown = [name for name in job if name not in _SETTINGS]
    if unknown:
        raise AdvisorError(f"{unknown[0]!r} is no setting of a job: {', '.join(_SETTINGS)} are.")
    for name in ("hyperparameters", "environment", "channels"):
        if not isinstance(job.get(name, {}), Mapping):
            raise AdvisorError(f"{name} of a job must be a mapping of names, not {job[name]!r:.80}.")
    command = job.get("command")
    text = command if isinstance(command, str) else shlex.join(command or ())
    tables: dict[str, Any] = {name: dict(job.get(name, {})) for name in ("hyperparameters", "environment", "channels")}
    start = Job(
        **tables, **({} if command is None else _of_command(text)), sdk=int(job.get("sdk", 2)), is_given=True,
        keeps_checkpoints=bool(job.get("checkpoints")), input_mode=str(job.get("input_mode", "File")),
    )  # fmt: skip
    return replace(start, launches=bool(job.get("launches", start.launches))), {}


def _of_command(text: str) -> dict[str, Any]:
    """Return the fields of a job that its command decides: arguments of the script, launcher, start as a module."""
    words = started(commands_of(text) or [[]], modules=True)
    before, entry, after = around_the_script(words, modules=True)
    exact = [command for command in exact_words(text) if entry in command]
    if entry and exact:
        start = started(exact, modules=True)
        after = start[len(around_the_script(start, modules=True)[0]) + 1 :]
    launches, is_module = bool(entry) and starts_processes(before), bool(entry) and not entry.endswith(".py")
    return {
        "command": tuple(after if entry else words), "entry": entry, "has_command": True,
        "launches": launches, "is_module": is_module,
        "launcher": "mpirun" if {Path(word).name for word in before} & {"mpirun", "mpiexec"} else "torchrun",
    }  # fmt: skip


def _of_text(text: str) -> tuple[Job, dict[str, Any]]:
    is_path = "\n" not in text and len(text) < 4096 and text.endswith((".py", ".ipynb"))
    path = user_path(text, AdvisorError) if is_path and files.is_path(text) else None
    file = path if path is not None and path.is_file() else None
    calls: list[Call] = []
    if file is not None or "(" in text:
        with suppress(AdvisorError, TooLongError):  # it is no Python, and may be a command
            calls = follow(read(file or f"{text}\n"), computes=True, assumes=True).trace.calls
    jobs = [call for call in calls if call.called in _CELLS]
    if jobs:
        return _of_cell(calls, jobs[-1], Path() if file is None else file.parent)
    start = _of_command("" if file is not None else text)
    if file is not None or not (start["is_module"] or ".py" in text):
        raise AdvisorError("The job is neither a cell with an estimator or ModelTrainer, nor a command with a script.")
    return Job(**start, is_given=True), {}


def _of_cell(calls: list[Call], call: Call, folder: Path) -> tuple[Job, dict[str, Any]]:
    options = call.passed
    environment = _known(options.get("environment"), {})
    settings: dict[str, Any] = {
        "hyperparameters": _known(options.get("hyperparameters"), {}), "is_given": True,
        "environment": {key: str(value) for key, value in environment.items()},
    }  # fmt: skip
    default = _known(options.get("input_mode"), "File")
    channels: dict[str, str] = {}
    for entry in calls:
        keywords = entry.keywords
        if entry.method == "fit":
            inputs = entry.argument("inputs", 0)
            places = inputs.values() if isinstance(inputs, Table) else {"training": inputs} if inputs else {}
            channels |= {str(name): _known(_passed(value).get("input_mode"), default) for name, value in places.items()}
        elif entry.called in ("InputData", "Channel") and "channel_name" in keywords:
            channels[str(_known(keywords["channel_name"]))] = _known(keywords.get("input_mode"), "File")
    settings |= {"input_mode": default, "channels": channels}
    image = str(_known(options.get("image_uri"), _known(options.get("training_image"), "")))
    versions = {library: version for word, library in _VERSIONS if (version := _known(options.get(word)))}
    versions |= {library: version for pattern, library in _IMAGES for version in re.findall(pattern, image)}
    extra: dict[str, Any] = {"folder": folder, "versions": versions}
    source = _passed(options.get("source_code")) if call.called == "ModelTrainer" else options
    extra["source_dir"] = _known(source.get("source_dir"))
    if call.called != "ModelTrainer":
        is_kept = "checkpoint_s3_uri" in options.entries
        table = options.get("distribution")
        kind = " ".join(_known(table)) if isinstance(table, Table) else ""
        # Others start by mpirun, with the variables of both.
        settings["launcher"] = {"torch_distributed": "torchrun", "mpi": "mpirun"}.get(kind, "")
        return Job(**settings, launches="distribution" in options.entries, keeps_checkpoints=is_kept), extra
    settings["launches"] = "distributed" in options.entries
    driver = options.get("distributed")
    settings["launcher"] = "mpirun" if isinstance(driver, Result) and driver.call.called == "MPI" else "torchrun"
    if command := _known(source.get("command")):
        settings |= _of_command(command)
    is_kept = "checkpoint_config" in options.entries
    return Job(**settings, sdk=3, keeps_checkpoints=is_kept), extra


def _passed(value: Value | None) -> Table:
    """Return the arguments of the call that makes an object; none of other values."""
    return value.call.passed if isinstance(value, Result) else Table()


def _known(value: Value | None, default: Any = None) -> Any:
    """Return a value as plain data without the entries that are not known; the default if nothing is."""
    if isinstance(value, Table):
        pairs = {str(name): _known(item.value, _UNKNOWN) for name, item in value.entries.items()}
        return {name: item for name, item in pairs.items() if item is not _UNKNOWN}
    try:
        constant = default if value is None else plain(value)
    except LookupError:
        return default
    return default if constant is None and default is not _UNKNOWN else constant
