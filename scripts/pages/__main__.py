"""Write the generated pages, and the outputs in hand-written ones: ``python -m scripts.pages [PAGE...]``.

Without arguments, all of them.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from scripts.pages import PAGES, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Write each page whose text has changed."""
    pages = dict(PAGES)
    for page in blocks.executed_pages():
        name = page.relative_to(ROOT).as_posix()
        if name not in pages:
            pages[name] = partial(outputs, page)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(pages))
    for name in parser.parse_args().pages or pages:
        text, path = pages[name](), ROOT / name
        same = path.exists() and path.read_text("utf-8") == text
        path.write_text(text, "utf-8")
        print(f"{name}: {'no change' if same else 'written'}")
    return 0


def outputs(page: Path) -> str:
    """A hand-written page with the outputs of its blocks."""
    return blocks.run(page).text


if __name__ == "__main__":
    sys.exit(main())
