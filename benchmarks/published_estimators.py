"""Count AWS's published notebooks and recipes that can be read as plans, with the reasons for the others.

``python benchmarks/published_estimators.py FOLDER [FOLDER ...]`` reads every notebook (.ipynb) and recipe (.yaml) in
the folders and prints the tables of benchmarks/results/estimators_corpus.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from smp_advisor import check_estimator
from smp_advisor.errors import AdvisorError

LIBRARIES = {
    "smp-v1": "SMP v1, PyTorch",
    "smp-v1-tensorflow": "SMP v1, TensorFlow",
    "smp-v2": "SMP v2",
    "training-compiler": "Training Compiler",
    "fsdp": "PyTorch FSDP",
    "ddp": "PyTorch DDP",
    None: "none of these",
}


def main(folders: list[str]) -> None:
    """Read the files and print the tables."""
    read: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    plans: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    findings: Counter[tuple[str, str]] = Counter()
    paths = [
        path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.suffix in (".ipynb", ".yaml")
    ]
    for path in paths:
        try:
            report = check_estimator(path)
        except AdvisorError as error:
            reasons[f"not a job: {str(error).split(':')[0].replace(str(path), path.name)}"] += 1
            continue
        read[path.suffix] += 1
        for reading in report.readings:
            library = LIBRARIES[reading.library]
            jobs[library] += 1
            plans[library] += reading.plan is not None
            for why in reading.open if reading.plan is None else ():
                reasons[why] += 1
        findings.update({(finding.id, finding.message) for finding in report})
    print(f"{len(paths)} files, {sum(read.values())} of them configure a job.\n")
    print("| library | jobs | read into a plan |\n| --- | --- | --- |")
    for library in LIBRARIES.values():
        if jobs[library]:
            print(f"| {library} | {jobs[library]} | {plans[library]} |")
    print("\n| why not | how often |\n| --- | --- |")
    for why, count in reasons.most_common():
        print(f"| {why} | {count} |")
    print("\n| finding | files |\n| --- | --- |")
    for (identifier, message), count in sorted(findings.items()):
        print(f"| {identifier}: {message} | {count} |")


if __name__ == "__main__":
    main(sys.argv[1:])
