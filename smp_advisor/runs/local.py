"""Child process of a local run: trains with the folder's script, and writes its log and status.

usage: python -m smp_advisor.runs.local FOLDER

It outlives the kernel that started it, so that another one can watch the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from smp_advisor.core.files import write_text
from smp_advisor.errors import AdvisorError
from smp_advisor.profiling.local_run import run
from smp_advisor.runs.sources import LOG, STATUS

SETTINGS = "run.json"
"""File with the keywords of `smp_advisor.profiling.local_run.run`."""
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""Variables of a process without a launcher, which the generated script is written for; port 0 is any free one."""


def main(arguments: list[str]) -> int:
    """Run the folder's script to its end. SIGTERM ends it with all its processes."""
    folder = Path(arguments[0])
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text("utf-8"))
    if settings["processes"] == 1 and "source_dir" in settings:  # the generated script
        os.environ |= _ALONE
    state: dict[str, Any] = {
        "status": "InProgress",
        "transitions": [["Starting", time.time(), None]],
        "settings": {name: str(value) for name, value in settings["hyperparameters"].items()},
    }

    def enter(status: str, phase: str = "", failure: str = "") -> None:
        now = time.time()
        state["transitions"][-1][2] = now
        if phase:
            state["transitions"].append([phase, now, None])
        state.update(status=status, failure=failure)
        write_text(folder / STATUS, json.dumps(state))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with (folder / LOG).open("w", encoding="utf-8") as log:

        def add(line: str) -> None:
            log.write(f"{line}\n")
            log.flush()
            if len(state["transitions"]) == 1 and ("step 1 " in line or "step 1/" in line):
                enter("InProgress", "Training")

        try:
            write_text(folder / STATUS, json.dumps(state))
            result = run(
                settings.pop("script"),
                **settings,
                folder=folder / "container",
                on_line=add,
            )
        except KeyboardInterrupt:
            enter("Stopped")
            return 1
        except AdvisorError as error:
            enter("Failed", failure=str(error))
            return 1
    enter("Completed" if result.ok else "Failed", failure=result.error)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
