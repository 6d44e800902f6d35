"""The checks by subject, which register themselves, and the judgment of a script by all of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.findings.finding import suppressions
from smp_advisor.review.scripts.checks import (  # noqa: F401 - the import registers them
    arguments,
    checkpoints,
    compiler,
    data,
    division,
    frameworks,
    fsdp,
    gradients,
    loops,
    model,
    optimizer,
    outputs,
    parallel,
    planned,
    ranks,
    rows,
    setup,
    step,
    updates,
    v2,
)
from smp_advisor.review.scripts.conditions import Reaching
from smp_advisor.review.scripts.context import CHECKS, LIBRARY_OF, Hit

if TYPE_CHECKING:
    from smp_advisor.review.findings.finding import Finding, Severity
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.scripts.context import Context

_SIMPLE: tuple[type[ast.stmt], ...] = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)


def judge(context: Context) -> list[tuple[Finding, Hit]]:
    """Return the findings, each with the hit of its check, in the order of files and lines."""
    hits: dict[tuple[str, str, int, int], tuple[Finding, Hit]] = {}
    order = {id(module): position for position, module in enumerate(context.trace.modules)}
    reaching = Reaching(context)
    for identifier in sorted(CHECKS):
        for hit in CHECKS[identifier](context):
            if id(hit.module) not in order or reaching.never(hit):  # not at a statement that is assumed
                continue
            needed = reaching.back_end(LIBRARY_OF.get(identifier, ""), hit)
            if needed is None:
                continue
            finding = _finding(identifier, hit)
            if needed := hit.needed or needed or reaching.needed(hit):  # only some jobs reach it
                severity: Severity = "warning" if finding.severity == "error" else finding.severity
                message = f"{finding.message} This code runs only {needed}."
                finding = replace(finding, severity=severity, message=message)
            hits.setdefault((identifier, finding.path, finding.line, finding.column), (finding, hit))
    silenced = _silenced(context)
    pairs = [
        (finding, hit)
        for finding, hit in hits.values()
        if (id(hit.module), hit.node.lineno, finding.id) not in silenced
    ]
    # A list of missing calls that other findings report is left out.
    reported = {finding.id for finding, _ in pairs}
    pairs = [
        pair for pair in pairs if pair[0].id != "SMP002" or not pair[1].reported_by or pair[1].reported_by - reported
    ]
    pairs.sort(
        key=lambda pair: (
            pair[0].id not in ("SMP001", "SMP002"),
            order[id(pair[1].module)],
            pair[1].node.lineno,
            pair[0].column,
            pair[0].id,
        )
    )
    return pairs


def _finding(identifier: str, hit: Hit) -> Finding:
    path, line = hit.module.source.locate(hit.node.lineno)
    text = hit.module.source.line(hit.node.lineno)
    before = text.encode()[: hit.node.col_offset].decode(errors="ignore")
    return catalog()[identifier].finding(
        hit.values,
        variant=hit.variant,
        severity=hit.severity,
        path=path,
        line=line,
        column=len(before) + 1,
        text=text,
        end=_end(hit),
    )


def _end(hit: Hit) -> tuple[int, int] | None:
    """Return the line and column after the place; of a statement with a block, the end of its first line."""
    source, node = hit.module.source, hit.node
    last, column = node.end_lineno, node.end_col_offset
    if last is None or column is None:
        return None
    if hasattr(node, "body") and isinstance(node, ast.stmt):
        return source.locate(node.lineno)[1], len(source.line(node.lineno).rstrip()) + 1
    return source.locate(last)[1], source.column(last, column) + 1


def _silenced(context: Context) -> set[tuple[int, int, str]]:
    """Return the places (module, line and id of a finding) that comments with a reason suppress."""
    return {
        (id(module), line, name)
        for module in context.trace.modules
        for comment in suppressions(module.source.text)
        for line in (_statement_lines(module, comment.line) if comment.reason else ())
        for name in comment.ids
    }


def _statement_lines(module: Module, line: int) -> set[int]:
    """Return the lines of the statement that contains `line`: a comment on one of them applies to all."""
    lines = {line}
    for kind in _SIMPLE:
        for node in module.all(kind):
            last = node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                lines |= set(range(node.lineno, last + 1))
    return lines
