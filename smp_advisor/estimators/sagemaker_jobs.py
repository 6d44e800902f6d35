"""Estimators (SageMaker SDK 2.x), ``ModelTrainer`` (3.x and late 2.x) and ``CreateTrainingJob`` requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.estimators.configuration import Configuration, Gap, Setting, why_not
from smp_advisor.estimators.launchers import choose_library, decoded, read_distribution, read_toolkit_contract
from smp_advisor.estimators.terms import image_name
from smp_advisor.libraries.library import library_with
from smp_advisor.reading.values import Constant, Mapping, Result, Value

if TYPE_CHECKING:
    from smp_advisor.reading.trace import Call

ESTIMATORS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "HuggingFace": "huggingface", "Estimator": "pytorch"}
"""Classes and the framework of each."""

_TAKEN = (
    "instance_type",
    "instance_count",
    "framework_version",
    "py_version",
    "transformers_version",
    "pytorch_version",
    "tensorflow_version",
    "image_uri",
    "debugger_hook_config",
    "disable_profiler",
    "entry_point",
    "source_dir",
    "git_config",
    "use_spot_instances",
)
_OLDER_NAMES = {"train_instance_type": "instance_type", "train_instance_count": "instance_count"}


def configuration_of_estimator(name: str, call: Mapping, *, sure: bool = True) -> Configuration:
    """Read ``PyTorch(...)``, ``TensorFlow(...)`` or ``HuggingFace(...)``."""
    configuration = Configuration("estimator", f"{name}(...)", call.span, framework=ESTIMATORS[name], sure=sure)
    configuration.tables["estimator"] = call
    for key in _TAKEN:
        configuration.take(call, key)
    for older, key in _OLDER_NAMES.items():
        if older in call.entries:
            configuration.take(call, older, key)
    # An object turns it on: DebuggerHookConfig(...), or rules.
    hook = call.get("debugger_hook_config")
    if isinstance(hook, Result):
        configuration.gaps = [gap for gap in configuration.gaps if gap.name != "debugger_hook_config"]
        configuration.settings["debugger_hook_config"] = Setting(
            value=True, span=call.entries["debugger_hook_config"].span, table=call, key="debugger_hook_config"
        )
    _compiler(configuration, call)
    read_distribution(configuration, call.get("distribution") or call.get("distributions"))
    hyperparameters = call.get("hyperparameters")
    if isinstance(hyperparameters, Mapping):
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    elif hyperparameters is not None:
        why = why_not(hyperparameters, "they are not a dictionary")
        configuration.gaps.append(Gap("hyperparameters", why, call.entries["hyperparameters"].span))
    read_toolkit_contract(configuration)
    image = read_image(configuration)
    if configuration.framework == "huggingface" and "tensorflow_version" in configuration.settings:
        configuration.settings.setdefault("framework_version", configuration.settings["tensorflow_version"])
    elif configuration.framework == "huggingface" and "pytorch_version" in configuration.settings:
        configuration.settings.setdefault("framework_version", configuration.settings["pytorch_version"])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


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


def _compiler(configuration: Configuration, call: Mapping) -> None:
    config: Value | None = call.get("compiler_config")
    if config is None or (isinstance(config, Constant) and not config.value):
        return
    entry = call.entries["compiler_config"]
    if isinstance(config, Result) and config.call.called == "TrainingCompilerConfig":
        enabled, debug = config.call.argument("enabled", 0), config.call.argument("debug", 1)
        on = not (isinstance(enabled, Constant) and enabled.value is False)
        configuration.settings["compiler"] = Setting(on, entry.span, call, "compiler_config")
        if isinstance(debug, Constant):
            configuration.settings["compiler_debug"] = Setting(debug.value, entry.span, config.call.passed, "debug")
    else:
        why = why_not(config, "it is not a TrainingCompilerConfig(...)")
        configuration.gaps.append(Gap("compiler_config", why, entry.span))


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


_WRAPPED = "CreateTrainingJob"


def looks_like_request(table: Mapping) -> bool:
    """Whether a dictionary is a request, or contains one under ``CreateTrainingJob``."""
    if isinstance(table.get(_WRAPPED), Mapping):
        return True
    return "HyperParameters" in table.entries or {"AlgorithmSpecification", "ResourceConfig"} <= table.entries.keys()


def configuration_of_request(table: Mapping) -> Configuration:
    """Read a request."""
    inner = table.get(_WRAPPED)
    request = inner if isinstance(inner, Mapping) else table
    configuration = Configuration("request", "The CreateTrainingJob request", request.span)
    configuration.tables["request"] = request
    algorithm, resources = request.get("AlgorithmSpecification"), request.get("ResourceConfig")
    if isinstance(algorithm, Mapping):
        configuration.take(algorithm, "TrainingImage", "image_uri")
        configuration.take(algorithm, "ContainerEntrypoint", "own_entrypoint")
    if isinstance(resources, Mapping):
        configuration.take(resources, "InstanceType", "instance_type")
        configuration.take(resources, "InstanceCount", "instance_count")
    hyperparameters = request.get("HyperParameters")
    if isinstance(hyperparameters, Mapping):
        configuration.take_all(hyperparameters, configuration.hyperparameters, group="hyperparameters")
    image = read_image(configuration)
    read_toolkit_contract(configuration)
    configuration.hyperparameters = {
        key: Setting(decoded(setting.value), setting.span, setting.table, setting.key)
        for key, setting in configuration.hyperparameters.items()
    }
    _monitoring(configuration, request)
    if configuration.parameters and image is None and "mp_parameters" not in configuration.tables:
        configuration.tables.setdefault("modelparallel", configuration.tables["parameters"])
    configuration.library = choose_library(configuration, configuration.get("framework_version"), image)
    return configuration


def _monitoring(configuration: Configuration, request: Mapping) -> None:
    """Debugger and profiler run only if the request configures them, because requests have no SDK defaults."""
    hook = request.entries.get("DebugHookConfig")
    configuration.settings["debugger_hook_config"] = Setting(
        hook is not None, None if hook is None else hook.span, request, "DebugHookConfig"
    )
    profiler = request.get("ProfilerConfig")
    off = True
    if isinstance(profiler, Mapping):
        disabled = profiler.get("DisableProfiler")
        off = getattr(disabled, "value", None) is True
    entry = request.entries.get("ProfilerConfig")
    configuration.settings["disable_profiler"] = Setting(
        off,
        None if entry is None else entry.span,
        profiler if isinstance(profiler, Mapping) else request,
        "DisableProfiler",
    )
