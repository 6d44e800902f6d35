"""Terms of the interface, each with a definition and its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from smp_advisor.files import data_file
from smp_advisor.libraries.library import get_library, libraries, plan_fields

__all__ = ["Term", "glossary", "term_for", "terms_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One term of the glossary."""

    term: str
    text: str
    short: str = ""
    """Abbreviation in tables."""
    settings: tuple[str, ...] = ()
    """Plan fields, controls and figures that the term explains."""
    source_title: str = ""
    source_url: str = ""

    @property
    def anchor(self) -> str:
        """Anchor of the term in ``docs/glossary.md``."""
        return self.term.lower().replace(" ", "-")


@cache
def glossary() -> tuple[Term, ...]:
    """All terms, in alphabetical order."""
    return tuple(_term(**entry) for entry in data_file("notebook", "glossary")["term"])


def _term(term: str, text: str, settings: list[str], source: tuple[str, str] = ("", ""), short: str = "") -> Term:
    title, url = source
    return Term(term=term, text=text, short=short, settings=tuple(settings), source_title=title, source_url=url)


def term_for(setting: str) -> Term | None:
    """The term that explains a plan field, a control or a figure; None if there is none."""
    return next((term for term in glossary() if setting in term.settings), None)


def terms_of(library: str) -> list[Term]:
    """Terms for the interface of a library: those of its own plan fields and controls, and those of all libraries."""
    own = plan_fields(library) | set(get_library(library).controls)
    elsewhere = {name for record in libraries() for name in (*plan_fields(record.name), *record.controls)} - own
    return [term for term in glossary() if set(term.settings) - elsewhere]
