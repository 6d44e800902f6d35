"""The cell that runs a script in a SageMaker container on this machine, with the local mode of the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.export import checks
from smp_advisor.export.literal import Comment, comment
from smp_advisor.export.template import render
from smp_advisor.libraries.registry import DEFAULT_LIBRARY
from smp_advisor.libraries.version import default_version, image

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["local_mode_cell"]


def local_mode_cell(
    script: str,
    *,
    instance_type: str = "local",
    source_dir: str = ".",
    hyperparameters: Mapping[str, Any] | None = None,
    channels: Mapping[str, str] | None = None,
    output_directory: str = "local-mode",
    library: str = DEFAULT_LIBRARY,
    version: str | None = None,
    image_uri: str | None = None,
) -> str:
    """Cell for version 2 of the SageMaker Python SDK that trains in a container on this machine.

    The model parallel library does not run here, because it requires SageMaker instances: the script runs on one GPU,
    or on the CPU.

    Parameters
    ----------
    script
        Entry point in `source_dir`.
    instance_type
        ``local``, or ``local_gpu`` on a machine with a GPU.
    hyperparameters
        Hyperparameters of the estimator.
    channels
        Data folders on this machine, by channel.
    output_directory
        Folder for the trained model.
    library, version
        Determine the PyTorch version of the container; None for the default version of the library.
    image_uri
        Custom container image, used instead of the container of the library.

    Examples
    --------
    >>> "sagemaker.local" in local_mode_cell("train.py", instance_type="local_gpu")
    True
    """
    container = image(library, version or default_version(library))
    inputs = {name: Path(path).expanduser().resolve().as_uri() for name, path in (channels or {}).items()}
    values: dict[str, object] = {
        "script_name": Comment(comment(script)),
        "script": checks.text("script", script),
        "source_dir": checks.text("source_dir", source_dir),
        "instance_type": instance_type,
        "image_uri": image_uri or "",
        "framework_version": container.framework_version,
        "py_version": container.py_version,
        "hyperparameters": dict(hyperparameters or {}),
        "output_path": Path(output_directory).resolve().as_uri(),
        "inputs": inputs or None,
    }
    return render("local_mode.py.in", values=values, flags={"own_image": image_uri is not None})
