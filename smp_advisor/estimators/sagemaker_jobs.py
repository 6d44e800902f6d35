"""Estimators (SageMaker SDK 2.x), ``ModelTrainer`` (3.x and late 2.x) and ``CreateTrainingJob`` requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.estimators.configuration import Configuration, Gap, Setting, constant, inner_table, why_not
from smp_advisor.estimators.launchers import choose_library, decoded, read_distribution, read_toolkit_contract
from smp_advisor.estimators.terms import image_name
from smp_advisor.libraries.library import library_with
from smp_advisor.review.reading.values import Collection, Constant, Mapping, Operation, Result, is_none

if TYPE_CHECKING:
    from smp_advisor.review.reading.trace import Call

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

_DRIVERS = {"Torchrun": "torch_distributed", "MPI": "mpi"}
ESTIMATORS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "HuggingFace": "huggingface", "Estimator": "pytorch"}
"""Classes and the framework of each."""

_OLDER_NAMES = {"train_instance_type": "instance_type", "train_instance_count": "instance_count"}


def configuration_of_estimator(name: str, call: Mapping, *, sure: bool = True) -> Configuration:  # noqa: C901 - a list
    configuration = Configuration("estimator", f"{name}(...)", call.span, framework=ESTIMATORS[name], sure=sure)
    configuration.tables["estimator"] = call
    for key in _FORMS["taken"]:
        configuration.take(call, key)
    _take_address(configuration, call, "image_uri")
    for older, key in _OLDER_NAMES.items():
        if older in call.entries:
            configuration.take(call, older, key)
    # An object turns it on: DebuggerHookConfig(...), or rules.
    if isinstance(call.get("debugger_hook_config"), Result):
        configuration.gaps = [gap for gap in configuration.gaps if gap.name != "debugger_hook_config"]
        configuration.put("debugger_hook_config", True, call, "debugger_hook_config")  # noqa: FBT003 - a value
    config = call.get("compiler_config")
    if isinstance(config, Result) and config.call.called == "TrainingCompilerConfig":
        enabled, debug = config.call.argument("enabled", 0), config.call.argument("debug", 1)
        on = not (isinstance(enabled, Constant) and enabled.value is False)
        configuration.put("compiler", on, call, "compiler_config")
        if isinstance(debug, Constant):
            span = call.entries["compiler_config"].span
            configuration.settings["compiler_debug"] = Setting(debug.value, span, config.call.passed, "debug")
    elif config is not None and not (isinstance(config, Constant) and not config.value):
        configuration.miss("compiler_config", call, "compiler_config", "it is not a TrainingCompilerConfig(...)")
    read_distribution(configuration, call.get("distribution") or call.get("distributions"))
    if (hyperparameters := configuration.inner(call, "hyperparameters", "they are not a dictionary")) is not None:
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    read_toolkit_contract(configuration)
    image = read_image(configuration)
    for key in ("tensorflow_version", "pytorch_version"):
        if configuration.framework == "huggingface" and key in configuration.settings:
            configuration.settings.setdefault("framework_version", configuration.settings[key])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


def _take_address(configuration: Configuration, call: Mapping, key: str) -> None:
    """Take the address of an image although its region, or another part, is not known."""
    value = call.get(key)
    if isinstance(value, Operation) and value.operator == "format":
        parts = [str(part.value) if isinstance(part, Constant) else "*" for part in value.operands]
        if image_name("".join(parts)) is not None:
            configuration.gaps = [gap for gap in configuration.gaps if gap.name != "image_uri"]
            configuration.put("image_uri", "".join(parts), call, key)


def read_image(configuration: Configuration) -> str | None:
    """Add the settings in the name of the image, and its library if it has one."""
    setting = configuration.settings.get("image_uri")
    image = image_name(setting.value) if setting is not None else None
    if setting is None or image is None:
        if setting is not None and setting.value is not None:
            configuration.gaps.append(Gap("framework_version", "the image is not from AWS", setting.span))
        return None
    configuration.framework = image.framework
    for name, value in (
        ("framework_version", image.framework_version),
        ("py_version", image.py_version),
        ("transformers_version", image.transformers_version),
    ):
        if value is not None and name not in configuration.settings:
            configuration.settings[name] = Setting(value, setting.span)
    return image.library


def channels_of_fit(fit: Call | None) -> frozenset[str] | None:
    """Return the channels that ``fit()`` gives to a job; None if they are not known."""
    inputs = fit.argument("inputs", 0) if fit is not None else None
    if fit is None or fit.unpacks or not fit.sure:
        return None
    if isinstance(inputs, Mapping):
        return None if inputs.open else frozenset(map(str, inputs.entries))
    if inputs is None or is_none(inputs):
        return frozenset()
    return frozenset(["training"]) if isinstance(getattr(inputs, "value", None), str) else None


def configuration_of_trainer(trainer: Call, started: Call | None = None) -> Configuration:
    call = trainer.passed
    configuration = Configuration("model trainer", "ModelTrainer(...)", call.span, sure=trainer.sure)
    configuration.tables["estimator"] = call
    if started is not None:
        configuration.tables["started"] = started.passed
        listed = [table.get("input_data_config") for table in (call, started.passed)]
        items = [getattr(value, "items", [value]) for value in listed if value is not None and not is_none(value)]
        names = [constant(item.call.passed, "channel_name") if isinstance(item, Result) else None
                 for several in items for item in several]  # fmt: skip
        unknown = call.open or started.unpacks or any(getattr(value, "open", "") for value in listed)
        configuration.set(channels=None if unknown or None in names else frozenset(map(str, names)))
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
    if isinstance(source, Result):
        for name in ("entry_script", "source_dir", "command", "requirements"):
            if name == "source_dir" or isinstance(constant(source.call.passed, name), str):
                configuration.take(source.call.passed, name, "entry_point" if name == "entry_script" else "")
    otherwise = "they are in a file: paste its content"
    if (hyperparameters := configuration.inner(call, "hyperparameters", otherwise)) is not None:
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    local = "LOCAL" in str(getattr(call.get("training_mode"), "path", ""))
    if not call.open and "stopping_condition" not in call.entries and not local:
        configuration.set(
            limit="The job is stopped after 1 hour, the default of ModelTrainer without stopping_condition."
        )
    image = _image(configuration, call)
    _distributed(configuration, call)
    read_toolkit_contract(configuration)
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


def _distributed(configuration: Configuration, call: Mapping) -> None:
    value = call.get("distributed")
    if value is None:
        return
    if not isinstance(value, Result):
        configuration.miss("distributed", call, "distributed", "it is not a Torchrun(...) or MPI(...)")
        return
    launcher, driver = value.call.passed, value.call.called
    configuration.put("driver", driver, call, "distributed")
    if driver in _DRIVERS:
        configuration.put(_DRIVERS[driver], True, call, "distributed")  # noqa: FBT003 - a value
    configuration.tables["launcher"] = launcher
    configuration.take(launcher, "process_count_per_node", "processes_per_host")
    if configuration.get("processes_per_host", 0) is None:
        configuration.settings.pop("processes_per_host")
    smp = launcher.get("smp")
    if isinstance(smp, Result):
        # Fields that are None are not sent.
        passed = smp.call.passed
        entries = {key: entry for key, entry in passed.entries.items() if not is_none(entry.value)}
        fields = Mapping(entries, passed.span, passed.open)
        configuration.tables["modelparallel"] = launcher
        configuration.settings["modelparallel"] = Setting(value=True, span=fields.span)
        configuration.take_all(fields, configuration.parameters, group="parameters")
    elif smp is not None and not is_none(smp):
        configuration.miss("parameters", launcher, "smp", "it is not an SMP(...)")


def _image(configuration: Configuration, call: Mapping) -> str | None:
    """Return the framework of the image; if a call looks up the image, from its arguments."""
    image = call.get("training_image")
    if isinstance(image, Result) and image.call.called in ("retrieve", "get_training_image_uri"):
        lookup = image.call.passed
        configuration.tables["image"] = lookup
        framework = image.call.argument("framework", 0)
        name = framework.value if isinstance(framework, Constant) else ""
        configuration.framework = name if name in ("tensorflow", "huggingface") else "pytorch"
        for key in ("framework_version", "version", "py_version"):
            if key in lookup.entries:
                configuration.take(lookup, key, "framework_version" if key == "version" else key)
        for key in ("pytorch_version", "base_framework_version"):
            if configuration.framework == "huggingface" and key in lookup.entries:
                if "framework_version" in configuration.settings:
                    configuration.settings["transformers_version"] = configuration.settings["framework_version"]
                configuration.take(lookup, key, "framework_version")
        compiler = lookup.get("compiler_config")
        if compiler is not None and not (isinstance(compiler, Constant) and not compiler.value):
            configuration.put("compiler", True, lookup, "compiler_config")  # noqa: FBT003 - a value
        inner = Configuration("estimator", "", None)
        read_distribution(inner, lookup.get("distribution"))
        torchrun = "modelparallel" in inner.tables and inner.get("torch_distributed")
        return library_with(smdistributed=True, launcher="torchrun").name if torchrun else None
    configuration.take(call, "training_image", "image_uri")
    _take_address(configuration, call, "training_image")
    return read_image(configuration)


def configuration_of_remote(decorator: Call) -> Configuration:
    """Read ``@remote(...)``, whose job runs the function below it: the text is its own script."""
    call = decorator.passed
    configuration = Configuration("remote", "@remote(...)", call.span, sure=decorator.sure)
    configuration.tables["estimator"] = call
    for key in ("instance_type", "instance_count", "image_uri"):
        configuration.take(call, key)
    configuration.take(call, "nproc_per_node", "processes_per_host")
    configuration.take(call, "use_torchrun", "torch_distributed")
    configuration.take(call, "use_mpirun", "mpi")
    if "instance_type" not in call.entries:
        configuration.gaps.append(Gap("instance_type", "it is in the SDK's config.yaml", call.span))
    configuration.library = choose_library(
        configuration, configuration.get("framework_version"), read_image(configuration)
    )
    return configuration


def looks_like_request(table: Mapping) -> bool:
    if inner_table(table, "CreateTrainingJob") is not None:
        return True
    return "HyperParameters" in table.entries or {"AlgorithmSpecification", "ResourceConfig"} <= table.entries.keys()


def configuration_of_request(table: Mapping) -> Configuration:
    request = inner_table(table, "CreateTrainingJob") or table
    configuration = Configuration("request", "The CreateTrainingJob request", request.span)
    configuration.tables["request"] = request
    algorithm, resources = inner_table(request, "AlgorithmSpecification"), inner_table(request, "ResourceConfig")
    configuration.take(algorithm, "TrainingImage", "image_uri")
    configuration.take(algorithm, "ContainerEntrypoint", "own_entrypoint")
    configuration.take(resources, "InstanceType", "instance_type")
    configuration.take(resources, "InstanceCount", "instance_count")
    if (hyperparameters := inner_table(request, "HyperParameters")) is not None:
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    if isinstance(inputs := request.get("InputDataConfig"), Collection) and not inputs.open:
        names = [constant(item, "ChannelName") if isinstance(item, Mapping) else None for item in inputs.items]
        configuration.set(channels=None if None in names else frozenset(map(str, names)))
    image = read_image(configuration)
    read_toolkit_contract(configuration)
    configuration.hyperparameters = {
        key: replace(setting, value=decoded(setting.value)) for key, setting in configuration.hyperparameters.items()
    }
    if configuration.parameters and image is None and "mp_parameters" not in configuration.tables:
        configuration.tables.setdefault("modelparallel", configuration.tables["parameters"])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration
