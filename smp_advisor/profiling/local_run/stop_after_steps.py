"""Program that runs a Python script and stops it after a number of optimizer steps.

usage: stop_after_steps.py STEPS SCRIPT [OPTION ...]
"""

from __future__ import annotations

import os
import runpy
import sys
from collections import Counter
from typing import Any


def stop_after(steps: int) -> None:
    """Exit this process with status 0 after one of its optimizers has taken `steps` steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    taken: Counter[int] = Counter()

    def count(optimizer: Any, arguments: Any, keywords: Any) -> None:
        del arguments, keywords
        taken[id(optimizer)] += 1
        if taken[id(optimizer)] >= steps:
            print(f"Stopped after {steps} optimizer steps.", flush=True)  # noqa: T201
            raise SystemExit(0)

    register_optimizer_step_post_hook(count)


if __name__ == "__main__":
    # Python puts the program's folder first on the path; replace it by the script's folder.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[2]))  # noqa: PTH100, PTH120 (like Python itself)
    stop_after(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
