"""`smp_advisor.toml`: what a team shares: a calibration, hardware of its own, and a policy for jobs."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import LIMITS, amount_of, meant, options
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import Instance, completed_instance, gpu
from smp_advisor.core.files import CONFIGURATION, confined, read_text
from smp_advisor.errors import AdvisorError
from smp_advisor.workload.calibration import load_calibration

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from smp_advisor.costs.estimate import Estimate


FILE = "smp_advisor.toml"
_KEYS = ("calibration", "hardware", "policy")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits of a team for its jobs. None and empty: no limit."""

    instances: tuple[str, ...] = ()
    """Instance types that jobs may use."""
    max_count: int | None = None
    """Most instances of a job."""
    max_usd_per_hour: float | None = None
    """Most USD per hour of a cluster."""
    max_days: float | None = None
    """Most days of a run."""
    max_usd: float | None = None
    """Most USD of a run."""
    max_gpu_hours: float | None = None
    """Most GPU-hours of a run."""
    containers: tuple[str, ...] = ()
    """Images that jobs may use; the first one is the default."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of each job."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """The shared settings of the folder that a question comes from."""

    file: Path | None = None
    calibration: Path | None = None
    hardware: Mapping[str, Instance] = field(default_factory=dict)
    """Nodes of the team's own, by their names."""
    policy: Policy = field(default_factory=Policy)

    def applied(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the settings of a request with those of the project, and a sentence on what was used."""
        if self.file is None:
            return dict(settings), ""
        complete, used, policy = dict(settings), [], self.policy
        if self.calibration is not None and complete.get("calibration") is None:
            with confined(()):  # the project names it, not the caller
                complete["calibration"] = load_calibration(self.calibration)
            used.append(f"calibration {self.calibration.name}")
        cluster = self._cluster(complete.get("cluster"))
        if cluster is not None:
            complete["cluster"] = cluster
        used += [f"hardware {entry}" for entry in self.hardware if settings.get("cluster") == entry]
        count = complete.get("instance_count")
        if policy.max_count is not None and isinstance(count, int) and count > policy.max_count:
            raise self._against(f"at most {policy.max_count} instances", f"{count}")
        for name in LIMITS:
            most = getattr(policy, name)
            if most is not None and complete.get("tokens") is not None:
                wished = complete.get(name)
                if wished is not None and amount_of(name, wished) > most:
                    raise self._against(f"{name.replace('_', ' ')} of {most:,g}", f"{amount_of(name, wished):,g}")
                complete[name] = most if wished is None else wished
        limits = [entry.name for entry in fields(policy) if getattr(policy, entry.name)]
        used += [f"policy ({', '.join(limits)})"] if limits else []
        return complete, f"{self.file.name}: {', '.join(used)}." if used else ""

    def _cluster(self, name: Any) -> Any:
        """Return the instance types of a request, of those that the policy allows."""
        allowed = self.policy.instances
        if name is None or name == "any":
            return list(allowed) if len(allowed) > 1 else allowed[0] if allowed else name
        names = name if isinstance(name, list | tuple) else [name]
        clusters: list[Any] = [self.hardware.get(entry, entry) for entry in names]
        for entry in clusters:
            full = completed_instance(entry).name if isinstance(entry, str) else entry.name
            if allowed and full not in {*allowed, *self.hardware}:
                raise self._against(f"the instances {', '.join(allowed)}", full)
        return clusters if isinstance(name, list | tuple) else clusters[0]

    def allows(self, cluster: Cluster) -> bool:
        """Return whether jobs may use a cluster."""
        policy, price = self.policy, cluster.usd_per_hour
        is_listed = not policy.instances or cluster.instance.name in {*policy.instances, *self.hardware}
        small = policy.max_count is None or cluster.nodes <= policy.max_count
        return is_listed and small and (policy.max_usd_per_hour is None or (price or 0.0) <= policy.max_usd_per_hour)

    def require(self, cluster: Cluster) -> None:
        """Refuse an answer on a cluster that jobs may not use."""
        if not self.allows(cluster):
            price = "" if cluster.usd_per_hour is None else f" ({cluster.usd_per_hour:,.2f} USD per hour)"
            limits = [
                *(self.policy.instances and [" or ".join(self.policy.instances)]),
                *([f"{self.policy.max_count} instances"] if self.policy.max_count else []),
                *([f"{self.policy.max_usd_per_hour:g} USD per hour"] if self.policy.max_usd_per_hour else []),
            ]
            raise self._against(", ".join(limits), f"{cluster.nodes} x {cluster.instance.name}{price}")

    def job_options(self, image: str | None = None) -> dict[str, Any]:
        """Return options of an exported job: tags, and the image if the policy names some."""
        allowed = self.policy.containers
        if image is not None and allowed and image not in allowed:
            raise self._against(f"the containers {', '.join(allowed)}", image)
        chosen = image or (allowed[0] if allowed else None)
        tags = {"tags": dict(self.policy.tags)} if self.policy.tags else {}
        return tags | ({} if chosen is None else {"image_uri": chosen})

    def started(self, cluster: Cluster, estimate: Estimate, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a job to start with those of the project, if its policy allows the run."""
        self.require(cluster)
        hours = None if estimate.days is None else 24 * estimate.days * cluster.gpus
        for name, value in (("max_days", estimate.days), ("max_usd", estimate.usd_total), ("max_gpu_hours", hours)):
            most = getattr(self.policy, name)
            if most is not None and value is not None and value > most:
                raise self._against(f"{name.replace('_', ' ')} of {most:,g}", f"{value:,.4g}")
        own = self.job_options(options.get("image_uri"))
        tags = options.get("tags") or {}
        if isinstance(tags, Mapping):  # others are refused with the job's options
            tags = {**own.get("tags", {}), **tags}
        return {**own, **options, **({"tags": tags} if tags else {})}

    def _against(self, allowed: str, choice: str) -> AdvisorError:
        return AdvisorError(f"The policy of {self.file} allows {allowed}, not {choice}.")


def project_of(folder: Path) -> Project:
    """Return the project of the nearest `smp_advisor.toml`, from a folder upward to that of its repository."""
    for place in (folder.resolve(), *folder.resolve().parents):
        if os.path.lexists(place / FILE):  # a policy that cannot be read is no policy that allows all
            return _read(place / FILE)
        if (place / ".git").exists():
            break
    return Project()


def _read(file: Path) -> Project:
    document = _toml(file)
    _known(document, _KEYS, file)
    path = document.get("calibration")
    # Nodes with the figures of `Cluster.custom`; a board by its name in the table of GPUs supplies its own.
    table = _table(file, document, "hardware")
    boards = {}
    for name, figures in table.items():
        if not isinstance(figures, dict):
            raise AdvisorError(f"{file}: the hardware {name!r:.80} must be a table with the figures of Cluster.custom.")
        usual: dict[str, Any] = {"name": name, "nodes": 2}
        with suppress(AdvisorError):  # a board that the table does not have comes with its figures
            board = gpu(str(figures.get("gpu", "")))
            usual |= {"usable_gpu_memory_gib": board.usable_gpu_memory_gib, "peak_tflops": board.peak_tflops}
        try:
            boards[name] = Cluster.custom(**{**usual, **figures}).instance
        except (TypeError, AdvisorError) as error:
            raise AdvisorError(f"{file}: the hardware {name!r:.80} is not complete: {error}") from None
    return Project(
        file=file,
        calibration=None if path is None else _named(file, path),
        hardware=boards,
        policy=_policy(file, _table(file, document, "policy")),
    )


def _toml(file: Path) -> dict[str, Any]:
    text = read_text(file, CONFIGURATION, AdvisorError, everywhere=True)  # above the folders of a caller
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise AdvisorError(f"{file} is not TOML: {error}.") from None


def _named(file: Path, name: Any) -> Path:
    """Return a file that the project names, in its folder."""
    path = (file.parent / name).resolve() if isinstance(name, str) and "\0" not in name else None
    if path is None or not path.is_relative_to(file.parent.resolve()):
        raise AdvisorError(f"{file} names {name!r:.80}: a path of a file in its folder is required.")
    return path


def _table(file: Path, document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table of the file itself, or of one that it names."""
    value = document.get(key, {})
    if isinstance(value, dict):
        return value
    return _toml(_named(file, value))


def _known(table: Mapping[str, Any], names: Collection[str], file: Path) -> None:
    for name in table:
        if name not in names:
            near = meant(name, names)
            raise AdvisorError(
                f"{file} has no entry {name!r:.80}; {f'did you mean {near}?' if near else ', '.join(names)}"
            )


def _policy(file: Path, table: Mapping[str, Any]) -> Policy:
    names = [entry.name for entry in fields(Policy)]
    _known(table, names, file)
    values: dict[str, Any] = {}
    for name, value in table.items():
        kind = dict if name == "tags" else list if name in ("instances", "containers") else (int, float, str)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise AdvisorError(f"{file}: {name} cannot be {value!r:.80}.")
        values[name] = value
        if isinstance(value, list):
            values[name] = tuple(map(str, value))
        elif name == "max_count":
            values[name] = options()["instance_count"].checked(value, name)
        elif name != "tags":
            values[name] = amount_of(name, value, "500")
    policy = Policy(**values)
    return replace(policy, instances=tuple(completed_instance(name).name for name in policy.instances))
