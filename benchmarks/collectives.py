"""Compare the cost model's collectives with measured ones.

Run it with ``python benchmarks/collectives.py`` on ``validation/collectives/efa.csv``, or with another table of NCCL
collectives (columns ``op``, ``instance_type``, ``nodes``, ``message_bytes``, ``time_us``, ``quality``). It prints the
error, ln(predicted / measured), by collective, instance and size. Rows on instances that the advisor does not know are
counted, not compared.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from smp_advisor.cluster import Cluster, instances
from smp_advisor.costs.communication import all_gather_seconds, all_reduce_seconds, all_to_all_seconds

LAWS = {"all_gather": all_gather_seconds, "all_reduce": all_reduce_seconds, "all_to_all": all_to_all_seconds}
LARGE = 16 * 2**20
"""Bytes from which a message is compared as one of training: a layer or a bucket of gradients."""


def predicted_seconds(row: dict[str, str]) -> float:
    """Seconds of a row's collective over all GPUs of its nodes, by the cost model."""
    cluster = Cluster(f"ml.{row['instance_type']}", int(row["nodes"]))
    return float(LAWS[row["op"]](cluster, float(row["message_bytes"]), cluster.gpus, 1))


def main(path: Path) -> int:
    """Print the errors."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = {machine.name.removeprefix("ml.") for machine in instances()}
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    skipped = 0
    for row in rows:
        if row["op"] not in LAWS or row["instance_type"] not in known or not row["time_us"]:
            skipped += 1
            continue
        size = "16 MiB and more" if float(row["message_bytes"]) >= LARGE else "less"
        error = math.log(predicted_seconds(row) / (float(row["time_us"]) * 1e-6))
        across = "across nodes" if int(row["nodes"]) > 1 else "one node"
        for key in ((row["op"], f"quality A, {across}", size),) if row["quality"] == "A" else ():
            errors[key].append(error)
        errors[row["op"], f"{row['instance_type']} {across} {row['quality']}", size].append(error)
    print(f"{len(rows)} rows, {skipped} of them not compared; ln(predicted / measured)")
    print(f"{'':62s}{'rows':>5} {'median':>8} {'absolute':>9} {'p90':>6}")
    for key in sorted(errors):
        values = np.array(errors[key])
        print(
            f"{' '.join(key)[:62]:62s}{len(values):5d} {np.median(values):+8.2f} {np.median(np.abs(values)):9.2f}"
            f" {np.quantile(np.abs(values), 0.9):6.2f}"
        )
    return 0


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "validation" / "collectives" / "efa.csv"
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
