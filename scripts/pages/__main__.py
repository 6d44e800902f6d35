"""Write the generated pages: ``python -m scripts.pages [PAGE...]``, all of them without arguments."""

from __future__ import annotations

import argparse
import sys

from scripts.pages import PAGES, ROOT


def main() -> int:
    """Write each page whose text has changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    for name in parser.parse_args().pages or PAGES:
        text, path = PAGES[name](), ROOT / name
        same = path.exists() and path.read_text("utf-8") == text
        path.write_text(text, "utf-8")
        print(f"{name}: {'no change' if same else 'written'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
