"""Parameters and settings of a library, from its data file: one schema for validation, search, tooltips and export."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.libraries.pipeline_schedule import default_active_microbatches
from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.rule import Condition, Rule
from smp_advisor.libraries.version import release, require_version, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Parameter", "Schema", "default_of", "schema"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter of the library, or one setting of the script."""

    key: str
    type: Literal["int", "float", "bool", "str"]
    """Compared strictly, as the library does: a bool is no int, 5e8 is no int, 1 is no float."""
    title: str
    doc: str
    """Effect and cost, for tooltips."""
    audience: Literal["user", "internal", "tensorflow"]
    group: str
    """Where a form puts it."""
    sources: tuple[str, ...]
    default: Any = None
    """The library's; None where it is computed (`default_rule`) or where there is none."""
    default_rule: str = ""
    documented_default: Any = None
    """Default in the documentation, if it differs."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    internal_choices: tuple[str, ...] = ()
    """Values the library takes that are not meant for users."""
    script_choices: tuple[str, ...] = ()
    """Values the library takes and the SageMaker SDK refuses: only ``smp.init`` in the script can pass them."""
    nullable: bool = False
    since: str = "1.0.0"
    since_exact: bool = True
    """False where `since` is only the earliest version in which it has been seen."""
    until: str | None = None
    until_exact: bool = True
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
    """Regular expression of further accepted values; a form offers only `choices`."""
    accepts: str = ""
    """Description of `pattern`."""

    def exists_in(self, version: str) -> bool:
        """Whether the library version takes it."""
        return release(self.since) <= release(version) and (
            self.until is None or release(version) <= release(self.until)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """Everything one library can express."""

    library: str
    name: str
    """The library as people call it."""
    compiled: str
    """Day the facts were put together (ISO 8601)."""
    parameters: tuple[Parameter, ...]
    settings: tuple[Parameter, ...]
    """Settings of the training script that a plan has in addition to the library's parameters."""
    rules: tuple[Rule, ...]
    """Parameters that require or exclude each other."""
    assumptions: tuple[tuple[tuple[Condition, ...], str], ...]
    """Sentences on what no source states, with the conditions on the plan under which they apply."""

    def parameter(self, key: str) -> Parameter | None:
        """Parameter of that name, in any version."""
        return _index(self.library).get(key)

    def parameters_for(self, version: str) -> tuple[Parameter, ...]:
        """Parameters that a library version takes."""
        require_version(self.library, version)
        return tuple(parameter for parameter in self.parameters if parameter.exists_in(version))

    def setting(self, key: str) -> Parameter | None:
        """Script setting of that name."""
        return next((setting for setting in self.settings if setting.key == key), None)

    def described(self, key: str) -> Parameter | None:
        """Parameter or script setting of that name, for the forms and tooltips of a plan's fields."""
        return self.parameter(key) or self.setting(key)

    def keys_for(self, version: str) -> frozenset[str]:
        """Names that a library version takes."""
        return _keys(self.library, version)

    def rules_for(self, version: str) -> tuple[Rule, ...]:
        """Rules that a library version enforces."""
        return _rules(self.library, version)

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Return the library's default of every parameter of a version (read only)."""
        return _defaults(self.library, version)

    def completed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with the library's default for each that is not given; older names count for newer ones."""
        full = {**_all_defaults(self.library), **parameters}
        for parameter in _aliases(self.library):
            if parameter.key in parameters and parameter.alias_of not in parameters:
                full[str(parameter.alias_of)] = parameters[parameter.key]
        if "active_microbatches" in full and parameters.get("active_microbatches") is None:
            full["active_microbatches"] = default_active_microbatches(
                full["pipeline_parallel_degree"], full["microbatches"]
            )
        return full

    def nearest(self, key: str, version: str) -> str | None:
        """Known name that is most like `key`, for "did you mean"."""
        near = get_close_matches(key, sorted(self.keys_for(version)), n=1, cutoff=0.6)
        return near[0] if near else None

    def nearest_field(self, name: str, fields: frozenset[str]) -> str | None:
        """Field of a plan that is most like `name`."""
        near = get_close_matches(name, sorted(fields), n=1, cutoff=0.6)
        return near[0] if near else None

    def assumptions_of(self, plan: object) -> list[str]:
        """Assumptions behind the figures of a plan, one sentence each."""
        return [
            text
            for conditions, text in self.assumptions
            if all(c.holds({}, {c.key: getattr(plan, c.key)}) for c in conditions)
        ]

    def versions_without(self, rule: Rule) -> tuple[str, ...]:
        """Versions that do not have a rule, oldest first: where the combination works."""
        return tuple(version for version in versions(self.library) if not rule.applies_to(version))


@cache
def schema(library: str = DEFAULT_LIBRARY) -> Schema:
    """Schema of a library.

    Examples
    --------
    >>> schema("smp-v1").parameter("sdp_max_live_parameters").default
    1000000000
    """
    table = get_library(library).table("schema.toml")
    return Schema(
        library=table["library"],
        name=table["name"],
        compiled=table["compiled"],
        parameters=tuple(_parameter(entry) for entry in table.get("parameter", ())),
        settings=tuple(_parameter(entry) for entry in table["setting"]),
        rules=tuple(_rule(entry) for entry in table.get("rule", ())),
        assumptions=tuple((_conditions(entry.get("when", {})), entry["text"]) for entry in table.get("assumption", ())),
    )


def default_of(key: str, library: str = DEFAULT_LIBRARY) -> int:
    """The library's default of an integer parameter."""
    return int(_all_defaults(library)[key])


def _parameter(entry: dict[str, Any]) -> Parameter:
    frozen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Parameter(**frozen)


def _rule(entry: dict[str, Any]) -> Rule:
    return Rule(**{**entry, "when": _conditions(entry["when"]), "needs": _conditions(entry["needs"])})


def _conditions(entry: Mapping[str, str]) -> tuple[Condition, ...]:
    return tuple(Condition.parse(key, text) for key, text in entry.items())


# A search makes many thousand plans of one version: what depends on the version alone is worked out once.


@cache
def _index(library: str) -> Mapping[str, Parameter]:
    return MappingProxyType({parameter.key: parameter for parameter in schema(library).parameters})


@cache
def _aliases(library: str) -> tuple[Parameter, ...]:
    return tuple(parameter for parameter in schema(library).parameters if parameter.alias_of)


@cache
def _all_defaults(library: str) -> Mapping[str, Any]:
    return MappingProxyType({parameter.key: parameter.default for parameter in schema(library).parameters})


@cache
def _keys(library: str, version: str) -> frozenset[str]:
    return frozenset(parameter.key for parameter in schema(library).parameters_for(version))


@cache
def _rules(library: str, version: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in schema(library).rules if rule.applies_to(version))


@cache
def _defaults(library: str, version: str) -> Mapping[str, Any]:
    return MappingProxyType({parameter.key: parameter.default for parameter in schema(library).parameters_for(version)})
