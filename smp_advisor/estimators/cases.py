"""The jobs in a document, with the known settings of each; a defect of one."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cells import configurations_of_cell, read_cell
from smp_advisor.estimators.configuration import (
    configuration_of_accelerate,
    configuration_of_deepspeed,
    count,
    looks_like_accelerate,
    looks_like_deepspeed,
)
from smp_advisor.estimators.documents import Siblings, yaml_table
from smp_advisor.estimators.manifests import configuration_of_manifest, looks_like_manifest
from smp_advisor.estimators.readback import read_back
from smp_advisor.estimators.recipes import configuration_of_recipe
from smp_advisor.estimators.shell import configuration_of_shell
from smp_advisor.estimators.torch_jobs import read_job
from smp_advisor.libraries.library import get_library
from smp_advisor.review.reading.values import Mapping

if TYPE_CHECKING:
    from collections.abc import Mapping as Dictionary

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Document
    from smp_advisor.estimators.readback import ReadBack
    from smp_advisor.estimators.script import Script
    from smp_advisor.libraries.library import Library
    from smp_advisor.review.reading.source import Span, Unresolved
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

SDK_2 = "estimator"
SDK_3 = "model trainer"


@dataclass(frozen=True, slots=True)
class Change:
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
    script: Script | None = None
    """The part of the job that its script gets; None if it was not followed."""

    @property
    def library(self) -> str:
        return self.configuration.library or ""

    @property
    def record(self) -> Library | None:
        return get_library(self.library) if self.library else None

    @property
    def smp_launcher(self) -> str:
        """Launcher of a job with SageMaker's model parallel library: MPI or torchrun; empty for other jobs."""
        record = self.record
        return record.launcher if record is not None and record.smdistributed else ""

    @property
    def of_sagemaker(self) -> bool:
        return self.record is not None and self.record.of_sagemaker

    @property
    def instance(self) -> Instance | None:
        if self.back.cluster is not None:
            return self.back.cluster.instance
        kind = self.configuration.get("instance_type")
        try:
            return known_instance(kind) if isinstance(kind, str) else None
        except AdvisorError:
            return None

    @property
    def nodes(self) -> int | None:
        if self.back.cluster is not None and "instance_count" in self.configuration.settings:
            return self.back.cluster.nodes
        return count(self.configuration.get("instance_count"))

    @property
    def processes(self) -> int | None:
        """Processes per node: as configured, else one per GPU."""
        if processes := count(self.configuration.get("processes_per_host")):
            return processes
        instance = None if self.configuration.unknown("processes_per_host") else self.instance
        return None if instance is None else instance.gpus

    @property
    def world(self) -> int | None:
        return None if self.nodes is None or self.processes is None else self.nodes * self.processes

    def parameter(self, *names: str) -> int | None:
        """Return a degree in the parameters; 1 if it is not set, None if it cannot be read."""
        for name in names:
            if name in self.configuration.parameters:
                return count(self.configuration.parameters[name].value)
        return None if self.configuration.unknown("parameters", *names) else 1

    def change(self, name: str, value: Any) -> tuple[Change, ...]:
        """Return the change that sets a parameter, if there is a place for it."""
        setting = self.configuration.parameters.get(name)
        table = setting.table if setting is not None else self.configuration.tables.get("parameters")
        if table is None:
            return ()
        return (Change(table, setting.key if setting is not None else name, value),)

    def setting_change(self, name: str, value: Any) -> tuple[Change, ...]:
        setting = self.configuration.settings.get(name)
        if setting is None or setting.table is None or setting.key not in setting.table.entries:
            return ()
        return (Change(setting.table, setting.key, value),)

    def hit(
        self, check: str, variant: str, *names: str, fixes: tuple[Change, ...] = (), rule: str = "", **values: object
    ) -> Hit:
        """Return a defect at the first of these settings that is in the text."""
        return Hit(id=check, span=self.span_of(*names), variant=variant, values=values, changes=fixes, rule=rule)

    def span_of(self, *names: str) -> Span | None:
        """Place of the first of these settings that is in the text, else of the configuration."""
        for name in names:
            setting = self.configuration.parameters.get(name) or self.configuration.settings.get(name)
            if setting is not None and setting.span is not None:
                return setting.span
        parameters = self.configuration.tables.get("parameters")
        if names and parameters is not None and parameters.span is not None:
            return parameters.span
        return self.configuration.span


