"""Run the notebooks and save their outputs: ``python -m scripts.notebooks [NAME...]``, without names all of them."""

from __future__ import annotations

import argparse
import re
import sys
import time

import nbformat
from nbclient.exceptions import CellExecutionError

from scripts.notebooks.running import PATHS, run
from scripts.notebooks.saved import clean, difference, take_over


def main() -> int:
    """Write each notebook whose outputs have changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", metavar="NAME", help=", ".join(path.stem for path in PATHS))
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 if an output has changed")
    arguments, changed = parser.parse_args(), False
    unknown = set(arguments.notebooks) - {path.stem for path in PATHS}
    if unknown:
        parser.error(f"no notebook is named {', '.join(sorted(unknown))}")
    for path in PATHS:
        if arguments.notebooks and path.stem not in arguments.notebooks:
            continue
        start = time.monotonic()
        saved = nbformat.read(path, as_version=4)
        try:
            fresh = run(path)
        except CellExecutionError as error:
            text = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # without the colors of a terminal
            sys.exit(f"{path.stem}: {text}")
        clean(fresh)
        take_over(saved, fresh)
        differs = difference(saved, fresh)
        changed = changed or bool(differs)
        if not arguments.check:
            path.write_text(nbformat.writes(fresh) + "\n", "utf-8")
        state = "no change" if not differs else differs if arguments.check else "written"
        print(f"{path.stem}: {state}, {time.monotonic() - start:.0f} s")
    return int(arguments.check and changed)


if __name__ == "__main__":
    sys.exit(main())
