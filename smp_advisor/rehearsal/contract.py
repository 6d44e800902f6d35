"""Folders, files, arguments and variables of a SageMaker training container, as either SDK starts the script.

Version 2 follows the `sagemaker-training` toolkit of the containers (5.1.4: `mapping.to_cmd_args`,
`mapping.to_env_vars`), version 3 the SDK's own driver.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FOLDERS = ("input/config", "input/data", "model", "output/data", "output/intermediate", "checkpoints")
FIRST_NODE, FIRST_HOST = "127.0.0.2", "algo-1"
"""Address of the first node here, and its name in a job."""
_LOG_LEVEL = 20
_GROUP = "homogeneousCluster"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Statements of a job about its start."""

    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    sdk: int = 2
    """Version of the SageMaker SDK whose contract holds."""
    command: tuple[str, ...] = ()
    """Arguments of the script, where the job has a command of its own: hyperparameters then are not passed."""
    entry: str = ""
    """File or module that the command starts, from the folder of the code."""
    has_command: bool = False
    is_module: bool = False
    """Whether the command starts the script as a module of its package."""
    launches: bool = True
    """Whether a launcher starts one process per GPU; otherwise one process without ranks starts."""
    launcher: str = ""
    """``torchrun`` or ``mpirun``, whose variables a process has; empty if it has those of both."""
    environment: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    """Input mode by channel that the job names. ``File`` copies a channel to the disk of the job, where the script may
    add files; ``FastFile`` mounts it read-only."""
    input_mode: str = "File"
    """Mode of channels that are given as data only."""
    keeps_checkpoints: bool = False
    """Whether the job syncs ``/opt/ml/checkpoints``."""
    is_given: bool = False

    def mode(self, channel: str) -> str:
        """Input mode of a channel."""
        return self.channels.get(channel, self.input_mode)

    def words(self) -> list[str]:
        """Return the arguments of the script."""
        if self.has_command:
            return list(self.command)
        return arguments(self.hyperparameters, self.sdk)


def arguments(hyperparameters: Mapping[str, Any], sdk: int = 2) -> list[str]:
    """Command-line options for the script: sorted by the toolkit, as given by the driver of version 3."""
    words: list[str] = []
    names = sorted(hyperparameters) if sdk == 2 else list(hyperparameters)
    for name in names:
        if name.startswith("sagemaker_"):
            continue
        value = hyperparameters[name]
        if sdk == 3:
            text = value if isinstance(value, str) else json.dumps(value)
        elif isinstance(value, dict):
            text = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        else:
            text = "" if value is None else str(value)
        words += [f"--{name}" if len(name) > 1 or sdk == 3 else f"-{name}", text]
    return words


def unexportable(hyperparameters: Mapping[str, Any], sdk: int) -> list[str]:
    """Return the names that the driver of version 3 cannot export, so that the container ends before the script."""
    return [n for n in hyperparameters if sdk == 3 and not _VARIABLE.match(f"SM_HP_{n.upper().replace('-', '_')}")]


