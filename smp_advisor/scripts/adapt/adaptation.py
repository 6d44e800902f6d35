"""An adaptation: its target, the script while its steps change it, and the result with its changes and to-dos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import libcst as cst

from smp_advisor.arguments import require_types
from smp_advisor.errors import AdvisorError
from smp_advisor.files import table
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, libraries
from smp_advisor.libraries.plan import Plan
from smp_advisor.scripts.adapt.code import Edits, names_in, statements
from smp_advisor.scripts.adapt.survey import Survey

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.proving.proof import Proof


class AdaptError(AdvisorError):
    """The script is not valid Python source, or the library has no documented steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """The change made by one documented step."""

    title: str
    explanation: str
    """Why the library requires the step."""
    url: str
    """Page of the developer guide that documents the step."""
    diff: str
    """Unified diff of this step alone, relative to the result of the previous steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """One change for a person, who knows more about the script than a proof shows."""

    path: str
    line: int
    """Line of the original script; the code stands before it, or replaces what starts at it."""
    old: str
    """Lines to replace; empty if the code is new."""
    code: str
    """The code to write; empty if the lines go."""
    reason: str
    url: str
    """Page that documents the change."""

    def __str__(self) -> str:
        what = "replace" if self.old and self.code else "remove" if self.old else "insert"
        marked = [*(f"- {line}" for line in self.old.splitlines()), *(f"+ {line}" for line in self.code.splitlines())]
        return "\n".join([f"{self.path}:{self.line}: {what}. {self.reason}", *(f"     {line}" for line in marked)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptation:
    """A plain PyTorch script, rewritten for a library if that is proven, and the list of what to change otherwise."""

    path: str
    """Path of the script; ``<source>`` if it was passed as text."""
    source: str
    """The adapted script if it is proven; otherwise the original one."""
    diff: str
    """Unified diff from the original script; empty if nothing changed."""
    hunks: tuple[Hunk, ...] = ()
    """The steps in order: their diffs, applied one after the other, give `source`."""
    proposals: tuple[Proposal, ...] = ()
    """Changes that are not proven, for a person; empty if the script is proven."""
    todo: tuple[str, ...] = ()
    """Changes that must be made by hand, one sentence or more each."""
    configuration: str = ""
    """Settings of the plan for Accelerate (YAML) or the Trainer (JSON), to save next to the script; otherwise empty."""
    proof: Proof | None = None
    """Comparison of both scripts; None if it was not requested or nothing changed."""

    def __str__(self) -> str:
        counts = [
            (len(self.hunks), "proven change"), (len(self.proposals), "proposal"), (len(self.todo), "manual to-do"),
        ]  # fmt: skip
        shown = [f"{count} {word}" + "s" * (count != 1) for count, word in counts if count]
        lines = [f"{self.path}: {', '.join(shown) or 'nothing to change'}"]
        if self.proof is not None and self.proof.reachable:
            lines.insert(0, str(self.proof).partition("\n")[0])
        for hunk in self.hunks:
            lines += ["", f"{hunk.title}. {hunk.explanation}", f"  {hunk.url}", hunk.diff.rstrip()]
        if self.proposals:
            lines += ["", "The script is unchanged, because the proposal is not proven:"]
            lines += [f"{number}. {proposal}" for number, proposal in enumerate(self.proposals, 1)]
        if self.todo:
            lines += ["", "To do by hand:", *(f"{number}. {text}" for number, text in enumerate(self.todo, 1))]
        if self.configuration:
            lines += ["", "Configuration:", self.configuration.rstrip()]
        if self.proof is not None:
            lines += ["", "Proof:", str(self.proof)]
        return "\n".join(lines)


Kind = Literal["smp_step", "smp_fsdp", "ddp", "fsdp2"]
"""How the script trains: ``smp.step`` functions, FSDP of SMP v2, or PyTorch alone with replicas or shards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The library to which a script is adapted, and the settings of the plan that affect the script."""

    library: str
    kind: Kind
    plan: Plan
    """The defaults of the library without a plan for it."""
    planned: bool
    """Whether there is a plan for the library, whose batch, accumulation and precision apply."""

    @property
    def fp16(self) -> bool:
        """Whether the model computes in fp16, which requires loss scaling."""
        return bool(getattr(self.plan, "fp16", False))

    @property
    def half(self) -> bool:
        """Whether the model computes in fp16 or bf16; scripts for SMP v2 do, unless the plan has the flag `fp16`."""
        return self.fp16 or bool(getattr(self.plan, "bf16", False)) or self.kind == "smp_fsdp"

    @property
    def half_planned(self) -> bool:
        """Whether a plan of PyTorch alone computes in bfloat16."""
        return self.planned and str(getattr(self.plan, "precision", "")) == "bf16"

    @property
    def dtype(self) -> str:
        """Expression of the data type in the script."""
        return "torch.float16" if self.fp16 else "torch.bfloat16" if self.half else "torch.float32"

    @property
    def tensor_parallel(self) -> bool:
        """Whether layers are divided."""
        return self.plan.tensor_parallel_degree > 1

    @property
    def sharding_strategy(self) -> str:
        """FSDP's strategy; empty for the default."""
        return str(getattr(self.plan, "sharding_strategy", ""))

    @classmethod
    def from_plan(cls, plan: Plan | None, library: str | None = None) -> Target:
        """Read the settings of a `smp_advisor.Plan`; None stands for the defaults of the library."""
        require_types({"plan": (plan, (Plan, type(None))), "library": (library, (str, type(None)))}, "adapt_script")
        library = library or (plan.library if plan is not None else DEFAULT_LIBRARY)
        loops = [record.name for record in libraries() if record.script in ("torch", "smp_step")]
        if library not in loops:
            raise AdaptError(f"A script can be adapted to {', '.join(loops)}, not to {library!r}: pass library=.")
        record = get_library(library)
        kind: Kind = "fsdp2" if record.divides_model else "ddp"
        if record.of_sagemaker:
            kind = "smp_step" if record.script == "smp_step" else "smp_fsdp"
        planned = plan is not None and plan.library == library
        return cls(
            library=library, kind=kind, plan=plan if plan is not None and planned else record.plan(), planned=planned
        )


