"""Terms of a job, which do not depend on its library, and its image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.containers import Container, containers, containers_of, image_at, repositories
from smp_advisor.core.files import table
from smp_advisor.estimators.configuration import constant, count, inner_table
from smp_advisor.libraries.job_rules import LOCAL, JobTerms
from smp_advisor.libraries.version import facts, images, release
from smp_advisor.review.reading.values import Collection, Constant, Mapping, Result

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.review.reading.source import Span

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

__all__ = ["LOCAL", "container_of", "image_name", "is_version", "known_pairs", "library_version", "nearest_pair"]
__all__ += ["span_of_term", "terms_of", "version_of_older_pair"]

_TAG = re.compile(
    r"(?:^|/)(?P<repository>[a-z0-9._-]+):(?P<framework>[0-9]+(?:\.[0-9]+){1,2})"
    r"(?:-transformers(?P<transformers>[0-9.]+))?-gpu-(?P<python>py[0-9]+)"
)


@dataclass(frozen=True, slots=True)
class ImageName:
    library: str | None
    framework: str
    framework_version: str
    py_version: str
    transformers_version: str | None


def image_name(uri: object) -> ImageName | None:
    """Read the name of an image; None for images that are not from AWS."""
    if isinstance(uri, str) and (row := image_at(uri)) is not None and "by_uri" in repositories()[row.repository]:
        return ImageName(None, row.framework, row.framework_version, row.py_version, None)
    match = _TAG.search(uri) if isinstance(uri, str) else None
    repository = repositories().get(match["repository"]) if match is not None else None
    if match is None or repository is None or "by_uri" in repository:
        return None
    return ImageName(
        repository.get("library"), repository["framework"], match["framework"], match["python"], match["transformers"]
    )


def is_version(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9]+(\.[0-9]+){0,3}", text) is not None


def known_pairs(library: str) -> list[tuple[str, str]]:
    """(framework version, Python version) of every image of a library, oldest first."""
    return sorted(
        {(image.framework_version, image.py_version) for image in images(library)}, key=lambda pair: release(pair[0])
    )


def nearest_pair(pairs: list[tuple[str, str]], framework: str) -> tuple[str, str]:
    """Return the last pair with the nearest framework version, with which its text begins."""
    target = (*release(framework), 0, 0)[:3] if is_version(framework) else ()

    def distance(pair: tuple[str, str]) -> list[int]:
        there = (*release(pair[0].partition(" ")[0]), 0, 0)[:3]
        return [abs(first - second) for first, second in zip(target, there, strict=False)]

    return min(reversed(pairs), key=distance)


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
    """Return the version that applies to a pair outside the tables whose image contains the library."""
    for unlisted, read_as in facts(library).get("unlisted", {}).items():
        fits = unlisted == framework_version or unlisted.startswith(f"{framework_version}.")
        rows = [row for row in containers_of(facts(library)["repository"]) if row.framework_version == unlisted]
        if fits and (py_version is None or any(py_version in row.py_versions for row in rows)):
            return str(read_as)
    return None


def container_of(
    framework: str, framework_version: object, transformers_version: object = None, library: str | None = None
) -> Container | None:
    """Return the container that an estimator of a framework selects; None if the table does not have it.

    A short version ("2.8") is the newest of its patch releases.
    """
    if not isinstance(framework_version, str) or not is_version(framework_version):
        return None
    homes = [name for name, home in repositories().items() if home["framework"] == framework]
    own = [name for name in homes if library and repositories()[name].get("library") == library]
    homes = own or [name for name in homes if not {"library", "by_uri"} & repositories()[name].keys()]
    rows = [
        row
        for row in containers()
        if row.repository in homes
        and f"{row.framework_version}.".startswith(f"{framework_version}.")
        and (not isinstance(transformers_version, str) or row.transformers_version.startswith(transformers_version))
    ]
    return max(rows, key=lambda row: release(row.framework_version), default=None)


_LAUNCHERS = ("mpi", "torch_distributed", "pytorchxla", "pytorchddp", "dataparallel", "parameter_server", "driver")


def terms_of(configuration: Configuration) -> JobTerms:
    """Terms of a job; those that the text does not determine are None."""
    kind = configuration.get("instance_type")
    form, home = configuration.form, _home(configuration)
    terms: dict[str, Any] = {"file_system": bool(configuration.get("file_system"))}
    if home is not None and (form != "request" or "AlgorithmSpecification" in home.entries):
        for term, (section, *names) in _FORMS["places"].get(form, {}).items():
            table = _section(home, section) if section else home
            if term == "max_wait_seconds":
                terms["waits"] = _present(home, section) if table is None else _present(table, *names)
            value = constant(table, *names)
            if term.endswith("_seconds"):
                terms[term] = value if type(value) is int else None
            elif term == "spot":
                closed = table is not None and not table.open
                terms[term] = value if isinstance(value, bool) else False if closed else None
            else:
                terms[term] = _present(home, section) if table is None else _present(table, *names)
    if form == "request" and home is not None:
        channels = home.get("InputDataConfig")
        items = channels.items if isinstance(channels, Collection) else []
        sources = [inner_table(item, "DataSource") or Mapping() for item in items if isinstance(item, Mapping)]
        terms["file_system"] = any("FileSystemDataSource" in source.entries for source in sources)
    elif form == "estimator" and home is not None:
        terms["launched"] = _launched_by_estimator(configuration, home)
    elif form == "remote":
        terms["launched"] = bool(configuration.get("torch_distributed") or configuration.get("mpi"))
    elif form == "model trainer":
        terms["launched"] = True if configuration.get("driver") else None
    return JobTerms(
        instance_type=kind if isinstance(kind, str) else None,
        instance_count=count(configuration.get("instance_count", 1)),
        container=container_of(
            configuration.framework,
            configuration.get("framework_version"),
            configuration.get("transformers_version"),
            configuration.library,
        ),
        **terms,
    )


def gpus_of(configuration: Configuration) -> tuple[int | None, int | None]:
    """GPUs of a job and of one of its nodes; of a manifest without an instance those that it requests."""
    terms = terms_of(configuration)
    per_node = None if terms.instance is None else terms.instance.gpus
    if configuration.form == "manifest":
        per_node = per_node or configuration.get("processes_per_host")
    nodes = None if configuration.unknown("instance_count") else terms.instance_count
    return terms.gpus or (per_node * nodes if per_node and nodes else None), per_node


def span_of_term(configuration: Configuration, term: str) -> Span | None:
    """Place of a term in the text; None if it is not written."""
    if term in configuration.settings:
        return configuration.settings[term].span
    home = _home(configuration)
    if home is None or configuration.form not in _FORMS["places"]:
        return None
    if term == "file_system":
        return home.entries["InputDataConfig"].span if "InputDataConfig" in home.entries else None
    places = _FORMS["places"][configuration.form]
    section, *names = places.get("spot" if term == "checkpoints" else term, ("",))
    table = home if not section else _section(home, section)
    written = (name for name in names if table is not None and name in table.entries)
    return next((table.entries[name].span for name in written if table is not None), None)


def _home(configuration: Configuration) -> Mapping | None:
    return configuration.tables.get("estimator") or configuration.tables.get("request")


def _section(home: Mapping, name: str) -> Mapping | None:
    """Return the arguments of an object of the SDK, or a table of a request."""
    value = home.get(name)
    return value.call.passed if isinstance(value, Result) else inner_table(home, name)


def _launched_by_estimator(configuration: Configuration, call: Mapping) -> bool | None:
    if any(configuration.get(name) for name in _LAUNCHERS):
        return True
    if configuration.get("script_starts") and configuration.get("instance_count", 1) == 1:
        return None  # one process per GPU all the same
    entry = configuration.get("entry_point")
    unread = call.open or configuration.unknown("distribution", "distributions", *_LAUNCHERS)
    called = configuration.get("starts") or configuration.get("script_calls")
    if {"deepspeed", "deepspeed_config"} & configuration.hyperparameters.keys() or called:
        return None  # DeepSpeed has a launcher of its own, and another program may call one
    if configuration.get("script_is_distributed") and "image_uri" in configuration.settings and not unread:
        # The toolkit runs the entry point of an estimator once, in AWS's images and in those of one's own.
        return False if isinstance(entry, str) and entry.endswith(".py") else None
    # A shell script may start processes, TensorFlow uses all GPUs in one process, and an image may have a launcher.
    if unread or "image_uri" in configuration.settings or not isinstance(entry, str) or not entry.endswith(".py"):
        return None
    plain = configuration.framework in ("pytorch", "huggingface") and "tensorflow_version" not in configuration.settings
    return False if plain and not configuration.get("compiler") else None


def _present(table: Mapping | None, *names: str) -> bool | None:
    """Return whether an entry is set to something else than None; None if unknown."""
    if table is None:
        return None
    value = next((table.get(name) for name in names if name in table.entries), None)
    if value is not None:
        return not (isinstance(value, Constant) and value.value is None)
    return None if table.open else False
