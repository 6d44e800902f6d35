"""The changes that a training script needs for a plan, as a numbered list: file, line, code to write, reason.

Derived from the reading that the checks use. Nothing is rewritten: a person makes the changes, a rehearsal proves them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smp_advisor.arguments.signatures import checked
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import get_library
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import Instance, Result, is_none
from smp_advisor.review.scripts.check import report_of
from smp_advisor.review.scripts.checks.data import iterations_over, loaders
from smp_advisor.review.scripts.checks.outputs import flags_of
from smp_advisor.review.scripts.checks.parallel import REPLICATING, reached_accelerators
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.checks.sharding import FSDP
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.queries import is_optimizer, known_names, origins
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value
    from smp_advisor.review.scripts.context import Context


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `code` belongs after the line, or in its place if the reason states it."""

    number: int
    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        code = "\n".join(f"       {line}" for line in self.code.splitlines())
        return f"{self.number:>3}. {self.file}:{self.line}: {self.reason}\n{code}"


@dataclass(frozen=True, slots=True, repr=False)
class ScriptChanges(Sequence[Change]):
    """The numbered list, and what it could not decide."""

    changes: tuple[Change, ...]
    open: tuple[str, ...] = field(default=())
    """Code that was not followed, and what the list therefore may lack, one sentence each."""

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        """Return one change, or several."""
        return self.changes[index]

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.changes)

    def __repr__(self) -> str:
        lines = [str(change) for change in self.changes] or ["No change that the reading shows."]
        lines += [f"Not decided: {sentence}" for sentence in self.open]
        lines.append("The list is read from the text: rehearse the changed script before you pay for a cluster.")
        return "\n".join(lines)

    __str__ = __repr__


@checked
def script_changes(script: str | Path, plan: Plan) -> ScriptChanges:
    r"""List what a training script has to change to train as a plan does. The script is read, never run.

    Parameters
    ----------
    script
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules next to a file are followed.
    plan
        The plan: its library, and its batch, precision, checkpointing and sharding.

    Returns
    -------
    ScriptChanges
        A sequence of changes in the order of the lines, each with the code to write; with `open`, what was not
        followed.

    Raises
    ------
    AdvisorError
        The file does not exist, or is not Python 3; or `plan` is no plan.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> text = "import torch\nmodel = torch.nn.Linear(2, 2)\n"
    >>> text += "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    >>> text += "for x in batches:\n    model(x).mean().backward()\n    optimizer.step()\n"
    >>> changes = script_changes(text, smpa.Plan(library="ddp", batch_size=1))
    >>> [change.line for change in changes][:2]
    [1, 3]
    """
    return _changes_of(follow(read(script), from_plan(plan, None)), plan)


def _changes_of(context: Context, plan: Plan) -> ScriptChanges:
    entries: list[tuple[str, int, str, str]] = []
    open_: list[str] = [f"line {note.line}: {note.what}" for note in context.unresolved]
    if context.trainer:
        entries += _of_trainer(context, plan)
    elif reached_accelerators(context):
        entries += _of_accelerate(context, plan)
    else:
        loop = _Loop(context, plan)
        entries += loop.changes()
        open_ += loop.open
    changed_lines = {(line, file) for file, line, _, _ in entries}
    for finding in report_of(context).findings:
        file = Path(finding.path).name
        listed = (finding.line, file) in changed_lines or finding.id in _OF_THE_PLAN
        if finding.severity == "error" and not listed:
            entries.append((file, finding.line, f"# {finding.remedy}", f"{finding.id}: {finding.message}"))
    order = {Path(module.source.path).name: number for number, module in enumerate(context.trace.modules)}
    entries.sort(key=lambda row: (order.get(row[0], 99), row[1]))
    return ScriptChanges(tuple(Change(n, *row) for n, row in enumerate(entries, 1)), tuple(dict.fromkeys(open_)))


_OF_THE_PLAN = ("SMP001", "SMP002", "TRN709", *(f"SMP10{number}" for number in (1, 2, 3, 5, 6, 8)), "SMP301", "SMP303")
"""Checks of what the list itself names: the start, the wrapping and the step of a library."""
_Row = tuple[str, int, str, str]


def _at(call: Call, code: str, reason: str, *, last: bool = True) -> _Row:
    statement = call.module.statement(call.node) or call.node
    line = (statement.end_lineno if last else statement.lineno) or statement.lineno
    path, number = call.module.source.locate(line)
    return Path(path).name, number, code, reason


def _settings(plan: Plan) -> dict[str, Any]:
    return dict(plan.hyperparameters)