def sentence(key: str, **fields: object) -> str:
    """The sentence of a key in ``data/sentences.toml``."""
    sentences: dict[str, str] = table("smp_advisor.scripts.adapt", "data/sentences.toml")
    return sentences[key].format(nearest=sentences["nearest"], **fields)


class Draft:
    """State passed from step to step. Each step reads `survey`, collects edits, and applies them."""

    def __init__(self, module: cst.Module, target: Target, file: Path | None = None) -> None:
        self.module = module
        self.target = target
        self.file = file
        """The script; None if it was passed as text."""
        self.todo: list[str] = []
        self.abandoned = False
        """Whether the script cannot be adapted at all."""
        self.importable: dict[str, str] = dict(table("smp_advisor.scripts.adapt", "data/names.toml")["imports"])
        """Module, or module and name, of each name that the steps write."""
        self._survey: Survey | None = None

    @property
    def survey(self) -> Survey:
        """Index of the current source."""
        if self._survey is None:
            self._survey = Survey(self.module)
        return self._survey

    def apply(self, edits: Edits) -> None:
        """Make the edits, and import what they need; nodes read before are no longer part of the script."""
        if not edits:
            return
        before = set(names_in(self.module))
        self.replace(edits.apply(self.module))
        lines = dict[str, list[str]]()
        for local in sorted(set(names_in(self.module)) - before - self.survey.imported.keys()):
            module, _, name = self.importable.get(local, "").partition(":")
            if name:
                lines.setdefault(f"from {module} import ", []).append(name if name == local else f"{name} as {local}")
            elif module:
                lines.setdefault(f"import {module}" + ("" if module == local else f" as {local}"), [])
        body, top = self.module.body, 0
        for line in body:
            kind = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
            is_text = top == 0 and self.module.get_docstring() is not None
            if not is_text and not isinstance(kind, cst.Import | cst.ImportFrom):
                break
            top += 1
        if lines:
            new = statements("\n".join(start + ", ".join(names) for start, names in lines.items()))
            self.replace(self.module.with_changes(body=[*body[:top], *new, *body[top:]]))

    def replace(self, module: cst.Module) -> None:
        """Go on with a new tree."""
        self.module, self._survey = module, None

    def add_todo(self, key: str, node: cst.CSTNode | None = None, **fields: object) -> None:
        """Add the sentence of this key, in which `{code}` quotes the statement around `node`."""
        code = {"code": self.excerpt(node)} if node is not None else {}
        self.add_sentence(sentence(key, **code, **fields))

    def add_sentence(self, text: str) -> None:
        """Add a sentence to the to-do list, unless it is there already."""
        if text not in self.todo:
            self.todo.append(text)

    def abandon(self, key: str, node: cst.CSTNode | None = None, **fields: object) -> None:
        """Leave the script unchanged, for the reason in the sentence of this key."""
        self.todo = []
        self.add_todo(key, node, **fields)
        self.abandoned = True

    def excerpt(self, node: cst.CSTNode) -> str:
        """First line of the statement around a node, at most 80 characters, to quote in a to-do."""
        statement = self.survey.statement(node) or node
        lines = (line.strip() for line in cst.Module(body=[]).code_for_node(statement).splitlines())
        line = next((line for line in lines if line and not line.startswith("#")), "")
        return line if len(line) <= 80 else line[:77] + "..."


Step = Callable[[Draft], None]
