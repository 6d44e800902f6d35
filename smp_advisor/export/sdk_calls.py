"""The training job as calls of the SageMaker Python SDK: an estimator of version 2, a ModelTrainer of version 3."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file, sentence
from smp_advisor.errors import ExportError
from smp_advisor.export.options import FileSystem
from smp_advisor.export.template import Call, Comment, Expression
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.table import Instance
    from smp_advisor.export.launch import Launch
    from smp_advisor.export.options import Location


def _distribution(job: Launch) -> dict[str, Any] | None:
    """``distribution`` of a version 2 estimator; None for a single process without a launcher."""
    if job.library.launcher == "xla":
        return {"pytorchxla": {"enabled": True}} if _several_by_xla(job) else None
    smp = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": job.plan.parameters}}}
    parameters = smp if job.library.smdistributed else {}
    if job.library.launcher == "mpi":
        return parameters | {"mpi": _mpi(job.cluster.instance)}
    return {"torch_distributed": {"enabled": True}} | parameters


def _launcher_hyperparameters(job: Launch) -> dict[str, Any]:
    """Return the hyperparameters with which the launcher in the container (sagemaker-training) starts MPI or torch_xla.

    SDK version 2 sends them itself; version 3 has a class for torchrun only.
    """
    if job.library.launcher == "xla":
        launcher: dict[str, Any] = {"sagemaker_pytorch_xla_multi_worker_enabled": True} if _several_by_xla(job) else {}
        return launcher | {
            "sagemaker_training_compiler_enabled": bool(job.plan.parameters["enabled"]),
            "sagemaker_training_compiler_debug_mode": bool(job.plan.debug),
        }
    mpi = _mpi(job.cluster.instance)
    return {
        "sagemaker_container_log_level": 20,  # information
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": mpi["processes_per_host"],
        "sagemaker_mpi_custom_mpi_options": mpi.get("custom_mpi_options", ""),
        "sagemaker_instance_type": job.cluster.instance.name,
        "sagemaker_distributed_dataparallel_enabled": False,
        "mp_parameters": job.plan.parameters,
    }


def _require_sdk_takes(parameters: Mapping[str, Any]) -> None:
    """Raise `ExportError` for parameters that the library accepts and version 2 of the SDK rejects."""
    accepted = data_file("export", "launch")["sdk"]["placement_strategies"]
    placement = parameters.get("placement_strategy", accepted[0])
    if placement not in accepted:
        raise ExportError(
            f"The SageMaker SDK rejects placement_strategy={placement!r}, although the library accepts it: use"
            f" {' or '.join(accepted)}, or pass it to smp.init in the script."
        )
    if "default_partition" in parameters and "partitions" not in parameters:
        raise ExportError(
            "The SageMaker SDK requires `partitions` together with default_partition: add it to the plan."
        )


def _several_by_xla(job: Launch) -> bool:
    first_version = data_file("export", "launch")["sdk"]["first_pytorchxla_version"]
    if job.cluster.gpus > 1 and release(job.plan.version) < release(first_version):
        raise ExportError(sentence("export", "own_launcher", job=job, first_version=first_version))
    return job.cluster.gpus > 1


def _mpi(instance: Instance) -> dict[str, Any]:
    """MPI options for one process per GPU, without the SDK's default flags (btl_vader), which must not be repeated."""
    options, key = data_file("export", "launch")["mpi"], ""
    if instance.efa and (instance.gpudirect_rdma or instance.name in options["efa_without_gpudirect_rdma_on"]):
        key = "efa_with_gpudirect_rdma" if instance.gpudirect_rdma else "efa"
    launcher = {"enabled": True, "processes_per_host": instance.gpus}
    return launcher | ({"custom_mpi_options": options[key]} if key else {})


def estimator_values(job: Launch) -> dict[str, object]:
    """Template values of a cell for version 2."""
    estimator, inputs = job.container.estimator, dict[str, object](job.inputs)
    for name, place in job.inputs.items():
        if isinstance(place, FileSystem):
            inputs[name] = _file_system("FileSystemInput", place)
        elif job.options.input_mode == "FastFile":
            inputs[name] = Call("TrainingInput", {"s3_data": place, "input_mode": "FastFile"})
    return {
        "estimator": _estimator(job),
        "estimator_class": Comment(estimator),
        "estimator_module": Comment(f"sagemaker.{estimator.lower()}"),
        "inputs": inputs,
        "start": Comment(f"estimator.fit({'inputs, ' if job.inputs else ''}wait=False)"),
        "job_name": Comment("estimator.latest_training_job.name"),
    }


