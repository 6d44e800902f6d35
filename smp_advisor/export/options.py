"""What a user decides about a job beside the plan: script, data, checkpoints, capacity, network."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export import checks
from smp_advisor.export.facts import launch_facts
from smp_advisor.export.storage import FileSystem, Location, channels, location

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JobOptions"]

_DAY_SECONDS = 86_400


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A job's options, checked against what SageMaker takes.

    Raises
    ------
    ExportError
        SageMaker or its SDK would refuse an option, or misread it.
    """

    script: str | None = None
    """Path of the user's own training script; None for the generated one, which `script_cell` writes, or, for a model
    that is the user's own code, for a ``train.py`` to be put beside the notebook."""
    source_dir: str | None = None
    """Directory of the user's script, all of which is uploaded; None uploads the script alone."""
    data: Mapping[str, str] | str | None = None
    """Training data, or data by channel: ``s3://bucket/prefix``, or ``fsx://<file system>/<mount name>/<path>`` for
    FSx for Lustre; None for none: the generated script trains on random data."""
    checkpoints: str | None = None
    """Where checkpoints are kept, in S3 or on FSx for Lustre; a job with the same place resumes. None keeps none."""
    job_name: str | None = None
    """Beginning of the job's name; the SDK appends the time."""
    max_run_seconds: int = _DAY_SECONDS
    """After that time SageMaker stops the job."""
    spot: bool = False
    """Run on spare capacity, which is cheaper and may be taken away; needs checkpoints."""
    max_wait_seconds: int | None = None
    """With `spot`: waiting and running together; twice the running time if None."""
    keep_alive_seconds: int | None = None
    """Keep the instances for the next job that long after this one (a warm pool, paid for)."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    """The network that the job runs in; file systems need one."""
    volume_gb: int | None = None
    """Disk of a node, for instances without disks of their own; None for what the job needs."""
    extra_hyperparameters: Mapping[str, Any] | None = None
    """Further options of the script."""
    plan_hyperparameters: bool = True
    """Pass the plan's script settings (batch size, ...); False for a script that sets them itself."""

    def __post_init__(self) -> None:
        if self.script is not None:
            checks.text("script", self.script)
        if self.source_dir is not None:
            checks.text("source_dir", self.source_dir)
            if self.script is None:
                raise ExportError(
                    "source_dir goes with a script of your own: pass script= with its path in that directory."
                )
        if not self.plan_hyperparameters and self.script is None:
            raise ExportError("The generated script takes the plan's settings: pass script= with your own.")
        checks.seconds("max_run_seconds", self.max_run_seconds, launch_facts()["limits"]["run_seconds"], "28 days")
        self._check_capacity()
        for name in ("subnets", "security_group_ids"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(_is_network_id(one) for one in given):
                raise ExportError(f"{name} must be a list of ids such as ['subnet-0abc'], not {given!r}.")
            object.__setattr__(self, name, tuple(given))
        self._check_places()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> JobOptions:
        """Options by name."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(given.keys() - set(known))
        if unknown:
            raise ExportError(f"A job has no option {unknown[0]!r}; it has {', '.join(known)}.")
        return cls(**given)

    @property
    def channels(self) -> dict[str, Location]:
        """Input channels by name, without the checkpoints'."""
        return channels(self.data)

    @property
    def checkpoint_place(self) -> Location | None:
        """Where checkpoints go."""
        if self.checkpoints is None:
            return None
        place = location("checkpoints", self.checkpoints)
        return FileSystem(place.identity, place.directory, writable=True) if isinstance(place, FileSystem) else place

    @property
    def spot_wait_seconds(self) -> int:
        """Waiting and running together, with `spot`."""
        longest: int = launch_facts()["limits"]["run_seconds"]
        return self.max_wait_seconds or min(2 * self.max_run_seconds, longest)

    def _check_capacity(self) -> None:
        limits = launch_facts()["limits"]
        if self.keep_alive_seconds is not None:
            longest = limits["keep_alive_seconds"]
            checks.seconds("keep_alive_seconds", self.keep_alive_seconds, longest, f"{longest // 60} minutes")
        if self.spot and self.keep_alive_seconds is not None:
            raise ExportError("SageMaker keeps no warm pool of spot instances: choose spot or keep_alive_seconds.")
        if self.spot and self.checkpoints is None:
            raise ExportError(
                "A spot job may be stopped at any time and starts over without checkpoints: pass checkpoints= with"
                " the place for them."
            )
        if self.max_wait_seconds is not None:
            if not self.spot:
                raise ExportError("max_wait_seconds is the time a spot job waits and runs: pass spot=True as well.")
            checks.seconds("max_wait_seconds", self.max_wait_seconds, limits["run_seconds"], "28 days")
            if self.max_wait_seconds < self.max_run_seconds:
                raise ExportError(
                    f"max_wait_seconds holds the running time and must be at least max_run_seconds"
                    f" ({self.max_run_seconds}), not {self.max_wait_seconds}."
                )
        if self.volume_gb is not None:
            checks.whole("volume_gb", self.volume_gb, limits["volume_gb"])

    def _check_places(self) -> None:
        places = [*self.channels.values(), self.checkpoint_place]
        if any(isinstance(place, FileSystem) for place in places) and not (self.subnets and self.security_group_ids):
            raise ExportError(
                "A job reaches FSx for Lustre through your network only: pass subnets= and security_group_ids= of the"
                " file system."
            )
        if bool(self.subnets) != bool(self.security_group_ids):
            raise ExportError("subnets and security_group_ids go together: SageMaker takes both or neither.")


def _is_network_id(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[-0-9a-zA-Z]{1,32}", value))
