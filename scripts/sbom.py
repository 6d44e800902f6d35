"""Print the bill of materials of a wheel as CycloneDX JSON: ``python scripts/sbom.py WHEEL``. It needs no network.

The components are the packages that the wheel requires, at the versions of constraints.txt, and the packages of which
the front end contains code, at the versions of package-lock.json. The same wheel gives the same text.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import sys
import uuid
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[1]
BUNDLER = "@rspack/core"
"""The front end's bundler: its run-time code is in the bundle, and not in the list of licenses that it writes."""


def bill_of_materials(wheel: Path) -> dict[str, object]:
    """The bill of materials of a wheel as a CycloneDX 1.6 document."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(read(archive, ".dist-info/METADATA"))
        bundled = json.loads(read(archive, "/static/third-party-licenses.json"))["packages"]
    package = component(
        "pypi", canonicalize_name(metadata["Name"]), metadata["Version"], metadata["License-Expression"]
    )
    package["hashes"] = [{"alg": "SHA-256", "content": digest}]
    python, edges = required(metadata)
    front_end = [component("npm", entry["name"], entry["versionInfo"], entry["licenseId"]) for entry in bundled]
    front_end.append(locked(BUNDLER))
    edges[str(package["bom-ref"])] += [str(entry["bom-ref"]) for entry in front_end]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, digest).urn,
        "version": 1,
        "metadata": {"component": package},
        "components": python + front_end,
        "dependencies": [{"ref": name, "dependsOn": sorted(edges[name])} for name in sorted(edges)],
    }


def read(archive: zipfile.ZipFile, end: str) -> str:
    """The file of a wheel whose name ends like this."""
    (name,) = (name for name in archive.namelist() if name.endswith(end))
    return archive.read(name).decode()


def component(kind: str, name: str, version: str, expression: str | None, terms: str = "") -> dict[str, object]:
    """A package of a registry with its license: an expression of SPDX, or the name of its terms."""
    url = f"pkg:{kind}/{name.replace('@', '%40')}@{version}"
    entry: dict[str, object] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    if expression:
        entry["licenses"] = [{"expression": expression}]
    elif terms:
        entry["licenses"] = [{"license": {"name": terms}}]
    return entry


def terms_of(metadata: Message) -> str:
    """The license in the older fields of a package's metadata: a name, or the classifiers."""
    name = str(metadata["License"] or "")
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License")
    ]
    return ", ".join(classifiers) if "\n" in name or name in {"", "UNKNOWN"} else name


def locked(name: str) -> dict[str, object]:
    """A package of the front end, as locked."""
    lock = json.loads((ROOT / "js" / "package-lock.json").read_text("utf-8"))["packages"][f"node_modules/{name}"]
    return component("npm", name, lock["version"], lock.get("license"))


def required(metadata: Message) -> tuple[list[dict[str, object]], dict[str, list[str]]]:
    """Every package that the wheel requires without extras, and the edges between packages, by reference."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    entries: dict[str, dict[str, object]] = {}
    edges: dict[str, list[str]] = {}

    def follow(reference: str, lines: list[str] | None) -> None:
        edges[reference] = []
        for requirement in map(Requirement, lines or []):
            name = canonicalize_name(requirement.name)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            installed = importlib.metadata.metadata(name)
            entry = component("pypi", name, versions[name], installed["License-Expression"], terms_of(installed))
            edges[reference].append(str(entry["bom-ref"]))
            if name not in entries:
                entries[name] = entry
                follow(str(entry["bom-ref"]), installed.get_all("Requires-Dist"))

    follow(f"pkg:pypi/{canonicalize_name(metadata['Name'])}@{metadata['Version']}", metadata.get_all("Requires-Dist"))
    return [entries[name] for name in sorted(entries)], edges


def main() -> int:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    json.dump(bill_of_materials(parser.parse_args().wheel), sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
