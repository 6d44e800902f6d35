"""Profiles as plain data for JSON; repeated parts are stored once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.local_run.run import LocalRun
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.rehearsal.result import Rehearsal
from smp_advisor.profiling.result import (
    Agreement,
    AttentionProfile,
    BlockProfile,
    ModuleProfile,
    OperatorProfile,
    ProductProfile,
    Profile,
    Provenance,
    Segment,
)
from smp_advisor.profiling.scaled.result import ScaledRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["profile_as_dict", "profile_from_dict"]

_SHARED = ("blocks", "timeline", "checkpointed_timeline")
"""Fields whose entries are mostly equal."""
_STAGES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "scaled": ScaledRun.from_dict,
    "local": LocalRun.from_dict,
    "rehearsal": Rehearsal.from_dict,
}
_POLYNOMIAL = "polynomial"
_VERDICTS = "verdicts"
"""Derived from the other entries, for readers of the plain data."""


def profile_as_dict(profile: Profile) -> dict[str, Any]:
    """Convert a profile to plain data, ready for JSON."""
    result: dict[str, Any] = {}
    for entry in dataclasses.fields(profile):
        value = getattr(profile, entry.name)
        if entry.name in _SHARED:
            distinct = list(dict.fromkeys(value))
            places = {part: place for place, part in enumerate(distinct)}
            result[entry.name] = {
                "kinds": [_plain(part) for part in distinct],
                "order": [places[part] for part in value],
            }
        elif entry.name == "tree":
            distinct = list(dict.fromkeys(value.values()))
            places = {part: place for place, part in enumerate(distinct)}
            result["tree"] = {
                "paths": list(value),
                "kinds": [_plain(part) for part in distinct],
                "order": [places[part] for part in value.values()],
            }
        elif entry.name in _STAGES:
            result[entry.name] = value.as_dict() if hasattr(value, "as_dict") else value
        else:
            result[entry.name] = _plain(value)
    result[_VERDICTS] = list(profile.verdicts)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Polynomial):
        return {_POLYNOMIAL: value.as_list()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def profile_from_dict(values: Mapping[str, Any]) -> Profile:
    """Convert the output of `profile_as_dict` back to a profile, also after a JSON round trip."""
    fields = {name: value for name, value in values.items() if name != _VERDICTS}
    for name, read in _STAGES.items():
        if isinstance(fields.get(name), dict):
            fields[name] = read(fields[name])
    fields["blocks"] = _expanded(fields["blocks"], _block)
    for name in ("timeline", "checkpointed_timeline"):
        fields[name] = _expanded(fields[name], lambda part: Segment(**_polynomials(part)))
    tree = fields.get("tree") or {"paths": (), "kinds": (), "order": ()}
    modules = _expanded(tree, lambda part: ModuleProfile(**_polynomials(part)))
    fields["tree"] = dict(zip(tree["paths"], modules, strict=True))
    fields["unreached"] = tuple((path, size) for path, size in fields.get("unreached", ()))
    fields["provenance"] = tuple(Provenance(**part) for part in fields["provenance"])
    fields["agreements"] = tuple(Agreement(**part) for part in fields["agreements"])
    for name in ("tied", "versions"):
        fields[name] = tuple(tuple(part) for part in fields[name])
    fields["outside_operators"] = _operators(fields.get("outside_operators", ()))
    for name in ("warnings", "failures", "uncounted"):
        fields[name] = tuple(fields.get(name, ()))
    return Profile(**_polynomials(fields))


def _expanded(shared: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any]) -> tuple[Any, ...]:
    kinds = [read(part) for part in shared["kinds"]]
    order: Sequence[int] = shared["order"]
    return tuple(kinds[place] for place in order)


def _block(values: Mapping[str, Any]) -> BlockProfile:
    fields = _polynomials(values)
    fields["products"] = tuple(ProductProfile(**_polynomials(part)) for part in fields["products"])
    fields["attentions"] = tuple(AttentionProfile(**part) for part in fields["attentions"])
    fields["operators"] = _operators(fields.get("operators", ()))
    return BlockProfile(**fields)


def _operators(rows: Sequence[Mapping[str, Any]]) -> tuple[OperatorProfile, ...]:
    return tuple(OperatorProfile(**_polynomials(row)) for row in rows)


def _polynomials(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: Polynomial.from_list(value[_POLYNOMIAL]) if isinstance(value, dict) and _POLYNOMIAL in value else value
        for name, value in values.items()
    }