def _of_trainer(context: Context, plan: Plan) -> Iterator[_Row]:
    """Yield the arguments of Trainer: each of the plan that the script does not have."""
    settings, record = _settings(plan), get_library(plan.library)
    planned_settings: dict[str, Any] = {
        "per_device_train_batch_size": settings.get("batch_size"),
        "gradient_accumulation_steps": settings.get("gradient_accumulation_steps", 1),
        **({"bf16": True} if settings.get("precision") == "bf16" else {}),
        **({"fp16": True} if settings.get("precision") == "fp16" else {}),
    }
    checkpoints = settings.get("activation_checkpointing") not in (None, False, "none")
    if record.divides_model:
        planned_settings["fsdp"] = "full_shard auto_wrap"
        planned_settings |= (
            {"fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False} if checkpoints else {}
        )
    elif checkpoints:
        planned_settings |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    for call in trainer_arguments(context):
        different = {
            name: value
            for name, value in planned_settings.items()
            if value is not None and getattr(call.argument(name), "value", ...) != value
        }
        if different:
            code = ",\n".join(f"{name}={value!r}" for name, value in different.items())
            yield _at(call, code, f"Arguments of {call.called}() that the plan has and the script does not.")
        if not call.gives("save_strategy") and not call.gives("save_steps"):
            code = 'output_dir="/opt/ml/checkpoints", save_strategy="steps", save_steps=200, save_total_limit=2'
            yield _at(call, code, "Checkpoints in the folder that checkpoint_s3_uri copies while the job runs.")
    for call in context.trace.methods("train"):
        if call.reached and not call.gives("resume_from_checkpoint", 0) and not call.arguments:
            text = call.module.text(call.node.func)
            code = f'{text}(resume_from_checkpoint=bool(glob.glob("/opt/ml/checkpoints/checkpoint-*")))'
            yield _at(call, code, "In its place: a restarted job goes on where it was.", last=False)


def _of_accelerate(context: Context, plan: Plan) -> Iterator[_Row]:
    settings, record = _settings(plan), get_library(plan.library)
    precision = settings.get("precision")
    planned_settings = {"mixed_precision": repr("no" if precision == "fp32" else precision)}
    steps = settings.get("gradient_accumulation_steps", 1)
    planned_settings |= {"gradient_accumulation_steps": repr(steps)} if isinstance(steps, int) and steps > 1 else {}
    planned_settings |= (
        {"fsdp_plugin": "FullyShardedDataParallelPlugin(fsdp_version=2)"} if record.divides_model else {}
    )
    for call in reached_accelerators(context):
        code = ",\n".join(f"{name}={value}" for name, value in planned_settings.items() if not call.gives(name))
        if code:
            yield _at(call, code, "Arguments of Accelerator() that the plan has and the script does not.")
    if not context.trace.methods("save_state"):
        for call in context.trace.methods("backward")[-1:]:
            code = 'accelerator.save_state("/opt/ml/checkpoints/last")  # every 200 steps, on every process'
            yield _at(call, code, "A checkpoint to resume from; all processes call it.")


class _Loop:
    """A plain loop of PyTorch: its model, optimizer, loaders, updates and savers, as places of changes."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self.context, self.plan, self.library = context, plan, get_library(plan.library)
        self.open: list[str] = []
        trace = context.trace
        self.texts = "".join(module.source.text for module in trace.modules)
        self.backwards = [call for call in trace.methods("backward") if call.reached]
        self.wrappers = [call for call in trace.named(*REPLICATING, *FSDP) if call.reached]
        self.optimizer, self.model, self.value = self._optimized()
        trained = {loop for call in self.backwards for loop in call.loops}
        self.loaders = [
            loader
            for loader in loaders(context)
            if loader.reached and any(loop.node in trained for loop in iterations_over(context, loader))
        ]

    def _optimized(self) -> tuple[Call | None, str, Value | None]:
        """Return the optimizer, the name of the model whose parameters it has, and its value."""
        for optimizer in self.context.trace.calls:
            of_model = optimizer.reached and is_optimizer(optimizer.name)
            for origin in origins(optimizer.argument("params", 0)) if of_model else ():
                if (
                    isinstance(origin, Result)
                    and origin.call.method == "parameters"
                    and origin.call.receiver is not None
                ):
                    func = origin.call.node.func
                    text = origin.call.module.text(func.value) if isinstance(func, ast.Attribute) else "model"
                    return optimizer, text, origin.call.receiver
        return None, "model", None

    def changes(self) -> Iterator[_Row]:
        if not self.backwards:
            self.open.append("No backward pass was followed: check the file that trains.")
            return
        facts, trace = self._facts(), self.context.trace
        for row in table("smp_advisor.review.scripts", "data/changes.toml")["change"]:
            applies = self.library.name in row["libraries"] and facts.issuperset(row.get("needs", ()))
            done = any(call.reached for call in trace.named(*row.get("unless", ())))
            if applies and not done and facts.isdisjoint(row.get("without", ())):
                for place, line, values in self._places(row["at"]):
                    code, reason = (row[key].strip("\n").format(**values) for key in ("code", "reason"))
                    yield place, line, code, reason
        self._leave_open(facts)

    def _facts(self) -> set[str]:
        """Return the facts of the plan and of the script, by name."""
        settings, trace = _settings(self.plan), self.context.trace
        steps = settings.get("gradient_accumulation_steps", 1)
        truths = {
            "checkpoints": settings.get("activation_checkpointing") not in (None, False, "none"),
            "half": settings.get("precision") in _HALF,
            "accumulates": isinstance(steps, int) and steps > 1,
            "wrapped": bool(self.wrappers),
            "units": "fully_shard" in self.texts,
            "loader": any(self._divides(loader) for loader in self.loaders),
            "moved": ".cuda(" in self.texts or ".to(" in self.texts,
            "autocast": "autocast" in self.texts or "MixedPrecision" in self.texts,
            "recomputes": any(word in self.texts for word in _RECOMPUTES),
            "accumulating": "gradient_accumulation_steps" in self.texts or re.search(rf"%\s*{steps}\b", self.texts),
            "resumes": "load_state_dict" in self.texts,
            "entry": "_mp_fn" in self.texts,
            "stepped": any(function.step is not None for function in trace.functions),
        }
        return {name for name, holds in truths.items() if holds}

    def _divides(self, loader: Call) -> bool:
        """Return whether a loader of the training still reads all rows on every rank."""
        samplers = [loader.argument(name, at) for name, at in (("sampler", 3), ("batch_sampler", 4))]
        return not loader.unpacks and not any(value is not None and not is_none(value) for value in samplers)

    def _places(self, at: str) -> Iterator[tuple[str, int, dict[str, object]]]:
        """Yield the files and lines of a kind of place, each with the names that its code has."""
        settings, module = _settings(self.plan), self.context.trace.modules[0]
        values: dict[str, object] = {
            "model": self.model,
            "optimizer": self._assigned(self.optimizer) or "optimizer",
            "half": _HALF.get(str(settings.get("precision")), ""),
            "precision": settings.get("precision"),
            "steps": settings.get("gradient_accumulation_steps", 1),
        }
        nodes: list[tuple[Module, int]] = []
        loops: tuple[ast.AST, ...] = next((call.loops for call in self.backwards if call.loops), ())
        if at == "imports":
            imports = [node for node in module.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
            nodes = [(module, max((node.end_lineno or node.lineno for node in imports), default=1))]
        elif at in ("optimizer", "after optimizer") and self.optimizer is not None:
            nodes = [_line(self.optimizer, last=at.startswith("after"))]
        elif at == "backward" or (at == "wrapper" and self.wrappers):
            nodes = [_line(self.wrappers[0] if at == "wrapper" else self.backwards[0])]
        elif at in ("save", "unguarded save"):
            saves = [call for call in self.context.trace.named(*known_names("saves")) if call.reached]
            nodes = [_line(call) for call in saves if at == "save" or not _guarded(call)]
        elif at in ("batches", "outermost loop", "epochs"):
            chosen = {"batches": loops[-1:], "outermost loop": loops[:1], "epochs": loops[:1] if loops[1:] else ()}[at]
            nodes = [(self.backwards[0].module, getattr(loop, "lineno", 1)) for loop in chosen]
        elif at == "end" and module.tree.body:
            nodes = [(module, module.tree.body[-1].end_lineno or module.tree.body[-1].lineno)]
        for home, line in nodes:
            path, number = home.source.locate(line)
            yield Path(path).name, number, values
        for loader in self.loaders if at == "loader" else ():
            if self._divides(loader):
                data = loader.module.text(loader.node.args[0]) if loader.node.args else "dataset"
                home, line = _line(loader)
                path, number = home.source.locate(line)
                yield Path(path).name, number, {**values, "data": data}

    def _assigned(self, call: Call | None) -> str:
        statement = call.module.statement(call.node) if call is not None else None
        targets: list[ast.expr] = getattr(statement, "targets", [])
        return ast.unparse(targets[0]) if len(targets) == 1 else ""

    def _leave_open(self, facts: set[str]) -> None:
        """Add sentences on code that decides nothing here."""
        if self.optimizer is None and "wrapped" not in facts:
            self.open.append("The model of the optimizer was not followed: wrap it before the optimizer is made.")
        if inner := self._inner_calls():
            self.open.append(
                f"{', '.join(inner)} run the model by other methods than forward: let forward dispatch to them, or no"
                " gradient is averaged."
            )
        if not self.loaders:
            self.open.append("The data of the loop come from no DataLoader that was followed: divide them by rank.")
        batch = _settings(self.plan).get("batch_size")
        self.open.append(f"The plan has batch_size={batch} per GPU: compare it with that of the loader.")
        if "/opt/ml/checkpoints" not in self.texts:
            self.open.append(
                "No checkpoint is written to /opt/ml/checkpoints: save model, optimizer and step there at intervals,"
                " and load the newest at the start, or an interrupted job begins again."
            )

    def _inner_calls(self) -> list[str]:
        """Methods of the model other than forward that the loop calls."""
        loops = {call.loops[-1] for call in self.backwards if call.loops}
        models = origins(self.value)
        names = [
            f"{call.module.text(call.node.func)}()"
            for call in self.context.trace.calls
            if call.method not in ("", "forward") and call.function is not None and loops & set(call.loops)
            if any(isinstance(origin, Instance) and origin in models for origin in origins(call.receiver))
        ]
        return list(dict.fromkeys(names))


_HALF = {"bf16": "bfloat16", "fp16": "float16"}
_RECOMPUTES = (
    *("checkpoint_wrapper", "utils.checkpoint", "utils import checkpoint"),
    *("gradient_checkpointing", "activation_checkpointing_enable", "apply_activation_checkpointing"),
)


def _line(call: Call, *, last: bool = False) -> tuple[Module, int]:
    statement = call.module.statement(call.node) or call.node
    return call.module, (statement.end_lineno if last else statement.lineno) or statement.lineno


def _guarded(call: Call) -> bool:
    tests = [ast.unparse(guard.test) for guard in call.guards]
    return any("rank" in test or "main" in test for test in tests)


_MOST_FINDINGS = 5
"""Findings in a cell; the check shows all of them."""
_OTHER_ARGUMENTS = re.compile(
    r"\bsys\.argv\b|\bSM_HP|\bhyperparameters\.json\b|ArgumentParser|\bargs\b"
    r"|\b(?:absl|click|docopt|draccus|fire|hydra|jsonargparse|simple_parsing|tyro|typer|LightningCLI)\b"
)
"""Text of a script that may read arguments in another way than argparse's."""


def warnings_of_script(script: str, plan: Plan, hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences between a script and its plan, one or two sentences each. The script is read, never run.

    A file that is not on this machine is reported as not checked.
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
    lines = [f"{path.name}, line {error.line} ({error.id}): {error.message}" for error in errors[:_MOST_FINDINGS]]
    if errors[_MOST_FINDINGS:]:
        lines.append(f"{path.name} has {len(errors) - _MOST_FINDINGS} more errors: {command} lists them.")
    code = "\n".join(module.source.text for module in context.trace.modules)
    changes = _changes_of(context, plan)
    own = [change for change in changes if "the plan" in change.reason]
    lines += [f"{path.name}: {note}" for note in changes.open if not note.startswith("line ")]
    lines += [f"{change.file}, line {change.line}: {change.reason}" for change in own[:_MOST_FINDINGS]]
    sentences = [*lines, *_unread_arguments(context, code, path.name, hyperparameters)]
    if context.unresolved:
        count = len(context.unresolved)
        places = "1 place" if count == 1 else f"{count} places"
        sentences.append(f"The check of {path.name} could not follow {places}: {command} lists them.")
    return tuple(sentences)


def _unread_arguments(context: Context, code: str, name: str, hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments of the job that the script rejects or ignores."""
    if not hyperparameters:
        return
    unknown = f"It was not determined which arguments {name} reads; the job passes {_listed(hyperparameters)}."
    parses = context.trace.methods("parse_args", "parse_known_args")
    if not parses:
        if _OTHER_ARGUMENTS.search(code) is None and not context.unresolved:
            yield f"{name} reads no arguments: {_listed(hyperparameters)} of the job have no effect."
        else:
            yield unknown
        return
    if flags_of(context, parses) is None:  # else SMP004 names the options that the script does not receive
        yield unknown


def _listed(names: Mapping[str, Any] | list[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
