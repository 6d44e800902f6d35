"""Put what `make demo` recommends into the README, between its two marks.

Run it with ``python scripts/readme.py``; a test holds the README to what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import smp_advisor as smpa

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- demo -->", "<!-- end of demo -->"


def renewed(text: str) -> str:
    """The README's text with the recommendation as it is now."""
    advice = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512)
    before, rest = text.split(START)
    after = rest.split(END)[1]
    return f"{before}{START}\n```text\n{advice}\n```\n{END}{after}"


def main() -> int:
    README.write_text(renewed(README.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
