"""Whether a script of the user trains as its plan does: warnings for the cell that starts the job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import read
from smp_advisor.reading.values import Constant, Result
from smp_advisor.scripts.check import report_of
from smp_advisor.scripts.following import follow
from smp_advisor.scripts.plan_settings import missing_batch, missing_checkpointing, missing_precision
from smp_advisor.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.reading.trace import Call
    from smp_advisor.scripts.context import Context

__all__ = ["warnings_of_script"]

_MOST = 5
"""Findings in a cell; the check shows all of them."""
_PARSER = "argparse.ArgumentParser"
_OTHER_ARGUMENTS = re.compile(
    r"\bsys\.argv\b|\bSM_HP|\bhyperparameters\.json\b|ArgumentParser|\bargs\b"
    r"|\b(?:absl|click|docopt|draccus|fire|hydra|jsonargparse|simple_parsing|tyro|typer|LightningCLI)\b"
)
"""Text of a script that may read arguments in another way than argparse's."""
_FRAMEWORKS = re.compile(r"\b(?:accelerate|lightning|pytorch_lightning|deepspeed|Trainer|TrainingArguments)\b")
"""Text of a script whose precision and checkpointing may be settings of a framework."""


def warnings_of_script(script: str, plan: Plan, hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences between a script and its plan, one or two sentences each. The script is read, never run.

    Parameters
    ----------
    script
        Path of the script. A file that is not on this machine is reported as not checked.
    plan
        The plan of the job.
    hyperparameters
        Arguments that the job passes to the script.
    """
    path = Path(script)
    command = f"smp_advisor.check_script({str(path)!r}, advice.plan)"
    try:
        if not path.is_file():
            return (f"{path.name} was not checked: it is not on this machine. {command} checks it.",)
        context = follow(read(path), from_plan(plan, None, hyperparameters))
        errors = report_of(context).of("error")
    except (AdvisorError, OSError, ValueError) as error:
        return (f"{path.name} was not checked: {str(error).rstrip('.')}. {command} checks it.",)
    lines = [f"{path.name}, line {error.line} ({error.id}): {error.message}" for error in errors[:_MOST]]
    if len(errors) > _MOST:
        lines.append(f"{path.name} has {len(errors) - _MOST} more errors: {command} lists them.")
    code = "\n".join(module.source.text for module in context.trace.modules)
    sentences = [*lines, *_arguments(context, code, path.name, hyperparameters), *_settings(code, path.name, plan)]
    if context.unresolved:
        count = len(context.unresolved)
        places = "1 place" if count == 1 else f"{count} places"
        sentences.append(f"The check of {path.name} could not follow {places}: {command} lists them.")
    return tuple(sentences)


def _settings(code: str, name: str, plan: Plan) -> Iterator[str]:
    """Settings of the plan that scripts without a framework must have in their text."""
    if plan.library not in ("fsdp", "ddp"):
        return  # SMP libraries apply the parameters of the job; a framework has settings of its own
    yield from missing_batch(code, plan)
    if _FRAMEWORKS.search(code) is None:
        kind = "fsdp2" if plan.library == "fsdp" and "fully_shard" in code else plan.library
        yield from missing_precision(code, plan, kind)
        yield from missing_checkpointing(code, plan, kind)
    else:
        yield f"The precision and the checkpointing of {name} were not checked: a framework may set them."


def _arguments(context: Context, code: str, name: str, hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    """Arguments of the job that the script rejects or ignores."""
    if not hyperparameters:
        return
    parses = context.trace.methods("parse_args", "parse_known_args")
    if not parses:
        if _OTHER_ARGUMENTS.search(code) is None and not context.unresolved:
            yield f"{name} reads no arguments: {_listed(hyperparameters)} of the job have no effect."
        else:
            yield f"It was not determined which arguments {name} reads; the job passes {_listed(hyperparameters)}."
        return
    flags = _flags(context, parses)
    if flags is None:
        yield f"It was not determined which arguments {name} reads; the job passes {_listed(hyperparameters)}."
        return
    # argparse accepts the beginning of an option.
    unread = [key for key in hyperparameters if not any(flag.startswith(f"--{key}") for flag in flags)]
    if not unread:
        return
    if all(call.method == "parse_known_args" for call in parses):
        yield f"{name} ignores {_listed(unread)} of the job: memory and time are those of a script that uses them."
    else:
        yield (
            f"{name} does not define {_listed(unread)}, which the job passes, and argparse ends the job: define them"
            " in the script."
        )


def _flags(context: Context, parses: list[Call]) -> set[str] | None:
    """Options that the script defines; None if code outside of its files may define or supply some."""
    for call in parses:
        if not (isinstance(call.receiver, Result) and call.receiver.call.name == _PARSER) or call.arguments:
            return None
        if "args" in call.keywords:
            return None
    for call in context.trace.calls:
        passed = [*call.arguments, *call.keywords.values()]
        external = not call.bound and any(isinstance(value, Result) and value.call.name == _PARSER for value in passed)
        if external:
            return None
    flags: set[str] = set()
    for call in context.trace.methods("add_argument"):
        values = [value.value if isinstance(value, Constant) else None for value in call.arguments]
        if not values or not all(isinstance(value, str) for value in values):
            return None
        flags.update(str(value) for value in values)
    return flags


def _listed(names: Mapping[str, Any] | list[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
