"""Read what configures a training job, say what will go wrong with it, and put it right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cells import follow
from smp_advisor.estimators.checks import CHECKS, Case
from smp_advisor.estimators.corrections import corrected_text
from smp_advisor.estimators.documents import Document, open_document, with_text
from smp_advisor.estimators.readback import read_back
from smp_advisor.estimators.report import EstimatorReport, Reading
from smp_advisor.estimators.sources import configuration_of_recipe, configurations_of_cell
from smp_advisor.estimators.sources.recipe import yaml_table
from smp_advisor.findings.catalog import catalog
from smp_advisor.findings.finding import Finding, Fix, Unresolved
from smp_advisor.libraries.registry import require_library
from smp_advisor.reading.edits import parses
from smp_advisor.scripts.check import check_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.estimators.checks import Hit
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.reading.source import Source
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["check_estimator", "looks_like_estimator"]

_ROUNDS = 40
_COMPILER = ("STC407", "STC408", "STC412", "STC414")


def check_estimator(
    source: str | Path | Mapping[str, Any],
    *,
    model: Model | None = None,
    job: Job | None = None,
    library: str | None = None,
    variables: Mapping[str, Any] | None = None,
    min_fit_probability: float = 0.95,
) -> EstimatorReport:
    r"""Find what is wrong with a training job's configuration before the cluster is paid for.

    Nothing of it is run. What could not be read is listed, never guessed.

    Parameters
    ----------
    source
        The text of a cell with an estimator (SDK 2.x: ``PyTorch``, ``TensorFlow``, ``HuggingFace``) or a
        ``ModelTrainer`` (3.x), of the dictionary alone (``distribution``, ``smp_options``, ``mp_parameters``; Python
        or JSON), of a HyperPod recipe (YAML) or a CreateTrainingJob request; the path of a file with one of these; or
        the dictionary itself.
    model
        What is trained, for the checks of memory; else the shape that the hyperparameters give, where they do.
    job
        Sequence length and precision; else what the hyperparameters give.
    library
        Whose parameters a dictionary holds, where neither a launcher nor its keys tell.
    variables
        Plain data that names of the cell stand for where the cell does not assign them.
    min_fit_probability
        Changes are proposed that fit with at least this probability.

    Returns
    -------
    EstimatorReport
        The findings (a sequence of `Finding`), with `plan`, `cluster`, `corrected` and `diff`.

    Raises
    ------
    AdvisorError
        One sentence: there is nothing that configures a job.

    Examples
    --------
    >>> report = check_estimator({"partitions": 2, "microbatchs": 4, "ddp": True})
    >>> [finding.id for finding in report], report.plan
    (['EST501'], None)
    """
    if library is not None:
        require_library(library)
    document = open_document(source)
    given = {"model": model, "job": job, "library": library}
    cases = _cases(document, variables, given, min_fit_probability)
    found = [(case, hit) for case in cases for check in CHECKS for hit in check(case)]
    corrected = _corrected(document, variables, given, min_fit_probability)
    findings = _findings(document, found) + _of_the_compiler(document, cases)
    return EstimatorReport(
        findings,
        tuple(_unresolved(document, cases, findings)),
        document.source.path,
        tuple(_reading(document, case) for case in cases),
        document.pasted,
        corrected,
        _mended(document, corrected, variables, given, min_fit_probability),
    )


def looks_like_estimator(source: str) -> bool:
    """Whether a text configures a job: an estimator, a trainer, a request, a recipe or a dictionary of parameters."""
    try:
        return bool(_configurations(open_document(source), None))
    except AdvisorError:
        return False


def _configurations(document: Document, variables: Mapping[str, Any] | None) -> list[Configuration]:
    if document.dialect == "yaml":
        return [configuration_of_recipe(yaml_table(document.source.text))]
    followed = follow(document.source, variables, json=document.dialect == "json")
    found = configurations_of_cell(followed)
    if found:
        return found
    if any(one.name == "from_recipe" or "training_recipe" in one.keywords for one in followed.made):
        raise AdvisorError("The job takes its configuration from a recipe: paste the recipe's YAML itself.")
    if followed.stopped is not None:
        line, why = followed.stopped
        raise AdvisorError(
            f"Line {line} of {document.source.path} is the last that is read, {why}: no estimator is made."
        )
    raise AdvisorError(
        "Nothing in it configures a training job: paste the cell with the estimator or ModelTrainer, the distribution"
        " or smp_options dictionary, a HyperPod recipe or a CreateTrainingJob request."
    )


def _cases(
    document: Document, variables: Mapping[str, Any] | None, given: dict[str, Any], min_fit_probability: float
) -> list[Case]:
    found = _configurations(document, variables)
    settings = dict(given)
    asked = settings.pop("library")
    for one in found:
        if asked is not None and (one.library is None or (one.form == "parameters" and not one.settings)):
            one.library = asked
    # A notebook often trains a first time without the libraries: that job is no one's mistake.
    telling = [one for one in found if one.library not in (None, "ddp")] or found
    return [Case(one, read_back(one, **settings), min_fit_probability) for one in telling]


def _mended(
    document: Document,
    corrected: str,
    variables: Mapping[str, Any] | None,
    given: dict[str, Any],
    min_fit_probability: float,
) -> Reading | None:
    """What the corrected text says, where it is another."""
    if corrected == document.pasted:
        return None
    better = replace(open_document(corrected), dialect=document.dialect)
    readings = [_reading(better, case) for case in _cases(better, variables, given, min_fit_probability)]
    return next((one for one in readings if one.plan is not None), readings[0])


def _reading(document: Document, case: Case) -> Reading:
    back = case.back
    span = case.configuration.span
    line = 1 if span is None else _place(document.source, span.start)[0]
    return Reading(
        title=case.configuration.title,
        line=document.source.locate(line)[1],
        library=case.configuration.library,
        plan=back.plan,
        cluster=back.cluster,
        job=back.job,
        model=back.model,
        estimate=_estimate(case),
        inferred=back.inferred,
        open=back.open,
    )


def _estimate(case: Case) -> Estimate | None:
    from smp_advisor.estimators.checks.memory import estimate_of

    return estimate_of(case)


def _findings(document: Document, found: list[tuple[Case, Hit]]) -> tuple[Finding, ...]:
    made: dict[tuple[Any, ...], Finding] = {}
    for case, hit in found:
        start = hit.span.start if hit.span is not None else 0
        line, column = _place(document.source, start)
        path, located = document.source.locate(line)
        finding = catalog()[hit.id].finding(
            hit.values,
            variant=hit.variant,
            library=case.configuration.library,
            path=path,
            line=located,
            column=column,
            text=document.source.line(line),
        )
        finding = replace(finding, fix=_fix(document, case, hit))
        made.setdefault((finding.id, path, located, finding.message), finding)
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(made.values(), key=lambda one: (one.path, one.line, order[one.severity], one.id)))


def _of_the_compiler(document: Document, cases: list[Case]) -> tuple[Finding, ...]:
    """What the script checker says of estimators with Training Compiler: workers, learning rate, debugging."""
    if document.dialect != "python" or all(case.library != "training-compiler" for case in cases):
        return ()
    report = check_source(document.source, library="training-compiler")
    return tuple(finding for finding in report if finding.id in _COMPILER)


def _place(source: Source, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a character."""
    starts = source.starts()
    line = max(number for number, start in enumerate(starts, 1) if start <= max(0, offset))
    return line, offset - starts[line - 1] + 1


