"""The target of an adaptation and its result: the new source, its changes, and the to-dos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import require_types
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
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
        """Read the settings of a `smp_advisor.Plan`; None stands for the defaults of the library.

        Raises
        ------
        AdaptError
            The library has no documented steps.
        """
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
