"""Compare the cost model's memory with ranks that are traced on the full model.

    python benchmarks/traced_rank.py [--write] [--group TITLE]

The plans are those of traced_rank.toml. Each is traced operator by operator in its own layout (`rank_steps`).
With ``--write``, the table of benchmarks/results/traced_rank.md is written after each plan. The exit status is 1 if
half of the plans differ by more than 7 %, or if a formula is more than 25 % below its trace. A complete run takes about
20 minutes.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from rank_steps.run import TracedRank, trace_rank

from smp_advisor.advice.description import read_model
from smp_advisor.cluster import Cluster
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CASES = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parent / "results" / "traced_rank.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
INSTANCE = "ml.p4de.24xlarge"
SEQUENCES = {"bert": 512, "gpt2": 1024}
USUAL_SEQUENCE = 2048
MEDIAN, BELOW = 0.07, 0.25
_SETTINGS = {
    "library": "", "version": "PyTorch {}", "batch_size": "batch {}", "gradient_accumulation_steps": "{} accumulated",
    "precision": "{}", "activation_checkpointing": "checkpointing {}", "sharding_strategy": "{}", "fp16": "",
    "tensor_parallel_degree": "tensor {}", "pipeline_parallel_degree": "pipeline {}", "microbatches": "{} microbatches",
    "hybrid_shard_degree": "shards {}", "sharded_data_parallel_degree": "sharded data {}", "prescaled_batch": "",
    "shard_optimizer_state": "optimizer state sharded", "pipeline": "{} pipeline",
}  # fmt: skip


def cases(only: str) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any], int]]:
    """(title of the group, model, settings of the plan, settings of the job, nodes)."""
    for group in tomllib.loads(CASES.read_text())["group"]:
        if only in group["title"]:
            for model in group["models"]:
                for plan in group["plans"]:
                    yield group["title"], model, plan, group.get("job", {}), group.get("nodes", 2)


def traced(name: str, settings: dict[str, Any], job: dict[str, Any], nodes: int) -> TracedRank:
    """The traced rank of a case."""
    sequence = next((value for start, value in SEQUENCES.items() if name.startswith(start)), USUAL_SEQUENCE)
    model = read_model(name, sequence_length=sequence)
    plan = Plan(**settings)
    training = Job(**{"precision": plan.precision, "attention": "fused", "sequence_length": sequence, **job})
    return trace_rank(model, Cluster(INSTANCE, nodes), training, plan)


def _row(title: str, name: str, settings: dict[str, Any], result: TracedRank) -> str:
    words = [_SETTINGS[key].format(value) for key, value in settings.items() if _SETTINGS[key]]
    layout = ", ".join(words) or "defaults"
    stage = f", stage {result.stage}" if result.stages > 1 else ""
    largest = max(result.categories, key=lambda row: abs(row.traced_gib - row.formula_gib))
    change = largest.traced_gib - largest.formula_gib
    cause = f"{largest.name.replace('_', ' ')} {change:+.2f}" if abs(change) >= 0.05 else ""
    return (
        f"| {title} | `{name}` | {layout}{stage} | {result.formula_gib:.2f} | {result.traced_gib:.2f} "
        f"| {100 * result.difference:+.1f} % | {result.phase} | {cause} |"
    )


def page(rows: Sequence[str]) -> str:
    """The measured part of the page."""
    off = sorted(abs(_difference(row)) for row in rows)
    within = [sum(value <= limit for value in off) for limit in (2, 5, 10)]
    summary = (
        f"{len(rows)} plans: median difference {median(off):.1f} %; {within[0]} within 2 %, {within[1]} within 5 %,"
        f" {within[2]} within 10 %. PyTorch {torch.__version__}."
    )
    lines = [
        summary,
        "",
        "| group | model | plan | formula, GiB | traced, GiB | difference | peak | largest difference, GiB |",
        "| --- | --- | --- | --: | --: | --: | --- | --- |",
        *rows,
    ]
    return "\n".join(lines)


def _difference(row: str) -> float:
    """Difference of a row, %."""
    return float(row.split("|")[6].strip(" %"))


def write(rows: Sequence[str]) -> None:
    """Write the rows into the page. Those of groups that were not traced are kept."""
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    titles = list(dict.fromkeys(title for title, *_ in cases("")))
    earlier = [line for line in text.splitlines() if line.split(" | ")[0].removeprefix("| ") in titles]
    traced_titles = {row.split(" | ")[0] for row in rows}
    kept_rows = [line for line in earlier if line.split(" | ")[0] not in traced_titles]
    ordered = sorted([*kept_rows, *rows], key=lambda row: titles.index(row.split(" | ")[0].removeprefix("| ")))
    PAGE.write_text(f"{before}\n{page(ordered)}\n{after}")


def main() -> int:
    """Trace every plan and report; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/traced_rank.md")
    parser.add_argument("--group", default="", help="only groups with this text in their title")
    options = parser.parse_args()
    rows: list[str] = []
    results: list[TracedRank] = []
    failures: list[str] = []
    for title, name, settings, job, nodes in cases(options.group):
        try:
            result = traced(name, settings, job, nodes)
        except AdvisorError as error:
            failures.append(f"{title}, {name}: {error}")
            print(failures[-1], flush=True)
            continue
        results.append(result)
        rows.append(_row(title, name, settings, result))
        print(rows[-1], flush=True)
        if options.write:
            write(rows)
    if not results:
        print("\n".join(failures) or f"no group has {options.group!r} in its title")
        return 1
    typical = median(abs(result.difference) for result in results)
    below = [result.name for result in results if result.difference > BELOW]
    print(f"median difference {100 * typical:.1f} %; formulas far below the trace: {below or 'none'}")
    return int(typical > MEDIAN or bool(below) or bool(failures))


if __name__ == "__main__":
    sys.exit(main())
