"""``ModelTrainer`` of the SageMaker Python SDK 3.x (and of late 2.x)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.estimators.configuration import Configuration, Gap, Setting, why_not
from smp_advisor.estimators.sources.distribution import choose_library, read_distribution
from smp_advisor.estimators.sources.estimator import read_image
from smp_advisor.estimators.sources.toolkit import read_toolkit_contract
from smp_advisor.libraries.registry import library_with
from smp_advisor.reading.values import Constant, Mapping, Result, Value

if TYPE_CHECKING:
    from smp_advisor.reading.trace import Call

__all__ = ["configuration_of_trainer"]


def configuration_of_trainer(trainer: Call) -> Configuration:
    """Read ``ModelTrainer(...)``."""
    call = trainer.passed
    configuration = Configuration("model trainer", "ModelTrainer(...)", call.span, sure=trainer.sure)
    configuration.tables["estimator"] = call
    compute = call.get("compute")
    if isinstance(compute, Result):
        configuration.tables["compute"] = compute.call.passed
        for name in ("instance_type", "instance_count"):
            configuration.take(configuration.tables["compute"], name)
    elif compute is not None or call.open:
        why = call.open if compute is None else why_not(compute, "it is not a Compute(...)")
        configuration.gaps += [Gap(name, why, call.span) for name in ("instance_type", "instance_count")]
    source = call.get("source_code")
    configuration.settings["source_code"] = Setting(source is not None, call.span)
    hyperparameters = call.get("hyperparameters")
    if isinstance(hyperparameters, Mapping):
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    elif hyperparameters is not None:
        why = why_not(hyperparameters, "they are in a file: paste its content")
        configuration.gaps.append(Gap("hyperparameters", why, call.entries["hyperparameters"].span))
    image = _image(configuration, call)
    _distributed(configuration, call.get("distributed"), call)
    read_toolkit_contract(configuration)
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


def _distributed(configuration: Configuration, value: Value | None, call: Mapping) -> None:
    if value is None:
        return
    if not isinstance(value, Result):
        why = why_not(value, "it is not a Torchrun(...) or MPI(...)")
        configuration.gaps.append(Gap("distributed", why, call.entries["distributed"].span))
        return
    launcher, driver = value.call.passed, value.call.called
    span = call.entries["distributed"].span
    configuration.settings["driver"] = Setting(driver, span, call, "distributed")
    if driver == "Torchrun":
        configuration.settings["torch_distributed"] = Setting(value=True, span=span, table=call, key="distributed")
    elif driver == "MPI":
        configuration.settings["mpi"] = Setting(value=True, span=span, table=call, key="distributed")
    configuration.tables["launcher"] = launcher
    configuration.take(launcher, "process_count_per_node", "processes_per_host")
    if configuration.get("processes_per_host", 0) is None:
        configuration.settings.pop("processes_per_host")
    smp = launcher.get("smp")
    if isinstance(smp, Result):
        # Fields that are None are not sent.
        fields = Mapping(
            {
                key: entry
                for key, entry in smp.call.passed.entries.items()
                if not (isinstance(entry.value, Constant) and entry.value.value is None)
            },
            smp.call.passed.span,
            smp.call.passed.open,
        )
        configuration.tables["modelparallel"] = launcher
        configuration.settings["modelparallel"] = Setting(value=True, span=fields.span)
        configuration.take_all(fields, configuration.parameters, group="parameters")
    elif smp is not None and not (isinstance(smp, Constant) and smp.value is None):
        why = why_not(smp, "it is not an SMP(...)")
        configuration.gaps.append(Gap("parameters", why, launcher.entries["smp"].span))


def _image(configuration: Configuration, call: Mapping) -> str | None:
    """The framework of the image; if a call looks up the image, from its arguments."""
    image = call.get("training_image")
    if isinstance(image, Result) and image.call.called in ("retrieve", "get_training_image_uri"):
        lookup = image.call.passed
        configuration.tables["image"] = lookup
        framework = image.call.argument("framework", 0)
        configuration.framework = (
            framework.value
            if isinstance(framework, Constant) and framework.value in ("pytorch", "tensorflow", "huggingface")
            else "pytorch"
        )
        for key, name in (
            ("framework_version", "framework_version"),
            ("version", "framework_version"),
            ("py_version", "py_version"),
        ):
            if key in lookup.entries:
                configuration.take(lookup, key, name)
        for key in ("pytorch_version", "base_framework_version"):
            if configuration.framework == "huggingface" and key in lookup.entries:
                if "framework_version" in configuration.settings:
                    configuration.settings["transformers_version"] = configuration.settings["framework_version"]
                configuration.take(lookup, key, "framework_version")
        if (compiler := lookup.get("compiler_config")) is not None and not (
            isinstance(compiler, Constant) and not compiler.value
        ):
            configuration.settings["compiler"] = Setting(
                value=True, span=lookup.entries["compiler_config"].span, table=lookup, key="compiler_config"
            )
        inner = Configuration("estimator", "", None)
        read_distribution(inner, lookup.get("distribution"))
        torchrun = "modelparallel" in inner.tables and inner.get("torch_distributed")
        return library_with(smdistributed=True, launcher="torchrun").name if torchrun else None
    configuration.take(call, "training_image", "image_uri")
    return read_image(configuration)
