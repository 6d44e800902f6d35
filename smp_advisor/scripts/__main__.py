"""``smp-advisor-check train.py``: the script checker for the command line, CI and pre-commit."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.files import SCRIPT
from smp_advisor.findings.sarif import as_sarif
from smp_advisor.scripts.check import check_script
from smp_advisor.scripts.command_line import as_annotations, project_settings, scripts_of, selected, selected_ids
from smp_advisor.scripts.fixes import plan_fixes, write_fixed
from smp_advisor.scripts.settings import checked_libraries

if TYPE_CHECKING:
    from smp_advisor.findings.report import Report

__all__ = ["main"]

_NUMBERS = (
    "microbatches",
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "sharded_data_parallel_degree",
    "hybrid_shard_degree",
)
_SWITCHES = ("fp16", "bf16", "prescaled_batch", "shard_optimizer_state", "offload_activations")


def main(arguments: list[str] | None = None) -> int:
    """Check the scripts. Exit status: 0 without errors, 1 with errors, 2 if a script cannot be checked."""
    parser = _parser()
    try:
        parser.set_defaults(**project_settings(Path.cwd()))
        options = parser.parse_args(arguments)
        plan = _plan(options)
        passed = _object(options.hyperparameters) if options.hyperparameters is not None else None
        paths = scripts_of(options.scripts)
    except AdvisorError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line program
        return 2
    reports: list[Report] = []
    status = 0
    ids = selected_ids(options.select, options.ignore)
    for path in paths:
        try:
            if path != "-" and (options.fix or options.diff):
                for fix in plan_fixes(path, ids=ids, plan=plan, library=options.library):
                    written = "" if options.diff else str(write_fixed(fix.path, fix.text, in_place=True))
                    print(written or fix.diff, file=sys.stderr)  # noqa: T201
            source = Path(path) if path != "-" else f"{sys.stdin.read(SCRIPT + 1)}\n"
            report = check_script(source, plan, library=options.library, hyperparameters=passed)
            reports.append(selected(report, options.select, options.ignore))
        except AdvisorError as error:
            print(error, file=sys.stderr)  # noqa: T201
            status = 2
    shown = _shown(reports, options.format)
    if options.output is None:
        print(shown)  # noqa: T201
    else:
        try:
            options.output.write_text(f"{shown}\n", encoding="utf-8")
        except OSError as error:
            print(f"{options.output} cannot be written: {error.strerror or error}.", file=sys.stderr)  # noqa: T201
            return 2
    wrong = any(report.of("error") or (options.strict and report.of("warning")) for report in reports)
    return status or int(wrong)


def _shown(reports: list[Report], form: str) -> str:
    if form == "text":
        return "\n\n".join(str(report) for report in reports)
    if form == "github":
        return as_annotations(reports)
    if form == "json":
        documents = [json.loads(report.to_json()) for report in reports]
        return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2, ensure_ascii=False)
    return json.dumps(as_sarif(*reports), indent=2, ensure_ascii=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smp-advisor-check",
        description="Check training scripts for SageMaker's model parallel libraries and Training Compiler.",
        epilog="Exit status: 0 no errors, 1 errors, 2 a script could not be checked.",
    )
    parser.add_argument(
        "scripts",
        nargs="+",
        metavar="script",
        help="a .py file, a notebook, a folder, a pattern, or - for the standard input",
    )
    parser.add_argument("--plan", type=Path, help="JSON file with the estimator's parameters (mp_parameters)")
    parser.add_argument(
        "--hyperparameters", type=Path, help="JSON file with the options that the job passes to the script"
    )
    parser.add_argument(
        "--library",
        choices=checked_libraries(),
        help="library to check for, if neither the imports nor the plan determine it",
    )
    for name in _NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="replaces the value in the plan")
    for name in _SWITCHES:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="replaces the value in the plan",
        )
    parser.add_argument("--format", choices=("text", "json", "sarif", "github"), default="text")
    parser.add_argument("--output", type=Path, help="write the report to this file")
    parser.add_argument(
        "--select", type=_ids, default=(), help="only these checks, or those that begin so: SMP1,DDP606"
    )
    parser.add_argument("--ignore", type=_ids, default=(), help="not these checks, or those that begin so")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings as well")
    parser.add_argument("--diff", action="store_true", help="show the changes of safe fixes, and write none")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first apply safe fixes, also in imported modules; each file is backed up as .bak",
    )
    return parser


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip().upper() for part in text.split(",") if part.strip())


def _plan(options: argparse.Namespace) -> dict[str, Any] | None:
    plan: dict[str, Any] = {}
    if options.plan is not None:
        parameters = _object(options.plan)
        inner = parameters.get("parameters", parameters)  # also accepts the value of "modelparallel" in a distribution
        plan |= inner if isinstance(inner, dict) else parameters
    for name in (*_NUMBERS, *_SWITCHES):
        value = getattr(options, name)
        if value is not None:
            plan[name] = value
    return plan or None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise AdvisorError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise AdvisorError(f"{path} must contain a JSON object: names and their values.")
    return content


if __name__ == "__main__":
    sys.exit(main())
