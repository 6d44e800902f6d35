"""Seconds of the script checker per 1,000 lines: ``python benchmarks/checker_speed.py FOLDER [SCRIPT...]``.

Seconds are relative to a loop (`yardstick.py`). Without arguments, the scripts of this repository are checked, and one
file that is longer than any script. This repository contains no published script: clone
huggingface/pytorch-image-models, pass its folder, and compare with an earlier version on the same machine. Scripts are
checked alone, then in the folder with parsed files in common.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from yardstick import seconds

from smp_advisor.command.__main__ import main as command
from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.source import read
from smp_advisor.review.scripts import check_script
from smp_advisor.review.scripts.command.project import files_of
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.settings import from_plan

TARGET = 0.1
"""Seconds of one processor per 1,000 lines that are read."""
LONG = 10_000
"""Lines of a file that is longer than any script."""
LONG_TARGET = 0.2
"""Seconds per 1,000 lines of it."""
HERE = Path(__file__).parent / "scripts"


def check_alone(path: Path) -> tuple[int, int, float]:
    """Files and lines that the check reads, and its seconds; the better of two runs."""
    modules = follow(read(path), from_plan(None, None)).trace.modules
    lines = sum(len(module.source.lines) for module in modules)
    return len(modules), lines, min(seconds(lambda: check_script(path)) for _ in range(2))


def check_folder(folder: Path, *options: str) -> float:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return seconds(lambda: command(["check", str(folder), *options]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("scripts", nargs="*", type=Path, help="checked alone; all files of the folder without")
    options = parser.parse_args()
    check_script("import torch\n")  # loads the modules of the checker
    files = files_of([str(options.folder)], ())
    worst = 0.0
    print(f"{'script':40} {'lines':>7} {'files read':>11} {'lines read':>11} {'s':>7} {'s per 1,000 lines read':>23}")
    for path in options.scripts or files[:20]:
        try:
            count, lines, duration = check_alone(path)
        except AdvisorError:
            continue
        own = len(read(path).lines)
        rate = duration / max(lines, 100) * 1000
        worst = max(worst, rate)
        print(f"{path.name:40} {own:7,} {count:11,} {lines:11,} {duration:7.2f} {rate:23.3f}")
    script = (HERE / "v1_pipeline.py").read_text("utf-8")
    functions = script[script.index("\ndef ") :]
    copies = range(LONG // functions.count("\n"))
    text = script + "".join(re.sub(r"(?m)^(def|class) (\w+)", rf"\1 \2_{copy}", functions) for copy in copies)
    rate = seconds(lambda: check_script(text)) / text.count("\n") * 1000
    worst = max(worst, rate * TARGET / LONG_TARGET)
    print(f"one file of {text.count(chr(10)):,} lines: {rate:.3f} s per 1,000 lines")
    total = sum(path.read_bytes().count(b"\n") for path in files)
    duration = check_folder(options.folder)
    print(f"folder: {len(files):,} files, {total:,} lines")
    print(f"{duration:.2f} s, {duration / total * 1000:.3f} s per 1,000 lines")
    return int(worst > TARGET)


if __name__ == "__main__":
    sys.exit(main())
