"""The SageMaker Python SDK version for which a cell is written; the installed version is read without importing it."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Literal

from smp_advisor.errors import ExportError

if TYPE_CHECKING:
    from smp_advisor.cluster.containers import Container

__all__ = ["DISTRIBUTIONS", "REQUIREMENTS", "Sdk", "chosen_sdk", "installed_sdk", "requirement"]

Sdk = Literal["v2", "v3"]

REQUIREMENTS: dict[Sdk, str] = {"v2": "sagemaker>=2.243,<3", "v3": "sagemaker>=3.0.1,<4"}
"""Requirements of the cells: the oldest releases with which they have been tested."""

DISTRIBUTIONS: dict[Sdk, str] = {"v2": "sagemaker", "v3": "sagemaker-train"}
"""Distribution with the version of the SDK; version 3 is a bundle, and this is the part with ModelTrainer."""


def requirement(sdk: Sdk, container: Container | None) -> str:
    """Requirement of a cell: the oldest tested release that has the container; None for an image of the user.

    Raises
    ------
    ExportError
        No release of that major version has it.
    """
    if container is None:
        return REQUIREMENTS[sdk]
    first = container.sdk_2 if sdk == "v2" else container.sdk_3
    if first is None:
        alternative = "v3" if sdk == "v2" else "v2"
        raise ExportError(
            f"Version {sdk[1]} of the SageMaker Python SDK has no container of {container.title}: pass"
            f' sdk="{alternative}", or set version in the plan to one that it has.'
        )
    package, newest = REQUIREMENTS[sdk].split(">=")[0], REQUIREMENTS[sdk].split(",")[1]
    tested = REQUIREMENTS[sdk].split(">=")[1].split(",")[0]
    oldest = max(tested, first or tested, key=lambda version: [int(part) for part in version.split(".")])
    return f"{package}>={oldest},{newest}"


def installed_sdk() -> Sdk | None:
    """Major version of the installed SDK; None if it is not installed.

    Importing version 2 takes two seconds and contacts the instance metadata service; reading its version does not.
    """
    for distribution in ("sagemaker-train", "sagemaker"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if distribution == "sagemaker-train":
            return "v3"
        return {"2": "v2", "3": "v3"}.get(version.split(".")[0])  # type: ignore[return-value]  # the keys' literals
    return None


def chosen_sdk(sdk: str) -> Sdk:
    """The requested version; for ``"auto"`` the installed version, or version 2, which supports every library.

    Raises
    ------
    ExportError
        The version does not exist.
    """
    if sdk == "auto":
        return installed_sdk() or "v2"
    if sdk not in ("v2", "v3"):
        raise ExportError(f'sdk must be "auto", "v2" or "v3", not {sdk!r}.')
    return sdk  # type: ignore[return-value]  # compared above
