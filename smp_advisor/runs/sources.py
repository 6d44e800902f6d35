"""Where a run is read: a training job on AWS, a log, or a folder of logs. Each poll reads what is new."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.core.files import read_new, sentence
from smp_advisor.errors import RunError
from smp_advisor.runs.readers import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADVICE = "advice.json"
"""File with the prediction in the folder of a run."""
_MOST_BYTES = 8 * 2**20
"""Of a log that one poll reads; the earlier part of a longer log is not read."""
_LOGS = ("*.log", "*.txt", "*.out", "*.err", "*.jsonl")
_NO_LOGS = re.compile(
    r"(?:requirements|constraints|readme|license|notice|vocab|merges|added_tokens|packages)\b.*", re.IGNORECASE
)
_MOST_LOGS, _DEEPEST = 64, 4
"""Logs of a folder that are read, and its levels: torchrun's ``--log-dir`` has a folder per attempt and rank."""
ENDED = ("Completed", "Failed", "Stopped")


@dataclass(frozen=True, kw_only=True)
class Poll:
    """Result of a poll. After an `error`, the other fields are empty."""

    instances: list[str] = field(default_factory=list)
    count: int = 0
    status: str = ""
    """``InProgress``, ``Stopping``, ``Completed``, ``Failed``, ``Stopped``; empty for a log, which has none."""
    transitions: tuple[tuple[str, float, float | None], ...] = ()
    """Phase, start and end in seconds since the epoch."""
    text: str = ""
    """New lines of the log with the steps."""
    other_text: str = ""
    """New lines of the logs of other hosts and processes, each with its name before it."""
    more: bool = False
    """Whether there are further lines: the next poll reads them."""
    failure: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Hyperparameters of the job."""
    hosts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """CloudWatch's metrics by host: the sum over its GPUs in percent."""
    requests: int = 0
    error: str = ""
    kind: Literal["", "throttled", "expired", "missing"] = ""
    """Whether a later poll can succeed: AWS answers too many requests, or the credentials have to be renewed."""


class TrainingJob:
    """A SageMaker training job, read in a child process with the user's credentials."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._state: dict[str, Any] = {}

    def poll(self, *, metrics: bool) -> Poll:
        """Status, new lines and, on request, metrics of the GPUs: at most four requests."""
        answer = child(self.name, json.dumps({**self._state, "metrics": metrics}))
        if "error" in answer:
            return Poll(error=" ".join(str(answer["error"]).split())[:300], kind=answer.get("kind", ""))
        self._state = answer.pop("state")
        self.name = self._state["job"]
        answer["transitions"] = tuple(tuple(entry) for entry in answer["transitions"])
        return Poll(**answer)

    def stop(self) -> None:
        """Stop the job, which is billed until it has stopped."""
        if error := child(self.name, "stop").get("error"):
            words = " ".join(re.sub(r"<[^<>]{0,300}>", " ", str(error)).split())  # a proxy answers with a page
            raise RunError(f"{self.name} was not stopped. {words:.300}")


class LogFile:
    """A log that grows, on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._place = 0

    def poll(self, *, metrics: bool) -> Poll:  # noqa: ARG002 - a file has none
        """Return the complete new lines."""
        text = self.new_lines()
        if not text and self._place and not self.path.exists():
            return Poll(error=f"The log {self.name!r:.200} is no longer there.", kind="missing")
        return Poll(text=text)

    def new_lines(self) -> str:
        """Return the lines since the last call."""
        try:
            text, self._place = read_new(self.path, self._place, _MOST_BYTES)
        except FileNotFoundError:
            return ""  # not written yet
        except OSError as error:
            raise RunError(f"The log {str(self.path)!r:.200} cannot be read: {error.strerror or error}.") from None
        return text.decode("utf-8", "replace")


class LogFolder(LogFile):
    """The logs of several hosts or processes of one run. The steps are those of the first one that has any."""

    def __init__(self, folder: Path, logs: Sequence[Path]) -> None:
        super().__init__(logs[0])
        self.name = folder.name
        self._logs = {str(path.relative_to(folder)): LogFile(path) for path in logs}
        self._unsorted: dict[str, str] = {}
        """Lines of each log before one has a step."""
        self._with_steps = ""

    def poll(self, *, metrics: bool) -> Poll:  # noqa: ARG002 - a file has none
        """Return the complete new lines of all logs."""
        new = {name: text for name, log in self._logs.items() if (text := log.new_lines())}
        mine = ""
        if not self._with_steps:
            for name, text in new.items():
                self._unsorted[name] = (self._unsorted.get(name, "") + text)[-_MOST_BYTES:]
            names = (name for name in self._logs if read_text(self._unsorted.get(name, "")).samples)
            self._with_steps = next(names, "")
            mine = self._unsorted.get(self._with_steps, "")
        further = (f"==> {name} <==\n{text}" for name, text in new.items() if name != self._with_steps)
        return Poll(text=mine or new.get(self._with_steps, ""), other_text="".join(further))


Source = TrainingJob | LogFile


def source_in(path: Path) -> Source:
    """Return the run in a folder of logs, or of a log."""
    if not path.is_dir():
        return LogFile(path)
    if (path / "status.json").is_file() and (path / "run.json").is_file():
        raise RunError(sentence("runs", "local_run", path=str(path)))
    logs = sorted(
        {
            file
            for pattern in _LOGS
            for file in path.rglob(pattern)
            if len(file.relative_to(path).parts) <= _DEEPEST and file.is_file() and not _NO_LOGS.fullmatch(file.name)
        },
        key=lambda file: [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(file))],
    )
    if not logs:
        raise RunError(f"{str(path)!r:.200} has no log: a file {', '.join(_LOGS)} is required.")
    return LogFile(logs[0]) if len(logs) == 1 else LogFolder(path, logs[:_MOST_LOGS])


_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""CreateTrainingJob, TrainingJobName."""
_AWS_SECONDS = 180


def is_job_name(name: str) -> bool:
    """Return whether a text can be the name of a training job."""
    return _NAME.fullmatch(name) is not None


def environment() -> dict[str, str]:
    """Return the variables of a child process with this package."""
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def child(name: str, *words: str) -> dict[str, Any]:
    """Return the result of the child process that reads a job from AWS."""
    # -P: modules of the current folder are not imported.
    command = [sys.executable, "-P", "-m", "smp_advisor.runs.cloudwatch", name, *words]
    try:
        process = subprocess.run(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_AWS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"There was no answer within {_AWS_SECONDS} s."}
    try:
        result = json.loads(process.stdout)
    except ValueError:
        result = {"error": process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or "no answer"}
    return result if isinstance(result, dict) else {}
