"""Measure the plans per second of the cost model on one core, and those of llm-analysis on the same plans.

Run it with ``python benchmarks/cost_speed.py``. It fails if the code exceeds a limit of the project: 500,000 plans
per second in the array form (memory and time of every plan), 0.5 ms for one `estimate`, one second for the exhaustive
search of 175 B parameters on 64 nodes and for that of a trillion on 512. llm-analysis is installed from PyPI into a
separate environment (``.venv-peers`` next to this folder) if it does not exist yet. Without a network the comparison
is skipped and reported as skipped.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from yardstick import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_PLANS_PER_SECOND = 500_000
MAX_ESTIMATE_SECONDS = 0.5e-3
MAX_SEARCH_SECONDS = 1.0
REPEATS = 5
ESTIMATES = 200
PEER = "llm-analysis==0.2.2"
PEER_PLANS = 500

HERE = Path(__file__).parent
PEER_ENVIRONMENT = HERE.parent / ".venv-peers"

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy is imported


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call without the first, relative to a loop: neither the machine nor its load counts."""
    call()
    return statistics.median(seconds(call) for _ in range(repeats))


def peer_python() -> Path | None:
    """Interpreter with llm-analysis; None if it cannot be installed."""
    python = PEER_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(PEER_ENVIRONMENT, with_pip=True)
    # Its dependencies read configurations from the Hub. The comparison does not need them.
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*install, "--no-deps", PEER], check=True, capture_output=True, timeout=300)
        subprocess.run([*install, "fire"], check=True, capture_output=True, timeout=300)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return python


def peer_seconds_per_plan(plans: list[dict[str, int]], shape: dict[str, int]) -> float | None:
    """Mean seconds per plan of llm-analysis."""
    python = peer_python()
    if python is None:
        return None
    query = json.dumps({"plans": plans, "shape": shape})
    done = subprocess.run(
        [str(python), str(HERE / "peer_speed.py")], input=query, capture_output=True, text=True, check=True, timeout=300
    )
    return float(json.loads(done.stdout.splitlines()[-1])["seconds_per_plan"])


def main() -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np

    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.evaluate import estimate, memory_columns, seconds_columns
    from smp_advisor.libraries import Plan
    from smp_advisor.libraries.space import enumerate_plans
    from smp_advisor.search.search import search
    from smp_advisor.workload import Job, Model

    job = Job(sequence_length=2048)
    model, cluster = Model.from_parameters("175B", sequence_length=2048), Cluster("ml.p4d.24xlarge", 64)
    space = enumerate_plans(model, cluster, job)
    layout = space.layout

    def score() -> None:
        memory_columns(model, cluster, job, layout)
        seconds_columns(model, cluster, job, layout)

    rate = len(layout) / median_seconds(score, REPEATS)

    plan = Plan(
        tensor_parallel_degree=8, pipeline_parallel_degree=8, microbatches=8, active_microbatches=8, batch_size=8,
        fp16=True, ddp=True, shard_optimizer_state=True, prescaled_batch=True, activation_checkpointing="each",
    )  # fmt: skip
    single = median_seconds(lambda: [estimate(model, cluster, job, plan) for _ in range(ESTIMATES)], 1) / ESTIMATES

    trillion, large = Model.from_parameters("1T", sequence_length=2048), Cluster("ml.p4d.24xlarge", 512)
    searches = {
        "175 B on 64 nodes": median_seconds(lambda: search(model, cluster, job), REPEATS),
        "1 T on 512 nodes": median_seconds(lambda: search(trillion, large, job), REPEATS),
    }

    print(f"plans scored per second          {rate:,.0f} ({len(layout):,} plans, memory and time of each)")
    print(f"one estimate                     {1e3 * single:.2f} ms")
    for name, duration in searches.items():
        print(f"search, {name:24} {duration:.2f} s")

    # Plans that llm-analysis can express: no sharded parameters, and equal microbatches.
    rows = np.flatnonzero((layout.shard_level <= 1) & (layout.batch_samples % layout.microbatches == 0))
    chosen = rows[:: max(1, len(rows) // PEER_PLANS)][:PEER_PLANS]
    plans = [
        {
            "tensor": int(layout.tensor_parallel_degree[row]),
            "pipeline": int(layout.pipeline_parallel_degree[row]),
            "data": cluster.gpus // int(layout.tensor_parallel_degree[row] * layout.pipeline_parallel_degree[row]),
            "micro_batch": int(layout.batch_samples[row] // layout.microbatches[row]),
            "microbatches": int(layout.microbatches[row]),
            "recompute": int(layout.checkpoint_layers[row] != 0),
            "zero": int(layout.shard_level[row]),
        }
        for row in chosen
    ]
    shape = {"layers": model.shape.layers, "hidden": model.shape.hidden, "heads": model.shape.heads}
    peer = peer_seconds_per_plan(plans, shape | {"vocab": model.shape.vocab, "sequence_length": 2048})
    if peer is None:
        print("llm-analysis                     not compared: it could not be installed")
    else:
        print(f"llm-analysis                     {1 / peer:,.0f} plans per second on {len(plans)} of the same plans")
        print(f"ratio                            {rate * peer:,.0f} in array form, {peer / single:.2f} one by one")

    passed = (
        rate >= MIN_PLANS_PER_SECOND and single < MAX_ESTIMATE_SECONDS and max(searches.values()) < MAX_SEARCH_SECONDS
    )
    print("within the limits" if passed else "OVER A LIMIT")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
