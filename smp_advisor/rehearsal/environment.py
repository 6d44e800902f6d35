"""Versions of libraries: a Python of the user's own that runs a rehearsal, and the versions that a job will have."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import user_path
from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal.report import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NEEDED = ("torch", "psutil")
_OLDEST = (3, 11)
_LOOK = f"""
import sys, importlib.util
print(*sys.version_info[:2], *[name for name in {_NEEDED} if not importlib.util.find_spec(name)])
"""
_PIN = re.compile(r"^[ \t]*([A-Za-z0-9_.-]+)(?:\[[^]\n]*\])?[ \t]*==[ \t]*([0-9][^\s;#,*]*)", re.MULTILINE)


def interpreter_of(environment: str | os.PathLike[str]) -> str:
    """The Python of an environment, which can run a rehearsal.

    Raises
    ------
    AdvisorError
        There is none, it is too old, or it lacks a library that a rehearsal needs.
    """
    place = user_path(environment, AdvisorError).absolute()
    python = next((path for path in (place, place / "bin/python") if path.is_file() and os.access(path, os.X_OK)), None)
    if python is None:
        raise AdvisorError(f"No Python is at {str(place)!r}: pass the folder of an environment, or its bin/python.")
    words = list[str]()
    with suppress(OSError, subprocess.CalledProcessError):  # no program, or none that ends well
        look = [str(python), "-I", "-c", _LOOK]
        words = subprocess.run(look, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout.decode().split()
    if len(words) < 2 or not (words[0] + words[1]).isdecimal():
        raise AdvisorError(f"{str(python)!r} is no Python that starts: pass the bin/python of an environment.")
    if (int(words[0]), int(words[1])) < _OLDEST:
        raise AdvisorError(f"{str(python)!r} is Python {words[0]}.{words[1]}: a rehearsal runs with 3.11 or later.")
    if words[2:]:
        raise AdvisorError(f"{str(python)!r} has no {words[2]}: install it there, {python} -m pip install {words[2]}.")
    return str(python)


def pins_of(folder: Path, image: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Version, and its origin, of each library that the job pins: its image, and over it requirements.txt."""
    pins = {name: (str(version), "the image of the job has") for name, version in image.items()}
    for file in sorted(folder.rglob("requirements.txt"))[:1]:
        lines = _PIN.findall(file.read_text("utf-8", "replace"))
        pins |= {name.lower().replace("_", "-"): (version, "requirements.txt requires") for name, version in lines}
    return pins


def other_versions(ran: Mapping[str, str], pins: Mapping[str, tuple[str, str]]) -> Iterator[Observed]:
    """Libraries that the rehearsal ran in another version than the job will; a pin of 2.5 allows 2.5.1."""
    for name, (version, by) in pins.items():
        here = ran.get(name, "")
        if here and f"{here.partition('+')[0]}.".startswith(f"{version.partition('+')[0]}."):
            continue
        if here:
            text = f"{name} {here} ran here, and {by} {version}: errors of that version show with environment="
            yield Observed(kind="failure", text=text, level="note")
