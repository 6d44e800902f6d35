"""What a pasted configuration says about its job, in one form whatever it was written in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.values import Constant, Mapping, Value, plain, reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.reading.source import Span

__all__ = ["Configuration", "Gap", "Setting", "why_not"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that the configuration states."""

    value: Any
    span: Span | None = None
    """Where it is set: key or keyword with its value."""
    table: Mapping | None = None
    """What it is an entry of."""
    key: str = ""
    """Its name there."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is set but not readable."""

    name: str
    why: str
    span: Span | None


@dataclass(slots=True)
class Configuration:
    """A training job as its author wrote it down; `settings` and `parameters` hold only what is known."""

    form: str
    """``estimator``, ``model trainer``, ``parameters``, ``recipe`` or ``request``."""
    title: str
    """What it is called in sentences: "PyTorch(...)"."""
    span: Span | None = None
    framework: str = "pytorch"
    library: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    """Where and how the job runs: `instance_type`, `framework_version`, `processes_per_host`, `mpi`, ..."""
    parameters: dict[str, Setting] = field(default_factory=dict)
    """The library's, under its own names."""
    hyperparameters: dict[str, Setting] = field(default_factory=dict)
    """The script's."""
    tables: dict[str, Mapping] = field(default_factory=dict)
    """Where something can be added: ``estimator``, ``distribution``, ``mpi``, ``parameters``, ``hyperparameters``."""
    embedded: Setting | None = None
    """The text that holds the parameters as JSON, where they travel as a hyperparameter."""
    gaps: list[Gap] = field(default_factory=list)
    sure: bool = True
    """False where it depends on a condition that reading cannot decide."""

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting."""
        return self.settings[name].value if name in self.settings else default

    def unknown(self, *names: str) -> bool:
        """Whether one of the settings is set but not readable."""
        return any(gap.name in names for gap in self.gaps)

    def values(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The library's parameters as plain data."""
        wanted = self.parameters.keys() if names is None else names
        return {name: self.parameters[name].value for name in wanted if name in self.parameters}

    def take(self, table: Mapping | None, key: str, name: str = "", *, found: Value | None = None) -> None:
        """Note the entry `key` of `table` as the setting `name`."""
        entry = table.entries.get(key) if table is not None else None
        name = name or key
        if entry is None or table is None:
            if table is not None and table.open:
                self.gaps.append(Gap(name, table.open, table.span))
            return
        value = entry.value if found is None else found
        span = entry.span or _span(value)
        if isinstance(value, Constant):
            self.settings[name] = Setting(value.value, span, table, key)
        else:
            known = _plain(value)
            if known is _NOT_PLAIN:
                self.gaps.append(Gap(name, reason(value), span))
            else:
                self.settings[name] = Setting(known, span, table, key)

    def take_all(self, table: Mapping, into: dict[str, Setting], *, group: str) -> None:
        """Note every entry of a table as settings of `into`."""
        self.tables[group] = table
        for key, entry in table.entries.items():
            if not isinstance(key, str):
                self.gaps.append(Gap(f"{group}[{key!r}]", "its name is no text", entry.span))
                continue
            known = _plain(entry.value)
            span = entry.span or _span(entry.value)
            if known is _NOT_PLAIN:
                into.pop(key, None)
                self.gaps.append(Gap(key, reason(entry.value), span))
            else:
                into[key] = Setting(known, span, table, key)
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
