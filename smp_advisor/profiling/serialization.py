"""Profiles as plain data for JSON; repeated parts are stored once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.parts import Agreement, BlockProfile, ModuleProfile, OperatorProfile, Provenance, Segment
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.result import Profile
from smp_advisor.profiling.result_html import restored
from smp_advisor.profiling.scaled.result import ScaledRun

if TYPE_CHECKING:
    from collections.abc import Mapping


_SHARED: dict[str, Any] = {"blocks": BlockProfile, "timeline": Segment}
"""Fields whose entries are mostly equal, and the kind of these."""
_KINDS: dict[str, Any] = {
    "scaled": ScaledRun | None,
    "provenance": tuple[Provenance, ...],
    "agreements": tuple[Agreement, ...],
    "outside_operators": tuple[OperatorProfile, ...],
    "unreached": tuple[tuple[str, int], ...],
    **dict.fromkeys(("tied", "versions"), tuple[tuple[str, ...], ...]),
    **dict.fromkeys(("warnings", "failures", "uncounted", "block_paths"), tuple[str, ...]),
    **dict.fromkeys(("saved_bytes", "forward_flops", "backward_flops", "input_bytes"), Polynomial),
    "checkpointed_bytes": Polynomial | None,
}
"""Kinds of the other fields that are no plain data."""
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
        else:
            result[entry.name] = _plain(value)
    result[_VERDICTS] = list(profile.verdicts)
    return result


def _plain(value: Any) -> Any:
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Polynomial):
        return {"polynomial": value.as_list()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def profile_from_dict(values: Mapping[str, Any]) -> Profile:
    """Convert the output of `profile_as_dict` back to a profile, also after a JSON round trip."""
    missing = {"name", *_SHARED} - values.keys()
    if missing:
        raise ProfileError(f"values are no profile of as_dict(): {min(missing)!r} is missing.")
    fields = {name: value for name, value in values.items() if name != _VERDICTS}
    fields |= {name: restored(kind, fields[name]) for name, kind in _KINDS.items() if name in fields}
    fields |= {name: _expanded(fields[name], kind) for name, kind in _SHARED.items()}
    tree = fields.get("tree") or {"paths": (), "kinds": (), "order": ()}
    fields["tree"] = dict(zip(tree["paths"], _expanded(tree, ModuleProfile), strict=True))
    return Profile(**fields)


def _expanded(shared: Mapping[str, Any], kind: Any) -> tuple[Any, ...]:
    kinds = [restored(kind, part) for part in shared["kinds"]]
    return tuple(kinds[place] for place in shared["order"])