def _fix(document: Document, case: Case, hit: Hit) -> Fix | None:
    description = catalog()[hit.id].fix
    if not hit.changes or not description or not document.correctable:
        return None
    changed = corrected_text(document.source.text, document.dialect, case.configuration, hit.changes)
    if changed is None or changed == document.source.text or not _readable(document, changed):
        return None
    text = _as_pasted(document, changed)
    if text is None:
        return None
    report = EstimatorReport((), (), document.source.path, (), document.pasted, text)
    return Fix(description=description, diff=report.diff, source=text)


def _readable(document: Document, text: str) -> bool:
    if document.dialect == "python":
        return parses(text)
    try:
        if document.dialect == "json":
            json.loads(text)
        else:
            yaml_table(text)
    except (ValueError, RecursionError):
        return False
    return True


def _corrected(
    document: Document, variables: Mapping[str, Any] | None, given: dict[str, Any], min_fit_probability: float
) -> str:
    """The text with all safe changes made, round by round, since one change can show the next."""
    if not document.correctable:
        return document.pasted
    text = document.source.text
    for _ in range(_ROUNDS):
        better = _round(with_text(document, text), variables, given, min_fit_probability)
        if better is None:
            break
        text = better
    return _as_pasted(document, text) or document.pasted


def _round(
    document: Document, variables: Mapping[str, Any] | None, given: dict[str, Any], min_fit_probability: float
) -> str | None:
    """The text with the first change that leaves fewer errors and warnings."""
    try:
        before = _defects(_cases(document, variables, given, min_fit_probability))
    except AdvisorError:
        return None
    for case, hit in before:
        if not hit.changes:
            continue
        changed = corrected_text(document.source.text, document.dialect, case.configuration, hit.changes)
        if changed is None or changed == document.source.text or not _readable(document, changed):
            continue
        candidate = with_text(document, changed)
        try:
            after = _defects(_cases(candidate, variables, given, min_fit_probability))
        except AdvisorError:
            continue
        if _weight(after) < _weight(before):
            return changed
    return None


