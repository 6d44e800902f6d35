"""Schema of a library from its data file, for validation, search, tooltips and export."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.version import release, require_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


SCHEDULES = ("interleaved", "simple")
INTERLEAVED, SIMPLE = range(len(SCHEDULES))
"""Positions of the schedules in `SCHEDULES`: their codes in columns of plans."""


@overload
def default_active_microbatches(pipeline_parallel_degree: int, microbatches: int) -> int: ...
@overload
def default_active_microbatches(pipeline_parallel_degree: NDArray[Any], microbatches: NDArray[Any]) -> NDArray[Any]: ...
def default_active_microbatches(pipeline_parallel_degree: Any, microbatches: Any) -> Any:
    """Active microbatches of a plan that sets none: SMP v1's default of ``active_microbatches``."""
    limit = pipeline_parallel_degree + 2
    if isinstance(limit, int):
        return min(limit, microbatches)
    return limit.clip(max=microbatches)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "multiple_of": lambda value, divisor: value % divisor == 0,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A setting compared with a value, or with another setting: ``tensor_parallel_degree > 1``."""

    key: str
    operator: str
    value: Any
    reference: str | None = None
    """Name of the setting with which it is compared, instead of `value`."""

    @classmethod
    def parse(cls, key: str, text: str) -> Condition:
        """Read ``"> 1"``, ``"== true"`` or ``"<= $microbatches"``."""
        sign, _, right = text.partition(" ")
        if sign not in _OPERATORS:
            raise ValueError(f"unknown operator {sign!r} in the condition {text!r} on {key}")
        if right.startswith("$"):
            return cls(key, sign, None, right[1:])
        return cls(key, sign, json.loads(right))

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if self.reference is None else (self.key, self.reference)

    def holds(self, settings: Mapping[str, Any], effective: Mapping[str, Any]) -> bool:
        right = self.value if self.reference is None else effective[self.reference]
        left = (settings if right is None else effective).get(self.key)
        return _OPERATORS[self.operator](left, right)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """If every condition of `when` holds, every one of `needs` must hold."""

    id: str
    when: tuple[Condition, ...]
    needs: tuple[Condition, ...]
    what: str
    fix: str
    source: str
    since: str | None = None
    until: str | None = None
    script_setting: bool = False
    """Whether it is about a setting of the training script, which an estimator alone does not show."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for condition in (*self.when, *self.needs) for key in condition.keys))

    def applies_to(self, version: str) -> bool:
        after = self.since is None or release(self.since) <= release(version)
        return after and (self.until is None or release(version) <= release(self.until))

    def broken_by(self, settings: Mapping[str, Any], effective: Mapping[str, Any]) -> bool:
        if not all(condition.holds(settings, effective) for condition in self.when):
            return False
        return not all(condition.holds(settings, effective) for condition in self.needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    key: str
    type: Literal["int", "float", "bool", "str"]
    """Compared strictly, like the library: a bool is not an int, 5e8 is not an int, 1 is not a float."""
    title: str
    doc: str
    audience: Literal["user", "internal", "tensorflow"]
    group: str
    sources: tuple[str, ...]
    default: Any = None
    """Default of the library; None if it is computed (`default_rule`) or if there is none."""
    default_rule: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    script_choices: tuple[str, ...] = ()
    """Values accepted by the library and refused by the SageMaker SDK: only ``smp.init`` in the script passes them."""
    nullable: bool = False
    since: str = "1.0.0"
    since_exact: bool = True
    """False if `since` is only the earliest version in which it has been seen."""
    until: str | None = None
    alias_of: str | None = None
    """Newer name of the same parameter."""
    deprecated: str | None = None
    """Version from which its newer name should be used."""
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    emit: Literal["always", "changed"] = "changed"
    """Whether a plan writes it even at its default."""
    aliases: tuple[str, ...] = ()
    """Other names that AWS's and Hugging Face's scripts give a setting."""
    pattern: str = ""
    """Regular expression of all accepted values, if a form offers only `choices`."""
    accepts: str = ""
    """Description of `pattern`."""

    def exists_in(self, version: str) -> bool:
        return release(self.since) <= release(version) and (
            self.until is None or release(version) <= release(self.until)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Schema:
    """Parameters, settings and rules of one library; cached by version, of which a search makes thousands of plans."""

    library: str
    name: str
    compiled: str
    """Day on which the data was compiled (ISO 8601)."""
    parameters: tuple[Parameter, ...]
    settings: tuple[Parameter, ...]
    rules: tuple[Rule, ...]
    """Settings that require or exclude each other."""
    assumptions: tuple[tuple[tuple[Condition, ...], str], ...]
    """Assumptions without a source, one sentence each, with the conditions on the plan under which they apply."""

    @cached_property
    def by_key(self) -> Mapping[str, Parameter]:
        return MappingProxyType({parameter.key: parameter for parameter in self.parameters})

    @cached_property
    def aliases(self) -> tuple[Parameter, ...]:
        """Older names of parameters."""
        return tuple(parameter for parameter in self.parameters if parameter.alias_of)

    @cached_property
    def all_defaults(self) -> Mapping[str, Any]:
        return MappingProxyType({parameter.key: parameter.default for parameter in self.parameters})

    def parameter(self, key: str) -> Parameter | None:
        """Parameter of that name, in any version."""
        return self.by_key.get(key)

    def setting(self, key: str) -> Parameter | None:
        return next((setting for setting in self.settings if setting.key == key), None)

    def described(self, key: str) -> Parameter | None:
        """Parameter or script setting of that name, for labels and tooltips of a field of the plan."""
        return self.parameter(key) or self.setting(key)

    @cache  # noqa: B019 - schemas are cached themselves
    def rules_for(self, version: str) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.applies_to(version))

    @cache  # noqa: B019
    def defaults(self, version: str) -> Mapping[str, Any]:
        """Return the library's default of every parameter of a version (read only)."""
        require_version(self.library, version)
        return MappingProxyType({entry.key: entry.default for entry in self.parameters if entry.exists_in(version)})

    def completed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with the library's default for each missing one; older names set newer ones."""
        full = {**self.all_defaults, **settings}
        for parameter in self.aliases:
            if parameter.key in settings and parameter.alias_of not in settings:
                full[str(parameter.alias_of)] = settings[parameter.key]
        if "active_microbatches" in full and settings.get("active_microbatches") is None:
            full["active_microbatches"] = default_active_microbatches(
                full["pipeline_parallel_degree"], full["microbatches"]
            )
        return full

    def assumptions_of(self, plan: object) -> list[str]:
        return [
            text
            for conditions, text in self.assumptions
            if all(c.holds({}, {c.key: getattr(plan, c.key)}) for c in conditions)
        ]


@cache
def schema(library: str = DEFAULT_LIBRARY) -> Schema:
    data = get_library(library).table("schema.toml")
    return Schema(
        library=data["library"],
        name=data["name"],
        compiled=data["compiled"],
        parameters=tuple(Parameter(**_frozen(entry)) for entry in data.get("parameter", ())),
        settings=tuple(Parameter(**_frozen(entry)) for entry in data["setting"]),
        rules=tuple(
            Rule(**{**entry, "when": _conditions(entry["when"]), "needs": _conditions(entry["needs"])})
            for entry in data.get("rule", ())
        ),
        assumptions=tuple((_conditions(entry.get("when", {})), entry["text"]) for entry in data.get("assumption", ())),
    )


def default_of(key: str, library: str = DEFAULT_LIBRARY) -> int:
    return int(schema(library).all_defaults[key])


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def _conditions(entry: Mapping[str, str]) -> tuple[Condition, ...]:
    return tuple(Condition.parse(key, text) for key, text in entry.items())
