"""docs/glossary.md: the terms that the interface explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.notebook.glossary import glossary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.notebook.glossary import Term

HEAD = """# Glossary

Terms of the interface, the reports and these pages, as this product uses them. Names in `code` are fields of plans,
jobs and estimates.
"""


def page() -> str:
    return "\n".join([HEAD, *(line for term in glossary() for line in section(term))]).rstrip() + "\n"


def section(term: Term) -> Iterator[str]:
    yield f"## {term.term}\n"
    yield f"{term.text}\n"
    details = [f"Short: {term.short}"] if term.short else []
    details += [", ".join(f"`{name}`" for name in term.settings)]
    details += [f"[{term.source_title}]({term.source_url})"] if term.source_url else []
    if any(details):
        yield f"{' · '.join(filter(None, details))}\n"