def _defects(cases: list[Case]) -> list[tuple[Case, Hit]]:
    """What a change can mend; memory is estimated once, for the report."""
    return [(case, hit) for case in cases for check in CHECKS[:6] for hit in check(case)]


def _weight(found: list[tuple[Case, Hit]]) -> tuple[int, ...]:
    """Names count before types and types before combinations: what they hide shows only once they are right."""
    errors = sum(catalog()[hit.id].wordings[hit.variant].severity == "error" for _, hit in found)
    names = sum(hit.rule in ("unknown", "version") for _, hit in found)
    return names, sum(hit.id == "EST501" for _, hit in found), errors, len(found)


def _as_pasted(document: Document, text: str) -> str | None:
    """The changed text with the magics that were blanked out for reading put back; None where it cannot be."""
    if document.source.text.rstrip("\n") == document.pasted.rstrip("\n"):
        ending = "\n" if document.pasted.endswith("\n") else ""
        return text.rstrip("\n") + ending
    # Only whole lines differ, those with magics and ellipses: they are found again by what stands for them.
    blanked, pasted = document.source.text.rstrip("\n").split("\n"), document.pasted.rstrip("\n").split("\n")
    dropped = max(0, len(blanked) - len(pasted))  # the magic that checks the cell
    original = {one: two for one, two in zip(blanked[dropped:], pasted, strict=False) if one != two}
    lines = text.rstrip("\n").split("\n")[dropped:]
    return "\n".join(original.get(line, line) for line in lines) + ("\n" if document.pasted.endswith("\n") else "")


def _unresolved(document: Document, cases: list[Case], findings: tuple[Finding, ...]) -> list[Unresolved]:
    """What could not be read, in the order of the text."""
    notes: dict[tuple[int, str], Unresolved] = {}
    messages = [finding.message.rstrip(".") for finding in findings]
    reported = [text for message in messages for text in (message, message.partition(": ")[2]) if text]

    def note(start: int, what: str) -> None:
        path, line = document.source.locate(_place(document.source, start)[0])
        notes.setdefault((line, what), Unresolved(path=path, line=line, what=what))

    for case in cases:
        configuration = case.configuration
        home = configuration.span.start if configuration.span is not None else 0
        for gap in configuration.gaps:
            if not gap.name.startswith("sagemaker_"):
                start = gap.span.start if gap.span is not None else home
                note(start, f"{gap.name} is not known: {gap.why}. Checks that need it say nothing.")
        for sentence in case.back.open:
            if not any(text in sentence for text in reported):  # a finding reports it
                note(home, sentence)
        if not configuration.sure:
            note(home, f"{configuration.title} is made only under a condition that reading cannot decide.")
    return list(notes.values())
