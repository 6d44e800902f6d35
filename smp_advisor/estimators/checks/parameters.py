"""EST501, EST505 and EST509: the library's parameters, alone and in combination."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.checks.case import SDK_2, Case, Change, Hit
from smp_advisor.estimators.checks.smallest_edits import smallest_edits
from smp_advisor.estimators.readback import script_settings
from smp_advisor.libraries.plan import MAX_PARAMETERS_LENGTH
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import Violation, setting_violations, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["length", "library_parameters"]

_SINGLE = ("unknown", "version", "type", "range", "choice")


def library_parameters(case: Case) -> Iterator[Hit]:
    """EST501 and EST505: parameters that the library rejects, and parameters that require or exclude each other."""
    configuration = case.configuration
    if not case.smp_launcher:
        yield from _exclusive(case)
        return
    parameters = configuration.values()
    settings = _settings(case)
    library, version = case.library, case.back.version
    for violation in violations(parameters, version=version, library=library, settings=settings or None):
        if _in_doubt(case, violation, settings):
            continue
        changes = _changes(case, parameters, violation)
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
    yield from _default_partition(case, parameters)


def _settings(case: Case) -> dict[str, Any]:
    """Settings of the script, with defaults for the missing ones; empty if the text has none."""
    settings = script_settings(case.configuration)
    wrong = {key for violation in setting_violations(settings, library=case.library) for key in violation.keys}
    settings = {key: value for key, value in settings.items() if key not in wrong}
    if not settings:
        return {}
    return {setting.key: setting.default for setting in schema(case.library).settings} | settings


def _in_doubt(case: Case, violation: Violation, settings: dict[str, Any]) -> bool:
    """Whether the violation may be due to a setting that is missing or cannot be read."""
    configuration = case.configuration
    if configuration.unknown(*violation.keys):
        return True
    script = script_settings(configuration)
    if any(key in settings and key not in script for key in violation.keys):
        return True
    complete = not configuration.unknown("parameters")
    return not complete and not all(key in configuration.parameters for key in violation.keys)


def _changes(case: Case, parameters: dict[str, Any], violation: Violation) -> tuple[Change, ...]:
    changes: list[Change] = []
    for key, value, renamed in smallest_edits(parameters, violation, version=case.back.version, library=case.library):
        entry = case.configuration.parameters.get(key)
        table = entry.table if entry is not None else case.configuration.tables.get("parameters")
        if table is None:
            return ()
        if renamed:
            changes.append(Change(table, key, renamed, "rename"))
        elif value is None:
            changes.append(Change(table, key, None, "remove"))
        else:
            changes.append(Change(table, key, value))
    return tuple(changes)


def _exclusive(case: Case) -> Iterator[Hit]:
    """Settings of which the SDK accepts only one."""
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
    entries = case.configuration.tables.get(table)
    return () if entries is None or key not in entries.entries else (Change(entries, key, None, "remove"),)


def _default_partition(case: Case, parameters: dict[str, Any]) -> Iterator[Hit]:
    """The SDK compares default_partition with ``partitions``, and recognizes no other name for it."""
    if case.configuration.form != SDK_2 or case.smp_launcher != "mpi":
        return
    if (
        "default_partition" in parameters
        and parameters["default_partition"] is not None
        and "partitions" not in parameters
    ):
        if case.configuration.unknown("parameters", "partitions"):
            return
        yield Hit(
            id="EST505",
            span=case.span_of("default_partition"),
            variant="default_partition",
            changes=case.change("partitions", parameters.get("pipeline_parallel_degree", 1)),
        )


def length(case: Case) -> Iterator[Hit]:
    """EST509: all parameters are sent as one hyperparameter."""
    try:
        taken = len(json.dumps(case.configuration.values()))
    except (TypeError, ValueError):
        return
    if taken > MAX_PARAMETERS_LENGTH:
        yield Hit(id="EST509", span=case.span_of("parameters"), values={"length": taken, "most": MAX_PARAMETERS_LENGTH})
