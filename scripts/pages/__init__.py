"""Pages that are generated: `make pages` writes all of them, and a test compares each with its generator.

Pages that need measured runs or hours of profiling have commands of their own: ``docs/accuracy.md``
(``benchmarks/accuracy.py``), the logs of measurements in ``benchmarks/results``, and the pictures of ``docs/images``
(`make image`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.pages import gallery, glossary, libraries, options, reference, reference_rows, stacks
from scripts.pages.api import api_pages
from scripts.pages.checks import page_of, section_page
from smp_advisor.review.findings.catalog import sections

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAGES", "ROOT"]

ROOT = Path(__file__).parents[2]

PAGES: dict[str, Callable[[], str]] = {
    "docs/checks.md": reference.checks,
    **{f"docs/{page_of(section)}": partial(section_page, section) for section in sections()},
    "docs/gallery.md": gallery.page,
    "docs/glossary.md": glossary.page,
    "docs/libraries.md": libraries.page,
    **api_pages(),
    "docs/reference/command_line.md": options.command_line,
    "docs/reference/magics.md": options.magics,
    "docs/reference/parameters.md": reference.parameters,
    "docs/reference/stored_files.md": reference.stored_files,
    "benchmarks/results/reference_rows.md": reference_rows.page,
    "docs/stacks.md": stacks.page,
}
"""Every generated page, with the function that returns its text."""
