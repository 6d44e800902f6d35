"""Releases of transformers that a job's training script installs, and the form of attention that their code runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from smp_advisor.files import rows, table
from smp_advisor.libraries.version import default_version, image, release, versions


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersFamily:
    """A family of models that the generated script can build."""

    task: str
    """Training task."""
    since: str
    """First release with the family, of those that the scripts install."""
    sdpa: str
    """First release whose code of the family runs PyTorch's fused attention; empty for none."""
    unfused: str = ""
    """First later release whose code no longer runs it; empty for none."""
    softmax: str = ""
    """Precision of the softmax in eager attention, ``fp32`` or ``native``; empty where all releases agree."""

    def is_fused(self, transformers_version: str) -> bool:
        """Whether a release runs fused attention."""
        runs = release(transformers_version)
        return bool(self.sdpa) and release(self.sdpa) <= runs and not (self.unfused and release(self.unfused) <= runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """The versions that a job of a library has."""

    library: str
    framework_version: str
    """Version of PyTorch or TensorFlow in the container."""
    repository: str
    """Repository of the container."""
    transformers_version: str
    """Release of the container or, if it has none, of the generated script; empty if no script builds the family."""
    from_container: bool
    """Whether transformers is part of the container."""


def _releases() -> dict[str, Any]:
    return dict(table("smp_advisor.libraries", "data/transformers_releases.toml")["release"])


@cache
def transformers_families() -> dict[str, TransformersFamily]:
    """The families by their model type."""
    return {
        row["family"]: TransformersFamily(
            task=row["task"], since=row["release"], sdpa=row["sdpa"], softmax=row["softmax"], unfused=row["unfused"]
        )
        for row in rows("smp_advisor.libraries", "data/transformers_families.csv")
    }


def oldest_script_release() -> str:
    """Release in the containers of Training Compiler, with which SMP v1 replaces layers."""
    return str(_releases()["distributed"])


def newest_script_release() -> str:
    """Newest release that a script installs."""
    return str(max(_releases()["minimum_pytorch"], key=release))


def smp_v1_release(since: str) -> str | None:
    """Release with which SMP v1 and Training Compiler replace layers, or one with a family; None without one."""
    chosen = (str(_releases()["distributed"]), str(_releases()["newer"]))
    return next((version for version in chosen if release(since) <= release(version)), None)


def script_release(pytorch_version: str, since: str) -> str | None:
    """Release that a script installs for a version of PyTorch, or the first that has the family.

    Returns
    -------
    str or None
        None if no release supports both.

    Examples
    --------
    >>> [script_release(pytorch, transformers_families()["t5"].since) for pytorch in ("2.8.0", "2.13.0")]
    ['4.46.3', '5.23.0']
    """
    releases = _releases()["by_pytorch"]
    earlier = [first for first in releases if release(first) <= release(pytorch_version)]
    if not earlier:
        return None
    usual = str(releases[max(earlier, key=release)])
    if release(since) <= release(usual):
        return usual
    minimum = _releases()["minimum_pytorch"].get(since)
    return None if minimum is None or release(pytorch_version) < release(minimum) else since


def installed_by(library: str, family: str, version: str = "") -> Installed:
    """Versions that a job of a library installs for a family.

    Parameters
    ----------
    version
        Version of the library; empty for its default.

    Examples
    --------
    >>> installed_by("fsdp", "t5").transformers_version
    '5.23.0'
    """
    container = image(library, version if version in versions(library) else default_version(library))
    entry = transformers_families().get(family)
    scripted = "" if entry is None else script_release(container.framework_version, entry.since) or ""
    return Installed(
        library=library,
        framework_version=container.framework_version,
        repository=container.repository,
        transformers_version=container.transformers_version or scripted,
        from_container=bool(container.transformers_version),
    )
