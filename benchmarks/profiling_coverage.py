"""Profile modules of well-known packages, request advice, and write the log benchmarks/results/profiling_coverage.md.

``python benchmarks/profiling_coverage.py`` runs `profile(m)` and `profile(m, inputs=...)` of each module of
profiling_modules.py, then `advise` for two ml.p4d.24xlarge, in the environment of modules_environment.sh. With
``--results FILE`` it stores one result per line and continues from there; ``--only`` selects names by a regular
expression.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

from profiling_modules import MODULES

DOCUMENT = Path(__file__).parent / "results" / "profiling_coverage.md"
INSTANCE, NODES = "ml.p4d.24xlarge", 2
SEQUENCE = 1024
DOUBTS = Path(__file__).parent / "profiling_doubts.json"


def _processor_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def judged(build: Any, inputs: Any) -> dict[str, Any]:
    """Parameters, both profiles with their seconds, and the plan of a module; reasons of failures."""
    import smp_advisor
    from smp_advisor.errors import AdvisorError

    try:
        module = build()
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        return {"reason": f"not built: {type(error).__name__}: {str(error)[:150]}"}
    count = sum(p.numel() for p in module.parameters())
    row: dict[str, Any] = {"parameters": count, "exact": True}
    for name, supplied in (("without", None), ("with", inputs)):
        begun = _processor_seconds()
        try:
            profile = smp_advisor.profile(module, inputs=supplied, sequence_length=SEQUENCE)
            row["exact"] &= profile.parameter_count == count
            row[name] = {"seconds": round(_processor_seconds() - begun, 1)}
            row[name]["copy"] = "" if profile.scaled is None else "trains" if profile.scaled.ok else "trains in part"
            if not profile.is_traced:
                row[name]["reason"] = " ".join(profile.verdicts)
                continue
            advice = smp_advisor.advise(profile, INSTANCE, instance_count=NODES)
            row["plan"] = _plan(advice)
            row["report"] = advice.report()
        except AdvisorError as error:
            row.setdefault(name, {})["reason"] = error.sentence
    return row


def _plan(advice: Any) -> str:
    plan, batch = advice.plan, advice.estimate.global_batch_size
    degrees = [
        f"{name} {value}"
        for name, value in (("tensor", plan.tensor_parallel_degree), ("pipeline", plan.pipeline_parallel_degree))
        if value > 1
    ]
    return ", ".join([plan.library, *degrees, f"batch {batch:,}"])


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The page: counts, then one row per module."""
    doubts: dict[str, str] = json.loads(DOUBTS.read_text(encoding="utf-8"))
    profiled = [row for row in rows.values() if "plan" in row]
    without = [row for row in rows.values() if "seconds" in row.get("without", {})]
    times = {
        name: sorted(row[name]["seconds"] for row in rows.values() if "seconds" in row.get(name, {}))
        for name in ("without", "with")
    }
    small = [
        row[name]["seconds"]
        for row in rows.values()
        for name in ("without", "with")
        if row.get("parameters", 0) < 10**8 and "seconds" in row.get(name, {})
    ]
    import torch

    fast = f"{sum(value <= 10 for value in small)} of {len(small)} profiles within 10, at most {max(small):.0f}"
    text = f"""# Profiles and advice of modules of well-known packages

Written by `benchmarks/profiling_coverage.py` with PyTorch {torch.__version__}, without a GPU: `profile(m)` and
`profile(m, inputs=...)`, each with trace and scaled copy, then `advise` for {NODES} {INSTANCE}. Seconds are those of a
processor, of the process and its children, on a shared machine. The last column is the judgment of a reader: the plan
is plausible, or what an expert would doubt.

- {len(rows)} modules: {len(without)} profiled without inputs, {len(times["with"])} with, {len(profiled)} with advice.
- Parameters equal to the module's: {sum(row["exact"] for row in profiled)} of {len(profiled)}.
- Seconds: median {_median(times["without"])} without and {_median(times["with"])} with inputs; below 100 M, {fast}.
- Plausible plans: {sum(title not in doubts for title, row in rows.items() if "plan" in row)} of {len(profiled)}.

| module | field | parameters | `profile(m)` | `profile(m, inputs=...)` | plan | plausible |
| --- | --- | --: | --- | --- | --- | --- |
"""
    lines = []
    for title, row in rows.items():
        cells = (
            title, MODULES[title][0], f"{row['parameters'] / 1e6:.3g} M" if "parameters" in row else "",
            _cell(row, "without"), _cell(row, "with"), row.get("plan", ""),
            doubts.get(title, "yes" if "plan" in row else ""),
        )  # fmt: skip
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return text + "\n".join(lines) + "\n"


def _median(values: list[float]) -> str:
    return f"{values[len(values) // 2]:.1f}" if values else "none"


def _cell(row: dict[str, Any], name: str) -> str:
    """Seconds and outcome of one call."""
    result = row.get(name, {"reason": row.get("reason", "")})
    if "reason" in result:
        if "can't be inferred" in result["reason"]:
            return "requires inputs"
        return re.sub(r" at /\S+ \(`[^`]*`\)|\S*/|\. \w+\.forward takes.*", "", result["reason"])[:140]
    copy = {"trains": "", "": ", no copy"}.get(result["copy"], f", copy {result['copy']}")
    return f"{result['seconds']} s{copy}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", default="", help="a regular expression: profile these, again if necessary")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    done: dict[str, dict[str, Any]] = {}
    if options.results:
        with contextlib.suppress(FileNotFoundError):
            done = {row.pop("title"): row for row in map(json.loads, options.results.read_text().splitlines())}
    for title, (_, build, inputs) in MODULES.items():
        if not (re.search(options.only, title) if options.only else title not in done):
            continue
        done[title] = judged(build, inputs)
        print(title, {key: value for key, value in done[title].items() if key != "report"}, flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps({"title": title, **done[title]}) + "\n")
    DOCUMENT.write_text(table({title: done[title] for title in MODULES if title in done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
