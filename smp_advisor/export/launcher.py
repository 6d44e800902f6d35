"""Launch of the processes of a job with MPI, torchrun or torch_xla, and the parameters of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export.facts import launch_facts
from smp_advisor.libraries.version import release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.cluster.instance import Instance
    from smp_advisor.export.launch import Launch

__all__ = ["distribution", "launcher_hyperparameters", "require_sdk_takes"]

_INFO = 20


def distribution(job: Launch) -> dict[str, Any] | None:
    """``distribution`` of a version 2 estimator; None for a single process without a launcher."""
    if job.library.launcher == "xla":
        return {"pytorchxla": {"enabled": True}} if _several_by_xla(job) else None
    smp = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": job.plan.parameters}}}
    parameters = smp if job.library.smdistributed else {}
    if job.library.launcher == "mpi":
        return parameters | {"mpi": _mpi(job.cluster.instance)}
    return {"torch_distributed": {"enabled": True}} | parameters


def launcher_hyperparameters(job: Launch) -> dict[str, Any]:
    """Hyperparameters with which the launcher in the container (sagemaker-training) starts MPI or torch_xla.

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
        "sagemaker_container_log_level": _INFO,
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": mpi["processes_per_host"],
        "sagemaker_mpi_custom_mpi_options": mpi.get("custom_mpi_options", ""),
        "sagemaker_instance_type": job.cluster.instance.name,
        "sagemaker_distributed_dataparallel_enabled": False,
        "mp_parameters": job.plan.parameters,
    }


def require_sdk_takes(parameters: Mapping[str, Any]) -> None:
    """Raise `ExportError` for parameters that the library accepts and version 2 of the SDK rejects."""
    accepted = launch_facts()["sdk"]["placement_strategies"]
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
    first_version = launch_facts()["sdk"]["first_pytorchxla_version"]
    if job.cluster.gpus > 1 and release(job.plan.version) < release(first_version):
        raise ExportError(
            f"The {job.library.title} container of PyTorch {job.plan.version} requires your own launcher script for"
            f" more than one GPU: choose version {first_version} or later, or an instance with one GPU."
        )
    return job.cluster.gpus > 1


def _mpi(instance: Instance) -> dict[str, Any]:
    """MPI options for one process per GPU, without the SDK's default flags (btl_vader), which must not be repeated."""
    options = launch_facts()["mpi"]
    launcher: dict[str, Any] = {"enabled": True, "processes_per_host": instance.gpus}
    if instance.efa and instance.gpudirect_rdma:
        launcher["custom_mpi_options"] = options["efa_with_gpudirect_rdma"]
    elif instance.efa and instance.name in options["efa_without_gpudirect_rdma_on"]:
        launcher["custom_mpi_options"] = options["efa"]
    return launcher
