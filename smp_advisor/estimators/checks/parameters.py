"""EST501, EST505 and EST509: the library's parameters, alone and in combination, and the fewest changes to them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments import nearest
from smp_advisor.estimators.cases import SDK_2, Case, Change, Hit
from smp_advisor.estimators.readback import script_settings
from smp_advisor.libraries.plan import MAX_PARAMETERS_LENGTH
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import Violation, setting_violations, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.libraries.schema import Parameter, Rule

_SINGLE = ("unknown", "version", "type", "range", "choice")

Edit = tuple[str, Any, str]
"""Parameter, its new value (None: removed), its new name (empty: unchanged)."""


def smallest_edits(parameters: Mapping[str, Any], violation: Violation, *, version: str, library: str) -> list[Edit]:
    """Return the changes that remove `violation`; none if every one needs a decision of the user."""
    best: list[Edit] = []
    fewest: int | None = None
    for edits in _candidates(parameters, violation, version, library):
        after = _applied(parameters, edits)
        if violation.rule in _SINGLE:  # depends on no other parameter
            after = {key: after[key] for key in (*violation.keys, edits[0][2]) if key in after}
        left = list(violations(after, version=version, library=library))
        if any(remaining.rule == violation.rule and remaining.keys == violation.keys for remaining in left):
            continue
        if violation.rule in _SINGLE:
            return edits  # violations that it then causes are reported next
        if fewest is None or len(left) < fewest:
            best, fewest = edits, len(left)
    return best


def _applied(parameters: Mapping[str, Any], edits: list[Edit]) -> dict[str, Any]:
    changed = dict(parameters)
    for key, value, renamed in edits:
        if renamed:
            changed = {renamed if name == key else name: entry for name, entry in changed.items()}
        elif value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed


def _candidates(
    parameters: Mapping[str, Any], violation: Violation, version: str, library: str
) -> Iterator[list[Edit]]:
    library_schema = schema(library)
    key = violation.keys[0]
    if violation.rule in ("unknown", "version"):
        near = nearest(key, library_schema.defaults(version))
        if violation.rule == "version":
            near = next(
                (
                    parameter.key
                    for parameter in library_schema.parameters
                    if parameter.alias_of == key and parameter.exists_in(version)
                ),
                "",
            )
        if near and near not in parameters:
            yield [(key, None, near)]
        yield [(key, None, "")]
        return
    parameter = library_schema.parameter(key)
    if violation.rule in ("type", "range", "choice") and parameter is not None:
        for value in _values(parameter, parameters.get(key)):
            yield [(key, value, "")]
        yield [(key, None, "")]
        return
    rule = next((rule for rule in library_schema.rules if rule.id == violation.rule), None)
    if rule is not None and not rule.script_setting:
        # Rules apply to parameters that are valid on their own. The others cannot be compared.
        wrong = {
            key
            for fault in violations(parameters, version=version, library=library)
            if fault.rule in _SINGLE
            for key in fault.keys
        }
        sound = {key: value for key, value in parameters.items() if key not in wrong}
        yield from _for_rule(rule, sound, library_schema.completed(sound))


def _values(parameter: Parameter, value: Any) -> Iterator[Any]:
    if parameter.type == "bool":
        text = str(value).strip().lower()
        if text in ("1", "true", "yes", "on", "1.0"):
            yield True
        elif text in ("0", "false", "no", "off", "0.0"):
            yield False
        return
    if parameter.type in ("int", "float"):
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            return
        if math.isnan(number):
            return
        low = -math.inf if parameter.minimum is None else parameter.minimum
        high = math.inf if parameter.maximum is None else parameter.maximum
        number = min(max(number, low), high)
        if math.isfinite(number):
            yield round(number) if parameter.type == "int" else float(number)
        return
    choices = [choice for choice in parameter.choices if choice.lower() == str(value).strip().lower()]
    yield from choices


def _for_rule(rule: Rule, parameters: Mapping[str, Any], effective: Mapping[str, Any]) -> Iterator[list[Edit]]:
    """Yield the values that the rule requires; else removal of the parameter that triggers it."""
    needs: list[Edit] = []
    for condition in rule.needs:
        if condition.holds(parameters, effective):
            continue
        right = condition.value if condition.reference is None else effective.get(condition.reference)
        other = 0 if right is None else not right if isinstance(right, bool) else None
        below = 0 if isinstance(right, int) and right > 0 else None
        value = {"!=": other, "<": below, ">": None}.get(condition.operator, right)
        if value is None:
            break
        needs.append((condition.key, value, ""))
    else:
        if needs:
            yield needs
    for condition in rule.when:
        if condition.key == "bf16":
            yield [("bf16", None, ""), ("fp16", True, "")]
        if condition.key in parameters:
            yield [(condition.key, None, "")]


def library_parameters(case: Case) -> Iterator[Hit]:
    """EST501 and EST505: parameters that the library rejects, and parameters that require or exclude each other."""
    configuration = case.configuration
    if not case.smp_launcher:
        yield from _exclusive(case)
        return
    parameters, script = configuration.values(), script_settings(configuration)
    library, version = case.library, case.back.version
    wrong = {key for violation in setting_violations(script, library=library) for key in violation.keys}
    sound = {key: value for key, value in script.items() if key not in wrong}
    settings = {setting.key: setting.default for setting in schema(library).settings} | sound if sound else {}
    for violation in violations(parameters, version=version, library=library, settings=settings or None):
        absent = [key for key in violation.keys if key not in configuration.parameters]
        if (  # due to a setting that is missing or cannot be read
            configuration.unknown(*violation.keys)
            or any(key in settings and key not in script for key in violation.keys)
            or (absent and configuration.unknown("parameters"))
        ):
            continue
        problem, _, remedy = violation.text.rstrip(".").partition(": ")
        check, variant = ("EST501", "parameter") if violation.rule in _SINGLE else ("EST505", "rule")
        yield case.hit(
            check,
            variant,
            *violation.keys,
            problem=problem,
            remedy=remedy[:1].upper() + remedy[1:] or "Use a value that the library accepts",
            fixes=_corrections(case, parameters, violation),
            rule=violation.rule,
        )
    yield from _exclusive(case)
    # The SDK compares default_partition with ``partitions``, and recognizes no other name for it.
    if case.configuration.form != SDK_2 or case.smp_launcher != "mpi" or "partitions" in parameters:
        return
    if parameters.get("default_partition") is not None and not case.configuration.unknown("parameters", "partitions"):
        changes = case.change("partitions", parameters.get("pipeline_parallel_degree", 1))
        yield case.hit("EST505", "default_partition", "default_partition", fixes=changes)


def _corrections(case: Case, parameters: dict[str, Any], violation: Violation) -> tuple[Change, ...]:
    changes: list[Change] = []
    for key, value, renamed in smallest_edits(parameters, violation, version=case.back.version, library=case.library):
        entry = case.configuration.parameters.get(key)
        table = entry.table if entry is not None else case.configuration.tables.get("parameters")
        if table is None:
            return ()
        action: Literal["set", "remove", "rename"] = "rename" if renamed else "remove" if value is None else "set"
        changes.append(Change(table, key, renamed or value, action))
    return tuple(changes)


def _exclusive(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    with_model, with_data = "modelparallel" in configuration.tables, configuration.get("dataparallel") is True
    if with_model and with_data:
        changes = _removal(case, "smdistributed", "dataparallel")
        yield case.hit("EST505", "both strategies", "dataparallel", fixes=changes)
    if configuration.get("compiler"):
        if with_model or with_data:
            yield case.hit("EST505", "compiler with smdistributed", "modelparallel", "dataparallel", "compiler")
    elif (
        configuration.get("pytorchxla") is True
        and configuration.form == SDK_2
        and not configuration.unknown("compiler_config")
    ):
        changes = _removal(case, "distribution", "pytorchxla")
        yield case.hit("EST505", "pytorchxla without the compiler", "pytorchxla", fixes=changes)


def _removal(case: Case, table: str, key: str) -> tuple[Change, ...]:
    entries = case.configuration.tables.get(table)
    return () if entries is None or key not in entries.entries else (Change(entries, key, None, "remove"),)


def length(case: Case) -> Iterator[Hit]:
    """EST509: all parameters are sent as one hyperparameter."""
    try:
        taken = len(json.dumps(case.configuration.values()))
    except (TypeError, ValueError):
        return
    if taken > MAX_PARAMETERS_LENGTH:
        yield case.hit("EST509", "", "parameters", length=taken, most=MAX_PARAMETERS_LENGTH)
