"""The folders, files, options and environment variables of a SageMaker training container.

They follow the `sagemaker-training` toolkit of the containers (5.1.4: `mapping.to_cmd_args`, `mapping.to_env_vars`); a
test compares the two.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping


HOST = "algo-1"
_FOLDERS = ("input/config", "input/data", "model", "output/data", "output/intermediate", "checkpoints")
_LOG_LEVEL = 20
_GROUP = "homogeneousCluster"
_REGION = "us-west-2"
_ANSWER_SECONDS = 120
"""A last guard against a driver that never answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A folder with the layout of ``/opt/ml`` and the user's code."""

    base: Path
    """Replaces ``/opt/ml``."""
    entry_point: str
    """Path of the script, relative to `code`."""
    arguments: tuple[str, ...]
    """Options of the script."""
    variables: Mapping[str, str]
    """Environment variables that the toolkit adds."""

    @property
    def code(self) -> Path:
        """Folder of the code, and working directory of the script."""
        return self.base / "code"


def prepare(
    script: Path,
    *,
    source_dir: Path | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    channels: Mapping[str, str | os.PathLike[str]] | None = None,
    job_name: str | None = None,
    folder: Path | None = None,
) -> Container:
    """Create the folder as it is in a container when training starts; the arguments are those of `local_run.run`."""
    requested = dict(hyperparameters or {})
    data = {name: _existing(path, f"The data of the channel {name!r}") for name, path in (channels or {}).items()}
    _require_code(script, source_dir)  # before the folder is made
    gpus = _gpus()
    root = folder or Path(tempfile.mkdtemp(prefix="smp-local-"))
    base = root.resolve() / "opt" / "ml"
    for part in _FOLDERS:
        (base / part).mkdir(parents=True, exist_ok=True)
    entry_point = _copy_code(script, source_dir, base / "code")
    for name, path in data.items():
        (base / "input" / "data" / name).symlink_to(path)
    name = job_name or f"local-{Path(entry_point).stem}"
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _REGION
    complete = requested | {
        "sagemaker_program": entry_point,
        "sagemaker_submit_directory": str(base / "code"),
        "sagemaker_container_log_level": _LOG_LEVEL,
        "sagemaker_job_name": name,
        "sagemaker_region": region,
    }
    resources = {
        "current_host": HOST,
        "hosts": [HOST],
        "network_interface_name": "lo",
        "current_instance_type": "local",
    }
    inputs = {channel: {"TrainingInputMode": "File"} for channel in data}
    # The SDK encodes every hyperparameter as JSON text, and the toolkit decodes it.
    files = {
        "hyperparameters.json": {key: json.dumps(value) for key, value in complete.items()},
        "inputdataconfig.json": inputs,
        "resourceconfig.json": resources,
    }
    for file, content in files.items():
        (base / "input" / "config" / file).write_text(json.dumps(content), encoding="utf-8")
    values = _values(base, entry_point, requested, inputs, resources, name, gpus)
    variables = {
        **{f"SM_{key.upper()}": _variable(value) for key, value in values.items()},
        "TRAINING_JOB_NAME": name,
        "SAGEMAKER_JOB_NAME": name,
        "SAGEMAKER_REGION": region,
        "CURRENT_HOST": HOST,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(base / "code"), os.environ.get("PYTHONPATH")])),
    }
    script_options = {key: value for key, value in requested.items() if not key.startswith("sagemaker_")}
    arguments = tuple(as_arguments(script_options))
    return Container(base=base, entry_point=entry_point, arguments=arguments, variables=variables)


def _require_code(script: Path, source_dir: Path | None) -> tuple[Path | None, Path]:
    """The source directory, if there is one, and the script; both exist."""
    folder = None if source_dir is None else _existing(source_dir, "The source directory")
    return folder, _existing(script if folder is None else folder / script, "The training script")


def _copy_code(script: Path, source_dir: Path | None, code: Path) -> str:
    folder, path = _require_code(script, source_dir)
    if folder is None:
        code.mkdir()
        shutil.copy2(path, code / path.name)
        return path.name
    shutil.copytree(folder, code, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".git"))
    return script.as_posix()


def _existing(path: str | os.PathLike[str], what: str) -> Path:
    absolute = Path(path).expanduser()
    if not absolute.exists():
        raise ProfileError(f"{what} does not exist at {str(absolute)!r}.")
    return absolute.resolve()


def _values(
    base: Path,
    entry_point: str,
    hyperparameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    resources: Mapping[str, Any],
    job_name: str,
    gpus: int,
) -> dict[str, Any]:
    """Values of the toolkit's ``SM_<NAME>`` variables, by lower-case name (`Environment.to_env_vars`)."""
    script_options = {key: value for key, value in hyperparameters.items() if not key.startswith("sagemaker_")}
    framework = {key: value for key, value in hyperparameters.items() if key.startswith("sagemaker_")}
    channels = {name: str(base / "input" / "data" / name) for name in inputs}
    folders = {
        "input_dir": str(base / "input"),
        "input_config_dir": str(base / "input" / "config"),
        "model_dir": str(base / "model"),
        "module_dir": str(base / "code"),
        "output_dir": str(base / "output"),
        "output_data_dir": str(base / "output" / "data"),
        "output_intermediate_dir": str(base / "output" / "intermediate"),
    }
    machine = {
        "hosts": [HOST],
        "current_host": HOST,
        "current_instance_type": resources["current_instance_type"],
        "current_instance_group": _GROUP,
        "current_instance_group_hosts": [],
        "instance_groups": [],
        "instance_groups_dict": {},
        "distribution_instance_groups": [],
        "is_hetero": False,
        "network_interface_name": resources["network_interface_name"],
        "resource_config": dict(resources),
        "input_data_config": dict(inputs),
        "num_cpus": multiprocessing.cpu_count(),
        "num_gpus": gpus,
        "num_neurons": 0,
        "log_level": _LOG_LEVEL,
        "framework_module": None,
        "user_entry_point": entry_point,
        "module_name": entry_point.removesuffix(".py"),
    }
    environment = {
        **machine,
        **folders,
        "additional_framework_parameters": framework,
        "channel_input_dirs": channels,
        "hyperparameters": script_options,
        "distribution_hosts": [HOST],
        "is_master": True,
        "master_hostname": HOST,
        "is_modelparallel_enabled": None,
        "is_smddprun_installed": False,
        "is_smddpmprun_installed": False,
        "job_name": job_name,
        "topology": [],
    }
    return {
        **machine,
        **folders,
        "hps": script_options,
        "framework_params": framework,
        "channels": sorted(channels),
        "user_args": as_arguments(script_options),
        "training_env": environment,
        **{f"channel_{name}": path for name, path in channels.items()},
        **{f"hp_{name}": value for name, value in script_options.items()},
    }


def _gpus() -> int:
    """Number of GPUs of this machine, counted like in the toolkit."""
    command = ["nvidia-smi", "--list-gpus"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise ProfileError(
            f"nvidia-smi did not answer within {_ANSWER_SECONDS} seconds, so the GPUs of this machine cannot be "
            "counted: restart its driver."
        ) from None
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def as_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Command-line options for the script, sorted by name."""
    words: list[str] = []
    for name in sorted(hyperparameters):
        words += [f"--{name}" if len(name) > 1 else f"-{name}", _argument(hyperparameters[name])]
    return words


def _argument(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in sorted(value.items()))
    return "" if value is None else str(value)


def _variable(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
