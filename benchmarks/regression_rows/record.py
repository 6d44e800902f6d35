"""The committed record: a line of field names, then one line for each request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .requests import digest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read", "write"]


def write(path: Path, requests: dict[str, dict[str, Any]], results: dict[str, dict[str, Any]]) -> None:
    """Write each result with the digest of its request."""
    fields = list(dict.fromkeys(["error", *(field for result in results.values() for field in result)]))
    rows: list[list[Any]] = [["name", "request", *fields]]
    for name, request in requests.items():
        rows.append([name, digest(request), *(results[name].get(field) for field in fields)])
        while rows[-1][-1] is None:
            rows[-1].pop()
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), "utf-8")


def read(path: Path, requests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The recorded results.

    Raises
    ------
    ValueError
        The record is of other requests.
    """
    (_, _, *fields), *rows = map(json.loads, path.read_text("utf-8").splitlines())
    if [row[:2] for row in rows] != [[name, digest(request)] for name, request in requests.items()]:
        raise ValueError(f"{path.name} records other requests: requests.toml has changed since.")
    return {
        name: {field: value for field, value in zip(fields, values, strict=False) if value is not None}
        for name, _, *values in rows
    }
