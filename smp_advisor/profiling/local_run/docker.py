"""Whether SageMaker's own local mode can run here."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

__all__ = ["Docker", "find_docker"]

_PATIENCE_SECONDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Docker:
    """What local mode needs: an engine that answers, and Compose."""

    engine: str
    """Version of the engine; empty where none answers."""
    compose: str
    """What `docker compose version` says, or the path of docker-compose; empty without either."""
    gpus: bool
    """Whether the engine has NVIDIA's runtime: local mode is then ``local_gpu``."""

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
        """Why local mode cannot run, in words; empty where it can."""
        if not self.engine:
            return "no Docker engine answers"
        return "" if self.compose else "Docker has no Compose"


def find_docker() -> Docker:
    """Look for an engine and for Compose; takes at most some seconds."""
    engine = _said("docker", "info", "--format", "{{.ServerVersion}}")
    if not engine:
        return Docker(engine="", compose="", gpus=False)
    compose = _said("docker", "compose", "version") or shutil.which("docker-compose") or ""
    gpus = "nvidia" in _said("docker", "info", "--format", "{{json .Runtimes}}") and shutil.which("nvidia-smi")
    return Docker(engine=engine, compose=compose, gpus=bool(gpus))


def _said(*command: str) -> str:
    """What a command writes; nothing where it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