def differing(here: Mapping[str, str], pins: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return a sentence for each library that is here in another version than the job pins; 2.5 allows 2.5.1."""
    return {
        name: f"{name} {here[name]} ran here, and {by} {version}: errors of that version show with environment="
        for name, (version, by) in pins.items()
        if name in here and not f"{here[name].partition('+')[0]}.".startswith(f"{version.partition('+')[0]}.")
    }


def make_folders(base: Path, job: Job, channels: Mapping[str, Path | None], hosts: int) -> None:
    """Make ``/opt/ml`` with its configuration files, and the channels from what is shown read-only; None is empty."""
    for part in FOLDERS:
        (base / part).mkdir(parents=True, exist_ok=True)
    for name, place in channels.items():
        _make_channel(base / "input/data" / name, place, job.mode(name))
    files = {
        # The SDK encodes every hyperparameter as JSON text, and the toolkit decodes it.
        "hyperparameters.json": {key: json.dumps(value) for key, value in job.hyperparameters.items()},
        "inputdataconfig.json": {name: {"TrainingInputMode": job.mode(name)} for name in channels},
        "resourceconfig.json": _resources(0, hosts),
    }
    for file, content in files.items():
        (base / "input/config" / file).write_text(json.dumps(content), encoding="utf-8")


def _make_channel(target: Path, place: Path | None, mode: str) -> None:
    """A folder with a link per file, or a link to the mount."""
    if place is not None and mode != "File":
        target.symlink_to(place)
        return
    target.mkdir()
    for folder, folders, files in os.walk(place) if place is not None else ():
        own = target / os.path.relpath(folder, place)
        own.mkdir(exist_ok=True)
        for name in (*files, *(name for name in folders if Path(folder, name).is_symlink())):
            (own / name).symlink_to(Path(folder, name))


def _resources(host: int, hosts: int) -> dict[str, Any]:
    return {
        "current_host": f"algo-{host + 1}",
        "hosts": [f"algo-{number + 1}" for number in range(hosts)],
        "network_interface_name": "lo",
        "current_instance_type": "local",
    }


_OF_TOOLKIT = (
    "sagemaker_program", "sagemaker_submit_directory", "sagemaker_enable_cloudwatch_metrics", "sagemaker_region",
    "sagemaker_container_log_level", "sagemaker_job_name", "sagemaker_s3_output",
)  # fmt: skip
"""Hyperparameters that the toolkit of version 2 keeps for itself (sagemaker-training 5.1.4, ``params.py``)."""


def variables(
    base: Path, job: Job, entry: str, channels: Iterable[str], *, host: int, hosts: int, gpus: int
) -> dict[str, str]:
    """Environment variables of the script, without those of its launcher."""
    options = {key: value for key, value in job.hyperparameters.items() if not key.startswith("sagemaker_")}
    framework = {
        key: value
        for key, value in job.hyperparameters.items()
        if key.startswith("sagemaker_") and key not in _OF_TOOLKIT
    }
    places = {name: str(base / "input/data" / name) for name in channels}
    resources = _resources(host, hosts)
    names = resources["hosts"]
    inputs = {name: {"TrainingInputMode": job.mode(name)} for name in places}
    shared: dict[str, Any] = {
        "hosts": names, "current_host": names[host], "current_instance_type": "local",
        "network_interface_name": "lo", "num_cpus": 2, "num_gpus": gpus, "num_neurons": 0, "log_level": _LOG_LEVEL,
        "resource_config": resources, "input_data_config": inputs,
        "input_dir": str(base / "input"), "input_config_dir": str(base / "input/config"),
        "model_dir": str(base / "model"), "output_dir": str(base / "output"),
        "output_data_dir": str(base / "output/data"), "hps": options, "channels": sorted(places),
    }  # fmt: skip
    code = base / ("code" if job.sdk == 2 else "input/data/code")
    if job.sdk == 2:
        own: dict[str, Any] = {
            "current_instance_group": _GROUP, "current_instance_group_hosts": [], "instance_groups": [],
            "instance_groups_dict": {}, "distribution_instance_groups": [], "is_hetero": False,
            "framework_module": None, "framework_params": framework, "user_args": job.words(),
            "user_entry_point": entry, "module_name": entry.removesuffix(".py"), "module_dir": str(code),
            "output_intermediate_dir": str(base / "output/intermediate"),
        }  # fmt: skip
    else:
        own = {
            "input_data_dir": str(base / "input/data"), "output_failure": str(base / "output/failure"),
            "source_dir": str(code), "entry_script": entry, "current_host_rank": host, "host_count": hosts,
            "master_addr": FIRST_HOST, "master_port": 7777, "distributed_config": {},
            "distributed_driver_dir": str(base / "input/data/sm_drivers/distributed_drivers"),
        }  # fmt: skip
    shared |= own | {f"channel_{name}": place for name, place in places.items()}
    described = {**shared, "job_name": "rehearsal", "channel_input_dirs": places, "hyperparameters": options}
    if job.sdk == 2:  # one object, with other names than the variables
        for key in ("channels", "framework_params", "hps", "user_args", *(f"channel_{name}" for name in places)):
            del described[key]
        described |= {
            "additional_framework_parameters": framework, "distribution_hosts": names, "is_master": host == 0,
            "is_modelparallel_enabled": None, "is_smddpmprun_installed": False, "is_smddprun_installed": False,
            "master_hostname": names[0], "topology": [],
        }  # fmt: skip
    shared["training_env"] = described
    result = {f"SM_{key.upper()}": _variable(value) for key, value in shared.items()}
    for name, value in options.items():
        key = name.upper() if job.sdk == 2 else name.upper().replace("-", "_")
        result[f"SM_HP_{key}"] = _variable(value)
    return {
        **result, "TRAINING_JOB_NAME": "rehearsal", "CURRENT_HOST": names[host], "SAGEMAKER_JOB_NAME": "rehearsal",
        "SAGEMAKER_REGION": "us-west-2", "AWS_REGION": "us-west-2", **job.environment,
    }  # fmt: skip


def _variable(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def of_launcher(job: Job, rank: int, world: int, per_node: int, port: int) -> dict[str, str]:
    """Return the variables that a launcher gives a process; the first node is not this machine's usual address."""
    values: dict[str, Any] = {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": world, "OMPI_COMM_WORLD_LOCAL_RANK": rank % per_node,
        "OMPI_COMM_WORLD_LOCAL_SIZE": per_node, "OMPI_COMM_WORLD_NODE_RANK": rank % per_node,
    }  # fmt: skip
    if job.sdk == 2:  # of the container, whatever starts the script
        values |= {"MASTER_ADDR": FIRST_NODE, "MASTER_PORT": port}
    of_torchrun = {
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % per_node, "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": rank // per_node, "GROUP_WORLD_SIZE": world // per_node, "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world, "ROLE_NAME": "default", "MASTER_ADDR": FIRST_NODE, "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "rehearsal", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": "False", "OMP_NUM_THREADS": 1,
    }  # fmt: skip
    if job.launcher != "mpirun":
        values = of_torchrun if job.launcher else values | of_torchrun
    return {name: str(value) for name, value in values.items()}
