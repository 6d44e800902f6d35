"""A finding: one defect at one place with its fix, and the comments that suppress it."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import asdict, dataclass
from typing import Any, Literal

from smp_advisor.arguments.signatures import checked_class

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A safe change of a job's configuration: its new text and the diff to it."""

    description: str
    diff: str
    """Unified diff from the checked text."""
    source: str
    """The text with the fix applied."""


@checked_class
@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A defect that makes the job fail, hang, train incorrectly or waste money.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> script = '''
    ... import smdistributed.modelparallel.torch as smp
    ...
    ... @smp.step
    ... def step(model, data):
    ...     loss = model(data).mean()
    ...     loss.backward()
    ...     return loss
    ... '''
    >>> (finding,) = smpa.check_script(script).findings
    >>> finding.id, finding.line, finding.severity
    ('SMP106', 7, 'error')
    """

    id: str
    """Id of the check: ``SMP109``."""
    severity: Severity
    path: str
    """File of the finding; ``<cell>`` or ``<source>`` for text."""
    line: int
    """From 1."""
    column: int
    """From 1."""
    text: str
    """The line of code."""
    message: str
    """The defect, in one sentence."""
    consequence: str
    """The effect on the cluster."""
    remedy: str
    """The correction."""
    source_title: str
    source_url: str
    fix: Fix | None = None
    """The automatic fix, if a change is safe."""
    end_line: int | None = None
    """Line of the end of the place; None if it is not known."""
    end_column: int | None = None
    """Column after the last character of the place."""

    def plain(self) -> dict[str, Any]:
        """Return the finding as plain data; its fix without the full text of the file."""
        data = asdict(self)
        if self.fix is not None:
            del data["fix"]["source"]
        return data


_COMMENT = re.compile(r"#\s*smp:\s*ignore\[\s*(?P<ids>[A-Za-z0-9,\s]*)\]\s*(?P<reason>.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Suppression:
    """Findings that a comment suppresses on its line, or on the next line of code if it is on its own line."""

    ids: tuple[str, ...]
    reason: str
    line: int


def suppressions(text: str) -> list[Suppression]:
    """Return the comments of `text` that suppress findings."""
    if "smp:" not in text:
        return []
    lines = text.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return []
    comments = []
    for token in tokens:
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        number, column = token.start
        ids = tuple(part.strip().upper() for part in match["ids"].split(",") if part.strip())
        alone = not lines[number - 1][:column].strip()
        below = (later + 1 for later in range(number, len(lines)) if lines[later].strip()[:1] not in ("", "#"))
        line = next(below, number) if alone else number
        comments.append(Suppression(ids, match["reason"].strip(" -:\r"), line))
    return comments
