"""Locations of the data and checkpoints of a job: S3, or a file system of FSx for Lustre."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smp_advisor.errors import ExportError
from smp_advisor.export.facts import launch_facts

__all__ = ["CHECKPOINT_CHANNEL", "FileSystem", "Location", "bucket_and_prefix", "channels", "location"]

CHECKPOINT_CHANNEL = "checkpoints"
"""Input channel of the file system to which a job writes its checkpoints."""

_S3 = re.compile(r"s3://[^/\s]+")
_FSX = re.compile(r"fsx://(fs-[0-9a-f]{8,17})(/.+)")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A directory of an FSx for Lustre file system."""

    identity: str
    directory: str
    """Path that starts with the mount name, for example ``/fsx/train``."""
    writable: bool = False


Location = str | FileSystem
"""An S3 URI or a directory of a file system."""


def location(name: str, value: object) -> Location:
    """Parse ``s3://bucket/prefix`` or ``fsx://fs-0123456789abcdef0/mount-name/path``.

    Raises
    ------
    ExportError
        The value is neither.
    """
    if isinstance(value, str) and _S3.match(value):
        return value
    if isinstance(value, str) and (match := _FSX.fullmatch(value)):
        return FileSystem(match[1], match[2])
    raise ExportError(
        f"{name} must be an S3 URI such as 's3://bucket/prefix', or a directory of FSx for Lustre such as"
        f" 'fsx://fs-0123456789abcdef0/fsx/train', not {value!r}."
    )


def channels(data: Mapping[str, str] | str | None) -> dict[str, Location]:
    """Input channels by name; a single URI is the channel ``train``.

    Raises
    ------
    ExportError
        The name of a channel or its location is invalid.
    """
    if data is None:
        return {}
    if not isinstance(data, str | Mapping):
        raise ExportError(f"data must be a URI or a dictionary of channels with their URIs, not {data!r:.80}.")
    places: dict[Any, Any] = {"train": data} if isinstance(data, str) else dict(data)
    longest = launch_facts()["limits"]["channel_characters"]
    for channel in places:
        if not isinstance(channel, str) or not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{longest}}}", channel):
            raise ExportError(
                f"The name of a channel must have up to {longest} letters, digits and the characters . - _, not"
                f" {channel!r}."
            )
        if channel in launch_facts()["limits"]["own_channels"]:
            raise ExportError(
                f"The channel name {channel!r} is reserved by the SDK or the advisor: choose another name."
            )
    return {channel: location(f"data for the channel {channel!r}", uri) for channel, uri in places.items()}


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Bucket and key prefix of an S3 URI, without leading and trailing slashes in the prefix."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")