_JOBS = ("estimator", "model trainer", "remote", "request", "manifest")
_MOST_JOBS = 100
"""Jobs of one text that are checked."""
_MOST_PARAMETERS = 500
"""Parameters of all these jobs. A library has fewer than 30."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Input of the user other than the text."""

    model: Model | None = None
    job: Job | None = None
    library: str | None = None
    variables: Dictionary[str, Any] | None = None
    cluster: Cluster | Instance | None = None
    min_fit_probability: float = 0.95

    def read(self, document: Document) -> tuple[list[Case], tuple[Unresolved, ...]]:
        """Return the jobs in a document, and the code that could not be followed."""
        configurations, unresolved = read_configurations(document, self.variables)
        for configuration in configurations:
            alone = configuration.form == "parameters" and not configuration.settings
            if self.library is not None and (configuration.library is None or alone):
                configuration.library = self.library
        siblings = Siblings(document.source.file, document.source)
        scripts = {id(job): read_job(job, siblings) for job in configurations if job.form in _JOBS}
        # A notebook often trains first without the libraries: that job is no defect.
        jobs = [(job, get_library(job.library)) for job in configurations if job.library]
        chosen = [job for job, library in jobs if library.divides_model or library.compiles] or configurations
        parameters = list(accumulate(len(job.parameters) for job in chosen))
        if parameters[0] > _MOST_PARAMETERS:
            much = f"{chosen[0].title} has {parameters[0]:,} parameters"
            raise AdvisorError(f"{much}: at most {_MOST_PARAMETERS} can be checked.")
        checked = chosen[: min(_MOST_JOBS, bisect_right(parameters, _MOST_PARAMETERS))]
        if len(checked) < len(chosen):
            left = f"The text configures {len(chosen):,} jobs: the first {len(checked)} are checked."
            unresolved = (*unresolved, document.source.unresolved(1, left))
        cases = [
            Case(
                configuration,
                read_back(configuration, model=self.model, job=self.job, cluster=self.cluster),
                self.min_fit_probability,
                scripts.get(id(configuration)),
            )
            for configuration in checked
        ]
        return cases, unresolved


_IGNORED = ("entry_point", "hyperparameters", "distribution")
"""Arguments of ``PyTorch(...)`` that SDK 2.257 ignores with a recipe."""


def _refuse_other_forms(text: str) -> None:
    for pattern, instead in _FORMS["other_forms"].items():
        if match := re.search(pattern, text):
            raise AdvisorError(f"The job is started by {match[0].rstrip('(')}, which is not read: {instead}.")


def read_configurations(
    document: Document, variables: Dictionary[str, Any] | None
) -> tuple[list[Configuration], tuple[Unresolved, ...]]:
    """Return the configurations in a document, and the followed cell."""
    if document.dialect == "shell":
        _refuse_other_forms(document.source.text)
        return [configuration_of_shell(document.source.text)], ()
    if document.dialect == "yaml":
        table = yaml_table(document.source.text)
        if looks_like_manifest(table):
            return [configuration_of_manifest(table)], ()
        reader = configuration_of_accelerate if looks_like_accelerate(table) else configuration_of_recipe
        return [reader(table)], ()
    cell = read_cell(document.source, variables, json=document.dialect == "json")
    if isinstance(cell.only, Mapping) and looks_like_deepspeed(cell.only):
        return [configuration_of_deepspeed(cell.only)], cell.unresolved
    configurations = configurations_of_cell(cell)
    in_recipe = "The configuration of the job is in a recipe: paste the YAML of the recipe."
    recipes = [call for call in cell.calls if call.called == "from_recipe" or "training_recipe" in call.keywords]
    if configurations:
        notes = [document.source.unresolved(call.node.lineno, in_recipe) for call in recipes]
        return configurations, (*notes, *cell.unresolved)
    if recipes:
        ignored = [name for name in _IGNORED if any(name in call.keywords for call in recipes)]
        note = f" The SDK ignores {', '.join(ignored)} along with training_recipe." if ignored else ""
        raise AdvisorError(f"{in_recipe}{note}")
    _refuse_other_forms(document.source.text)
    if cell.stopped is not None:
        line, why = cell.stopped
        raise AdvisorError(
            f"Line {line} of {document.source.path} is the last line that was read, {why}: no estimator is created"
            " before it."
        )
    raise AdvisorError(
        "The text does not configure a training job: paste the cell with the estimator or ModelTrainer, the"
        " distribution or smp_options dictionary, a HyperPod recipe or a CreateTrainingJob request."
    )
