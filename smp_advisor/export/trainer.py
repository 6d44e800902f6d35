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

__all__ = ["imports", "inputs", "trainer", "training_image"]

_REGION = Expression("session.boto_region_name")


def imports(job: Launch) -> list[str]:
    """Import statements of the cell, sorted."""
    file_systems = any(isinstance(place, FileSystem) for place in job.inputs.values())
    used = {
        "sagemaker.core": {"image_uris": True},
        "sagemaker.core.helper.session_helper": {"Session": True, "get_execution_role": True},
        "sagemaker.core.shapes": {
            "CheckpointConfig": job.checkpoint_s3_uri is not None,
            "FileSystemDataSource": file_systems,
            "StoppingCondition": True,
        },
        "sagemaker.core.training.configs": {
            "Compute": True,
            "InputData": bool(job.inputs),
            "Networking": bool(job.options.subnets),
            "SourceCode": job.torchrun,
        },
        "sagemaker.train": {"ModelTrainer": True},
        "sagemaker.train.distributed": {"SMP": job.torchrun and job.library.smdistributed, "Torchrun": job.torchrun},
    }
    imported = {module: [name for name, is_used in names.items() if is_used] for module, names in used.items()}
    return [import_line(module, names) for module, names in imported.items() if names]


def training_image(job: Launch) -> Call:
    """Lookup of the container image, which version 3 does not derive from the framework version."""
    container = job.container
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
    arguments["base_job_name"] = job.base_job_name
    return Call("ModelTrainer", arguments)


def inputs(job: Launch) -> list[Call]:
    """``input_data_config`` of ``trainer.train``."""
    return [
        Call("InputData", {"channel_name": name, "data_source": _input(place)}) for name, place in job.inputs.items()
    ]


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
