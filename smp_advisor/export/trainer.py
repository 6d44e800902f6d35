"""The training job as a ModelTrainer of the SageMaker Python SDK, version 3."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smp_advisor.export.launcher import launcher_hyperparameters
from smp_advisor.export.literal import Call, Expression, import_line
from smp_advisor.export.storage import FileSystem

if TYPE_CHECKING:
    from smp_advisor.export.launch import Launch
    from smp_advisor.export.storage import Location

__all__ = ["imports", "inputs", "metrics", "retries", "trainer", "training_image"]

_REGION = Expression("session.boto_region_name")


def imports(job: Launch) -> list[str]:
    """Import statements of the cell, sorted."""
    options, places = job.options, job.inputs.values()
    streams = job.streams and any(isinstance(place, str) for place in places)
    used = {
        "sagemaker.core": {"image_uris": options.image_uri is None},
        "sagemaker.core.helper.session_helper": {"Session": True, "get_execution_role": options.role is None},
        "sagemaker.core.shapes": {
            "Channel": streams,
            "CheckpointConfig": job.checkpoint_s3_uri is not None,
            "DataSource": streams,
            "FileSystemDataSource": any(isinstance(place, FileSystem) for place in places),
            "MetricDefinition": bool(job.metrics),
            "RetryStrategy": options.retry_attempts is not None,
            "S3DataSource": streams,
            "StoppingCondition": True,
            "Tag": bool(options.tags),
        },
        "sagemaker.core.training.configs": {
            "Compute": True,
            "InputData": any(isinstance(place, FileSystem) or not job.streams for place in places),
            "Networking": bool(options.subnets),
            "OutputDataConfig": options.output_path is not None or options.output_kms_key is not None,
            "SourceCode": job.torchrun,
        },
        "sagemaker.train": {"ModelTrainer": True},
        "sagemaker.train.distributed": {"SMP": job.torchrun and job.library.smdistributed, "Torchrun": job.torchrun},
    }
    imported = {module: [name for name, is_used in names.items() if is_used] for module, names in used.items()}
    return [import_line(module, names) for module, names in imported.items() if names]


def training_image(job: Launch) -> Call | str:
    """The user's image, or the lookup of the image, which version 3 does not derive from the framework version."""
    container = job.container
    if job.options.image_uri is not None:
        return job.options.image_uri
    place: dict[str, Any] = {"region": _REGION}
    versions: dict[str, Any] = {"py_version": container.py_version, "instance_type": job.cluster.instance.name}
    if job.torchrun and job.library.smdistributed:
        # Both keys, with or without parameters, select the image of the library.
        chosen = {"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True}}}
        framework = {"framework": "pytorch", "framework_version": container.framework_version}
        return Call("image_uris.get_training_image_uri", place | framework | versions | {"distribution": chosen})
    if job.library.compiles:
        framework = {"framework": "pytorch", "framework_version": container.framework_version}
        if container.transformers_version:
            framework = {
                "framework": "huggingface",
                "framework_version": container.transformers_version,
                "pytorch_version": container.framework_version,
            }
        # Any true value selects the image of the compiler.
        return Call("image_uris.get_training_image_uri", place | framework | versions | {"compiler_config": True})
    framework = {"framework": job.library.framework, "version": container.framework_version}
    return Call("image_uris.retrieve", framework | place | versions | {"image_scope": "training"})


def trainer(job: Launch) -> Call:
    """The ModelTrainer; it uses the variables ``role``, ``session``, ``training_image`` and ``source_dir``."""
    options = job.options
    arguments: dict[str, Any] = {
        "sagemaker_session": Expression("session"),
        "role": Expression("role"),
        "training_image": Expression("training_image"),
    }
    hyperparameters = {name: _as_text(value) for name, value in job.hyperparameters.items()}
    if not job.torchrun:
        hyperparameters |= {
            "sagemaker_program": job.script if job.options.source_dir else Expression("script.name"),
            "sagemaker_submit_directory": Expression("source_uri"),
            "sagemaker_region": _REGION,
            **launcher_hyperparameters(job),
        }
    else:
        arguments |= {"source_code": _source_code(job), "distributed": _torchrun(job)}
    arguments |= {"compute": _compute(job), "hyperparameters": hyperparameters}
    stopping = {"max_runtime_in_seconds": job.run.max_run_seconds}
    if options.spot:
        stopping["max_wait_time_in_seconds"] = job.wait_seconds
    arguments["stopping_condition"] = Call("StoppingCondition", stopping)
    if job.checkpoint_s3_uri is not None:
        place = {"s3_uri": job.checkpoint_s3_uri, "local_path": "/opt/ml/checkpoints"}
        arguments["checkpoint_config"] = Call("CheckpointConfig", place)
    if options.subnets:
        network = {"subnets": list(options.subnets), "security_group_ids": list(options.security_group_ids)}
        arguments["networking"] = Call("Networking", network)
    output = {"s3_output_path": options.output_path, "kms_key_id": options.output_kms_key}
    if output := {name: value for name, value in output.items() if value is not None}:
        arguments["output_data_config"] = Call("OutputDataConfig", output)
    if options.environment:
        arguments["environment"] = options.environment
    if options.tags:
        arguments["tags"] = [Call("Tag", {"key": key, "value": value}) for key, value in options.tags.items()]
    arguments["base_job_name"] = job.base_job_name
    return Call("ModelTrainer", arguments)


def metrics(job: Launch) -> list[Call]:
    """Metrics that SageMaker extracts from the log."""
    return [Call("MetricDefinition", {"name": name, "regex": regex}) for name, regex in job.metrics.items()]


def retries(job: Launch) -> Call:
    """Restarts after internal errors of SageMaker."""
    return Call("RetryStrategy", {"maximum_retry_attempts": job.options.retry_attempts})


def inputs(job: Launch) -> list[Call]:
    """``input_data_config`` of ``trainer.train``."""
    return [
        _streamed(name, place)
        if job.streams and isinstance(place, str)
        else Call("InputData", {"channel_name": name, "data_source": _input(place)})
        for name, place in job.inputs.items()
    ]


def _streamed(name: str, uri: str) -> Call:
    """A channel that training reads from S3. The channels of the SDK itself stay files."""
    source = {"s3_data_type": "S3Prefix", "s3_uri": uri, "s3_data_distribution_type": "FullyReplicated"}
    place = Call("DataSource", {"s3_data_source": Call("S3DataSource", source)})
    return Call("Channel", {"channel_name": name, "data_source": place, "input_mode": "FastFile"})


def _as_text(value: object) -> object:
    """Encode a string that is also valid JSON: the container decodes JSON, and version 3 sends strings unchanged."""
    if not isinstance(value, str):
        return value
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


def _source_code(job: Launch) -> Call:
    if job.options.source_dir is not None:
        return Call("SourceCode", {"source_dir": job.options.source_dir, "entry_script": job.script})
    code: dict[str, Any] = {
        "source_dir": Expression("str(source_dir)"),
        "entry_script": Expression("script.name"),
    }
    if job.generated:
        code["requirements"] = "requirements.txt"
    return Call("SourceCode", code)


def _torchrun(job: Launch) -> Call:
    arguments: dict[str, Any] = {"process_count_per_node": job.cluster.instance.gpus}
    if job.library.smdistributed:
        arguments["smp"] = Call("SMP", job.plan.parameters)
    return Call("Torchrun", arguments)


def _compute(job: Launch) -> Call:
    options = job.options
    arguments: dict[str, Any] = {
        "instance_type": job.cluster.instance.name,
        "instance_count": job.cluster.nodes,
        "volume_size_in_gb": job.volume_gb,
    }
    if options.spot:
        arguments["enable_managed_spot_training"] = True
    if options.keep_alive_seconds is not None:
        arguments["keep_alive_period_in_seconds"] = options.keep_alive_seconds
    if options.training_plan is not None:
        arguments["training_plan_arn"] = options.training_plan
    if options.volume_kms_key is not None:
        arguments["volume_kms_key_id"] = options.volume_kms_key
    return Call("Compute", arguments)


def _input(place: Location) -> object:
    if not isinstance(place, FileSystem):
        return place
    return Call(
        "FileSystemDataSource",
        {
            "file_system_id": place.identity,
            "file_system_access_mode": "rw" if place.writable else "ro",
            "file_system_type": "FSxLustre",
            "directory_path": place.directory,
        },
    )
