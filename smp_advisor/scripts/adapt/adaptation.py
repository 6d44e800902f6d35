"""An adaptation: its target, the script while its steps change it, and the result with its changes and to-dos."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import libcst as cst

from smp_advisor.arguments import require_types
from smp_advisor.errors import AdvisorError
from smp_advisor.files import table
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.plan import Plan
from smp_advisor.scripts.adapt.code import LINE_LENGTH, Edits, dotted, statements, text_of
from smp_advisor.scripts.adapt.survey import Statement, Survey

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
            lines += ["", "To do by hand:", *(f"- {sentence}" for sentence in self.todo)]
        if self.proof is not None:
            lines += ["", "Proof:", str(self.proof)]
        return "\n".join(lines)


Kind = Literal["smp_step", "smp_fsdp", "ddp", "fsdp", "fsdp2"]
"""How the script trains: ``smp.step`` functions, FSDP of SMP v2, or PyTorch alone with replicas or shards."""

_KINDS: dict[str, Kind] = {"smp-v1": "smp_step", "smp-v2": "smp_fsdp", "ddp": "ddp", "fsdp": "fsdp", "fsdp2": "fsdp2"}
_DTYPES = {"bf16": "torch.bfloat16"}
_RECORDS = {"fsdp2": "fsdp"}
"""Library with the settings of plans, for targets that are not a library of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The library to which a script is adapted, and the settings of the plan that affect the script."""

    library: str = DEFAULT_LIBRARY
    kind: Kind = "smp_step"
    tensor_parallel: bool = False
    context_parallel: bool = False
    expert_parallel: bool = False
    pipeline_parallel: bool = False
    sharded_data_parallel: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False
    microbatches: int = 1
    dtype: str = "torch.float32"
    """Expression of the data type in the script."""
    activation_checkpointing: str = ""
    """Strategy of activation checkpointing; empty if it is off."""
    offload_activations: bool = False
    sharding_strategy: str = ""
    """FSDP's strategy; empty for the default."""
    batch_size: int = 0
    """Samples per GPU of a plan; 0 without one."""
    accumulation: int = 0
    """Backward passes of an update of a plan; 0 without one."""
    planned_dtype: str = ""
    """Type in which a plan without SMP computes; empty for that of the script."""

    @property
    def checked_as(self) -> str:
        """Library whose rules apply to the adapted script."""
        return _RECORDS.get(self.library, self.library)

    @property
    def fp16(self) -> bool:
        """Whether the model computes in fp16, which requires loss scaling."""
        return self.dtype == "torch.float16"

    @property
    def half(self) -> bool:
        """Whether the model computes in fp16 or bf16."""
        return self.dtype != "torch.float32"

    @property
    def data_rank(self) -> str:
        """Expression of the rank that selects the data shard: a tensor-parallel group shares a prescaled batch."""
        return "smp.rdp_rank()" if self.prescaled_batch else "smp.dp_rank()"

    @property
    def data_size(self) -> str:
        """Expression of the number of data shards."""
        return "smp.rdp_size()" if self.prescaled_batch else "smp.dp_size()"

    @classmethod
    def from_plan(cls, plan: Plan | None, library: str | None = None) -> Target:
        """Read the settings of a `smp_advisor.Plan`; None stands for the defaults of the library."""
        require_types({"plan": (plan, (Plan, type(None))), "library": (library, (str, type(None)))}, "adapt_script")
        library = library or (plan.library if plan is not None else DEFAULT_LIBRARY)
        if library not in _KINDS:
            raise AdaptError(
                f"A script can be adapted to {', '.join(_KINDS)}, not to {library!r}: pass library= one of these."
            )
        record = get_library(_RECORDS.get(library, library))
        if plan is not None and plan.library != record.name:
            plan = None
        planned = plan
        plan = plan or record.plan()
        kind = _KINDS[library]
        # Scripts for SMP v2 are adapted to bfloat16, which needs no loss scaling, unless the plan has the flag `fp16`.
        fp16 = bool(getattr(plan, "fp16", False))
        bf16 = bool(getattr(plan, "bf16", False)) or (kind == "smp_fsdp" and not fp16)
        return cls(
            library=library,
            kind=kind,
            tensor_parallel=plan.tensor_parallel_degree > 1,
            context_parallel=plan.context_parallel_degree > 1,
            expert_parallel=plan.expert_parallel_degree > 1,
            pipeline_parallel=plan.pipeline_parallel_degree > 1,
            sharded_data_parallel=plan.sharded_data_parallel_degree > 1,
            shard_optimizer_state=plan.shard_optimizer_state,
            prescaled_batch=plan.prescaled_batch,
            microbatches=plan.microbatches,
            dtype="torch.float16" if fp16 else "torch.bfloat16" if bf16 else "torch.float32",
            activation_checkpointing=plan.activation_checkpointing or "",
            offload_activations=plan.offload_activations,
            sharding_strategy=str(getattr(plan, "sharding_strategy", "")),
            batch_size=planned.batch_size if planned is not None else 0,
            accumulation=planned.gradient_accumulation_steps if planned is not None and kind != "smp_step" else 0,
            planned_dtype=_DTYPES.get(str(getattr(planned, "precision", "")), "") if kind != "smp_fsdp" else "",
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
        self._survey: Survey | None = None

    @property
    def survey(self) -> Survey:
        """Index of the current source."""
        if self._survey is None:
            self._survey = Survey(self.module)
        return self._survey

    def apply(self, edits: Edits) -> None:
        """Make the edits; nodes read before are no longer part of the script if there is one."""
        if edits:
            self.module = edits.apply(self.module)
            self._survey = None

    def add_todo(self, key: str, node: cst.CSTNode | None = None, **fields: object) -> None:
        """Add the sentence of this key, in which `{code}` quotes the statement around `node`."""
        self.add_sentence(sentence(key, code=self.excerpt(node) if node is not None else "", **fields))

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
        text = cst.Module(body=[]).code_for_node(statement)
        line = next(
            (line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), ""
        )
        return line if len(line) <= 80 else line[:77] + "..."


Step = Callable[[Draft], None]


def unified_diff(before: str, after: str, path: str) -> str:
    """Diff for ``patch -p1``; empty if the texts are equal."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether a statement is only a string."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _last_import(survey: Survey) -> Statement | None:
    """Last import statement of the module before its first function or class."""
    last = None
    for statement in survey.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
        if _is_import(statement):
            last = statement
    return last


def _first_statement(survey: Survey) -> Statement | None:
    """First statement that is neither the docstring nor ``from __future__ import``."""
    for statement in survey.module.body:
        if is_docstring(statement):
            continue
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.ImportFrom):
            module = statement.body[0].module
            if module is not None and dotted(module) == "__future__":
                continue
        return statement
    return None


def add_import(draft: Draft, text: str, *, local: str) -> None:
    """Add an import statement, unless the name `local` is already imported from the same place."""
    survey = draft.survey
    new = statements(text)
    origins = Survey(cst.Module(body=new)).imported
    if survey.imported.get(local) == origins[local]:
        return
    edits = Edits()
    last = _last_import(survey)
    first = _first_statement(survey)
    if last is not None:
        edits.insert_after(last, new)
    elif first is not None:
        edits.insert_before(first, new)
    draft.apply(edits)


def add_names(draft: Draft, module: str, names: list[str]) -> None:
    """Add ``from module import names``, to an existing import statement of that module if there is one."""
    survey = draft.survey
    missing = [name for name in names if survey.imported.get(name) != f"{module}.{name}"]
    if not missing:
        return
    for node in survey.nodes:
        if (
            isinstance(node, cst.ImportFrom)
            and node.module is not None
            and dotted(node.module) == module
            and not isinstance(node.names, cst.ImportStar)
            and node.lpar is None
        ):
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            present = [alias.with_changes(comma=comma) for alias in node.names]
            new = [cst.ImportAlias(name=cst.Name(name), comma=comma) for name in missing]
            new[-1] = new[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            longer = node.with_changes(names=[*present, *new])
            if len(text_of(longer)) > LINE_LENGTH:
                break
            edits = Edits()
            edits.replace(node, longer)
            draft.apply(edits)
            return
    add_import(draft, f"from {module} import {', '.join(missing)}", local=missing[0])


def drop_unused_imports(draft: Draft, names: set[str]) -> None:
    """Remove imports of these qualified names that the script no longer uses."""
    survey, edits = draft.survey, Edits()
    used = {
        node.value
        for node in survey.nodes
        if isinstance(node, cst.Name)
        and not any(isinstance(above, cst.Import | cst.ImportFrom) for above in survey.ancestors(node))
    }
    for node in survey.nodes:
        if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
            continue
        aliases = []
        for alias in node.names:
            origins = Survey(
                cst.Module(body=[cst.SimpleStatementLine(body=[node.with_changes(names=[_bare(alias)])])])
            ).imported
            local, origin = next(iter(origins.items()))
            full = dotted(alias.name) if isinstance(node, cst.Import) else origin
            if (full in names or origin in names) and local not in used:
                continue
            aliases.append(alias)
        if len(aliases) == len(node.names):
            continue
        if aliases:
            aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(node, node.with_changes(names=aliases))
        else:
            statement = survey.statement(node)
            if statement is not None and isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                edits.remove(statement)
    draft.apply(edits)


def _bare(alias: cst.ImportAlias) -> cst.ImportAlias:
    return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
