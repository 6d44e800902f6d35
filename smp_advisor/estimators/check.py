"""Check and correct the configuration of a training job."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked
from smp_advisor.cluster.table import Instance, completed_instance
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cases import Terms, read_configurations
from smp_advisor.estimators.checks import CHECKS, Case
from smp_advisor.estimators.checks.memory import checkpointed_estimate, estimate_of
from smp_advisor.estimators.corrections import as_pasted, changed_by, corrected
from smp_advisor.estimators.documents import Document, open_document
from smp_advisor.estimators.readback import ReadBack
from smp_advisor.estimators.report import EstimatorReport, Reading
from smp_advisor.libraries.library import library_with, require_library
from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.findings.finding import Finding, Fix
from smp_advisor.review.findings.report import Coverage
from smp_advisor.review.reading.source import Unresolved
from smp_advisor.review.scripts.check import check_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.estimators.checks import Hit
    from smp_advisor.review.reading.source import Source
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["check_estimator", "looks_like_estimator"]

_PART = "The corrected text has only a part of the corrections: check it again for the others."
_MOST_FIXED = 500_000
"""Characters of all texts with one fix each."""


@checked
def check_estimator(
    source: str | Path | Mapping[str, Any],
    *,
    model: Model | None = None,
    job: Job | None = None,
    cluster: Cluster | Instance | str | None = None,
    library: str | None = None,
    variables: Mapping[str, Any] | None = None,
    min_fit_probability: float = 0.95,
) -> EstimatorReport:
    r"""Find defects in the configuration of a training job before you pay for a cluster.

    The configuration is read, never run. Parts that could not be read are listed.

    Parameters
    ----------
    source
        The text of a cell with an estimator (SDK 2.x: ``PyTorch``, ``TensorFlow``, ``HuggingFace``) or a
        ``ModelTrainer`` (3.x), of the dictionary alone (``distribution``, ``smp_options``, ``mp_parameters``; Python
        or JSON), of a HyperPod recipe or manifest (YAML), a batch file of Slurm or a CreateTrainingJob request; the
        path of a file with one of these; or the dictionary itself.
    model
        Model for the checks of memory; by default the shape in the hyperparameters, if there is one.
    job
        Sequence length and precision; by default those in the hyperparameters.
    cluster
        Cluster of the job, or an instance for the number of nodes in the text; by default that of the text. Recipes
        name no instance.
    library
        Library of a dictionary, if neither a launcher nor its keys determine it.
    variables
        Plain data for names that the cell does not assign.
    min_fit_probability
        Least fit probability of proposed changes.

    Returns
    -------
    EstimatorReport
        The findings (a sequence of `Finding`), with `plan`, `cluster`, `corrected` and `diff`.

    Raises
    ------
    AdvisorError
        If the source does not configure a job.

    Examples
    --------
    >>> report = check_estimator({"partitions": 2, "microbatchs": 4, "ddp": True})
    >>> [finding.id for finding in report], report.plan
    (['EST501'], None)
    """
    if library is not None:
        require_library(library)
    document = open_document(source)
    if isinstance(cluster, str):
        cluster = completed_instance(cluster)
    terms = Terms(
        model=model,
        job=job,
        library=library,
        variables=variables,
        cluster=cluster,
        min_fit_probability=min_fit_probability,
    )
    # Each value that the text may have is a case of its own.
    cases, unresolved = terms.read(document)
    hits = [(case, hit) for case in cases for check in CHECKS for hit in check(case)]
    text, complete = corrected(document, terms)
    findings = _findings(document, hits)
    if document.dialect == "python" and any(case.record is not None and case.record.compiles for case in cases):
        compiled = check_source(document.source, library=library_with(compiles=True).name, variables=terms.variables)
        findings += tuple(finding for finding in compiled if finding.id == "STC407")
    # The script of several cases is read once for each: the same finding is shown once.
    by_place: dict[tuple[str, str, int, str], Finding] = {}
    for finding in [finding for case in cases if case.script is not None for finding in case.script.report]:
        if finding.severity != "info":
            by_place.setdefault((finding.id, finding.path, finding.line, finding.message), finding)
    findings += tuple(by_place.values())
    notes = [*_unresolved(document, cases, findings), *unresolved]
    notes += [] if complete else [document.source.unresolved(1, _PART)]
    mended = None
    if text != document.pasted:
        better = replace(open_document(text), dialect=document.dialect)
        readings = [_reading(better, case) for case in terms.read(better)[0]]
        mended = next((reading for reading in readings if reading.plan is not None), readings[0])
    return EstimatorReport(
        findings,
        tuple(notes),
        document.source.path,
        tuple(_reading(document, case) for case in cases),
        document.pasted,
        text,
        mended,
        coverage=_coverage(cases),
    )


def looks_like_estimator(source: str | Path) -> bool:
    """Whether a text or file configures a job: an estimator, trainer, request, recipe or dictionary of parameters."""
    try:
        return bool(read_configurations(open_document(source), None)[0])
    except AdvisorError:
        return False


def _reading(document: Document, case: Case) -> Reading:
    span = case.configuration.span
    line = 1 if span is None else _place(document.source, span.start)[0]
    return Reading(
        title=case.configuration.title,
        form=case.configuration.form,
        line=document.source.locate(line)[1],
        library=case.configuration.library,
        estimate=estimate_of(case),
        checkpointed=checkpointed_estimate(case),
        **{part.name: getattr(case.back, part.name) for part in fields(ReadBack)},
    )


def _findings(document: Document, hits: list[tuple[Case, Hit]]) -> tuple[Finding, ...]:
    findings: dict[tuple[Any, ...], Finding] = {}
    for case, hit in hits:
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
        description = catalog()[hit.id].fix if document.correctable else ""
        few = len(findings) * len(document.source.text) <= _MOST_FIXED
        changed = changed_by(document, case, hit) if description and few else None
        if changed is not None and (text := as_pasted(document, changed)) is not None:
            report = EstimatorReport((), (), document.source.path, (), document.pasted, text)
            finding = replace(finding, fix=Fix(description=description, diff=report.diff, source=text))
        findings.setdefault((finding.id, path, located, finding.message), finding)
    order = ("error", "warning", "info")
    return tuple(
        sorted(findings.values(), key=lambda entry: (entry.path, entry.line, order.index(entry.severity), entry.id))
    )


def _coverage(cases: list[Case]) -> Coverage:
    """Rules that ran over the jobs and their scripts, and calls of these that were not followed."""
    scripts = [case.script for case in cases if case.script is not None]
    reports = [script.report for script in scripts]
    parts = [report.coverage for report in reports if report.coverage is not None]
    libraries = [name for coverage in parts for name in coverage.libraries]
    outside = [name for coverage in parts for name in coverage.outside]
    if not parts:
        return Coverage(libraries=("jobs (no script was read, so none was checked)",), parts=(), assumed=())
    names = ", ".join(sorted({script.name for script in scripts}))
    left = sum(len(report.unresolved) for report in reports)
    note = f"{left} places of {names} were not followed: check_script lists them."
    return Coverage(
        libraries=("jobs", *dict.fromkeys(libraries)),
        parts=parts[0].parts,
        assumed=(note,) if left else (),
        outside=tuple(dict.fromkeys(outside)),
    )


def _place(source: Source, offset: int) -> tuple[int, int]:
    """Return the line and column, from 1, of a character."""
    starts = source.starts()
    line = bisect_right(starts, max(0, offset))
    return line, offset - starts[line - 1] + 1


def _unresolved(document: Document, cases: list[Case], findings: tuple[Finding, ...]) -> list[Unresolved]:
    """Return the settings that could not be read, in the order of the text."""
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
                note(start, f"{gap.name} is not known: {gap.why}. Checks that need it are skipped.")
        for sentence in case.back.open:
            if not any(text in sentence for text in reported):  # a finding reports it
                note(home, sentence)
        if not configuration.sure:
            note(home, f"{configuration.title} is created only under a condition that cannot be decided.")
    return list(notes.values())
