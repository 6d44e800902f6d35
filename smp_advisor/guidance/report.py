"""The recommendation as plain text, for terminals, logs and screen readers: the verdict first, figures on request."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from smp_advisor.guidance.batch_reason import batch_reason
from smp_advisor.guidance.certainty import certainty
from smp_advisor.guidance.ladder_text import ladder_text, unused_lines
from smp_advisor.guidance.practices import order
from smp_advisor.libraries.groups import data_parallel_degree, reduced_data_parallel_degree
from smp_advisor.libraries.library import get_library
from smp_advisor.wording import plural, probability, run_cost, run_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.advice import Advice
    from smp_advisor.guidance.ladder import Ladder

__all__ = ["report", "sections"]

_WIDTH = 100


def report(advice: Advice, *, details: bool = False) -> str:
    """The verdict, the ladder and the reasons.

    Parameters
    ----------
    details
        Whether to add every figure, setting, comparison and assumption.
    """
    return "\n\n".join(_block(title, lines) for title, lines in sections(advice, details=details))


def sections(advice: Advice, *, details: bool = False) -> list[tuple[str, list[str]]]:
    """Title and lines of each section of the report. Lines that start with two spaces are rows of a table.

    Parameters
    ----------
    details
        As for `report`.
    """
    ladder = advice.ladder()
    result: list[tuple[str, list[str]]] = [
        (_verdict(advice), list(_summary(advice))),
        ("Techniques in the order of AWS's best practices, each added to those above", _rungs(ladder)),
        ("Why", list(_why(advice, ladder))),
    ]
    if details:
        from smp_advisor.guidance.report_details import details as detailed

        result += [("Details", []), *detailed(advice)]
    else:
        result.append(
            ("Details", ["Every figure, comparison, requirement and assumption: advice.report(details=True)."])
        )
    return [(title, lines) for title, lines in result if lines or title == "Details"]


def _block(title: str, lines: Iterable[str]) -> str:
    rule = "-" * min(len(title), _WIDTH)
    return "\n".join([title, rule, *(_wrapped(line) for line in lines)])


def _wrapped(line: str) -> str:
    if line.startswith("  "):  # tables keep their columns
        return line
    # A number keeps its unit: textwrap does not break at no-break spaces.
    unbroken = re.sub(r"(\d) (%|GiB|s\b|ms\b|B\b|M\b)", "\\1\xa0\\2", line)
    filled = textwrap.fill(unbroken, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return filled.replace("\xa0", " ")


def _verdict(advice: Advice) -> str:
    place = f"{advice.cluster.nodes} x {advice.cluster.instance.name}"
    return f"{advice.model.name} on {place}: fits ({probability(advice.estimate.fit_probability)} likely)"


def _summary(advice: Advice) -> Iterator[str]:
    """Requested settings, library, batch, speed, and the certainty of the choice."""
    estimate = advice.estimate
    sizes = advice.sizes
    wishes = [*advice.requested, *([sizes.limits.words] if sizes is not None and sizes.limits else [])]
    if wishes:
        yield f"Requested: {'; '.join(wishes)}."
    title = get_library(advice.plan.library).title
    yield f"Library: {advice.library_because or f'{title}, as requested.'}"
    yield from (f"- {sentence}" for sentence in advice.library_comparisons)
    yield f"Global batch: {batch_reason(advice.model, estimate, advice.decision.batch)}"
    yield f"Data-parallel degree: {_data_parallel(advice)} (each GPU: advice.ranks())."
    if (traced := advice.traced()) is not None:
        yield f"Traced rank: {traced.summary}"
    if advice.learned is not None:
        count = len(advice.learned.runs)
        yield f"Calibrated with {count} {'runs' if count > 1 else 'run'} of yours."
    if sizes is not None:
        yield f"Cluster: {' '.join(sizes.lines())}"
    elif estimate.days is not None:
        yield f"Entire run: {', '.join(filter(None, (run_time(estimate), run_cost(estimate))))}."
    if advice.objective in {"throughput", "cost"}:
        yield certainty(advice.decision)
    yield from advice.warnings


def _data_parallel(advice: Advice) -> str:
    """The library's data-parallel degree, and the replicas where several GPUs of the group share a sample."""
    degree, replicas = (of(advice.plan, advice.cluster) for of in (data_parallel_degree, reduced_data_parallel_degree))
    return f"{degree:,}" if replicas == degree else f"{degree:,} GPUs in {plural(replicas, 'replica')}"


def _rungs(ladder: Ladder) -> list[str]:
    return ladder_text(ladder, figures=False).splitlines()


def _why(advice: Advice, ladder: Ladder) -> Iterator[str]:
    """A short paragraph per technique of the plan, and one line per technique that it does not use."""
    practices = order(advice.plan.library)
    for step in advice.steps:
        if step.decision == "used" or step.technique not in practices:  # changes of the model are no practice
            yield f"- {step.title}. {step.because}"
    lines = unused_lines(ladder)
    if lines:
        yield "Not used:"
        yield from (f"- {line}" for line in lines)
