"""Turn a plain PyTorch training script into one for the library, step by documented step."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.reading.source import read
from smp_advisor.scripts.adapt import steps
from smp_advisor.scripts.adapt.adaptation import Adaptation, AdaptError, Hunk
from smp_advisor.scripts.adapt.draft import Draft, unified_diff
from smp_advisor.scripts.adapt.roles import backward_calls, optimizers
from smp_advisor.scripts.adapt.target import Target

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.library.plan import Plan
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["adapt_script"]

_LIBRARIES = ("smdistributed.modelparallel", "torch.sagemaker")


def adapt_script(path_or_source: str | Path, plan: Plan | None = None, *, library: str | None = None) -> Adaptation:
    """Adapt a plain PyTorch training loop to SMP v1 or SMP v2, as the documentation says.

    Nothing is run and no file is changed. What cannot be placed without a guess is a sentence in `Adaptation.todo`.

    Parameters
    ----------
    path_or_source
        A ``.py`` file, or its text.
    plan
        Decides the library, the precision, the contexts the model is created in, rank and drop rules of the data.
        None: pipeline parallelism with the library's defaults.
    library
        ``smp-v1`` or ``smp-v2``, where it is not the plan's.

    Raises
    ------
    AdaptError
        Where the text is not Python 3, or the file cannot be read.

    Examples
    --------
    >>> adapted = adapt_script("train.py", plan)  # doctest: +SKIP
    >>> print(adapted.diff)  # doctest: +SKIP
    """
    given = read(path_or_source)
    path, source = given.path, given.text
    if given.cells:
        raise AdaptError(
            f"{path} is a notebook: only a script can be adapted, so write the training loop to a .py file."
        )
    target = Target.from_plan(plan, library)
    try:
        module = cst.parse_module(source)
        compile(source, path, "exec", dont_inherit=True)
    except (cst.ParserSyntaxError, SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "raw_line", None) or getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise AdaptError(f"{path} is not Python 3 source{where}: only a script that compiles can be adapted.") from None
    draft = Draft(module, target)
    unsuited = _unsuited(draft.survey)
    if unsuited:
        return Adaptation(path=path, source=source, diff="", hunks=(), todo=(unsuited,))
    hunks = []
    for name, step in steps.steps_for(target):
        before = draft.module.code
        step(draft)
        if draft.given_up:
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
    _say_what_the_checker_finds(draft, plan, target)
    return Adaptation(
        path=path,
        source=adapted,
        diff=unified_diff(source, adapted, path),
        hunks=tuple(hunks),
        todo=tuple(draft.todo),
    )


_TURNED_WRONG = {"SMP308"}
"""Warnings about what was right before: accumulating under no_sync() is for replicas, not for FSDP."""


def _say_what_the_checker_finds(draft: Draft, plan: Plan | None, target: Target) -> None:
    """Errors that are left belong to the to-do: nobody should find them on the cluster."""
    from smp_advisor.scripts.check import check_script

    suits = plan is not None and getattr(plan, "library", target.library) == target.library
    for finding in check_script(draft.module.code + "\n", plan if suits else None, library=target.library).findings:
        if finding.severity == "error" or finding.id in _TURNED_WRONG:
            draft.leave_to_do(f"Line {finding.line} of the adapted script: {finding.message} {finding.remedy}")


def _unsuited(survey: Survey) -> str:
    """Why the steps do not apply, in a sentence; empty where they do."""
    for library in _LIBRARIES:
        if any(origin.startswith(library) for origin in survey.imported.values()):
            return f"The script uses {library} already: it is left as it is, and check_script says what is missing."
    if not optimizers(survey) or not backward_calls(survey):
        return (
            "No PyTorch training loop was found, with an optimizer built from a model's parameters and a backward pass"
            " in this file: adapt the file that holds it."
        )
    return ""


@cache
def _texts() -> dict[str, dict[str, Any]]:
    """Title, explanation and page of every step, by ``v1.step`` and ``v2.step``."""
    read = tomllib.loads((files("smp_advisor.scripts.adapt") / "data" / "steps.toml").read_text(encoding="utf-8"))
    return {
        f"{version}.{name}": {**text, "url": read["base"] + text["page"]}
        for version in ("v1", "v2")
        for name, text in read[version].items()
    }
