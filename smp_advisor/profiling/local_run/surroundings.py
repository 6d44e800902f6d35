"""Surroundings of a local run: a private temporary folder, absolute paths, installed packages, files left outside."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.local_run.mounts import OPT_ML, can_mount, mount_privately
from smp_advisor.profiling.sandbox import Limits, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.profiling.local_run.container import Container
    from smp_advisor.profiling.sandbox import ProgramEnd

__all__ = ["Surroundings", "install_requirements", "surroundings"]

_WATCH = Path(__file__).with_name("watch")
_REQUIREMENTS = "requirements.txt"
_INSTALL_SECONDS = 900.0
_SHOWN_PATHS = 3
_MAX_LOG_BYTES = 1 << 20
_ABSOLUTE = re.compile(r"/opt/ml(?:/[\w.-]+)*")
_VARIABLES = (
    ("model", "SM_MODEL_DIR"),
    ("output/data", "SM_OUTPUT_DATA_DIR"),
    ("output/intermediate", "SM_OUTPUT_INTERMEDIATE_DIR"),
    ("output", "SM_OUTPUT_DIR"),
    ("input/config", "SM_INPUT_CONFIG_DIR"),
    ("input", "SM_INPUT_DIR"),
    ("code", "SM_MODULE_DIR"),
)
"""Environment variables of the toolkit by folder of ``/opt/ml``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Environment of one run."""

    container: Container
    temporary: Path
    """Private temporary folder, removed after the run."""
    mounts: bool
    """Whether ``/opt/ml`` is the container's folder for the script."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables in addition to those of SageMaker's toolkit."""
        folders = [self._root, self.temporary, *([OPT_ML] if self.mounts else [])]
        python_path = (self.container.code, self.packages, _WATCH, os.environ.get("PYTHONPATH"))
        return {
            **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self.temporary)),
            "PYTHONPATH": os.pathsep.join(str(path) for path in python_path if path),
            "LOCAL_RUN_WRITES": str(self._writes),
            "LOCAL_RUN_FOLDERS": os.pathsep.join(str(folder.resolve()) for folder in folders),
        }

    @property
    def packages(self) -> Path:
        """Folder of the packages of requirements.txt."""
        return self._root / "packages"

    @property
    def _root(self) -> Path:
        return self.container.base.parents[1]

    @property
    def _writes(self) -> Path:
        return self._root / "writes.log"

    @property
    def enter(self) -> Callable[[], None] | None:
        """Called in the child process before the script starts; None without mounts."""
        if not self.mounts:
            return None
        parent = self._root / "mounts"
        parent.mkdir(exist_ok=True)
        return lambda: mount_privately(self.container.base, parent)

    def outside(self) -> tuple[str, ...]:
        """Paths that the script's Python processes wrote outside its folders, in order."""
        try:
            with self._writes.open(encoding="utf-8", errors="replace") as file:
                return tuple(dict.fromkeys(file.read(_MAX_LOG_BYTES).splitlines()))
        except OSError:
            return ()

    def notices(self, outside: tuple[str, ...], *, installed: bool) -> tuple[str, ...]:
        """One sentence for each difference from a container that the user should know."""
        sentences = []
        if outside:
            shown = ", ".join(outside[:_SHOWN_PATHS])
            suffix = f" and {len(outside) - _SHOWN_PATHS} more" if len(outside) > _SHOWN_PATHS else ""
            sentences.append(
                f"The script wrote outside its folder: {shown}{suffix}. In a container, these files are lost."
            )
        if not self.mounts:
            sentences += self.absolute_paths()
        if not installed and (self.container.code / _REQUIREMENTS).is_file():
            sentences.append(f"{_REQUIREMENTS} was not installed: the script used the packages of this machine.")
        return tuple(sentences)

    def absolute_paths(self) -> list[str]:
        """A sentence with the variable to use for each absolute path in the script."""
        script = self.container.code / self.container.entry_point
        text = script.read_text(encoding="utf-8", errors="replace")
        return [
            f"{path} is not the folder of this run, because this system allows no private mounts: use "
            f"{_variable(path)} in the script."
            for path in dict.fromkeys(_ABSOLUTE.findall(text))
        ]


def _variable(path: str) -> str:
    """Python expression for a folder under ``/opt/ml``."""
    relative = path.removeprefix("/opt/ml").strip("/")
    channel = re.match(r"input/data/([\w-]+)", relative)
    if channel:
        return f'os.environ["SM_CHANNEL_{channel[1].upper().replace("-", "_")}"]'
    name = next((name for folder, name in _VARIABLES if f"{relative}/".startswith(f"{folder}/")), "")
    return f'os.environ["{name}"]' if name else "a hyperparameter for this folder"


@contextmanager
def surroundings(container: Container, *, is_temporary: bool) -> Iterator[Surroundings]:
    """Surroundings of a run, with a temporary folder that is removed afterwards.

    A temporary folder of the container is removed, too, if the run has no result.
    """
    temporary = Path(tempfile.mkdtemp(prefix="smp-tmp-")).resolve()
    try:
        yield Surroundings(container=container, temporary=temporary, mounts=can_mount())
    except BaseException:
        if is_temporary:
            shutil.rmtree(container.base.parents[1], ignore_errors=True)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def install_requirements(around: Surroundings, on_line: Callable[[str], None] | None) -> ProgramEnd:
    """Install requirements.txt of the source directory for this run only, with pip.

    Raises
    ------
    ProfileError
        There is no requirements.txt.
    """
    code = around.container.code
    if not (code / _REQUIREMENTS).is_file():
        raise ProfileError(
            "There is no requirements.txt next to the script: pass the folder that has it as source_dir."
        )
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    return run_program(
        [*command, "--target", str(around.packages), "-r", _REQUIREMENTS],
        cwd=code,
        environment=os.environ | {"TMPDIR": str(around.temporary)},
        what=f"the installation of {_REQUIREMENTS}",
        limits=Limits(seconds=_INSTALL_SECONDS),
        on_line=on_line,
    )
