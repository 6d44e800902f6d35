"""Library versions by framework version or image name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from smp_advisor.cluster.containers import Container, containers, containers_of, repositories
from smp_advisor.libraries.version import facts, images, release

__all__ = [
    "ImageName",
    "container_of",
    "image_name",
    "is_version",
    "known_pairs",
    "library_version",
    "version_of_older_pair",
]

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
    repository = repositories().get(match["repository"]) if match is not None else None
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
    for unlisted, read_as in facts(library).get("unlisted", {}).items():
        fits = unlisted == framework_version or unlisted.startswith(f"{framework_version}.")
        rows = [row for row in containers_of(facts(library)["repository"]) if row.framework_version == unlisted]
        if fits and (py_version is None or any(py_version in row.py_versions for row in rows)):
            return str(read_as)
    return None


def container_of(
    framework: str, framework_version: object, transformers_version: object = None, library: str | None = None
) -> Container | None:
    """The container that an estimator of a framework selects; None if the table does not have it.

    A short version ("2.8") is the newest of its patch releases.
    """
    if not isinstance(framework_version, str) or not is_version(framework_version):
        return None
    homes = [name for name, home in repositories().items() if home["framework"] == framework]
    own = [name for name in homes if library and repositories()[name].get("library") == library]
    homes = own or [name for name in homes if "library" not in repositories()[name]]
    rows = [
        row
        for row in containers()
        if row.repository in homes
        and f"{row.framework_version}.".startswith(f"{framework_version}.")
        and (not isinstance(transformers_version, str) or row.transformers_version.startswith(transformers_version))
    ]
    return max(rows, key=lambda row: release(row.framework_version), default=None)
