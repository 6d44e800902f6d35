"""Estimators, trainers and dictionaries in a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.sources.distribution import (
    choose_library,
    looks_like_parameters,
    read_distribution,
    read_model_parallel,
    read_options,
)
from smp_advisor.estimators.sources.estimator import ESTIMATORS, configuration_of_estimator
from smp_advisor.estimators.sources.request import configuration_of_request, looks_like_request
from smp_advisor.estimators.sources.trainer import configuration_of_trainer
from smp_advisor.reading.values import Collection, Entry, Mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.cells import Cell
    from smp_advisor.reading.values import Value

__all__ = ["configurations_of_cell"]

_FILE_SYSTEMS = ("FileSystemInput", "FileSystemDataSource")
_OPTIONS = ("smp_options", "mp_parameters", "smp_parameters", "distribution", "request")


def configurations_of_cell(cell: Cell) -> list[Configuration]:
    """Every job that the cell starts, in order; else the dictionaries that configure one."""
    configurations = []
    for call in cell.calls:
        if call.called in ESTIMATORS and "training_recipe" not in call.keywords:
            configurations.append(configuration_of_estimator(call.called, call.passed, sure=call.sure))
        elif call.called == "ModelTrainer":
            configurations.append(configuration_of_trainer(call))
        elif call.called == "create_training_job":
            configurations.append(configuration_of_request(call.passed))
    if configurations:
        for configuration in configurations if len(configurations) == 1 else ():
            mark_file_systems(configuration, cell)
        return configurations
    if isinstance(cell.only, Mapping):
        alone = configuration_of_dictionary(cell.only)
        return [alone] if alone is not None else []
    keywords = _keywords(cell.names)
    if isinstance(keywords.get("distribution"), Mapping):
        fragment = configuration_of_dictionary(keywords)
        if fragment is not None:
            fragment.tables.pop("estimator", None)
            return [fragment]
    made_of = (configuration_of_dictionary(table) for table in _dictionaries(cell.names))
    return [configuration for configuration in made_of if configuration is not None][:1]


def mark_file_systems(configuration: Configuration, cell: Cell) -> None:
    """Note that the cell makes an input on FSx for Lustre or EFS; with several jobs, its owner is not known."""
    places = [call for call in cell.calls if call.reached and call.called in _FILE_SYSTEMS]
    if places:
        configuration.settings["file_system"] = Setting(value=True, span=places[0].passed.span)


def _keywords(names: dict[str, Value]) -> Mapping:
    """The names of a cell as keywords of an estimator; ``name=value,``, as in a part of a call, creates a tuple."""
    table = Mapping()
    keywords = ("distribution", "instance_type", "instance_count", "framework_version", "py_version", "hyperparameters")
    for name in keywords:
        value = names.get(name)
        if isinstance(value, Collection) and len(value.items) == 1:
            value = value.items[0]
        if value is not None:
            table.entries[name] = Entry(value, getattr(value, "span", None))
    return table


def _dictionaries(names: dict[str, Value]) -> Iterator[Mapping]:
    """The dictionaries of a cell: those with a known name first, then the one with most of the job."""
    tables = {name: value for name, value in names.items() if isinstance(value, Mapping)}
    for name in _OPTIONS:
        if name in tables:
            yield tables.pop(name)
    yield from reversed(tables.values())


def configuration_of_dictionary(table: Mapping) -> Configuration | None:
    """A dictionary of a job: a request, a ``distribution``, ``smp_options`` or parameters."""
    if looks_like_request(table):
        return configuration_of_request(table)
    if "distribution" in table.entries and {"entry_point", "role"} & table.entries.keys():
        name = "HuggingFace" if "transformers_version" in table.entries else "PyTorch"
        return configuration_of_estimator(name, table)
    configuration = Configuration("parameters", "The dictionary", table.span)
    if "distribution" in table.entries:
        configuration.tables["estimator"] = table
        read_distribution(configuration, table.get("distribution"))
        for name in ("instance_type", "instance_count", "framework_version", "py_version"):
            configuration.take(table, name)
        hyperparameters = table.get("hyperparameters")
        if isinstance(hyperparameters, Mapping):
            configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    elif "smdistributed" in table.entries:
        read_distribution(configuration, table)
    elif "modelparallel" in table.entries:
        read_model_parallel(configuration, table)
    elif _is_options(table):
        read_options(configuration, table)
    elif looks_like_parameters(table):
        configuration.take_all(table, configuration.parameters, group="parameters")
    else:
        return None
    configuration.library = choose_library(configuration, configuration.get("framework_version"), None)
    return configuration


def _is_options(table: Mapping) -> bool:
    """Whether it is ``{"enabled": True, "parameters": {...}}``. Other dictionaries have parameters too."""
    inner = table.get("parameters")
    return isinstance(inner, Mapping) and ("enabled" in table.entries or looks_like_parameters(inner))
