"""Profile modules of other libraries and classes of transformers, request advice, and write the log of the results.

``python scripts/profiling_coverage.py modules`` profiles the modules of profiling_modules.toml by the default call, in
the environment of modules_environment.sh; ``classes`` profiles every class in four of transformers' tables with its
default configuration. Each writes its own section of the page. With ``--results FILE`` it stores one result per line,
and continues from there in the next run; ``--only`` selects titles by a regular expression.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import json
import re
import sys
import time
import tomllib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "benchmarks" / "results" / "profiling_coverage.md"
LIST = Path(__file__).resolve().with_name("profiling_modules.toml")
TABLES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
)
TITLES = {"modules": "Modules of other libraries", "classes": "Classes of transformers"}
INSTANCE = "ml.p4d.24xlarge"
SEQUENCE = 64


def modules() -> dict[str, Callable[[], Any]]:
    """Builder of each module of the list, by its title."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["modules"]
    return {_title(entry): lambda entry=entry: _built(entry) for entry in entries}


def _title(entry: dict[str, Any]) -> str:
    model = entry.get("arguments", {}).get("model_name")
    return f"{entry['call'].split('.')[0].split(':')[0]}: {model}" if model else entry["call"].replace(":", ".")


def _built(entry: dict[str, Any]) -> Any:
    """Call the entry's class or function with its arguments."""
    path, _, name = entry["call"].partition(":")
    target: Any = importlib.import_module(path)
    if "config" in entry:
        return getattr(target, name)(getattr(target, entry["config"])())
    for part in name.split("."):
        target = getattr(target, part)
    return target(**{key: _value(value) for key, value in entry.get("arguments", {}).items()})


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _built(value)
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    return None if value == "none" else value


def classes() -> dict[str, Callable[[], Any]]:
    """Builder of each class of the tables, on the meta device."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    def built(name: str) -> Any:
        cls = getattr(transformers, name)
        with torch.device("meta"):
            return cls(cls.config_class())

    names = [name for table in TABLES for name in getattr(modeling_auto, table).values()]
    flat = [part for name in names for part in ([name] if isinstance(name, str) else name)]
    return {name: lambda name=name: built(name) for name in dict.fromkeys(flat)}


def judged(build: Callable[[], Any], stages: tuple[str, ...]) -> dict[str, Any]:
    """Method, parameters, inputs, plan and seconds of one module; the reason of a failure."""
    import smp_advisor
    from smp_advisor.errors import AdvisorError

    try:
        module = build()
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        return {"outcome": "not built", "reason": f"{type(error).__name__}: {str(error)[:200]}"}
    count, begun = sum(p.numel() for p in module.parameters()), time.perf_counter()
    result: dict[str, Any] = {"parameters": count}
    try:
        profile = smp_advisor.profile(module, stages=stages, sequence_length=SEQUENCE)
        method = next((source.method for source in profile.provenance if source.figure == "saved bytes"), "failed")
        result |= {"outcome": method, "exact": profile.parameter_count == count, "inputs": profile.inputs}
        result["copy"] = "" if profile.scaled is None else "trains" if profile.scaled.ok else "partly"
        result["reason"] = "" if method != "failed" else " ".join(profile.verdicts)
        if method != "failed":
            result["plan"] = smp_advisor.advise(profile, INSTANCE, instance_count=2).plan.library
    except AdvisorError as error:
        result |= {"outcome": result.get("outcome", "failed"), "reason": error.sentence}
    return result | {"seconds": round(time.perf_counter() - begun, 1)}


def section(kind: str, results: dict[str, dict[str, Any]]) -> str:
    """Section of the page: counts, then one row per module."""
    profiled = [row for row in results.values() if row["outcome"] not in {"failed", "not built"}]
    outcomes = ", ".join(f"{name} {count}" for name, count in collections.Counter(_outcomes(results)).most_common())
    seconds = sorted(row["seconds"] for row in profiled) or [0.0]
    lines = [
        f"## {TITLES[kind]}",
        "",
        f"Written by `scripts/profiling_coverage.py {kind}`, without `inputs=`; the plan is that for two {INSTANCE}.",
        "",
        f"- {len(results)} modules: {outcomes}.",
        f"- Parameters equal to the module's: {sum(row['exact'] for row in profiled)} of {len(profiled)}.",
        f"- With advice: {sum('plan' in row for row in profiled)} of {len(profiled)}.",
        f"- Seconds on a shared machine: median {seconds[len(seconds) // 2]:.0f}, at most {seconds[-1]:.0f}.",
        "",
        "| module | parameters | method | copy | plan | seconds | inputs or reason |",
        "| --- | --: | --- | --- | --- | --: | --- |",
    ]
    for title, row in results.items():
        reason = re.sub(r" at /\S+ \(`[^`]*`\)|\S*/", "", row.get("reason", ""))[:180]
        cells = (
            f"`{title}`", f"{row['parameters'] / 1e6:.3g} M" if "parameters" in row else "", row["outcome"],
            row.get("copy", ""), row.get("plan", ""), row.get("seconds", ""), reason or row.get("inputs", ""),
        )  # fmt: skip
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _outcomes(results: dict[str, dict[str, Any]]) -> list[str]:
    return [row["outcome"] for row in results.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=TITLES)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", default="", help="a regular expression: profile these, again if necessary")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    stages = ("trace", "copy") if options.kind == "modules" else ("trace",)
    builders = modules() if options.kind == "modules" else classes()
    done: dict[str, dict[str, Any]] = {}
    if options.results:
        with contextlib.suppress(FileNotFoundError):
            done = {row.pop("title"): row for row in map(json.loads, options.results.read_text().splitlines())}
    for title, build in builders.items():
        if not (re.search(options.only, title) if options.only else title not in done):
            continue
        done[title] = judged(build, stages)
        print(f"{done[title]['outcome']:14} {title:50} {done[title].get('reason', '')[:120]}", flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps({"title": title, **done[title]}) + "\n")
    parts = re.split(r"(?m)^(?=## )", DOCUMENT.read_text())[1:]  # and one that is written by hand
    parts[list(TITLES).index(options.kind)] = section(
        options.kind, {title: done[title] for title in builders if title in done}
    )
    text = "\n".join(part.strip() + "\n" for part in parts)
    DOCUMENT.write_text(f"# Profiling of modules and of transformers classes\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
