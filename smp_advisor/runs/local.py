"""Child process of a local run: a rehearsal that is watched, with its log and status in the folder of the run.

usage: python -m smp_advisor.runs.local FOLDER

It outlives the kernel that started it, so that another one can watch the folder.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from smp_advisor.core.files import write_text
from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal import rehearse
from smp_advisor.runs.readers import read_text
from smp_advisor.runs.sources import LOG, STATUS
from smp_advisor.runs.steps import STEADY_STEPS, typical

SETTINGS = "run.json"
"""File with the keywords of `smp_advisor.rehearse`, the steps, and the hyperparameters of the script."""
MOST_TIMES = 4
"""Times the steps that a run may take until enough of them are regular ones."""


class _Enough(Exception):  # noqa: N818 - an end of the run, no error
    """Ends a run whose steps suffice."""


class _Folder:
    """Log and status of a run in its folder."""

    def __init__(self, folder: Path, settings: dict[str, str], log: Any) -> None:
        self.folder, self.log = folder, log
        self.state: dict[str, Any] = {
            "status": "InProgress", "transitions": [["Starting", time.time(), None]], "settings": settings,
        }  # fmt: skip
        self.samples: list[Any] = []
        write_text(folder / STATUS, json.dumps(self.state))

    def enter(self, status: str, phase: str = "", failure: str = "") -> None:
        now = time.time()
        self.state["transitions"][-1][2] = now
        if phase:
            self.state["transitions"].append([phase, now, None])
        self.state.update(status=status, failure=failure)
        write_text(self.folder / STATUS, json.dumps(self.state))

    def add(self, line: str, steps: int) -> None:
        """Write a line of the script; ends the run after its steps, once enough of them are regular."""
        self.log.write(f"{line}\n")
        self.log.flush()
        new = read_text(line).samples
        if new and len(self.state["transitions"]) == 1:
            self.enter("InProgress", "Training")
        self.samples.extend(new)
        # Counted: a machine with other work has fewer regular steps, so its run is longer, not worth less.
        at_end = bool(new) and (new[-1].step or len(self.samples)) >= steps
        if at_end and len(self.samples) >= STEADY_STEPS:
            usual = typical(self.samples)
            if usual is not None and usual.steps >= STEADY_STEPS:
                raise _Enough


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Rehearse the folder's script to its end. SIGTERM ends it with all its processes."""
    folder = Path(arguments[0])
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text("utf-8"))
    steps, hyperparameters = settings.pop("steps"), settings.pop("hyperparameters")
    settings["script"] = Path(settings["script"])
    most = MOST_TIMES * steps if steps >= STEADY_STEPS else steps
    job = {"hyperparameters": hyperparameters} if hyperparameters else None
    signal.signal(signal.SIGTERM, _stop)
    with (folder / LOG).open("w", encoding="utf-8") as log:
        shown = {**{name: str(value) for name, value in hyperparameters.items()}, "max_steps": str(steps)}
        run = _Folder(folder, shown, log)
        try:
            done = rehearse(**settings, job=job, steps=most, on_line=lambda line: run.add(line, steps))
        except _Enough:
            run.enter("Completed")
            return 0
        except KeyboardInterrupt:
            run.enter("Stopped")
            return 1
        except AdvisorError as error:
            run.enter("Failed", failure=str(error))
            return 1
    failed = done.outcome.startswith(("stopped at", "not rehearsed"))
    run.enter("Failed" if failed else "Completed", failure=done.summary if failed else "")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
