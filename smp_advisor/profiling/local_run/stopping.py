"""A program: runs a script as Python would, and ends it after a number of optimizer steps.

usage: stopping.py STEPS SCRIPT [OPTION ...]
"""

from __future__ import annotations

import os
import runpy
import sys
from collections import Counter
from typing import Any

__all__: list[str] = []


def stop_after(steps: int) -> None:
    """End this process with status 0 once one of its optimizers has taken that many steps."""
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
    # Python puts a program's own folder first on the path: that must be the script's, not this one's.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[2]))  # noqa: PTH100, PTH120 (as Python itself does)
    stop_after(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
