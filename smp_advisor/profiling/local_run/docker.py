"""Detects whether SageMaker's local mode can run on this machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

__all__ = ["Docker", "find_docker"]

_TIMEOUT_SECONDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Docker:
    """Requirements of local mode: a running Docker engine, and Compose."""

    engine: str
    """Version of the engine; empty if none is running."""
    compose: str
    """Output of ``docker compose version``, or the path of docker-compose; empty if neither exists."""
    gpus: bool
    """Whether the engine has the NVIDIA runtime; local mode is then ``local_gpu``."""

    @property
    def usable(self) -> bool:
        """Whether SageMaker's local mode can run."""
        return bool(self.engine and self.compose)

    @property
    def instance_type(self) -> str:
        """The estimator's instance type for local mode."""
        return "local_gpu" if self.gpus else "local"

    @property
    def missing(self) -> str:
        """Why local mode cannot run; empty if it can."""
        if not self.engine:
            return "no Docker engine is running"
        return "" if self.compose else "Docker Compose is not installed"


def find_docker() -> Docker:
    """Detect a Docker engine and Compose; takes a few seconds at most."""
    engine = _output("docker", "info", "--format", "{{.ServerVersion}}")
    if not engine:
        return Docker(engine="", compose="", gpus=False)
    compose = _output("docker", "compose", "version") or shutil.which("docker-compose") or ""
    gpus = "nvidia" in _output("docker", "info", "--format", "{{json .Runtimes}}") and shutil.which("nvidia-smi")
    return Docker(engine=engine, compose=compose, gpus=bool(gpus))


def _output(*command: str) -> str:
    """Standard output of a command; empty if it fails or times out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
