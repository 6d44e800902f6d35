"""EST501, EST505, EST509: the library's parameters by themselves and together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.checks.case import SDK_2, Case, Change, Hit
from smp_advisor.estimators.checks.mending import mended
from smp_advisor.estimators.readback import script_settings
from smp_advisor.libraries.plan import MAX_PARAMETERS_LENGTH
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import Violation, setting_violations, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["length", "library_parameters"]

_SINGLE = ("unknown", "version", "type", "range", "choice")


def library_parameters(case: Case) -> Iterator[Hit]:
    """EST501 and EST505: what the library takes, and what needs or excludes what."""
    configuration = case.configuration
    if configuration.library in (None, "training-compiler", "ddp", "fsdp"):
        yield from _exclusive(case)
        return
    given = configuration.values()
    settings = _settings(case)
    library, version = case.library, case.back.version
    for violation in violations(given, version=version, library=library, settings=settings or None):
        if _in_doubt(case, violation, settings):
            continue
        changes = _changes(case, given, violation)
        sentence = violation.text.rstrip(".")
        problem, _, remedy = sentence.partition(": ")
        alone = violation.rule in _SINGLE
        yield Hit(
            id="EST501" if alone else "EST505",
            span=case.span_of(*violation.keys),
            variant="parameter" if alone else "rule",
            values={
                "problem": problem,
                "remedy": remedy[:1].upper() + remedy[1:] or "Use a value that the library accepts",
            },
            changes=changes,
            rule=violation.rule,
        )
    yield from _exclusive(case)
    yield from _default_partition(case, given)


def _settings(case: Case) -> dict[str, Any]:
    """The script's settings with defaults for those not given; empty where none is."""
    given = script_settings(case.configuration)
    wrong = {key for violation in setting_violations(given, library=case.library) for key in violation.keys}
    given = {key: value for key, value in given.items() if key not in wrong}
    if not given:
        return {}
    return {one.key: one.default for one in schema(case.library).settings} | given


def _in_doubt(case: Case, violation: Violation, settings: dict[str, Any]) -> bool:
    """Whether it may hold only because something is not readable, or not given."""
    configuration = case.configuration
    if configuration.unknown(*violation.keys):
        return True
    given = script_settings(configuration)
    if any(key in settings and key not in given for key in violation.keys):
        return True
    whole = not configuration.unknown("parameters")
    return not whole and not all(key in configuration.parameters for key in violation.keys)


def _changes(case: Case, given: dict[str, Any], violation: Violation) -> tuple[Change, ...]:
    found: list[Change] = []
    for key, value, renamed in mended(given, violation, version=case.back.version, library=case.library):
        stated = case.configuration.parameters.get(key)
        table = stated.table if stated is not None else case.configuration.tables.get("parameters")
        if table is None:
            return ()
        if renamed:
            found.append(Change(table, key, renamed, "rename"))
        elif value is None:
            found.append(Change(table, key, None, "remove"))
        else:
            found.append(Change(table, key, value))
    return tuple(found)


def _exclusive(case: Case) -> Iterator[Hit]:
    """What the SDK takes only one of."""
    configuration = case.configuration
    with_model = "modelparallel" in configuration.tables
    if with_model and configuration.get("dataparallel") is True:
        yield Hit(
            id="EST505",
            span=case.span_of("dataparallel"),
            variant="both strategies",
            changes=_removal(case, "smdistributed", "dataparallel"),
        )
    if configuration.get("compiler"):
        if with_model or configuration.get("dataparallel") is True:
            yield Hit(
                id="EST505",
                span=case.span_of("modelparallel", "dataparallel", "compiler"),
                variant="compiler with smdistributed",
            )
    elif (
        configuration.get("pytorchxla") is True
        and configuration.form == SDK_2
        and not configuration.unknown("compiler_config")
    ):
        yield Hit(
            id="EST505",
            span=case.span_of("pytorchxla"),
            variant="pytorchxla without the compiler",
            changes=_removal(case, "distribution", "pytorchxla"),
        )


def _removal(case: Case, table: str, key: str) -> tuple[Change, ...]:
    found = case.configuration.tables.get(table)
    return () if found is None or key not in found.entries else (Change(found, key, None, "remove"),)


def _default_partition(case: Case, given: dict[str, Any]) -> Iterator[Hit]:
    """The SDK compares default_partition with ``partitions`` and knows no other name for it."""
    if case.configuration.form != SDK_2 or not case.library.startswith("smp-v1"):
        return
    if "default_partition" in given and given["default_partition"] is not None and "partitions" not in given:
        if case.configuration.unknown("parameters", "partitions"):
            return
        yield Hit(
            id="EST505",
            span=case.span_of("default_partition"),
            variant="default_partition",
            changes=case.change("partitions", given.get("pipeline_parallel_degree", 1)),
        )


def length(case: Case) -> Iterator[Hit]:
    """EST509: all parameters travel as one hyperparameter."""
    try:
        taken = len(json.dumps(case.configuration.values()))
    except (TypeError, ValueError):
        return
    if taken > MAX_PARAMETERS_LENGTH:
        yield Hit(id="EST509", span=case.span_of("parameters"), values={"length": taken, "most": MAX_PARAMETERS_LENGTH})
