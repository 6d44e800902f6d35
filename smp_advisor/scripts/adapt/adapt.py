"""Adapt a plain PyTorch training script to the library, one documented step at a time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.files import table
from smp_advisor.reading.source import read
from smp_advisor.scripts.adapt import activation_checkpointing, full_state, launch, loader, precision, torch_model
from smp_advisor.scripts.adapt.adaptation import Adaptation, AdaptError, Hunk, Target
from smp_advisor.scripts.adapt.draft import Draft, unified_diff
from smp_advisor.scripts.adapt.driver import driver_of
from smp_advisor.scripts.adapt.driver_arguments import set_arguments
from smp_advisor.scripts.adapt.entry import download_once, seed_by_rank, seed_models
from smp_advisor.scripts.adapt.evaluation_step import move_evaluation_steps
from smp_advisor.scripts.adapt.obstacles import obstacle_to_adapting
from smp_advisor.scripts.adapt.saving import save_by_library
from smp_advisor.scripts.adapt.smp_model import shard_model, wrap_model, wrap_optimizer
from smp_advisor.scripts.adapt.training_step import move_training_steps
from smp_advisor.scripts.adapt.unsupported import accept_unknown_options, replace_unsupported
from smp_advisor.scripts.settings import missing_batch, missing_checkpointing, missing_precision

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.scripts.adapt.draft import Step
    from smp_advisor.scripts.adapt.survey import Survey


def adapt_script(
    path_or_source: str | Path,
    plan: Plan | None = None,
    *,
    library: str | None = None,
    prove: bool = False,
    arguments: Sequence[str] = (),
) -> Adaptation:
    """Adapt a plain PyTorch training loop to SMP v1, SMP v2, FSDP or DDP, following their documentation.

    No file is changed, and no code is run unless `prove` is True. Each change that would require a guess is listed in
    `Adaptation.todo`.

    Parameters
    ----------
    path_or_source
        A ``.py`` file, or its content.
    plan
        Determines the library, the precision, how the model is created, and how the data is sharded.
        None stands for the defaults of the library.
    library
        ``smp-v1``, ``smp-v2``, ``ddp``, ``fsdp`` or ``fsdp2``; overrides the library of the plan.
    prove
        Run the script before and after in child processes, for a few steps on small data, and list what differs.
        See `smp_advisor.proving.prove`.
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
    >>> print(adapted.diff)  # doctest: +SKIP
    """
    script = read(path_or_source)
    path, source = script.path, script.text
    target = Target.from_plan(plan, library)
    try:
        module = cst.parse_module(source)
        compile(source, path, "exec", dont_inherit=True)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "raw_line", None) or getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise AdaptError(f"{path} is not Python 3 source{where}: fix the syntax error first.") from None
    draft = Draft(module, target, script.file)
    obstacle = obstacle_to_adapting(draft.survey, target)
    if obstacle:
        return Adaptation(path=path, source=source, diff="", hunks=(), todo=(obstacle,))
    hunks = []
    for name, step in _steps(draft.survey, target):
        before = draft.module.code
        step(draft)
        if draft.abandoned:
            return Adaptation(path=path, source=source, diff="", hunks=(), todo=tuple(draft.todo))
        after = draft.module.code
        if after != before:
            text = _texts()[name]
            hunks.append(
                Hunk(
                    title=text["title"],
                    explanation=text["explanation"],
                    url=text["url"],
                    diff=unified_diff(before, after, path),
                )
            )
    adapted = draft.module.code
    if plan is not None and plan.library == target.checked_as:
        _report_plan_settings(draft, plan, target)
    _report_remaining_errors(draft, plan, target)
    proof = None
    if prove and adapted != source:
        from smp_advisor.proving import prove as run_both

        proof = run_both(source, adapted, library=target.library, script=script.file, arguments=arguments)
        for difference in proof.differences:
            draft.add_sentence(str(difference))
        if proof.failure:
            draft.add_sentence(f"The result is not proven. {proof.failure}")
    return Adaptation(
        path=path,
        source=adapted,
        diff=unified_diff(source, adapted, path),
        hunks=tuple(hunks),
        todo=tuple(draft.todo),
        proof=proof,
    )


def _steps(survey: Survey, target: Target) -> list[tuple[str, Step]]:
    """Steps in order, each with its key in ``steps.toml``; each step reads the result of the previous one."""
    driver = driver_of(survey)
    if driver is not None:
        return [(f"{driver.runner}.arguments", set_arguments)]
    if target.kind == "smp_step":
        return [
            ("v1.options", accept_unknown_options),
            ("v1.process_group", launch.remove_process_group),
            ("v1.launch", launch.start_library),
            ("v1.download", download_once),
            ("v1.seed", seed_by_rank),
            ("v1.loader", loader.shard_data),
            ("v1.precision", precision.remove_mixed_precision)
            if target.half
            else ("v1.grad_scaler", precision.use_library_scaler),
            ("v1.unsupported", replace_unsupported),
            ("v1.model", wrap_model),
            ("v1.activation_checkpointing", activation_checkpointing.checkpoint_activations),
            ("v1.optimizer", wrap_optimizer),
            ("v1.training_step", move_training_steps),
            ("v1.evaluation_step", move_evaluation_steps),
            ("v1.clipping", precision.clip_by_library),
            ("v1.saving", save_by_library),
        ]
    if target.kind == "smp_fsdp":
        return [
            ("v2.options", accept_unknown_options),
            ("v2.launch", launch.start_library_with_torchrun),
            ("v2.loader", loader.shard_data_by_group),
            ("v2.precision", precision.remove_mixed_precision),
            ("v2.model", shard_model),
            ("v2.activation_checkpointing", activation_checkpointing.checkpoint_sharded_activations),
            ("v2.clipping", precision.clip_over_shards),
            ("v2.saving", full_state.save_full_state),
        ]
    started: list[tuple[str, Step]] = [
        ("torchrun.launch", launch.start_processes),
        ("torchrun.download", launch.download_once_with_torchrun),
        ("torchrun.loader", loader.shard_data_by_process),
    ]
    if target.kind == "ddp":
        return [
            *started,
            ("ddp.model", torch_model.replicate_models),
            ("ddp.saving", full_state.save_on_first_rank),
        ]
    if target.kind == "fsdp":
        return [
            *started,
            ("fsdp.seed", seed_models),
            ("fsdp.scaler", precision.use_sharded_scaler),
            ("fsdp.model", torch_model.shard_models),
            ("fsdp.activation_checkpointing", activation_checkpointing.checkpoint_sharded_activations),
            ("fsdp.clipping", precision.clip_by_model),
            ("fsdp.saving", full_state.save_full_state_by_checkpoint),
        ]
    return [
        *started,
        ("fsdp2.seed", seed_models),
        ("fsdp2.model", torch_model.shard_models_by_tensor),
        ("fsdp2.saving", full_state.save_full_state_by_checkpoint),
    ]


def _report_plan_settings(draft: Draft, plan: Plan, target: Target) -> None:
    """Add settings of the plan that no step adds. SMP v1 splits the batch itself; FSDP's steps add checkpointing."""
    code = draft.module.code
    batch = missing_batch(code, plan) if target.kind != "smp_step" else ()
    wrapped = missing_checkpointing(code, plan, target.kind) if target.kind != "fsdp" else ()
    for sentence in (*batch, *missing_precision(code, plan, target.kind), *wrapped):
        draft.add_sentence(sentence)


_TODO_WARNINGS = {"SMP308"}
"""Warnings about code that was correct before the adaptation: no_sync() is for replicas, not for FSDP."""


def _report_remaining_errors(draft: Draft, plan: Plan | None, target: Target) -> None:
    """Add the errors that `check_script` finds in the adapted script to the to-do list."""
    from smp_advisor.scripts.check import check_script
    from smp_advisor.scripts.settings import checked_libraries

    if target.checked_as not in checked_libraries():
        return
    if plan is not None and plan.library != target.checked_as:
        plan = None
    for finding in check_script(draft.module.code + "\n", plan, library=target.checked_as).findings:
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
