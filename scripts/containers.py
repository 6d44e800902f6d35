"""Compare the table of containers, and the names of instance types, with the data of installed SDKs.

usage: python scripts/containers.py [--write] SITE_PACKAGES...
       python scripts/containers.py --patches [--day YYYY-MM-DD]

Each SITE_PACKAGES is a folder with the SageMaker Python SDK, version 2 or 3; botocore is optional, e.g.
``.venv-sdk/v2-newest/lib/python3.11/site-packages``. Prints what the SDKs' image tables have and
``smp_advisor/cluster/data/containers.csv`` lacks, what differs, and what the SDKs no longer have. With ``--write``, new
images are appended with the facts that the SDK has: CUDA, architectures and end of support stay empty for a person to
complete from the sources in ``containers.toml``. ``--patches`` prints the images that AWS no longer patches on a day,
today by default. The names of instance types are always those of botocore.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DATA = Path(__file__).parents[1] / "smp_advisor" / "cluster" / "data"
CONTAINERS, INSTANCE_TYPES = DATA / "containers.csv", DATA / "instance_types.txt"
TABLES = ("pytorch.json", "huggingface.json", "pytorch-training-compiler.json", "huggingface-training-compiler.json")
FIRST = (1, 6, 0)
"""Older images have no library that the advisor plans for."""


@dataclass(frozen=True, order=True)
class Row:
    """One image in an SDK's table."""

    repository: str
    framework_version: str
    transformers_version: str
    py_versions: tuple[str, ...]
    cuda: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of the image in both tables."""
        return self.repository, self.framework_version, self.transformers_version

    def __str__(self) -> str:
        transformers = f" (transformers {self.transformers_version})" if self.transformers_version else ""
        return f"{self.repository}:{self.framework_version}{transformers} {' '.join(self.py_versions)}"


def rows_of(site_packages: Path) -> Iterator[Row]:
    """GPU training images of PyTorch in the image tables of an SDK."""
    for table in TABLES:
        for path in sorted(site_packages.glob(f"sagemaker/**/image_uri_config/{table}")):
            versions = json.loads(path.read_text(encoding="utf-8"))["training"]["versions"]
            for version, entry in versions.items():
                yield from _rows(version, entry)


def _rows(version: str, entry: dict[str, Any]) -> Iterator[Row]:
    if "repository" in entry:
        if release(version) >= FIRST:
            yield Row(entry["repository"], version, "", tuple(sorted(entry["py_versions"], reverse=True)))
        return
    for name, inner in entry.items():  # Hugging Face: by transformers, then by the framework
        match = re.fullmatch(r"pytorch([0-9.]+)", name)
        if match is not None:
            cuda = re.match(r"cu(\d+)(\d)-", inner.get("container_version", {}).get("gpu", ""))
            yield Row(
                inner["repository"],
                match[1],
                version,
                tuple(inner["py_versions"]),
                f"{cuda[1]}.{cuda[2]}" if cuda else "",
            )


def release(version: str) -> tuple[int, ...]:
    """Version as a tuple that sorts."""
    return tuple(int(part) for part in version.split("."))


def differences(known: Iterable[dict[str, str]], found: Iterable[Row]) -> Iterator[str]:
    """A line for each image that one side lacks or that differs."""
    table = {(row["repository"], row["framework_version"], row["transformers_version"]): row for row in known}
    images = {row.key: row for row in found}
    repositories = {row.repository for row in images.values()}
    for key, image in sorted(images.items()):
        if key not in table:
            yield f"new: {image}"
            continue
        row = table[key]
        if not set(image.py_versions) <= set(row["py_versions"].split()):
            yield f"changed: {image}; the table has {row['py_versions']}"
        if image.cuda and row["cuda"] and image.cuda != row["cuda"]:
            yield f"changed: {image} has CUDA {image.cuda}; the table has {row['cuda']}"
    for key, row in table.items():
        if key not in images and row["repository"] in repositories:
            yield f"gone: {':'.join(key[:2])}"


def out_of_patches(known: Iterable[dict[str, str]], day: str) -> Iterator[str]:
    """One line for each image with patches on a day, the first to lose them first; then those without, newest first."""
    images = sorted(known, key=lambda row: row["end_of_support"])
    for row in images:
        if row["end_of_support"] >= day:
            yield f"patched until {row['end_of_support']}: {row['repository']}:{row['framework_version']}"
    for row in reversed(images):
        if "" < row["end_of_support"] < day:
            yield f"no patches since {row['end_of_support']}: {row['repository']}:{row['framework_version']}"
    unlisted: dict[str, dict[str, None]] = {}
    for row in images:
        if not row["end_of_support"]:
            unlisted.setdefault(row["repository"], {})[row["framework_version"]] = None
    for repository, versions in unlisted.items():
        yield f"not in AWS's support policy: {repository}:{', '.join(versions)}"


def with_new(known: list[dict[str, str]], found: Iterable[Row]) -> list[dict[str, str]]:
    """The table with the new images, each after the last of its repository."""
    table = list(known)
    keys = {(row["repository"], row["framework_version"], row["transformers_version"]) for row in table}
    for image in sorted({row.key: row for row in found}.values(), key=lambda row: release(row.framework_version)):
        if image.key in keys:
            continue
        row = dict.fromkeys(table[0], "") | {
            "repository": image.repository,
            "framework_version": image.framework_version,
            "transformers_version": image.transformers_version,
            "py_versions": " ".join(image.py_versions),
            "cuda": image.cuda,
        }
        last = max((at for at, entry in enumerate(table) if entry["repository"] == image.repository), default=-1)
        table.insert(last + 1 if last >= 0 else len(table), row)
    return table


def instance_types(site_packages: Path) -> list[str]:
    """Instance types of training jobs in botocore's model of the API; empty without botocore."""
    for path in sorted(site_packages.glob("botocore/data/sagemaker/2017-07-24/service-2.json*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return sorted(json.loads(text)["shapes"]["TrainingInstanceType"]["enum"])
    return []


def main(arguments: list[str] | None = None) -> int:
    """Print the differences; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add new images and the names of instance types")
    parser.add_argument("--patches", action="store_true", help="print the images that AWS no longer patches")
    parser.add_argument(
        "--day", type=date.fromisoformat, default=datetime.now(tz=UTC).date(), help="day for --patches; default today"
    )
    parser.add_argument("site_packages", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    with CONTAINERS.open(encoding="utf-8", newline="") as file:
        known = list(csv.DictReader(file))
    if options.patches:
        print("\n".join(out_of_patches(known, options.day.isoformat())))
        return 0
    found = [row for folder in options.site_packages for row in rows_of(folder)]
    if not found:
        print("no image tables in these folders", file=sys.stderr)
        return 2
    lines = list(differences(known, found))
    names = sorted({name for folder in options.site_packages for name in instance_types(folder)})
    stored = INSTANCE_TYPES.read_text(encoding="utf-8").split() if INSTANCE_TYPES.exists() else []
    if names:
        lines += [f"new instance type: {name}" for name in names if name not in stored]
        lines += [f"instance type gone: {name}" for name in stored if name not in names]
    print("\n".join(lines) or "nothing moved")
    if options.write:
        table = with_new(known, found)
        with CONTAINERS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        if names:
            INSTANCE_TYPES.write_text("\n".join(names) + "\n", encoding="utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
