"""A notebook run from its first to its last cell: in a new kernel, in a folder of its own, without a network."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import nbformat
from nbclient import NotebookClient

from scripts.notebooks.saved import ACCOUNT

ROOT = Path(__file__).parents[2]
# The mock of AWS is that of the tests. Some installed packages also contain a `tests` package.
sys.modules.setdefault("tests", ModuleType("tests")).__path__ = [str(ROOT / "tests")]

from tests.moto_harness.proxy import mock_account  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbformat import NotebookNode

__all__ = ["FOLDER", "PATHS", "ROOT", "run"]

FOLDER = ROOT / "notebooks"
PATHS = tuple(sorted(FOLDER.glob("*.ipynb")))
_CELL_SECONDS = 3600
"""A guard against a cell that never ends, far beyond what a slow machine needs."""


def run(path: Path) -> NotebookNode:
    """The notebook at `path` with the outputs of this run.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    account = mock_account() if ACCOUNT in notebook.metadata.get("tags", []) else None
    with tempfile.TemporaryDirectory() as folder, _variables(Path(folder)), account or contextlib.nullcontext() as aws:
        work = Path(folder) / "work"
        work.mkdir()
        if (FOLDER / "data").is_dir():
            shutil.copytree(FOLDER / "data", work / "data")
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],
            timeout=_CELL_SECONDS,
            startup_timeout=_CELL_SECONDS,
            resources={"metadata": {"path": str(work)}},
            store_widget_state=False,
            record_timing=False,
        )
        client.execute(env=os.environ | (aws.environment if aws else {}))
    return notebook


@contextlib.contextmanager
def _variables(folder: Path) -> Iterator[None]:
    """The environment of a new user: no account, no network, no files of the user's own, this tree's package."""
    places = [str(ROOT), str(Path(__file__).with_name("offline"))]
    before = os.environ.copy()
    for name in [name for name in os.environ if name.startswith(("AWS_", "SAGEMAKER_", "SM_"))]:
        del os.environ[name]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(places),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "IPYTHONDIR": str(folder / "ipython"),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
