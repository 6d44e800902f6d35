"""Estimators of the SageMaker Python SDK 2.x."""

from __future__ import annotations

from smp_advisor.estimators.configuration import Configuration, Gap, Setting, why_not
from smp_advisor.estimators.images import image_name
from smp_advisor.estimators.sources.distribution import choose_library, read_distribution
from smp_advisor.estimators.sources.toolkit import read_toolkit_contract
from smp_advisor.reading.values import Constant, Mapping, Result, Value

__all__ = ["ESTIMATORS", "configuration_of_estimator", "read_image"]

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
