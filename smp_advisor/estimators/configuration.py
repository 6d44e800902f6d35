"""Settings of a job in a common form, for all forms of configurations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.data import plain, reason
from smp_advisor.reading.values import Constant, Mapping, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.estimators.strategy import Strategy
    from smp_advisor.reading.source import Span

__all__ = ["Configuration", "Gap", "Setting", "why_not"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the configuration."""

    value: Any
    span: Span | None = None
    """Place of its key or keyword and value."""
    table: Mapping | None = None
    """The dictionary or call that contains it."""
    key: str = ""
    """Its key there."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A setting whose value cannot be read."""

    name: str
    why: str
    span: Span | None


@dataclass(slots=True)
class Configuration:
    """A training job in its author's text; `settings` and `parameters` contain only known values."""

    form: str
    """``estimator``, ``model trainer``, ``parameters``, ``recipe`` or ``request``."""
    title: str
    """Title for sentences: "PyTorch(...)"."""
    span: Span | None = None
    framework: str = "pytorch"
    library: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    """Where and how the job runs: `instance_type`, `framework_version`, `processes_per_host`, `mpi`, ..."""
    parameters: dict[str, Setting] = field(default_factory=dict)
    """Parameters of the library, by their names there."""
    hyperparameters: dict[str, Setting] = field(default_factory=dict)
    """Hyperparameters of the script."""
    tables: dict[str, Mapping] = field(default_factory=dict)
    """Tables for new entries: ``estimator``, ``distribution``, ``mpi``, ``parameters``, ``hyperparameters``."""
    embedded: Setting | None = None
    """The JSON text of the parameters, if they are in a hyperparameter."""
    gaps: list[Gap] = field(default_factory=list)
    strategy: Strategy | None = None
    """How a job without SageMaker's libraries divides its model; None for other jobs."""
    sure: bool = True
    """False if the job depends on a condition that cannot be decided."""

    def use(self, strategy: Strategy) -> None:
        """Set the strategy, with its library and the settings that follow."""
        self.strategy, self.library = strategy, strategy.library
        for name, value in strategy.settings.items():
            self.hyperparameters[name] = Setting(value)

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting."""
        return self.settings[name].value if name in self.settings else default

    def unknown(self, *names: str) -> bool:
        """Whether one of the settings has a value that cannot be read."""
        return any(gap.name in names for gap in self.gaps)

    def values(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The library's parameters as plain data."""
        keys = self.parameters.keys() if names is None else names
        return {name: self.parameters[name].value for name in keys if name in self.parameters}

    def take(self, table: Mapping | None, key: str, name: str = "") -> None:
        """Add the entry `key` of `table` as the setting `name`."""
        entry = table.entries.get(key) if table is not None else None
        name = name or key
        if entry is None or table is None:
            if table is not None and table.open:
                self.gaps.append(Gap(name, table.open, table.span))
            return
        value = entry.value
        span = entry.span or _span(value)
        if isinstance(value, Constant):
            self.settings[name] = Setting(value.value, span, table, key)
        else:
            constant = _plain(value)
            if constant is _NOT_PLAIN:
                self.gaps.append(Gap(name, reason(value), span))
            else:
                self.settings[name] = Setting(constant, span, table, key)

    def take_all(self, table: Mapping, into: dict[str, Setting], *, group: str) -> None:
        """Add every entry of a table as settings of `into`."""
        self.tables[group] = table
        for key, entry in table.entries.items():
            if not isinstance(key, str):
                self.gaps.append(Gap(f"{group}[{key!r}]", "its name is no text", entry.span))
                continue
            constant = _plain(entry.value)
            span = entry.span or _span(entry.value)
            if constant is _NOT_PLAIN:
                into.pop(key, None)
                self.gaps.append(Gap(key, reason(entry.value), span))
            else:
                into[key] = Setting(constant, span, table, key)
        if table.open:
            self.gaps.append(Gap(group, table.open, table.span))


_NOT_PLAIN = object()


def _plain(value: Value) -> Any:
    try:
        return plain(value)
    except LookupError:
        return _NOT_PLAIN


def why_not(value: Value, otherwise: str) -> str:
    """Why `value` cannot be used: why it is not known, or `otherwise` if it is of another kind."""
    return otherwise if _plain(value) is not _NOT_PLAIN else reason(value)


def _span(value: Value) -> Span | None:
    return getattr(value, "span", None)
