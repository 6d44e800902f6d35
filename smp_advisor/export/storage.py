"""Where data and checkpoints of a job lie: S3, or a file system of FSx for Lustre."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export.facts import launch_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CHECKPOINT_CHANNEL", "FileSystem", "Location", "bucket_and_prefix", "channels", "location"]

CHECKPOINT_CHANNEL = "checkpoints"
"""Channel under which a job sees the file system that its checkpoints go to."""

_S3 = re.compile(r"s3://[^/\s]+")
_FSX = re.compile(r"fsx://(fs-[0-9a-f]{8,17})(/.+)")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A directory of an FSx for Lustre file system."""

    identity: str
    directory: str
    """From its mount name on: ``/fsx/train``."""
    writable: bool = False


Location = str | FileSystem
"""An S3 URI or a directory of a file system."""


def location(name: str, value: object) -> Location:
    """Where `value` points: ``s3://bucket/prefix`` or ``fsx://fs-0123456789abcdef0/mount-name/path``."""
    if isinstance(value, str) and _S3.match(value):
        return value
    if isinstance(value, str) and (found := _FSX.fullmatch(value)):
        return FileSystem(found[1], found[2])
    raise ExportError(
        f"{name} must be an S3 URI such as 's3://bucket/prefix', or a directory of FSx for Lustre such as"
        f" 'fsx://fs-0123456789abcdef0/fsx/train', not {value!r}."
    )


def channels(data: Mapping[str, str] | str | None) -> dict[str, Location]:
    """Input channels by name: a single URI is the channel ``train``."""
    if data is None:
        return {}
    given: dict[Any, Any] = {"train": data} if isinstance(data, str) else dict(data)
    longest = launch_facts()["limits"]["channel_characters"]
    for channel in given:
        if not isinstance(channel, str) or not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{longest}}}", channel):
            raise ExportError(
                f"A channel's name has up to {longest} letters, digits and the signs . - _, unlike {channel!r}."
            )
        if channel in launch_facts()["limits"]["own_channels"]:
            raise ExportError(f"The channel {channel!r} is the SDK's or the advisor's own: choose another name.")
    return {channel: location(f"data for the channel {channel!r}", uri) for channel, uri in given.items()}


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Bucket and key prefix of an S3 URI, the prefix without slashes around it."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")