def _estimator(job: Launch) -> Call:
    """Return the estimator; it uses the variables ``role``, ``session`` and, for a generated script, ``source_dir``."""
    _require_sdk_takes(job.plan.parameters)
    options, container = job.options, job.container
    is_hugging_face = container.estimator == "HuggingFace"
    board = {"s3_output_path": job.tensorboard_s3_uri}
    # None leaves an argument out, and with it the default of the SDK.
    arguments: dict[str, Any] = {
        "entry_point": job.script,
        "source_dir": Expression("str(source_dir)") if job.generated else options.source_dir,
        "role": Expression("role"),
        "sagemaker_session": Expression("session"),
        "instance_type": job.cluster.instance.name,
        "instance_count": job.cluster.nodes,
        "transformers_version": container.transformers_version if is_hugging_face else None,
        "pytorch_version" if is_hugging_face else "framework_version": container.framework_version,
        "py_version": container.py_version,
        "image_uri": job.image_uri("v2"),
        "compiler_config": Call("TrainingCompilerConfig", job.plan.parameters) if job.library.compiles else None,
        "distribution": _distribution(job),
        "hyperparameters": job.hyperparameters,
        "metric_definitions": [{"Name": name, "Regex": regex} for name, regex in job.metrics.items()] or None,
        "base_job_name": job.base_job_name,
        "volume_size": job.volume_gb,
        "max_run": job.run.max_run_seconds,
        "use_spot_instances": options.spot or None,
        "max_wait": job.wait_seconds if options.spot else None,
        "keep_alive_period_in_seconds": options.keep_alive_seconds,
        "checkpoint_s3_uri": job.checkpoint_s3_uri,
        "subnets": list(options.subnets) or None,
        "security_group_ids": list(options.security_group_ids) or None,
        "training_plan": options.training_plan,
        "output_path": options.output_path,
        # Otherwise the source is next to the prefix, where the role may have no access.
        "code_location": options.output_path,
        "output_kms_key": options.output_kms_key,
        "volume_kms_key": options.volume_kms_key,
        "environment": job.environment or None,
        "tags": [{"Key": key, "Value": value} for key, value in (options.tags or {}).items()] or None,
        "tensorboard_output_config": Call("TensorBoardOutputConfig", board) if board["s3_output_path"] else None,
        "disable_profiler": True,
        "debugger_hook_config": False,
    }
    return Call(container.estimator, arguments)


def _file_system(name: str, place: FileSystem) -> Call:
    kind = {"file_system_id": place.identity, "file_system_type": "FSxLustre", "directory_path": place.directory}
    return Call(name, kind | {"file_system_access_mode": "rw" if place.writable else "ro"})


_REGION = Expression("session.boto_region_name")
_SHELL_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def _require_exportable(job: Launch) -> None:
    """Raise `ExportError` for names and values that the start script of version 3 cannot export as variables.

    It writes ``export SM_CHANNEL_NAME='...'`` and ``export SM_HP_NAME='...'`` for the shell (3.27.0,
    ``container_drivers/scripts/environment.py``), and the job ends before the training script starts.
    """
    for kind, names in (("channel", job.inputs), ("hyperparameter", job.hyperparameters)):
        for name in names:
            if not _SHELL_NAME.fullmatch(name):
                raise ExportError(sentence("export", "shell_name", kind=kind, name=name))
    for name, value in job.hyperparameters.items():
        if "'" in (value if isinstance(value, str) else json.dumps(value)):
            raise ExportError(sentence("export", "apostrophe", name=name))


def trainer_values(job: Launch) -> dict[str, object]:
    """Template values of a cell for version 3."""
    options, board = job.options, {"s3_output_path": job.tensorboard_s3_uri}
    if job.torchrun:
        _require_exportable(job)
    return {
        "image": _image(job),
        "trainer": _trainer(job),
        "metrics": [Call("MetricDefinition", {"name": name, "regex": regex}) for name, regex in job.metrics.items()],
        "tensorboard": Call("TensorBoardOutputConfig", board) if job.tensorboard_s3_uri is not None else "",
        "inputs": [_channel(job, name, place) for name, place in job.inputs.items()],
        "start": Comment(f"trainer.train({'input_data_config=inputs, ' if job.inputs else ''}wait=False, logs=False)"),
        "job_name": Comment("trainer._latest_training_job.training_job_name"),
        "source_dir": options.source_dir or "",
        "packed": [Expression("script.name"), *(["requirements.txt"] if job.generated else [])],
        "key_prefix": Comment(job.base_job_name),
    }


