"""Check published scripts: ``python benchmarks/published_scripts.py FOLDER [--part 0/2]``.

Prints one JSON line per finding. Read the script to judge it: benchmarks/results/checks_corpus.md has the judgments.
This repository contains no published script: put checkouts next to each other in FOLDER.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from functools import lru_cache
from pathlib import Path

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import read
from smp_advisor.scripts import following
from smp_advisor.scripts.check import check_source

_TRAINS = re.compile(
    r"\.backward\(|Trainer\(|Accelerator\(|DistributedDataParallel|FullyShardedDataParallel|fully_shard|FSDP"
    r"|TrainingArguments|SFTConfig|smdistributed|torch_xla|torch\.sagemaker|LightningModule|DataLoader\("
)
"""Text of a file that trains or is part of a training script."""
_SHARDS = re.compile(r"FullyShardedDataParallel|fully_shard|\bFSDP\b|fsdp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="0/1", help="part of the files, for several processes: 1/2")
    parser.add_argument("--first", type=int, default=0, help="files of the part that are left out")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    # Both checks of a file read it once.
    following._followed = lru_cache(maxsize=1)(following._followed)  # noqa: SLF001
    digests: set[str] = set()
    files: list[tuple[str, Path, str]] = []
    for path in sorted([*options.folder.rglob("*.py"), *options.folder.rglob("*.ipynb")]):
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        text = data.decode("utf-8", "replace")
        if digest not in digests and _TRAINS.search(text) and len(data) < 1_000_000:
            files.append((digest, path, text))
        digests.add(digest)
    counts = {"files": 0, "unreadable": 0, "no-plan findings": 0, "plan findings": 0}
    # In an order without a meaning: the first files are a sample.
    for _, path, text in sorted(files)[part::parts][options.first :]:
        counts["files"] += 1
        if counts["files"] % 50 == 0:
            print(counts["files"], file=sys.stderr, flush=True)
        try:
            source = read(path)
        except AdvisorError:
            counts["unreadable"] += 1
            continue
        for plan in (None, {"library": "fsdp" if _SHARDS.search(text) else "ddp"}):
            try:
                report = check_source(source, plan)
            except AdvisorError as error:
                counts["unreadable"] += 1
                print(json.dumps({"file": str(path), "error": str(error)[:200]}), flush=True)
                break
            trains = any(part.role == "training loops" and part.places for part in report.coverage.parts)
            for finding in report:
                counts["plan findings" if plan else "no-plan findings"] += 1
                row = {
                    "id": finding.id,
                    "severity": finding.severity,
                    "plan": plan and plan["library"],
                    "where": f"{finding.path}:{finding.line}",
                    "message": finding.message,
                    "text": finding.text.strip(),
                    "file": str(path),
                }
                print(json.dumps(row), flush=True)
            if not trains:
                break
    print(json.dumps(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
