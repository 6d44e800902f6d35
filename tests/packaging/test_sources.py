"""The source distribution contains the files that its tests read: those of the repository."""

from __future__ import annotations

import tomllib
from pathlib import PurePosixPath

import pytest

from .sources import files_of


@pytest.fixture
def packed(root) -> set[str]:
    """Top-level entries of the sdist."""
    text = (root / "pyproject.toml").read_text("utf-8")
    return set(tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])


def test_every_entry_of_the_repository_is_packed(root, packed):
    assert {PurePosixPath(name).parts[0] for name in files_of(root)} == packed
