"""Measure the time of one call of `advise` on one core, and count its plans.

Run it with ``python benchmarks/search_speed.py``. It fails if the median of the calls exceeds the limit of the project:
one second for 175 B parameters on 64 nodes, with at least 500,000 plans and with the decision under uncertainty. The
time is relative to a loop (`yardstick.py`), so that neither the machine nor its load counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial

import yardstick

LIMIT_SECONDS = 1.0
MIN_PLANS = 500_000
CALLS = 5

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy is imported


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    start = time.perf_counter()
    import smp_advisor as smpa

    smpa.advise("1B", "ml.p4d.24xlarge", library="smp-v1")
    first = time.perf_counter() - start
    found: list[smpa.Advice] = []
    settings = {"precision": "fp16", "sequence_length": 512, "max_tokens_per_step": 2**26}
    call = partial(smpa.advise, "175B", "ml.p4d.24xlarge", instance_count=64, library="smp-v1", **settings)
    seconds = [yardstick.seconds(lambda: found.append(call())) for _ in range(CALLS)]
    advice = found[-1]
    median = statistics.median(seconds)
    print(f"imports and a first small call   {first:.2f} s")
    print(
        f"advise 175B on 64 nodes          {median:.2f} s median of {CALLS} ({min(seconds):.2f} to {max(seconds):.2f})"
    )
    print(f"plans enumerated                 {advice.plans_enumerated:,}")
    print(f"plans scored                     {advice.plans_scored:,} ({advice.plans_scored / median:,.0f} per second)")
    print(f"plans that fit                   {advice.plans_fit:,}")
    passed = median < LIMIT_SECONDS and advice.plans_scored >= MIN_PLANS
    print("within the limit" if passed else f"OVER THE LIMIT of {LIMIT_SECONDS} s or under {MIN_PLANS:,} plans")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
