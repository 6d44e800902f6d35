"""Cells that start a training job, and the jobs or dictionaries in them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Setting
from smp_advisor.estimators.launchers import (
    choose_library,
    looks_like_parameters,
    read_distribution,
    read_options,
)
from smp_advisor.estimators.manifests import configuration_of_manifest, table_of_call
from smp_advisor.estimators.sagemaker_jobs import (
    ESTIMATORS,
    channels_of_fit,
    configuration_of_estimator,
    configuration_of_remote,
    configuration_of_request,
    configuration_of_trainer,
    looks_like_request,
)
from smp_advisor.review.reading.following import follow
from smp_advisor.review.reading.run import Frame, TooLongError, settled
from smp_advisor.review.reading.values import Collection, Entry, Mapping
from smp_advisor.review.scripts.queries import makers

if TYPE_CHECKING:
    from collections.abc import Mapping as Dictionary

    from smp_advisor.review.reading.run import Run
    from smp_advisor.review.reading.source import Source, Unresolved
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Function, Value

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")
_JSON_NAMES = {"true": True, "false": False, "null": None}
_MAKERS = ("PyTorch", "TensorFlow", "HuggingFace", "Estimator", "ModelTrainer", "create_training_job", "remote")
"""Calls that configure a job. If the cell runs none, its uncalled functions are read too."""


@dataclass(frozen=True, slots=True)
class Cell:
    calls: tuple[Call, ...]
    names: dict[str, Value]
    """Values at the end of the cell."""
    only: Value | None
    """Value of its only expression, such as a pasted dictionary."""
    stopped: tuple[int, str] | None
    """The last line that was read, and the reason."""
    unresolved: tuple[Unresolved, ...]
    assumed: tuple[str, ...] = ()
    """Defaults of options and of the environment that were taken for values, one sentence each."""


def read_cell(source: Source, variables: Dictionary[str, Any] | None = None, *, json: bool = False) -> Cell:
    names = {**(variables or {}), **(_JSON_NAMES if json else {})}
    try:
        run = follow(source, computes=True, assumes=True, variables=names, concerns=_makes)
        module = run.trace.modules[0]
        body = module.tree.body
        calls = tuple(run.trace.calls)
        alone = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        only = run.evaluate(Frame(module, module.scope), alone) if alone is not None else None
    except TooLongError:
        raise AdvisorError(f"{source.path} has too much code to read: paste the part with the estimator.") from None
    copies: dict[int, Value] = {}
    values = {name: settled(value, copies) for name, value in module.scope.names.items()}
    return Cell(calls, values, only, run.stopped, tuple(run.unresolved), tuple(run.trace.assumed))


def _makes(run: Run, function: Function) -> bool:
    """Return whether a function that the cell does not call makes an estimator, and the cell itself makes none."""
    makers = [node.func for node in ast.walk(function.node) if isinstance(node, ast.Call)]
    if not any((getattr(maker, "attr", "") or getattr(maker, "id", "")) in _MAKERS for maker in makers):
        return False
    return not any(call.reached and call.called in _MAKERS for call in run.trace.calls)


_FILE_SYSTEMS = ("FileSystemInput", "FileSystemDataSource")
_KEYWORDS = ("distribution", "instance_type", "instance_count", "framework_version", "py_version", "hyperparameters")
_OPTIONS = ("smp_options", "mp_parameters", "smp_parameters", "distribution", "request")


def configurations_of_cell(cell: Cell) -> list[Configuration]:
    """Return every job that the cell starts, in order; else the dictionaries that configure one."""
    configurations = []
    for call in cell.calls:
        elsewhere = "." in call.name and not call.name.startswith("sagemaker")  # a class of another package
        if call.called in ESTIMATORS and "training_recipe" not in call.keywords and not elsewhere:
            positions = zip(_FORMS["positions"].get(call.called, ()), call.arguments, strict=False)
            own = {key: Entry(value, call.passed.span) for key, value in positions}
            call.passed.entries |= own | call.passed.entries
            configurations.append(configuration_of_estimator(call.called, call.passed, sure=call.sure))
            configurations[-1].set(channels=channels_of_fit(_started(cell, call, "fit")))
        elif call.called == "ModelTrainer":
            configurations.append(configuration_of_trainer(call, _started(cell, call, "train")))
        elif call.called == "remote" and call.name.startswith("sagemaker."):
            configurations.append(configuration_of_remote(call))
        elif call.called.lower() == "hyperpodpytorchjob":
            configurations.append(configuration_of_manifest(table_of_call(call.passed)))
        elif call.called == "create_training_job":
            configurations.append(configuration_of_request(call.passed))
    if configurations:
        for configuration in configurations:
            groups = (configuration.settings, configuration.parameters, configuration.hyperparameters)
            values = {f"is {setting.value!r}," for group in groups for setting in group.values()}
            entered = tuple(note for note in cell.assumed if any(value in note for value in values))
            configuration.settings["read_with"] = Setting(entered)
        # An input on FSx for Lustre or EFS; with several jobs, its owner is not known.
        places = [call for call in cell.calls if call.reached and call.called in _FILE_SYSTEMS]
        if places and len(configurations) == 1:
            configurations[0].settings["file_system"] = Setting(value=True, span=places[0].passed.span)
        return configurations
    return _without_a_call(cell)


def _started(cell: Cell, maker: Call, method: str) -> Call | None:
    """Return the one call that starts a job, which has its channels."""
    starts = [call for call in cell.calls if call.method == method and maker in makers(call.receiver)]
    return starts[0] if len(starts) == 1 else None


def _without_a_call(cell: Cell) -> list[Configuration]:
    """Return the job of a pasted dictionary, or of one that the cell makes."""
    if isinstance(cell.only, Mapping):
        alone = configuration_of_dictionary(cell.only)
        return [alone] if alone is not None else []
    keywords = Mapping()
    for name in _KEYWORDS:
        value = cell.names.get(name)
        if isinstance(value, Collection) and len(value.items) == 1:  # of ``name=value,``, as in a part of a call
            value = value.items[0]
        if value is not None:
            keywords.entries[name] = Entry(value, getattr(value, "span", None))
    if isinstance(keywords.get("distribution"), Mapping):
        fragment = configuration_of_dictionary(keywords)
        if fragment is not None:
            fragment.tables.pop("estimator", None)
            return [fragment]
    # Those with a known name first, then the one with most of the job.
    tables = {name: value for name, value in cell.names.items() if isinstance(value, Mapping)}
    by_name = [tables.pop(name) for name in _OPTIONS if name in tables]
    made_of = map(configuration_of_dictionary, [*by_name, *reversed(tables.values())])
    return [configuration for configuration in made_of if configuration is not None][:1]


def configuration_of_dictionary(table: Mapping) -> Configuration | None:
    """Return a dictionary of a job: a request, a ``distribution``, ``smp_options`` or parameters."""
    if looks_like_request(table):
        return configuration_of_request(table)
    if "distribution" in table.entries and {"entry_point", "role"} & table.entries.keys():
        name = "HuggingFace" if "transformers_version" in table.entries else "PyTorch"
        return configuration_of_estimator(name, table)
    configuration = Configuration("parameters", "The dictionary", table.span)
    inner = table.get("parameters")  # {"enabled": True, "parameters": {...}}; other dictionaries have them, too
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
        read_options(configuration, configuration.inner(table, "modelparallel"))
    elif isinstance(inner, Mapping) and ("enabled" in table.entries or looks_like_parameters(inner)):
        read_options(configuration, table)
    elif looks_like_parameters(table):
        configuration.take_all(table, configuration.parameters, group="parameters")
    else:
        return None
    configuration.library = choose_library(configuration, configuration.get("framework_version"), None)
    return configuration
