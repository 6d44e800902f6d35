"""Options of the command line: which files and checks, plan and output."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import CONFIGURATION, json_values, read_bytes
from smp_advisor.errors import AdvisorError
from smp_advisor.review.findings.catalog import catalog, check_markdown
from smp_advisor.review.scripts.settings import checked_libraries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.review.findings.report import Report


@dataclass(frozen=True, slots=True)
class Selection:
    """Checks by prefixes of their ids: those of `select` (all, if empty) without those of `ignore`.

    The longest prefix decides, so that ``--select SMP109 --ignore SMP1`` reports SMP109.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, select: Iterable[str], ignore: Iterable[str]) -> Selection:
        """Return a selection by ids and prefixes in any case; ``ALL`` is every check."""
        return cls(tuple(map(_prefix, select)), tuple(map(_prefix, ignore)))

    def has(self, identifier: str) -> bool:
        """Return whether the check is reported."""
        selected = max((len(prefix) for prefix in self.select if identifier.startswith(prefix)), default=-1)
        ignored = max((len(prefix) for prefix in self.ignore if identifier.startswith(prefix)), default=-1)
        return selected > ignored if self.select else ignored < 0

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the reported checks."""
        return frozenset(filter(self.has, catalog()))

    def applied(self, report: Report) -> Report:
        """Return the report with the findings of the reported checks."""
        return replace(report, findings=tuple(finding for finding in report.findings if self.has(finding.id)))


def _prefix(text: str) -> str:
    prefix = "" if text.upper() == "ALL" else text.upper()
    if not any(identifier.startswith(prefix) for identifier in catalog()):
        near = difflib.get_close_matches(prefix, catalog(), 1)
        hint = f"did you mean {near[0]}?" if near else "docs/checks.md lists all checks."
        raise AdvisorError(f"No check has an id that starts with {text!r}: {hint}")
    return prefix


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        text = read_bytes(path, CONFIGURATION).decode("utf-8")
        content = json_values(text)
    except (OSError, ValueError) as error:
        raise AdvisorError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise AdvisorError(f"{path} must contain a JSON object: names and their values.")
    return content


FORMATS = ("text", "json", "sarif", "github")

_NUMBERS = (
    "microbatches",
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "sharded_data_parallel_degree",
    "hybrid_shard_degree",
)
_SWITCHES = ("fp16", "bf16", "prescaled_batch", "shard_optimizer_state", "offload_activations")


def settle(options: argparse.Namespace) -> None:
    """Read the files and ids that options name: `plan`, `hyperparameters` and `selection` are values then."""
    if "-" in options.paths and len(options.paths) > 1:
        raise AdvisorError("The standard input (-) is checked alone.")
    options.plan = _plan(options)
    options.hyperparameters = read_object(options.hyperparameters) if options.hyperparameters else None
    options.selection = Selection.of(_identifiers(options.select), _identifiers(options.ignore))


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a check of scripts to the parser of a command."""
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
    parser.add_argument("--explain", action=_Explain, metavar="ID", help="print the page of a check, and nothing else")


def _plan(options: argparse.Namespace) -> dict[str, Any] | None:
    plan = read_object(options.plan) if options.plan is not None else {}
    if isinstance(inner := plan.get("parameters"), dict):  # the value of "modelparallel" in a distribution
        plan = inner
    for name in (*_NUMBERS, *_SWITCHES):
        value = getattr(options, name)
        if value is not None:
            plan[name] = value
    return plan or None
