"""Twelve exported jobs: the lines of their scripts, the pins of their images, and the tests that prove them.

usage: python -m benchmarks.exported_jobs [--write] [JUNIT.xml]

Without the results of a run, it runs the tests of tests/export that exported_jobs.toml names, which takes minutes.
`--write` writes benchmarks/results/exported_jobs.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from smp_advisor.cluster import Cluster
from smp_advisor.export.script import companions, requirements, writable, written
from smp_advisor.libraries import Plan
from smp_advisor.libraries.version import image
from smp_advisor.workload import Adapter, Job, Model

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "benchmarks" / "results" / "exported_jobs.md"
_HEAD = """# Exported jobs

Written by `python -m benchmarks.exported_jobs --write` from the results of the tests that `exported_jobs.toml` names.
The tests send the cells to a mock of AWS, with the oldest and newest release of both major versions of the SDK. They
train tiny models with the script over gloo on processors, end the job while it saves, resume it, load its model with
`from_pretrained`, and generate. SMP v1 and SMP v2 run with stand-ins for the libraries. Lines are those of the script,
`train.yaml` and `report.py`.
"""


def _results(junit: Path | None, names: set[str]) -> dict[str, bool]:
    """Whether each test passed, by its name without the folder."""
    with tempfile.TemporaryDirectory() as folder:
        if junit is None:
            junit = Path(folder, "results.xml")
            files = sorted({f"tests/export/{name.split('.')[0]}.py" for name in names})
            command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={junit}", *files]
            subprocess.run(command, cwd=_ROOT, check=False)
        cases = ET.parse(junit).getroot().iter("testcase")
        return {
            f"{case.get('classname', '').removeprefix('tests.export.')}.{case.get('name')}": not any(
                part.tag in ("failure", "error", "skipped") for part in case
            )
            for case in cases
        }


def _verdict(pattern: str | None, results: dict[str, bool]) -> str:
    if pattern is None:
        return "-"
    expression = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    found = [passed for name, passed in results.items() if expression.fullmatch(name)]
    if not found:
        return "no such test"
    return "yes" if all(found) else "no"


def _described(row: dict[str, Any]) -> list[str]:
    """Model, lines of script and settings, and pins."""
    name = row["model"]
    model = Model.from_parameters(name) if name[0].isdigit() else Model.from_name(name)
    cluster = Cluster(row.get("instance", "ml.p5.48xlarge"), 16)
    adapter = {"adapter": Adapter(**row["job"]["adapter"])} if "adapter" in row["job"] else {}
    plan = Plan(**row["plan"])
    length = min(2048, model.shape.max_positions or 2048)
    job = Job(sequence_length=length, precision=plan.precision, **row["job"] | adapter)
    training = writable(model, cluster, job, plan, objective=row.get("objective"))
    lines = " + ".join(str(text.count("\n")) for text in (written(training), *companions(training).values()))
    pins = [f"PyTorch {image(training.plan.library, training.plan.version).framework_version}"]
    return [row["title"], model.name, lines, ", ".join([*pins, *requirements(training).split()])]


def main(arguments: list[str]) -> None:
    """Print or write the table."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    columns, rows = content["columns"], content["job"]
    files = [Path(argument) for argument in arguments if not argument.startswith("--")]
    results = _results(files[0] if files else None, {row[name] for row in rows for name in columns if name in row})
    table = [["job", "model", "lines", "pins", *columns.values(), "tiny models"]]
    table += [
        [*_described(row), *(_verdict(row.get(name), results) for name in columns), row["tiny"] or "-"] for row in rows
    ]
    table.insert(1, ["---"] * len(table[0]))
    text = f"{_HEAD}\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in table) + "\n"
    if "--write" in arguments:
        _PAGE.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
