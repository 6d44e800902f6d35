"""AWS's training containers: the versions in each, and the GPUs that each can drive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from smp_advisor.core.files import data_file, rows

if TYPE_CHECKING:
    from smp_advisor.cluster.table import Instance

_ACCOUNT = "763104351884"
"""Registry account of AWS Deep Learning Containers in most regions."""

_COLUMNS = ("transformers_version", "cuda", "architectures", "end_of_support", "sdk_2", "sdk_3", "tag")


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    repository: str
    framework: Literal["pytorch", "tensorflow", "huggingface"]
    framework_version: str
    """Version of PyTorch or TensorFlow."""
    py_versions: tuple[str, ...]
    """Names of the Python version that select the image."""
    transformers_version: str
    """Version of transformers; empty if it is not part of the image."""
    cuda: str
    architectures: tuple[tuple[int, int], ...]
    """GPU architectures with machine code, as (major, minor). Assumed to be those of PyTorch's own builds."""
    end_of_support: str
    """Last day of AWS's patches (ISO 8601); empty if unknown."""
    sdk_2: str | None
    """First release of version 2 of the SDK that launches it; empty for any, None for none."""
    sdk_3: str | None
    """The same for version 3."""
    tag: str
    account: str
    estimator: Literal["PyTorch", "HuggingFace", "TensorFlow"]
    """Class of SDK 2.x that selects the image."""
    cpu_architecture: str

    @property
    def py_version(self) -> str:
        """Python version that selects the image, for example ``py311``."""
        return self.py_versions[0]

    @property
    def title(self) -> str:
        """Framework and CUDA, for sentences: "PyTorch 2.5.1 (CUDA 12.4)"."""
        name = "TensorFlow" if self.framework == "tensorflow" else "PyTorch"
        return f"{name} {self.framework_version}" + (f" (CUDA {self.cuda})" if self.cuda else "")

    def drives(self, instance: Instance) -> bool:
        """Whether the image has machine code for an instance's GPU (CUDA binary compatibility); True if unknown."""
        if not (instance.architecture and self.architectures):
            return True
        major, minor = version_pair(instance.architecture)
        return any(has[0] == major and has[1] <= minor for has in self.architectures)

    @property
    def is_patched(self) -> bool:
        """Whether AWS patches the image today, as far as the table knows."""
        return self.end_of_support >= max(table_date(), today())

    def uri(self, region: str) -> str:
        """Address in a region. Where the account of the registry is not in the table, it is that of most regions."""
        accounts = data_file("cluster", "containers")["accounts"] if self.account == _ACCOUNT else {}
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        return f"{accounts.get(region, self.account)}.dkr.ecr.{region}.{domain}/{self.repository}:{self.tag}"

    def runs_on(self, instance: Instance) -> bool:
        """Return whether the image is built for the processor of an instance."""
        return instance.cpu_architecture == self.cpu_architecture


def version_pair(text: str) -> tuple[int, int]:
    """``(8, 6)`` of ``"8.6"``."""
    major, minor = text.split(".")
    return int(major), int(minor)


def today() -> str:
    """The day of the answer (ISO 8601), on which images that AWS patched on the day of the table may be without."""
    return date.today().isoformat()  # noqa: DTZ011 - the user's own day


def table_date() -> str:
    return str(data_file("cluster", "containers")["table_date"])


@cache
def containers() -> tuple[Container, ...]:
    """Return every image of the table, oldest first within its repository."""
    return tuple(_container(row) for row in rows("smp_advisor.cluster", "data/containers.csv"))


@cache
def containers_of(repository: str) -> tuple[Container, ...]:
    return tuple(image for image in containers() if image.repository == repository)


@cache
def container(repository: str, framework_version: str, transformers_version: str = "") -> Container:
    """Image of a repository by the version of its framework, and of transformers if there are several."""
    for image in containers_of(repository):
        if image.framework_version == framework_version and transformers_version in ("", image.transformers_version):
            return image
    raise LookupError(f"no image {repository}:{framework_version}")


def patched_pytorch(instance: Instance) -> Container | None:
    """Return the newest plain image of PyTorch that AWS patches and that runs on an instance."""
    plain = [image for name in ("pytorch-training", "pytorch") for image in containers_of(name)]
    usable = [image for image in plain if image.is_patched and image.drives(instance) and image.runs_on(instance)]
    return usable[-1] if usable else None


def image_at(uri: str) -> Container | None:
    """Return the image of the table at an address; None for any other image."""
    tagged = (image for image in containers() if image.tag)
    return next((image for image in tagged if uri.endswith(f"/{image.repository}:{image.tag}")), None)


def unlisted(repository: str, framework_version: str, py_version: str) -> Container:
    """Return an image of a known repository that the table does not have: what it contains is unknown."""
    row = {"repository": repository, "framework_version": framework_version, "py_versions": py_version}
    return _container(dict.fromkeys(_COLUMNS, "") | row)


@cache
def repositories() -> dict[str, dict[str, str]]:
    return cast("dict[str, dict[str, str]]", data_file("cluster", "containers")["repositories"])


_TEXTS = ("repository", "framework_version", "transformers_version", "cuda", "end_of_support", "tag")


def _container(row: dict[str, str]) -> Container:
    home = repositories()[row["repository"]]
    return Container(
        **{name: row[name] for name in _TEXTS},
        framework=cast("Any", home["framework"]),
        py_versions=tuple(row["py_versions"].split()),
        architectures=tuple(version_pair(entry) for entry in row["architectures"].split()),
        sdk_2=None if row["sdk_2"] == "none" else row["sdk_2"],
        sdk_3=None if row["sdk_3"] == "none" else row["sdk_3"],
        account=home.get("account", _ACCOUNT),
        estimator=cast("Any", home["estimator"]),
        cpu_architecture=data_file("cluster", "containers")["cpu_architecture"],
    )
