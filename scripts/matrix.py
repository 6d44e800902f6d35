"""Run the unit tests with several Pythons and dependencies: ``python scripts/matrix.py [PYTHON...]``.

Each Python and each set of dependencies has an environment of its own in .venv-matrix. Tests that require torch,
transformers, a browser, a mock of AWS or the distributions are left out. A Python that is not installed fails the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
"""Those that the package is published for."""
SETS = {"oldest": ["--constraint", "constraints-oldest.txt"], "newest": ["--upgrade", "--upgrade-strategy", "eager"]}
WITHOUT = ("browser", "moto", "packaging", "sagemaker", "tools", "torch", "transformers")
"""Requirements of tests that the environments do not have."""


class Result(NamedTuple):
    """The outcome of one environment."""

    name: str
    passed: bool
    text: str


def interpreter(version: str) -> str | None:
    """The command of a Python: from PATH, or one that pyenv or uv installed."""
    name = f"python{version}"
    homes = [
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
        Path.home() / ".local/share/uv/python",
    ]
    installed = [str(file) for home in homes for file in sorted(home.glob(f"*{version}.*/bin/{name}"))]
    for command in filter(None, [shutil.which(name), *installed]):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([command, "-c", code], text=True, capture_output=True, check=False)
        if found.stdout.strip() == version:  # a shim of pyenv exists for versions that are not selected, and fails
            return command
    return None


def environment(command: str, version: str, packages: str) -> Path:
    """The Python of an environment with this package and a set of dependencies, created or brought up to date."""
    folder = ROOT / ".venv-matrix" / f"{version}-{packages}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([command, "-m", "venv", folder], check=True)
        # The first with dependency groups.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"], check=True)
    install = [python, "-m", "pip", "install", "-qq", "--prefer-binary", *SETS[packages]]
    built = (ROOT / "smp_advisor/static/widget.css").exists() and (ROOT / "smp_advisor/labextension").exists()
    settings = os.environ | ({"SKIP_JUPYTER_BUILDER": "1"} if built else {})  # no test runs the front end
    subprocess.run([*install, "--group", "unit", "--editable", "."], cwd=ROOT, env=settings, check=True)
    return python


def tested(command: str, version: str, packages: str, arguments: list[str]) -> Result:
    """The unit tests in one environment."""
    start, name = time.monotonic(), f"Python {version}, {packages} dependencies"
    print(f"== {name}", flush=True)
    try:
        python = environment(command, version, packages)
    except subprocess.CalledProcessError as error:
        return Result(name, passed=False, text=f"the environment was not created ({error.cmd[-1]})")
    chosen = ["-m", f"not ({' or '.join(['slow', *WITHOUT])})", *(f"--without={item}" for item in WITHOUT)]
    tests = [python, "-m", "pytest", "--numprocesses=auto", "--quiet", *chosen, *arguments]
    run = subprocess.Popen(tests, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    lines = []
    for line in run.stdout or ():
        lines.append(line.rstrip())
        print(line, end="", flush=True)
    passed = run.wait() == 0
    last = next((line for line in reversed(lines) if re.search(r"\b(passed|failed|error)", line)), "no test ran")
    return Result(name, passed, f"{last.strip('= ')} ({time.monotonic() - start:.0f} s with the environment)")


def main() -> int:
    """Print a line per environment; the status is 0 if all required Pythons were there and passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help=f"default: {' '.join(PYTHONS)}")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="sets of dependencies")
    parser.add_argument("--pytest", default="", metavar="ARGUMENTS", help="further arguments of pytest")
    options = parser.parse_args()
    results, missing = [], []
    for version in options.pythons or PYTHONS:
        command = interpreter(version)
        if command is None:
            missing.append(version)
            continue
        results += [tested(command, version, packages, options.pytest.split()) for packages in options.sets]
    print()
    for result in results:
        print(f"{'passed' if result.passed else 'FAILED'}  {result.name}: {result.text}")
    for version in missing:
        print(f"NOT RUN Python {version}: not installed")
    return int(bool(missing) or not all(result.passed for result in results))


if __name__ == "__main__":
    sys.exit(main())
