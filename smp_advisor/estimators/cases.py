"""The jobs in a document, with the known settings of each."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.cells import read_cell
from smp_advisor.estimators.checks import Case
from smp_advisor.estimators.readback import read_back
from smp_advisor.estimators.siblings import Siblings
from smp_advisor.estimators.sources import configuration_of_recipe, configurations_of_cell
from smp_advisor.estimators.sources.accelerate import configuration_of_accelerate, looks_like_accelerate
from smp_advisor.estimators.sources.deepspeed import configuration_of_deepspeed, looks_like_deepspeed
from smp_advisor.estimators.sources.torch_job import read_strategy
from smp_advisor.estimators.sources.torchtitan import configuration_of_torchtitan
from smp_advisor.estimators.sources.yaml_values import yaml_table
from smp_advisor.libraries.registry import get_library
from smp_advisor.reading.values import Mapping as Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.instance import Instance
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.estimators.documents import Document
    from smp_advisor.reading.source import Unresolved
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

_JOBS = ("estimator", "model trainer", "request")
_MOST_JOBS = 100
"""Jobs of one text that are checked."""
_MOST_PARAMETERS = 500
"""Parameters of all these jobs. A library has fewer than 30."""

__all__ = ["Terms", "read_configurations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Input of the user other than the text."""

    model: Model | None = None
    job: Job | None = None
    library: str | None = None
    variables: Mapping[str, Any] | None = None
    cluster: Cluster | Instance | None = None
    min_fit_probability: float = 0.95

    def cases(self, document: Document) -> list[Case]:
        """The jobs in a document, as from `read`."""
        return self.read(document)[0]

    def read(self, document: Document) -> tuple[list[Case], tuple[Unresolved, ...]]:
        """The jobs in a document, and the code that could not be followed.

        Raises
        ------
        AdvisorError
            If there are none.
        """
        configurations, unresolved = read_configurations(document, self.variables)
        for configuration in configurations:
            alone = configuration.form == "parameters" and not configuration.settings
            if self.library is not None and (configuration.library is None or alone):
                configuration.library = self.library
        siblings = Siblings(document.source.file)
        for configuration in configurations:
            if configuration.library is None and configuration.form in _JOBS and configuration.strategy is None:
                read_strategy(configuration, siblings)
        # A notebook often trains first without the libraries: that job is no defect.
        chosen = [configuration for configuration in configurations if _uses_library(configuration)] or configurations
        checked = _first(chosen)
        if len(checked) < len(chosen):
            left = f"The text configures {len(chosen):,} jobs: the first {len(checked)} are checked."
            unresolved = (*unresolved, document.source.unresolved(1, left))
        cases = [
            Case(
                configuration,
                read_back(configuration, model=self.model, job=self.job, cluster=self.cluster),
                self.min_fit_probability,
            )
            for configuration in checked
        ]
        return cases, unresolved


def _first(configurations: list[Configuration]) -> list[Configuration]:
    """The first jobs, as many as can be checked in seconds."""
    parameters = list(accumulate(len(configuration.parameters) for configuration in configurations))
    if parameters[0] > _MOST_PARAMETERS:
        raise AdvisorError(
            f"{configurations[0].title} has {parameters[0]:,} parameters: at most {_MOST_PARAMETERS} can be checked."
        )
    return configurations[: min(_MOST_JOBS, bisect_right(parameters, _MOST_PARAMETERS))]


def _uses_library(configuration: Configuration) -> bool:
    """Whether the job does more than to replicate the model on each GPU."""
    record = get_library(configuration.library) if configuration.library is not None else None
    return record is not None and (record.divides_model or record.compiles)


def read_configurations(
    document: Document, variables: Mapping[str, Any] | None
) -> tuple[list[Configuration], tuple[Unresolved, ...]]:
    """The configurations in a document, and the followed cell."""
    if document.dialect == "toml":
        return [configuration_of_torchtitan(document.source.text)], ()
    if document.dialect == "yaml":
        table = yaml_table(document.source.text)
        reader = configuration_of_accelerate if looks_like_accelerate(table) else configuration_of_recipe
        return [reader(table)], ()
    cell = read_cell(document.source, variables, json=document.dialect == "json")
    if isinstance(cell.only, Table) and looks_like_deepspeed(cell.only):
        return [configuration_of_deepspeed(cell.only)], cell.unresolved
    configurations = configurations_of_cell(cell)
    if configurations:
        return configurations, cell.unresolved
    if any(call.called == "from_recipe" or "training_recipe" in call.keywords for call in cell.calls):
        raise AdvisorError("The configuration of the job is in a recipe: paste the YAML of the recipe.")
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
