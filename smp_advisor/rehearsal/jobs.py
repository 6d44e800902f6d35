"""Statements of a job about its start: a plan, an advice, a cell of either SDK, a command, or settings."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smp_advisor.core import files
from smp_advisor.core.files import SCRIPT, read_text, user_path
from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal.contract import Job

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "hyperpodrun")
_CELLS = ("ModelTrainer", "PyTorch", "HuggingFace", "Estimator", "TensorFlow", "Framework")
_VERSIONS = (("framework_version", "torch"), ("pytorch_version", "torch"), ("transformers_version", "transformers"))
"""Arguments of estimators, and the library whose version each is."""
_IMAGES = ((r"pytorch-training:(\d[\d.]*)", "torch"), (r"-transformers(\d[\d.]*)", "transformers"))
"""Parts of the addresses of images."""
_UNKNOWN = object()


def job_of(job: Any) -> tuple[Job, dict[str, Any]]:
    """The start of a job, and what else it states: ``script``, ``source_dir``, ``notes``.

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
        return Job(hyperparameters=dict(hyperparameters), is_given=True), {"plan": plan}
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
    words = shlex.split(command) if isinstance(command, str) else list(command or ())
    script_words, launches = _of_command(words)
    return (
        Job(
            hyperparameters=dict(job.get("hyperparameters", {})), sdk=int(job.get("sdk", 2)),
            command=tuple(script_words),
            has_command=command is not None, launches=bool(job.get("launches", True if command is None else launches)),
            environment=dict(job.get("environment", {})), keeps_checkpoints=bool(job.get("checkpoints")), is_given=True,
            input_mode=str(job.get("input_mode", "File")), channels=dict(job.get("channels", {})),
        ),
        {},
    )  # fmt: skip


def _of_command(words: list[str]) -> tuple[list[str], bool]:
    """Arguments after the script, and whether a launcher gives the processes their ranks."""
    place = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
    if place is None and "-m" in words:
        place = words.index("-m") + 1
    before = words[: place or 0]
    launches = any(Path(word).name in _LAUNCHERS for word in before) or "torch.distributed.run" in before
    return words[place + 1 :] if place is not None else words, launches


def _of_text(text: str) -> tuple[Job, dict[str, Any]]:
    is_path = "\n" not in text and len(text) < 4096 and text.endswith((".py", ".ipynb"))
    path = user_path(text, AdvisorError) if is_path and files.is_path(text) else None
    if path is not None and path.is_file():
        source, folder = read_text(path, SCRIPT, AdvisorError), path.parent
    else:
        source, folder = text, Path()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    cells = [call for call in calls if _name(call.func) in _CELLS]
    if not cells:
        words = shlex.split(source)
        if not any(word.endswith(".py") for word in words):
            raise AdvisorError(
                "The job is neither a cell with an estimator or ModelTrainer, nor a command with a script."
            )
        arguments, launches = _of_command(words)
        job = Job(command=tuple(arguments), has_command=True, launches=launches, is_given=True)
        return job, {"script": next(word for word in words if word.endswith(".py"))}
    return _of_cell(tree, cells[-1], folder)


def _of_cell(tree: Any, call: ast.Call, folder: Path) -> tuple[Job, dict[str, Any]]:
    names = {
        target.id: node.value
        for node in ast.walk(tree) if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip

    def value(node: ast.AST | None) -> Any:
        if isinstance(node, ast.Name) and node.id in names:
            return value(names[node.id])
        if isinstance(node, ast.Dict):
            pairs = [
                (value(key), value(item)) for key, item in zip(node.keys, node.values, strict=True) if key is not None
            ]
            return {key: item for key, item in pairs if key is not _UNKNOWN}
        try:
            return ast.literal_eval(node) if node is not None else None
        except (ValueError, TypeError, SyntaxError):
            return _UNKNOWN

    def options_of(node: ast.AST | None) -> dict[str, ast.AST]:
        if isinstance(node, ast.Name) and node.id in names:
            node = names[node.id]
        return {word.arg: word.value for word in node.keywords if word.arg} if isinstance(node, ast.Call) else {}

    def known(node: ast.AST | None, default: Any = None) -> Any:
        constant = value(node)
        return default if constant is _UNKNOWN or constant is None else constant

    options = options_of(call)
    entries = known(options.get("hyperparameters"), {})
    hyperparameters = {k: v for k, v in entries.items() if v is not _UNKNOWN} if isinstance(entries, dict) else {}
    environment = known(options.get("environment"), {})
    settings: dict[str, Any] = {
        "hyperparameters": hyperparameters, "is_given": True,
        "environment": {k: str(v) for k, v in dict(environment or {}).items() if v is not _UNKNOWN},
    }  # fmt: skip
    default = known(options.get("input_mode"), "File")
    channels: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        options_given = {word.arg: word.value for word in node.keywords if word.arg}
        if _name(node.func) == "fit":
            inputs = options_given.get("inputs", node.args[0] if node.args else None)
            inputs = names.get(inputs.id) if isinstance(inputs, ast.Name) else inputs
            pairs = zip(inputs.keys, inputs.values, strict=True) if isinstance(inputs, ast.Dict) else ()
            channels |= {
                str(value(key)): known(options_of(item).get("input_mode"), default)
                for key, item in pairs if key is not None
            }  # fmt: skip
            if inputs is not None and not isinstance(inputs, ast.Dict):  # an address alone
                channels["training"] = known(options_of(inputs).get("input_mode"), default)
        elif _name(node.func) in ("InputData", "Channel") and "channel_name" in options_given:
            channels[str(value(options_given["channel_name"]))] = known(options_given.get("input_mode"), "File")
    settings |= {"input_mode": default, "channels": channels}
    extra: dict[str, Any] = {"folder": folder}
    versions = {library: version for word, library in _VERSIONS if (version := known(options.get(word)))}
    image = str(known(options.get("image_uri"), known(options.get("training_image"), "")))
    versions |= {library: version for pattern, library in _IMAGES for version in re.findall(pattern, image)}
    extra["versions"] = versions
    if _name(call.func) == "ModelTrainer":
        source = options_of(options.get("source_code"))
        command = known(source.get("command"))
        extra |= {"script": known(source.get("entry_script")), "source_dir": known(source.get("source_dir"))}
        launches = "distributed" in options
        if command:
            words = shlex.split(command)
            arguments, launches = _of_command(words)
            settings |= {"command": tuple(arguments), "has_command": True}
            extra["script"] = next((word for word in words if word.endswith(".py")), None)
        settings |= {"sdk": 3, "launches": launches, "keeps_checkpoints": "checkpoint_config" in options}
    else:
        extra |= {"script": known(options.get("entry_point")), "source_dir": known(options.get("source_dir"))}
        settings |= {"launches": "distribution" in options, "keeps_checkpoints": "checkpoint_s3_uri" in options}
    return Job(**settings), extra


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
