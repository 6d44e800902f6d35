"""Which SageMaker Python SDK a cell is written for: the one installed, found without importing it."""

from __future__ import annotations

from importlib import metadata
from typing import Literal

from smp_advisor.errors import ExportError

__all__ = ["DISTRIBUTIONS", "REQUIREMENTS", "Sdk", "chosen_sdk", "installed_sdk"]

Sdk = Literal["v2", "v3"]

REQUIREMENTS: dict[Sdk, str] = {"v2": "sagemaker>=2.243,<3", "v3": "sagemaker>=3.0.1,<4"}
"""What cells need: the oldest releases in which each of them has been run."""

DISTRIBUTIONS: dict[Sdk, str] = {"v2": "sagemaker", "v3": "sagemaker-train"}
"""Distribution whose version tells the SDK's; version 3 is a bundle, and this part of it holds ModelTrainer."""


def installed_sdk() -> Sdk | None:
    """Major version of the SDK in this environment; None without one.

    Importing version 2 takes two seconds and contacts the instance's metadata service; reading its version does not.
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
    """The version to write for: as asked, else the one installed, else version 2, which knows every library.

    Raises
    ------
    ExportError
        No such version.
    """
    if sdk == "auto":
        return installed_sdk() or "v2"
    if sdk not in ("v2", "v3"):
        raise ExportError(f'sdk must be "auto", "v2" or "v3", not {sdk!r}.')
    return sdk  # type: ignore[return-value]  # compared above
