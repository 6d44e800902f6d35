"""The site of `make docs`: complete, without warnings, and without anything from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXTERNAL = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")

IMPORTED = re.compile(r"""@import|url\(\s*["']?(?:https?:)?//""")


# Links and pointers of the pages are tested in the suite, and their blocks run.
@pytest.mark.release
@pytest.mark.packaging
def test_the_site_is_built_without_warnings_and_loads_nothing_from_other_hosts(root: Path, tmp_path: Path) -> None:
    recipe = re.search(r"^docs:.*\n\t(.*)$", (root / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe
    site = tmp_path / "site"
    places = {"$(TEST)/python": sys.executable, "artifacts/doctrees": str(tmp_path / "trees"), "site": str(site)}
    subprocess.run([places.get(word, word) for word in recipe[1].split()], cwd=root, check=True)
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    expected = {"index.html", "glossary.html", "reference/api/recommendation.html", "checks/smp_v1_pytorch.html"}
    assert expected <= pages.keys()
    assert "#/$defs/Recommendation" in (site / "stored_values.json").read_text("utf-8")
    assert "sig-param" in pages["reference/api/recommendation.html"]
    assert not [name for name, text in pages.items() if EXTERNAL.search(text)]
    assert not [path for path in site.rglob("*.css") if IMPORTED.search(path.read_text("utf-8"))]
