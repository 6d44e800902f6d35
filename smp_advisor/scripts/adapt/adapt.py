"""Adapt a plain PyTorch training script to the library, one documented step at a time."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.files import table
from smp_advisor.findings.catalog import catalog
from smp_advisor.libraries.library import DEFAULT_LIBRARY
from smp_advisor.reading.module import compared
from smp_advisor.reading.source import read
from smp_advisor.scripts.adapt import loader, model, plan_settings, saving, start
from smp_advisor.scripts.adapt.adaptation import Adaptation, AdaptError, Draft, Hunk, Proposal, Target
from smp_advisor.scripts.adapt.driver import obstacles_to_adapting
from smp_advisor.scripts.adapt.steps import move_evaluation_steps, move_training_steps
from smp_advisor.scripts.fixes import fixed_states
from smp_advisor.scripts.settings import missing_batch, missing_checkpointing, missing_precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.scripts.adapt.adaptation import Step


def adapt_script(
    path_or_source: str | Path,
    plan: Plan | None = None,
    *,
    library: str | None = None,
    prove: bool = True,
    root: str | Path | None = None,
    arguments: Sequence[str] = (),
) -> Adaptation:
    """Adapt a plain PyTorch training script to SMP v1, SMP v2, FSDP or DDP, and prove the result.

    The script and its adaptation run for a few updates in child processes, as in `smp_advisor.prove`. The changed
    script is returned only if nothing differs. Otherwise the script is unchanged, and `Adaptation.proposals` lists the
    same changes for a person, with the reason of each. No file is changed.

    Parameters
    ----------
    path_or_source
        A ``.py`` file, or its content.
    plan
        Determines the library, the batch, the accumulation, the precision and the checkpointing. None stands for the
        defaults of the library, and leaves these settings as they are.
    library
        ``smp-v1``, ``smp-v2``, ``ddp`` or ``fsdp``; overrides the library of the plan. FSDP is ``fully_shard``.
    prove
        False runs no code: all changes are proposals.
    root
        Folder that the proof copies, instead of the folder of the script.
    arguments
        Command line of the script for the proof.

    Raises
    ------
    AdaptError
        The source is not valid Python 3, the file cannot be read, or the library has no documented steps.
    ProfileError
        The child processes of the proof cannot be started.

    Examples
    --------
    >>> adapted = adapt_script("train.py", plan)  # doctest: +SKIP
    >>> print(adapted.diff or adapted)  # doctest: +SKIP
    """
    script = read(path_or_source)
    drafted = propose(path_or_source, plan, library=library)
    if not drafted.diff:
        return drafted
    proof = None
    if prove:
        from smp_advisor import proving

        target = library or (plan.library if plan is not None else DEFAULT_LIBRARY)
        proof = proving.prove(path_or_source, drafted.source, plan, library=target, root=root, arguments=arguments)
        if proof.proven:
            return replace(drafted, proof=proof)
    proposals = tuple(_proposals(script.text, drafted))
    return replace(drafted, source=script.text, diff="", hunks=(), proposals=proposals, proof=proof)


def _proposals(source: str, drafted: Adaptation) -> Iterator[Proposal]:
    """The changes as a list in the order of the lines, each with the explanation of the step that makes it."""
    before, after = source.splitlines(), drafted.source.splitlines()
    written = [
        (hunk, {line[1:].strip() for line in hunk.diff.splitlines()[2:] if line[:1] in "+-"}) for hunk in drafted.hunks
    ]
    for kind, begin, end, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        lines = {line.strip() for line in (*before[begin:end], *after[first:last]) if line.strip()}
        if lines:
            hunk = max(written, key=lambda pair: len(pair[1] & lines))[0]
            yield Proposal(
                path=drafted.path, line=begin + 1, old="\n".join(before[begin:end]), code="\n".join(after[first:last]),
                reason=hunk.explanation, url=hunk.url,
            )  # fmt: skip


_MOST_LINES = 20_000
"""Lines of a script: its tree takes 9 kB for each."""


def propose(  # noqa: C901 - the steps in their order
    path_or_source: str | Path, plan: Plan | None = None, *, library: str | None = None
) -> Adaptation:
    """The adaptation by the documented steps, which nothing has proven, in the form of a proven one."""
    script = read(path_or_source)
    path, source = script.path, script.text
    target = Target.from_plan(plan, library)
    if source.count("\n") > _MOST_LINES:
        raise AdaptError(f"{path} has more than {_MOST_LINES:,} lines: move the training loop to a file of its own.")
    try:
        compile(source, path, "exec", dont_inherit=True)
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "raw_line", None) or getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise AdaptError(f"{path} is not Python 3 source{where}: fix the syntax error first.") from None
    draft = Draft(module, target, script.file)
    obstacles, configuration = obstacles_to_adapting(draft)
    if obstacles:
        return Adaptation(path=path, source=source, diff="", todo=tuple(obstacles), configuration=configuration)
    hunks = []
    for name, step in _STEPS[target.kind].items():
        before = draft.module.code
        step(draft)
        if draft.abandoned:
            return Adaptation(path=path, source=source, diff="", todo=tuple(draft.todo))
        after = draft.module.code
        if after != before:
            text = _texts()[name]
            texts = {name: text[name] for name in ("title", "explanation", "url")}
            hunks.append(Hunk(**texts, diff=compared(path, before, after)))
    checked_plan = plan if plan is None or plan.library == target.library else None
    if target.kind in ("smp_step", "smp_fsdp"):
        before = draft.module.code
        for identifier, after in fixed_states(before, _FIXED, plan=checked_plan, library=target.library):
            check = catalog()[identifier]
            why, diff = f"{check.consequence} The fix {check.fix}.", compared(path, before, after)
            hunks.append(Hunk(title=check.title, explanation=why, url=check.source[1], diff=diff))
            before = after
        draft.replace(cst.parse_module(before))
    adapted = draft.module.code
    if checked_plan is not None:  # SMP v1 splits the batch itself, and FSDP's steps add checkpointing
        batch = missing_batch(adapted, checked_plan) if target.kind != "smp_step" else ()
        sentences = (f(adapted, checked_plan, target.kind) for f in (missing_precision, missing_checkpointing))
        for text in (*batch, *chain.from_iterable(sentences)):
            draft.add_sentence(text)
    _report_remaining_errors(draft, checked_plan, target)
    return Adaptation(
        path=path, source=adapted, diff=compared(path, source, adapted), hunks=tuple(hunks), todo=tuple(draft.todo)
    )


_FIXED = frozenset({"SMP111", "SMP112", "SMP115", "SMP119", "SMP124", "SMP129", "SMP132", "SMP133"})
"""Checks whose fixes finish an adaptation: ranks and seeds, what the library replaces, and its options."""


_STARTED: dict[str, Step] = {
    "torchrun.launch": start.start_processes, "torchrun.download": start.download_once,
    "torchrun.loader": loader.shard_loaders, "torchrun.batch": plan_settings.set_batch,
}  # fmt: skip
_CHECKPOINTING: dict[str, Step] = {"torchrun.activation_checkpointing": plan_settings.checkpoint_layers}
_ACCUMULATION: dict[str, Step] = {"torchrun.accumulation": plan_settings.accumulate}
_STEPS: dict[str, dict[str, Step]] = {
    "smp_step": {
        "v1.launch": start.start_processes, "v1.download": start.download_once, "v1.loader": loader.shard_loaders,
        "v1.batch": plan_settings.set_batch, "v1.model": model.wrap_model,
        "v1.activation_checkpointing": plan_settings.checkpoint_activations, "v1.optimizer": model.wrap_optimizer,
        "v1.training_step": move_training_steps, "v1.evaluation_step": move_evaluation_steps,
        "v1.saving": saving.save_by_library,
    },
    "smp_fsdp": {
        "v2.launch": start.start_processes, "v2.loader": loader.shard_loaders, "v2.model": model.shard_models,
        "v2.activation_checkpointing": plan_settings.checkpoint_layers, "v2.clipping": plan_settings.clip_over_shards,
        "v2.saving": saving.save_full_state, "v2.batch": plan_settings.set_batch,
        "v2.accumulation": plan_settings.accumulate,
    },
    "ddp": {
        **_STARTED, **_CHECKPOINTING, "ddp.model": model.replicate_models, "ddp.saving": saving.save_on_first_rank,
        "torchrun.precision": plan_settings.compute_in_half, **_ACCUMULATION,
    },
    "fsdp2": {
        **_STARTED, "fsdp2.seed": start.seed_models, **_CHECKPOINTING, "fsdp2.model": model.shard_models_by_tensor,
        "fsdp2.saving": saving.save_full_state, **_ACCUMULATION,
    },
}  # fmt: skip
"""Steps in order, each with its key in ``steps.toml``; each step reads the result of the previous one."""


_TODO_WARNINGS = {"SMP308"}
"""Warnings about code that was correct before the adaptation: no_sync() is for replicas, not for FSDP."""


def _report_remaining_errors(draft: Draft, plan: Plan | None, target: Target) -> None:
    """Add the errors that `check_script` finds in the adapted script to the to-do list."""
    from smp_advisor.scripts.check import check_script
    from smp_advisor.scripts.settings import checked_libraries

    if target.library not in checked_libraries():
        return
    for finding in check_script(draft.module.code + "\n", plan, library=target.library).findings:
        if finding.severity == "error" or finding.id in _TODO_WARNINGS:
            draft.add_sentence(f"Line {finding.line} of the adapted script: {finding.message} {finding.remedy}")


@cache
def _texts() -> dict[str, dict[str, Any]]:
    """Title, explanation and URL of every step, keyed by ``<target>.<step>``."""
    read = table("smp_advisor.scripts.adapt", "data/steps.toml")
    bases: dict[str, str] = read["base"]
    return {
        f"{version}.{name}": {**text, "url": bases[version] + text["page"]}
        for version in bases
        for name, text in read[version].items()
    }
