"""Options of the command line, joined with those of ``[tool.smp_advisor]``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.findings.catalog import catalog
from smp_advisor.findings.page import check_markdown
from smp_advisor.scripts.command.configuration import Configuration, plan_parameters, read_configuration, read_object
from smp_advisor.scripts.command.selection import Selection
from smp_advisor.scripts.settings import checked_libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FORMATS", "Options", "parse"]

FORMATS = ("text", "json", "sarif", "github")

_NUMBERS = (
    "microbatches",
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "sharded_data_parallel_degree",
    "hybrid_shard_degree",
)
_SWITCHES = ("fp16", "bf16", "prescaled_batch", "shard_optimizer_state", "offload_activations")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Files, settings and output of one run of the command."""

    paths: tuple[str, ...]
    """Files, folders and patterns; ``-`` is the standard input."""
    stdin_name: str = ""
    plan: Mapping[str, Any] | None = None
    library: str | None = None
    hyperparameters: Mapping[str, Any] | None = None
    selection: Selection = field(default_factory=Selection)
    exclude: tuple[str, ...] = ()
    format: str = "text"
    output: Path | None = None
    strict: bool = False
    fix: bool = False
    diff: bool = False
    cache: bool = True


def parse(arguments: Sequence[str] | None) -> Options:
    """Options of the command line. What it leaves out comes from the nearest ``pyproject.toml``.

    Raises
    ------
    AdvisorError
        If a file with settings cannot be read, or a setting is not valid.
    SystemExit
        If an option is not known, as argparse does.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.diff and options.fix:
        parser.error("--diff shows the changes that --fix writes: pass one of them")
    if "-" in options.scripts and (options.fix or options.diff or len(options.scripts) > 1):
        parser.error("the standard input (-) is checked alone, and without --fix or --diff")
    present = Configuration() if options.no_config else read_configuration([*options.scripts, options.stdin_filename])
    select, ignore = _identifiers(options.select), _identifiers(options.ignore)
    return Options(
        paths=tuple(options.scripts),
        stdin_name=options.stdin_filename,
        plan=_plan(options, present),
        library=options.library or present.library,
        hyperparameters=read_object(options.hyperparameters) if options.hyperparameters else present.hyperparameters,
        selection=Selection.of(select or present.select, (*ignore, *present.ignore)),
        exclude=(*options.exclude, *present.exclude),
        format=options.format,
        output=options.output,
        strict=options.strict or present.strict,
        fix=options.fix,
        diff=options.diff,
        cache=not options.no_cache,
    )


class _Explain(argparse.Action):
    """Print the page of a check and exit, as ``--help`` does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - the signature of argparse
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        check = catalog().get(str(values).upper())
        if check is None:
            parser.error(f"no check has the id {values}: docs/checks.md lists all checks")
        print(f"{check.id}: {check.title}\n\n{check_markdown(check)}")  # noqa: T201 - a command line program
        parser.exit()


def _identifiers(values: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smp-advisor-check",
        description="Check training scripts for SageMaker's model parallel libraries, FSDP, DDP and Training Compiler.",
        epilog="Exit status: 0 no errors, 1 errors (with --strict, also warnings; with --diff, changes), 2 a script "
        "could not be checked or an option is not valid.",
    )
    parser.add_argument(
        "scripts",
        nargs="+",
        metavar="path",
        help="a .py file, a notebook, a folder, a pattern such as 'src/**/train*.py', or - for the standard input",
    )
    parser.add_argument(
        "--stdin-filename", default="", metavar="FILE", help="path in the report for -; imports are followed from there"
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
    for name, text in (("select", "report only these checks"), ("ignore", "do not report these checks")):
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="IDS", help=f"{text}: ids or prefixes, as in SMP109,STC"
        )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN", help="files and folders that are left out"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="github: annotations of a workflow")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report to a file, in one step")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on warnings as well")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first apply safe fixes, also in imported modules; each file is backed up as .bak",
    )
    parser.add_argument("--explain", action=_Explain, metavar="ID", help="print the page of a check, and nothing else")
    parser.add_argument("--diff", action="store_true", help="print the changes of --fix and write nothing")
    parser.add_argument("--no-config", action="store_true", help="do not read [tool.smp_advisor] of pyproject.toml")
    parser.add_argument("--no-cache", action="store_true", help="neither use nor store results of earlier runs")
    return parser


def _plan(options: argparse.Namespace, present: Configuration) -> dict[str, Any] | None:
    plan: dict[str, Any] = dict(present.plan or {})
    if options.plan is not None:
        plan = dict(plan_parameters(read_object(options.plan)))
    for name in (*_NUMBERS, *_SWITCHES):
        value = getattr(options, name)
        if value is not None:
            plan[name] = value
    return plan or None
