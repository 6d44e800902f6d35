"""What is shipped: open the distributions and list their files."""

import json
import re
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from scripts.sbom import bill_of_materials
from smp_advisor._version import __version__

from .sources import files_of

pytestmark = pytest.mark.packaging

INFO = f"smp_advisor-{__version__}.dist-info"
EXTENSION = f"smp_advisor-{__version__}.data/data/share/jupyter/labextensions/smp-advisor"


@pytest.fixture(scope="module")
def shipped(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def sources(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


@pytest.fixture(scope="module")
def package_files(root: Path) -> set[str]:
    """Every file of the package but its lab extension, which the wheel puts elsewhere."""
    return {
        file.relative_to(root).as_posix()
        for file in (root / "smp_advisor").rglob("*")
        if file.is_file() and not {"__pycache__", "labextension"} & set(file.parts)
    }


def test_the_wheel_holds_the_whole_package(shipped, package_files):
    assert any("/data/" in file for file in package_files)
    assert package_files - shipped == set()


def test_the_wheel_holds_types_license_widget_and_the_extension_where_jupyterlab_looks(shipped, wheel):
    assert {"smp_advisor/py.typed", f"{INFO}/licenses/LICENSE"} <= shipped
    assert {"smp_advisor/static/widget.js", "smp_advisor/static/widget.css"} <= shipped
    wanted = {"package.json", "install.json", "schemas/smp-advisor/plugin.json", "static/style.js"}
    assert {f"{EXTENSION}/{name}" for name in wanted} <= shipped
    described = json.loads(zipfile.ZipFile(wheel).read(f"{EXTENSION}/package.json"))["jupyterlab"]["_build"]
    assert f"{EXTENSION}/{described['load']}" in shipped
    strays = {name for name in shipped if not name.startswith(("smp_advisor/", f"{INFO}/", f"{EXTENSION}/"))}
    assert strays == set()
    assert not any(name.startswith("smp_advisor/labextension") or name.endswith(".map") for name in shipped)


def test_the_bill_of_materials_has_the_required_packages_and_those_in_the_front_end(wheel, root):
    bill = bill_of_materials(wheel)
    lock = json.loads((root / "js/package-lock.json").read_text("utf-8"))["packages"]
    licenses = json.loads(zipfile.ZipFile(wheel).read(f"{EXTENSION}/static/third-party-licenses.json"))["packages"]
    assert all(entry["extractedText"] for entry in licenses)
    assert all(lock[f"node_modules/{entry['name']}"]["version"] == entry["versionInfo"] for entry in licenses)
    names = {entry["name"] for entry in bill["components"]}
    assert {"numpy", "python-dateutil"} | {entry["name"] for entry in licenses} <= names
    assert not names & {"torch", "sagemaker", "pytest"}
    references = {entry["bom-ref"] for entry in [bill["metadata"]["component"], *bill["components"]]}
    edges = {name for entry in bill["dependencies"] for name in [entry["ref"], *entry["dependsOn"]]}
    assert references == edges
    assert bill == bill_of_materials(wheel)


def test_the_code_of_the_widget_is_of_this_project(root):
    """The view has no third-party code, whose license would have to be in the wheel."""
    imports = re.findall(
        r"from '([^.'][^']*)'", "".join(file.read_text("utf-8") for file in (root / "js/src/widget").rglob("*.ts"))
    )
    assert set(imports) <= {"@anywidget/types"}


def test_the_metadata_says_what_the_package_index_shows(wheel):
    metadata = HeaderParser().parsestr(zipfile.ZipFile(wheel).read(f"{INFO}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Framework :: Jupyter :: JupyterLab :: Extensions :: Prebuilt" in metadata.get_all("Classifier")
    always = {line.split("<")[0].split(">")[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert "anywidget" in always
    assert always & {"boto3", "sagemaker", "torch", "transformers"} == set()


def test_the_sdist_has_the_repository_and_the_front_end_built_and_nothing_installed(root, sources):
    built = {"smp_advisor/static/widget.js", "smp_advisor/static/widget.css", "smp_advisor/labextension/package.json"}
    assert built | {"js/package.json", "js/package-lock.json", "js/install.json", "LICENSE", "README.md"} <= sources
    assert files_of(root) - sources == set()
    assert not any("node_modules" in name or name.startswith((".venv", "js/lib")) for name in sources)
