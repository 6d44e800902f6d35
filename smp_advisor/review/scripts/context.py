"""Input and result of a check, and the register of checks."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.review.reading.values import External
from smp_advisor.review.scripts.queries import is_wrapped_model, known_names

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.source import Unresolved
    from smp_advisor.review.reading.trace import Call, Trace
    from smp_advisor.review.scripts.settings import Settings


@dataclass(frozen=True, slots=True)
class Hit:
    """A defect at a place, with the fields of its message."""

    module: Module
    node: ast.expr | ast.stmt
    values: dict[str, object] = field(default_factory=dict)
    severity: Severity | None = None
    """If other than that of the catalog: a defect that may not affect this job."""
    variant: str = ""
    """Which message of the check."""
    needed: str = ""
    """Options that the job must pass to reach the defect: "with --fp16"; empty if every job reaches it."""
    reported_by: frozenset[str] = frozenset()
    """Other checks that together report the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Libraries:
    """Libraries of the script: by its imports and the library that it is checked for."""

    smp_torch: bool = False
    smp_tensorflow: bool = False
    smp_v2: bool = False
    xla: bool = False
    optional: frozenset[str] = frozenset()
    """Those of the others that the script also runs without: it imports them under a condition only."""
    fsdp: bool = False
    """Whether the script is checked for PyTorch FSDP alone. Other scripts may use FSDP too."""

    @property
    def smp_v1(self) -> bool:
        """SMP v1 with either framework."""
        return self.smp_torch or self.smp_tensorflow


_OTHERS = ("lightning.", "pytorch_lightning.", "torch.", "composer.", "tensorflow.", "keras.", "ray.")
"""Frameworks with trainers of their own."""
_HAVE = ("transformers.", "trl.", "sentence_transformers.", "setfit.", "optimum.")
_ARGUMENTS = ("args", "train_dataset", "processing_class", "tokenizer", "data_collator")


def is_of_transformers(call: Call) -> bool:
    """Return whether a trainer extends that of transformers: by its package, or by the arguments that it gets."""
    return call.name.startswith(_HAVE) or any(call.argument(name) is not None for name in _ARGUMENTS) or call.unpacks


@dataclass(slots=True)
class Context:
    """One script after it was followed."""

    trace: Trace
    settings: Settings
    libraries: Libraries
    unresolved: list[Unresolved] = field(default_factory=list)
    followed: AbstractSet[ast.AST] = frozenset()
    """Functions whose body was followed."""
    memo: dict[str, Any] = field(default_factory=dict)
    """Values that several checks derive, by name."""

    @property
    def text(self) -> str:
        """The code of all files, and commands that start it."""
        return "\n".join(map(self.code, self.trace.modules))

    @property
    def is_part(self) -> bool:
        """Whether the text is a part of a script, which may have elsewhere what it lacks."""
        return any(note.startswith(("Names that the", "Methods without")) for note in self.trace.assumed)

    def code(self, module: Module) -> str:
        """Return the text of a file without comments and docstrings; its lines keep their numbers."""
        codes: dict[Module, str] = self.memo.setdefault("codes", {})
        if module not in codes:
            codes[module] = _code_of(module)
        return codes[module]

    @property
    def splits(self) -> bool:
        """Whether batches are, or may be, split into microbatches."""
        if self.settings.microbatches is not None:
            return self.settings.microbatches > 1
        return any(function.step is not None for function in self.trace.functions)

    @property
    def wrappings(self) -> list[Call]:
        """Calls of ``smp.DistributedModel`` that running the script reaches."""
        return [call for call in self.trace.named("smp.DistributedModel") if call.reached]

    @property
    def trains(self) -> bool:
        """Whether running the script reaches a training or evaluation step."""
        return any(
            call.reached
            and (call.method == "backward" or (call.function is not None and call.function.step is not None))
            for call in self.trace.calls
        )

    @property
    def trainer(self) -> bool:
        """Whether Hugging Face Trainer runs the training, because the script has no step."""
        if any(function.step is not None for function in self.trace.functions):
            return False
        used = [call.name for call in self.trace.calls if not call.name.endswith("Trainer") or is_of_transformers(call)]
        used += [base.path for cls in self.trace.classes for base in cls.bases if isinstance(base, External)]
        return any(name.endswith(("Trainer", "TrainingArguments")) and not name.startswith(_OTHERS) for name in used)

    def models(self) -> Iterator[Call]:
        """Return the calls of the wrapped model: its forward passes."""
        return (
            call
            for call in self.trace.calls
            if not call.method and call.receiver is not None and is_wrapped_model(call.receiver)
        )

    def leave_open(self, module: Module, node: ast.expr | ast.stmt, what: str) -> None:
        """List code that could not be followed."""
        note = module.source.unresolved(node.lineno, what)
        if note not in self.unresolved:
            self.unresolved.append(note)


def _code_of(module: Module) -> str:
    """Return the lines of a module without comments and texts that no code reads, but those with a start command."""
    source, lines = module.source, list(module.source.lines)
    texts: dict[int, list[tuple[int, float]]] = {number: [] for number, line in enumerate(lines, 1) if "#" in line}
    strings: list[ast.Constant | ast.JoinedStr] = [*module.all(ast.Constant), *module.all(ast.JoinedStr)]
    for text in strings if texts else ():
        if isinstance(text, ast.JoinedStr) or isinstance(text.value, (str, bytes)):
            for number in range(text.lineno, (text.end_lineno or text.lineno) + 1):
                if number in texts:
                    start = source.column(number, text.col_offset) if number == text.lineno else 0
                    is_end, end = number == text.end_lineno, text.end_col_offset or 0
                    texts[number].append((start, source.column(number, end) if is_end else math.inf))
    for number, spans in texts.items():
        line = lines[number - 1]
        marks = (mark.start() for mark in re.finditer("#", line))
        comment = next((mark for mark in marks if not any(start <= mark < end for start, end in spans)), len(line))
        lines[number - 1] = line if _STARTS.search(line[comment:]) else line[:comment]
    for node in module.all(ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, min(node.end_lineno or node.lineno, len(lines))):
                lines[number] = lines[number] if _STARTS.search(lines[number]) else ""
    return "\n".join(lines)


_STARTS = re.compile(known_names("start_commands")[0])

Check = Callable[[Context], Iterator[Hit]]

CHECKS: dict[str, Check] = {}
"""Every check by its id. Importing the modules of `smp_advisor.review.scripts.checks` fills it."""
LIBRARY_OF: dict[str, str] = {}
"""Library of each check that is for one library, by id."""


def check(
    identifier: str,
    library: Literal["smp_torch", "smp_tensorflow", "smp_v1", "smp_v2", "xla"] | None = None,
    *,
    needs: Literal["tensor_parallel", "sharded", "fp16"] | None = None,
) -> Callable[[Check], Check]:
    """Register a check under its id, for scripts of a library and jobs with a technique."""

    def register(function: Check) -> Check:
        before = CHECKS.get(identifier)

        def applied(context: Context) -> Iterator[Hit]:
            if before is not None:
                yield from before(context)
            of_library = library is None or getattr(context.libraries, library)
            if of_library and (needs is None or getattr(context.settings, needs)):
                yield from function(context)

        CHECKS[identifier] = applied
        if library is not None:
            LIBRARY_OF[identifier] = library
        return function

    return register
