"""README.md: its hand-written text with the recommendation that `make demo` prints."""

from __future__ import annotations

from pathlib import Path

import smp_advisor as smpa

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- demo -->", "<!-- end of demo -->"


def page() -> str:
    """The text of the file with the present recommendation between the two marks."""
    advice = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1")
    before, after_start = README.read_text("utf-8").split(START)
    after = after_start.split(END)[1]
    return f"{before}{START}\n```text\n{advice}\n```\n{END}{after}"
