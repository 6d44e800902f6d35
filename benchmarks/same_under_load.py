"""Compare answers of a quiet machine with those next to four busy processes: ``python benchmarks/same_under_load.py``.

Each answer is made by a process of its own, first as it is and then under ``scripts/loaded.sh``: a profile with its
scaled copy, the rehearsal of a plan, and the notebook of an own model with its outputs. The bytes have to be equal. The
random identifiers of reports are numbered, as in saved notebooks; nothing else is left out.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 300,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def profile(**settings: object) -> str:
    """A profile as text, as a page and as values."""
    import smp_advisor

    done = smp_advisor.profile(CONFIG, sequence_length=64, **settings)
    return f"{done.details()}\n{done._repr_html_()}\n{json.dumps(done.as_dict(), indent=1)}"


def rehearsal() -> str:
    """A profile that rehearses a plan with two stages, two replicas and four microbatches."""
    from smp_advisor import Plan

    return profile(stages=("rehearsal",), plan=Plan(pipeline_parallel_degree=2, microbatches=4, batch_size=4))


def notebook() -> str:
    """A notebook with the outputs of a run."""
    import nbformat

    from scripts.notebooks.running import FOLDER, run
    from scripts.notebooks.saved import clean

    fresh = run(FOLDER / "your_own_model.ipynb")
    clean(fresh)
    return nbformat.writes(fresh)


ANSWERS = {"profile": profile, "rehearsal": rehearsal, "notebook": notebook}


def main() -> int:
    """Print one line per answer; the status is 1 if one differs."""
    same = True
    for name in ANSWERS:
        command = [sys.executable, __file__, name]
        quiet, loaded = (
            subprocess.run([*before, *command], stdout=subprocess.PIPE, check=True, text=True).stdout
            for before in ([], [str(ROOT / "scripts" / "loaded.sh")])
        )
        same = same and quiet == loaded
        print(f"{name}: {len(quiet.encode()):,} bytes, {'the same' if quiet == loaded else 'differ'} under load")
        for line in difflib.unified_diff(quiet.splitlines(), loaded.splitlines(), "quiet", "loaded", n=0, lineterm=""):
            print(line)
    return int(not same)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.exit(print(ANSWERS[sys.argv[1]](), end="") if sys.argv[1:] else main())
