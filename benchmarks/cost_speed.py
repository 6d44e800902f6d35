"""Measure the plans per second of the cost model on one core, in processor time relative to a loop.

Run it with ``python benchmarks/cost_speed.py``. It fails if the code exceeds a limit of the project: a million plans
per second in the array form (memory and time of every plan), one ms for one `estimate` of a plan that was not estimated
before, 0.02 ms for one that was, one second for `advise` of 175 B parameters on 64 nodes, which includes the decision
under uncertainty, and for the exhaustive search of a trillion on 512.
"""

from __future__ import annotations

import os
import statistics
import sys
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from yardstick import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_PLANS_PER_SECOND = 1_000_000
MAX_ESTIMATE_SECONDS, MAX_KEPT_SECONDS = 1e-3, 0.02e-3
MAX_SEARCH_SECONDS = 1.0
REPEATS = 5

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy is imported


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call without the first, relative to a loop: neither the machine nor its load counts."""
    call()
    return statistics.median(seconds(call) for _ in range(repeats))


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import smp_advisor as smpa
    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.evaluate import estimate, memory_columns, seconds_columns
    from smp_advisor.libraries import Plan
    from smp_advisor.libraries.space import enumerate_plans
    from smp_advisor.search.search import search
    from smp_advisor.workload import Job, Model

    job = Job(sequence_length=2048)
    model, cluster = Model.from_parameters("175B", family="gpt2", sequence_length=2048), Cluster("ml.p4d.24xlarge", 64)
    space = enumerate_plans(model, cluster, job)
    layout = space.layout

    def score() -> None:
        memory_columns(model, cluster, job, layout)
        seconds_columns(model, cluster, job, layout)

    rate = len(layout) / median_seconds(score, REPEATS)

    shapes = product((2, 4, 8), (2, 4, 8), (2, 4, 8, 16), range(1, 13))
    plans = [
        Plan(
            tensor_parallel_degree=tensor, pipeline_parallel_degree=pipeline, microbatches=microbatches,
            batch_size=microbatches * samples, fp16=True, ddp=True, shard_optimizer_state=True, prescaled_batch=True,
        )
        for tensor, pipeline, microbatches, samples in shapes
    ]  # fmt: skip

    def estimates() -> None:
        for plan in plans:
            estimate(model, cluster, job, plan)

    estimate(model, cluster, job, replace(plans[0], activation_checkpointing="each"))  # reads the tables
    single, again = (seconds(estimates) / len(plans) for _ in range(2))

    trillion, large = Model.from_parameters("1T", family="gpt2", sequence_length=2048), Cluster("ml.p4d.24xlarge", 512)
    searches = {
        "advise, 175 B on 64 nodes": median_seconds(
            lambda: smpa.advise(
                "175B",
                "ml.p4d.24xlarge",
                instance_count=64,
                library="smp-v1",
                precision="fp16",
                sequence_length=512,
                max_tokens_per_step=2**26,
            ),
            REPEATS,
        ),
        "search, 1 T on 512 nodes": median_seconds(lambda: search(trillion, large, job), REPEATS),
    }

    print(f"plans scored per second          {rate:,.0f} ({len(layout):,} plans, memory and time of each)")
    print(f"one estimate                     {1e3 * single:.2f} ms, {1e3 * again:.4f} ms of the same plan again")
    for name, duration in searches.items():
        print(f"{name:32} {duration:.2f} s")

    passed = rate >= MIN_PLANS_PER_SECOND and max(searches.values()) < MAX_SEARCH_SECONDS
    passed = passed and single < MAX_ESTIMATE_SECONDS and again < MAX_KEPT_SECONDS
    print("within the limits" if passed else "OVER A LIMIT")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
