"""Library versions by framework version or image name."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from smp_advisor.libraries.version import images, release

__all__ = ["ImageName", "image_name", "is_version", "known_pairs", "library_version", "version_of_older_pair"]

_TAG = re.compile(
    r"(?:^|/)(?P<repository>[a-z0-9._-]+):(?P<framework>[0-9]+(?:\.[0-9]+){1,2})"
    r"(?:-transformers(?P<transformers>[0-9.]+))?-gpu-(?P<python>py[0-9]+)"
)


@dataclass(frozen=True, slots=True)
class ImageName:
    """Parts of the name of an AWS training image."""

    library: str | None
    framework: str
    framework_version: str
    py_version: str
    transformers_version: str | None


def image_name(uri: object) -> ImageName | None:
    """Read the name of an image; None for images that are not from AWS."""
    match = _TAG.search(uri) if isinstance(uri, str) else None
    repository = _data()["repositories"].get(match["repository"]) if match is not None else None
    if match is None or repository is None:
        return None
    return ImageName(
        repository.get("library"), repository["framework"], match["framework"], match["python"], match["transformers"]
    )


def is_version(text: object) -> bool:
    """Whether it is a version: "2.4.1", "1.12"."""
    return isinstance(text, str) and re.fullmatch(r"[0-9]+(\.[0-9]+){0,3}", text) is not None


def known_pairs(library: str) -> list[tuple[str, str]]:
    """(framework version, Python version) of every image of a library, oldest first."""
    return sorted(
        {(image.framework_version, image.py_version) for image in images(library)}, key=lambda pair: release(pair[0])
    )


def library_version(library: str, framework_version: object, py_version: object = None) -> str | None:
    """Newest version of the library in the framework's image; None if there is no such image.

    A short version ("1.12") is the newest of its patch releases, as the SDK takes it.
    """
    if not isinstance(framework_version, str) or not is_version(framework_version):
        return None
    versions = [image for image in images(library) if image.framework_version == framework_version]
    if not versions and framework_version.count(".") == 1:
        near = [image for image in images(library) if image.framework_version.startswith(f"{framework_version}.")]
        newest = max((release(image.framework_version) for image in near), default=None)
        versions = [image for image in near if release(image.framework_version) == newest]
    if py_version is not None:
        versions = [image for image in versions if image.py_version == py_version]
    return max((image.version for image in versions), key=release, default=None)


def version_of_older_pair(library: str, framework_version: str, py_version: str | None) -> str | None:
    """Version that applies to a pair outside the tables whose image contains the library."""
    for pair in _data()["pair"]:
        fits = pair["framework_version"] == framework_version or pair["framework_version"].startswith(
            f"{framework_version}."
        )
        if pair["library"] == library and fits and (py_version is None or py_version in pair["py_versions"]):
            return str(pair["read_as"])
    return None


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.estimators") / "data" / "images.toml").read_text(encoding="utf-8"))
