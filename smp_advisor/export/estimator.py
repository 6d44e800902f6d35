"""The training job as an estimator of the SageMaker Python SDK, version 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.export.launcher import distribution, require_sdk_takes
from smp_advisor.export.literal import Call, Expression, import_line
from smp_advisor.export.storage import FileSystem

if TYPE_CHECKING:
    from smp_advisor.export.launch import Launch
    from smp_advisor.export.storage import Location

__all__ = ["estimator", "imports", "inputs"]


def imports(job: Launch) -> list[str]:
    """Import statements of the cell, sorted."""
    lines = ["import sagemaker"]
    classes = {
        "FileSystemInput": any(isinstance(place, FileSystem) for place in job.inputs.values()),
        "TrainingInput": job.streams and any(isinstance(place, str) for place in job.inputs.values()),
    }
    if used := [name for name, is_used in classes.items() if is_used]:
        lines.append(import_line("sagemaker.inputs", used))
    name = job.container.estimator
    compiler = ", TrainingCompilerConfig" if job.library.compiles else ""
    return [*lines, f"from sagemaker.{name.lower()} import {name}{compiler}"]


def estimator(job: Launch) -> Call:
    """The estimator; it uses the variables ``role``, ``session`` and, for a generated script, ``source_dir``."""
    require_sdk_takes(job.plan.parameters)
    options, container = job.options, job.container
    arguments: dict[str, Any] = {"entry_point": job.script}
    if job.generated:
        arguments["source_dir"] = Expression("str(source_dir)")
    elif options.source_dir is not None:
        arguments["source_dir"] = options.source_dir
    arguments |= {
        "role": Expression("role"),
        "sagemaker_session": Expression("session"),
        "instance_type": job.cluster.instance.name,
        "instance_count": job.cluster.nodes,
    }
    if container.estimator == "HuggingFace":
        arguments["transformers_version"] = container.transformers_version
        arguments["pytorch_version"] = container.framework_version
    else:
        arguments["framework_version"] = container.framework_version
    arguments["py_version"] = container.py_version
    if options.image_uri is not None:
        arguments["image_uri"] = options.image_uri
    if job.library.compiles:
        arguments["compiler_config"] = Call("TrainingCompilerConfig", job.plan.parameters)
    if (launched := distribution(job)) is not None:
        arguments["distribution"] = launched
    arguments["hyperparameters"] = job.hyperparameters
    if job.metrics:
        arguments["metric_definitions"] = [{"Name": name, "Regex": regex} for name, regex in job.metrics.items()]
    arguments |= {
        "base_job_name": job.base_job_name,
        "volume_size": job.volume_gb,
        "max_run": job.run.max_run_seconds,
    }
    arguments |= _capacity(job) | _account(job)
    return Call(container.estimator, arguments | {"disable_profiler": True, "debugger_hook_config": False})


def inputs(job: Launch) -> dict[str, object]:
    """``inputs`` of ``estimator.fit``."""
    return {name: _input(place, streams=job.streams) for name, place in job.inputs.items()}


def _capacity(job: Launch) -> dict[str, Any]:
    options = job.options
    arguments: dict[str, Any] = {}
    if options.spot:
        arguments |= {"use_spot_instances": True, "max_wait": job.wait_seconds}
    if options.keep_alive_seconds is not None:
        arguments["keep_alive_period_in_seconds"] = options.keep_alive_seconds
    if job.checkpoint_s3_uri is not None:
        arguments["checkpoint_s3_uri"] = job.checkpoint_s3_uri
    if options.subnets:
        arguments |= {"subnets": list(options.subnets), "security_group_ids": list(options.security_group_ids)}
    return arguments


def _account(job: Launch) -> dict[str, Any]:
    """Options of the account, under their names in version 2."""
    options = job.options
    arguments = {
        "max_retry_attempts": options.retry_attempts,
        "training_plan": options.training_plan,
        "output_path": options.output_path,
        # Otherwise the source is next to the prefix, where the role may have no access.
        "code_location": options.output_path,
        "output_kms_key": options.output_kms_key,
        "volume_kms_key": options.volume_kms_key,
        "environment": options.environment,
        "tags": [{"Key": key, "Value": value} for key, value in (options.tags or {}).items()] or None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _input(place: Location, *, streams: bool) -> object:
    if not isinstance(place, FileSystem):
        return Call("TrainingInput", {"s3_data": place, "input_mode": "FastFile"}) if streams else place
    return Call(
        "FileSystemInput",
        {
            "file_system_id": place.identity,
            "file_system_type": "FSxLustre",
            "directory_path": place.directory,
            "file_system_access_mode": "rw" if place.writable else "ro",
        },
    )
