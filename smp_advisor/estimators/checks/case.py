"""Input and result of an estimator check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.registry import get_library

if TYPE_CHECKING:
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.readback import ReadBack
    from smp_advisor.libraries.library import Library
    from smp_advisor.reading.source import Span
    from smp_advisor.reading.values import Mapping

__all__ = ["Case", "Change", "Hit"]

SDK_2 = "estimator"
SDK_3 = "model trainer"


@dataclass(frozen=True, slots=True)
class Change:
    """One change to the text: set, remove or rename an entry."""

    table: Mapping
    key: str
    value: Any = None
    action: Literal["set", "remove", "rename"] = "set"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One defect, with the fields of its message and the changes that fix it."""

    id: str
    span: Span | None
    variant: str = ""
    """Which message of the check."""
    values: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    rule: str = ""
    """The broken rule of the library, if there is one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration with its plan, cluster, job and model."""

    configuration: Configuration
    back: ReadBack
    min_fit_probability: float = 0.95

    @property
    def library(self) -> str:
        """The library of the configuration; empty if unknown."""
        return self.configuration.library or ""

    @property
    def record(self) -> Library | None:
        """Record of the library that it configures; None if no library is known."""
        return get_library(self.library) if self.library else None

    @property
    def smp_launcher(self) -> str:
        """Launcher of a job with SageMaker's model parallel library: MPI or torchrun; empty for other jobs."""
        record = self.record
        return record.launcher if record is not None and record.smdistributed else ""

    @property
    def of_sagemaker(self) -> bool:
        """Whether the library is one of SageMaker's own."""
        return self.record is not None and self.record.of_sagemaker

    @property
    def instance(self) -> Instance | None:
        """The instance, if its type is known."""
        if self.back.cluster is not None:
            return self.back.cluster.instance
        kind = self.configuration.get("instance_type")
        try:
            return known_instance(kind) if isinstance(kind, str) else None
        except AdvisorError:
            return None

    @property
    def nodes(self) -> int | None:
        """Instances; None if unknown."""
        if self.back.cluster is not None and "instance_count" in self.configuration.settings:
            return self.back.cluster.nodes
        count = self.configuration.get("instance_count")
        return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None

    @property
    def processes(self) -> int | None:
        """Processes per node: as configured, else one per GPU."""
        processes = self.configuration.get("processes_per_host")
        if isinstance(processes, int) and not isinstance(processes, bool) and processes > 0:
            return processes
        if self.configuration.unknown("processes_per_host"):
            return None
        return self.instance.gpus if self.instance is not None else None

    @property
    def world(self) -> int | None:
        """Processes of the job."""
        return None if self.nodes is None or self.processes is None else self.nodes * self.processes

    def parameter(self, *names: str) -> int | None:
        """A degree in the parameters; 1 if it is not set, None if it cannot be read."""
        for name in names:
            if name in self.configuration.parameters:
                value = self.configuration.parameters[name].value
                return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
        if self.configuration.unknown("parameters", *names):
            return None
        return 1

    def change(self, name: str, value: Any) -> tuple[Change, ...]:
        """The change that sets a parameter, if there is a place for it."""
        setting = self.configuration.parameters.get(name)
        table = setting.table if setting is not None else self.configuration.tables.get("parameters")
        if table is None:
            return ()
        return (Change(table, setting.key if setting is not None else name, value),)

    def setting_change(self, name: str, value: Any) -> tuple[Change, ...]:
        """The change that sets a setting other than a parameter."""
        setting = self.configuration.settings.get(name)
        if setting is None or setting.table is None or setting.key not in setting.table.entries:
            return ()
        return (Change(setting.table, setting.key, value),)

    def span_of(self, *names: str) -> Span | None:
        """Place of the first of these settings that is in the text, else of the configuration."""
        for name in names:
            setting = self.configuration.parameters.get(name) or self.configuration.settings.get(name)
            if setting is not None and setting.span is not None:
                return setting.span
        parameters, embedded = self.configuration.tables.get("parameters"), self.configuration.embedded
        if names and embedded is not None and embedded.span is not None:
            return embedded.span
        if names and parameters is not None and parameters.span is not None:
            return parameters.span
        return self.configuration.span