def _channel(job: Launch, name: str, place: Location) -> Call:
    """Return an input channel. Training reads those of S3 during training if it streams; the SDK's own stay files."""
    if job.options.input_mode == "FastFile" and not isinstance(place, FileSystem):
        source = {"s3_data_type": "S3Prefix", "s3_uri": place, "s3_data_distribution_type": "FullyReplicated"}
        streamed = Call("DataSource", {"s3_data_source": Call("S3DataSource", source)})
        return Call("Channel", {"channel_name": name, "data_source": streamed, "input_mode": "FastFile"})
    read = _file_system("FileSystemDataSource", place) if isinstance(place, FileSystem) else place
    return Call("InputData", {"channel_name": name, "data_source": read})


def _image(job: Launch) -> Call | Expression | str:
    """Return the address of the image, or its lookup, which version 3 does not derive from the framework version."""
    container = job.container
    if (uri := job.image_uri("v3")) is not None:
        return uri
    place: dict[str, Any] = {"region": _REGION}
    versions = {"py_version": container.py_version, "instance_type": job.cluster.instance.name}
    compiles, version = job.library.compiles, container.framework_version
    if not compiles and not (job.torchrun and job.library.smdistributed):
        framework = {"framework": job.library.framework, "version": version}
        return Call("image_uris.retrieve", framework | place | versions | {"image_scope": "training"})
    framework = {"framework": "pytorch", "framework_version": version}
    if compiles and (hugging_face := container.transformers_version):
        framework = {"framework": "huggingface", "framework_version": hugging_face, "pytorch_version": version}
    # Any true value selects the image of the compiler; both keys, with or without parameters, that of SMP v2.
    chosen = {"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True}}}
    selected: dict[str, Any] = {"compiler_config": True} if compiles else {"distribution": chosen}
    return Call("image_uris.get_training_image_uri", place | framework | versions | selected)


def _trainer(job: Launch) -> Call:
    """Return the ModelTrainer; it uses the variables ``role``, ``session``, ``image`` and ``source_dir``."""
    options = job.options
    hyperparameters = {name: _as_text(value) for name, value in job.hyperparameters.items()}
    # Libraries without torchrun start through version 2's toolkit, which reads hyperparameters.
    if not job.torchrun:
        hyperparameters |= {
            "sagemaker_program": job.script if options.source_dir else Expression("script.name"),
            "sagemaker_submit_directory": Expression("source_uri"),
            "sagemaker_region": _REGION,
            **_launcher_hyperparameters(job),
        }
    source = {"source_dir": options.source_dir, "entry_script": job.script}
    if options.source_dir is None:
        source = {"source_dir": Expression("str(source_dir)"), "entry_script": Expression("script.name")}
    # Arguments by the class of the SDK that takes them; None leaves an argument out.
    compute = {
        "instance_type": job.cluster.instance.name,
        "instance_count": job.cluster.nodes,
        "volume_size_in_gb": job.volume_gb,
        "enable_managed_spot_training": options.spot or None,
        "keep_alive_period_in_seconds": options.keep_alive_seconds,
        "training_plan_arn": options.training_plan,
        "volume_kms_key_id": options.volume_kms_key,
    }
    stopping = {
        "max_runtime_in_seconds": job.run.max_run_seconds,
        "max_wait_time_in_seconds": job.wait_seconds if options.spot else None,
    }
    smp = Call("SMP", job.plan.parameters) if job.library.smdistributed else None
    torchrun = {"process_count_per_node": job.cluster.instance.gpus, "smp": smp}
    checkpoints = {"s3_uri": job.checkpoint_s3_uri, "local_path": "/opt/ml/checkpoints"}
    network = {"subnets": list(options.subnets), "security_group_ids": list(options.security_group_ids)}
    output = {"s3_output_path": options.output_path, "kms_key_id": options.output_kms_key}
    installed = {"requirements": "requirements.txt" if job.generated else None}
    arguments = {
        "sagemaker_session": Expression("session"),
        "role": Expression("role"),
        "training_image": Expression("image"),
        "source_code": Call("SourceCode", source | installed) if job.torchrun else None,
        "distributed": Call("Torchrun", torchrun) if job.torchrun else None,
        "compute": Call("Compute", compute),
        "hyperparameters": hyperparameters,
        "stopping_condition": Call("StoppingCondition", stopping),
        "checkpoint_config": Call("CheckpointConfig", checkpoints) if job.checkpoint_s3_uri is not None else None,
        "networking": Call("Networking", network) if options.subnets else None,
        "output_data_config": Call("OutputDataConfig", output) if any(output.values()) else None,
        "environment": job.environment or None,
        "tags": [Call("Tag", {"key": key, "value": value}) for key, value in (options.tags or {}).items()] or None,
        "base_job_name": job.base_job_name,
    }
    return Call("ModelTrainer", arguments)


def _as_text(value: object) -> object:
    """Encode a string that is also valid JSON: the container decodes JSON, and version 3 sends strings unchanged."""
    if not isinstance(value, str):
        return value
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)
