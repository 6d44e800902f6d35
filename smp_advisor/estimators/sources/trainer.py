"""``ModelTrainer`` of the SageMaker Python SDK 3.x (and of late 2.x)."""

from __future__ import annotations

from smp_advisor.estimators.configuration import Configuration, Gap, Setting
from smp_advisor.estimators.sources.distribution import choose_library, read_distribution
from smp_advisor.estimators.sources.estimator import read_image
from smp_advisor.estimators.sources.toolkit import read_toolkit_contract
from smp_advisor.estimators.values import Made, Scalar, Table, Unknown, Value

__all__ = ["configuration_of_trainer"]


def configuration_of_trainer(made: Made) -> Configuration:
    """What ``ModelTrainer(...)`` says."""
    call = made.table()
    configuration = Configuration("model trainer", "ModelTrainer(...)", made.span, sure=made.sure)
    configuration.tables["estimator"] = call
    compute = call.get("compute")
    if isinstance(compute, Made):
        configuration.tables["compute"] = compute.table()
        for name in ("instance_type", "instance_count"):
            configuration.take(configuration.tables["compute"], name)
    elif compute is not None or call.open:
        why = compute.why if isinstance(compute, Unknown) else call.open or "it is no Compute(...)"
        configuration.gaps += [Gap(name, why, made.span) for name in ("instance_type", "instance_count")]
    source = call.get("source_code")
    configuration.settings["source_code"] = Setting(source is not None, made.span)
    given = call.get("hyperparameters")
    if isinstance(given, Table):
        configuration.take_all(given, configuration.hyperparameters, group="hyperparameters")
    elif given is not None:
        why = given.why if isinstance(given, Unknown) else "they are in a file: paste what it holds"
        configuration.gaps.append(Gap("hyperparameters", why, call.entries["hyperparameters"].span))
    named = _image(configuration, call)
    _distributed(configuration, call.get("distributed"), call)
    read_toolkit_contract(configuration)
    configuration.library = choose_library(configuration, configuration.get("framework_version"), named)
    return configuration


def _distributed(configuration: Configuration, value: Value | None, call: Table) -> None:
    if value is None:
        return
    if not isinstance(value, Made):
        why = value.why if isinstance(value, Unknown) else "it is no Torchrun(...) or MPI(...)"
        configuration.gaps.append(Gap("distributed", why, call.entries["distributed"].span))
        return
    launcher = value.table()
    span = call.entries["distributed"].span
    configuration.settings["driver"] = Setting(value.name, span, call, "distributed")
    if value.name == "Torchrun":
        configuration.settings["torch_distributed"] = Setting(value=True, span=span, table=call, key="distributed")
    elif value.name == "MPI":
        configuration.settings["mpi"] = Setting(value=True, span=span, table=call, key="distributed")
    configuration.tables["launcher"] = launcher
    configuration.take(launcher, "process_count_per_node", "processes_per_host")
    if configuration.get("processes_per_host", 0) is None:
        configuration.settings.pop("processes_per_host")
    smp = value.get("smp")
    if isinstance(smp, Made):
        # Fields that are None are not sent.
        fields = Table(
            {
                key: one
                for key, one in smp.keywords.items()
                if not (isinstance(one.value, Scalar) and one.value.value is None)
            },
            smp.span,
            smp.open,
        )
        configuration.tables["modelparallel"] = launcher
        configuration.settings["modelparallel"] = Setting(value=True, span=smp.span)
        configuration.take_all(fields, configuration.parameters, group="parameters")
    elif smp is not None and not (isinstance(smp, Scalar) and smp.value is None):
        why = smp.why if isinstance(smp, Unknown) else "it is no SMP(...)"
        configuration.gaps.append(Gap("parameters", why, launcher.entries["smp"].span))


def _image(configuration: Configuration, call: Table) -> str | None:
    """The image's framework; where a call looks it up, from that call's arguments."""
    image = call.get("training_image")
    if isinstance(image, Made) and image.name in ("retrieve", "get_training_image_uri"):
        lookup = image.table()
        configuration.tables["image"] = lookup
        framework = image.get("framework", 0)
        configuration.framework = (
            framework.value
            if isinstance(framework, Scalar) and framework.value in ("pytorch", "tensorflow", "huggingface")
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
        if (compiler := image.get("compiler_config")) is not None and not (
            isinstance(compiler, Scalar) and not compiler.value
        ):
            configuration.settings["compiler"] = Setting(
                value=True, span=lookup.entries["compiler_config"].span, table=lookup, key="compiler_config"
            )
        inner = Configuration("estimator", "", None)
        read_distribution(inner, image.get("distribution"))
        return "smp-v2" if "modelparallel" in inner.tables and inner.get("torch_distributed") else None
    configuration.take(call, "training_image", "image_uri")
    return read_image(configuration)
