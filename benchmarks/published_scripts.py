"""Check published training scripts: ``python benchmarks/published_scripts.py FOLDER``.

Read the script to judge each printed error. This repository contains no published script: clone
aws/amazon-sagemaker-examples and pass the folder with the model-parallel scripts.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from pathlib import Path

from smp_advisor.errors import AdvisorError
from smp_advisor.scripts import check_script

# (part of the path, parameters of the estimator in the published notebook).
PLANS = (
    ("/mnist/", {"microbatches": 4, "partitions": 2, "ddp": True}),
    ("/bert/", {"microbatches": 12, "partitions": 2, "ddp": True}),
    ("/gpt-j/train_gptj_smp_script", {"microbatches": 2, "partitions": 8, "shard_optimizer_state": True}),
    (
        "/gpt-j/",
        {
            "microbatches": 1,
            "partitions": 1,
            "tensor_parallel_degree": 8,
            "shard_optimizer_state": True,
            "prescaled_batch": True,
            "fp16": True,
        },
    ),
    (
        "/gpt2/",
        {
            "microbatches": 1,
            "partitions": 1,
            "tensor_parallel_degree": 4,
            "shard_optimizer_state": True,
            "prescaled_batch": False,
            "fp16": True,
        },
    ),
    (
        "gptj-sharded-data-parallel-tp",
        {
            "partitions": 1,
            "tensor_parallel_degree": 2,
            "sharded_data_parallel_degree": 4,
            "prescaled_batch": True,
            "bf16": True,
            "microbatches": 1,
        },
    ),
    ("sharded-data-parallel", {"partitions": 1, "sharded_data_parallel_degree": 32, "bf16": True, "microbatches": 1}),
    ("/falcon/", {"partitions": 1, "sharded_data_parallel_degree": 16, "bf16": True, "microbatches": 1}),
    (
        "model_parallel_v2",
        {
            "library": "smp-v2",
            "tensor_parallel_degree": 2,
            "hybrid_shard_degree": 4,
            "sm_activation_offloading": True,
        },
    ),
    ("compiler", {"library": "training-compiler"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warnings", action="store_true", help="also print warnings and notes")
    options = parser.parse_args()
    digests: set[str] = set()
    counts: Counter[str] = Counter()
    slowest = 0.0
    for path in sorted([*options.folder.rglob("*.py"), *options.folder.rglob("*.ipynb")]):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in digests:
            continue
        digests.add(digest)
        plan = next((settings for part, settings in PLANS if part in path.as_posix()), None)
        for parameters in (None, plan):
            started = time.perf_counter()
            try:
                report = check_script(path, parameters)
            except AdvisorError as error:
                counts["unreadable"] += 1
                print(f"unreadable: {error}")
                break
            slowest = max(slowest, time.perf_counter() - started)
            for finding in report:
                counts[f"{finding.severity} {finding.id}"] += 1
                if finding.severity == "error" or options.warnings:
                    where = f"{finding.path}:{finding.line}"
                    print(f"{finding.severity} {finding.id} {where}: {finding.message} | {finding.text.strip()}")
    print(f"{len(digests)} different files, slowest {slowest:.2f} s")
    for name, count in sorted(counts.items()):
        print(f"{count:5d} {name}")


if __name__ == "__main__":
    main()
