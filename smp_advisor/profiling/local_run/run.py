"""Running a training script as its SageMaker container would."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.local_run.container import prepare
from smp_advisor.profiling.result_html import NotebookResult, box, details, table
from smp_advisor.sandbox import Limits, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.local_run.container import Container
    from smp_advisor.sandbox import ProgramEnd


_LOSS = re.compile(r"\bloss\b[\"']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)\b", re.IGNORECASE)

_LABEL = (
    "Run as a process with this machine's Python and packages, not in SageMaker's container. The model parallel "
    "library is not available here. This run checks the script, its options, its data and its loss."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRun(NotebookResult):
    """Run of a training script on this machine.

    It has a notebook display; `ok` is whether the script succeeded.
    """

    script: str
    processes: int = 1
    steps: int | None = None
    """Optimizer steps after which it was stopped; None if it ran to its end."""
    command: str
    """Shell command for the same run."""
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str]
    """Environment variables that SageMaker's container adds."""
    folder: str
    """Replacement of ``/opt/ml``, with models, outputs and checkpoints."""
    seconds: float
    peak_bytes: int
    """Peak memory of all its processes together."""
    losses: tuple[float, ...] = ()
    """Losses read from log lines such as ``loss 3.21``."""
    log: tuple[str, ...] = ()
    """Last lines of the output."""
    notices: tuple[str, ...] = ()
    """Differences from a container, one sentence each: absolute paths, packages not installed."""
    error: str = ""
    """Cause of a failure: one sentence and the last lines of the log; empty if the script succeeded."""

    @property
    def ok(self) -> bool:
        """Whether the script succeeded."""
        return not self.error

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.error:
            return self.error.partition("\n")[0]
        count = f"{self.processes} processes" if self.processes > 1 else "one process"
        what = "ran to its end" if self.steps is None else f"ran for {self.steps} optimizer steps"
        loss = ""
        if len(self.losses) > 1:
            loss = f"; first loss {self.losses[0]:.4g}, last loss {self.losses[-1]:.4g}"
        return f"{self.script} {what}: {count}{loss}."

    def as_html(self) -> str:
        """HTML form for a notebook; text from the script is escaped."""
        return box(
            self.summary,
            f"<p>{escape(_LABEL)}</p>",
            *(f"<p>{escape(sentence)}</p>" for sentence in self.notices),
            details("Environment variables of the script", table(self.variables.items(), ("variable", "value"))),
            details("Shell command", f"<pre>{escape(self.command)}</pre>"),
            details("Last lines of the log", f"<pre>{escape(chr(10).join(self.log[-40:]))}</pre>", is_open=not self.ok),
            ok=self.ok,
        )

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        return "\n".join([self.error or self.summary, _LABEL, *self.notices])


def losses_in(lines: Iterable[str]) -> tuple[float, ...]:
    """Losses in the lines of a log."""
    return tuple(float(match[1]) for line in lines if (match := _LOSS.search(line)))


_STOP_AFTER_STEPS = Path(__file__).with_name("stop_after_steps.py")
_MAX_PROCESSES = 16
_MAX_PLAN_PROCESSES = 8
"""Maximum processes for the degrees of a plan; a notebook instance has few cores."""
_WITHOUT_LIBRARY = (
    "The model parallel library exists only in SageMaker's containers: make the script work without it if the import "
    "fails, or check the script with %smp_check, which does not run it."
)
_ABSOLUTE = re.compile(r"/opt/ml(?:/[\w.-]+)*")
_IN_CONTAINER = re.compile(r"(?<![\w.-])/opt/ml\b")
"""A path of the container in a log, in which the script's own folder ends with ``container/opt/ml/code``."""
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


def run_settings(plan: Plan) -> dict[str, Any]:
    """Keywords of `run` for a plan: hyperparameters, ``mp_parameters`` and processes of one replica."""
    processes = plan.pipeline_parallel_degree * plan.tensor_parallel_degree
    return {
        "hyperparameters": dict(plan.hyperparameters),
        "parameters": dict(plan.parameters),
        "processes": min(processes, _MAX_PLAN_PROCESSES),
    }


def run(
    script: str | os.PathLike[str],
    *,
    source_dir: str | os.PathLike[str] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    channels: Mapping[str, str | os.PathLike[str]] | None = None,
    processes: int = 1,
    steps: int | None = None,
    seconds: float = 600.0,
    memory_bytes: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> LocalRun:
    """Run a training script in a child process with the layout of SageMaker's container.

    The environment variables of the container (``SM_MODEL_DIR``, ``SM_CHANNEL_<NAME>``, ...) name folders of the run.
    For a fixed path below ``/opt/ml``, the result names the variable to use. Temporary files are in a private folder
    that is removed afterwards.

    `source_dir` is copied, or the script alone, as the SDK uploads it. `hyperparameters` become options of the script,
    and `parameters` its ``mp_parameters``. Several `processes` are started by torchrun and communicate over gloo. The
    script is stopped after `steps` optimizer steps, if given. Without a `folder`, a temporary one is made and kept. A
    failure of the script raises no exception; a missing script or a setting out of range raises a `ProfileError`.
    """
    _require_integer("processes", processes, maximum=_MAX_PROCESSES)
    if steps is not None:
        _require_integer("steps", steps)
    options = dict(hyperparameters or {})
    if parameters:
        options["mp_parameters"] = dict(parameters)
    container = prepare(
        Path(script),
        source_dir=None if source_dir is None else Path(source_dir),
        hyperparameters=options,
        channels=channels,
        folder=None if folder is None else Path(folder),
    )
    command = _command(container, processes, steps)
    lines: list[str] = []

    def read(line: str) -> None:
        if losses_in([line]):
            lines.append(line)
        if on_line is not None:
            on_line(line)

    root = container.base.parents[1]
    temporary = Path(tempfile.mkdtemp(prefix="smp-tmp-")).resolve()
    try:
        end = run_program(
            command,
            cwd=container.code,
            environment=_environment(container, temporary),
            what=container.entry_point,
            limits=Limits(seconds=seconds, memory_bytes=memory_bytes, processes=64 + 8 * processes),
            on_line=read,
        )
    except BaseException:
        if folder is None:  # there is no result that names the folder
            shutil.rmtree(root, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    error = _error(container, end)
    if error:
        (container.base / "output" / "failure").write_text("\n".join(end.log), encoding="utf-8")
    notices = _absolute_paths(container)
    if (container.code / "requirements.txt").is_file():
        notices.append("requirements.txt was not installed: the script used the packages of this machine.")
    variables = {name: value for name, value in container.variables.items() if name.startswith(("SM_", "TRAINING_"))}
    return LocalRun(
        script=container.entry_point,
        processes=processes,
        steps=steps,
        command=f"cd {shlex.quote(str(container.code))} && {shlex.join(command)}",
        arguments=container.arguments,
        variables=variables,
        folder=str(container.base),
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        losses=losses_in(lines),
        log=end.log,
        notices=tuple(notices),
        error=error,
    )


def _environment(container: Container, temporary: Path) -> dict[str, str]:
    """Environment of the script."""
    python_path = (container.code, os.environ.get("PYTHONPATH"))
    return {
        **os.environ,
        **container.variables,
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)),
        "PYTHONPATH": os.pathsep.join(str(path) for path in python_path if path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _error(container: Container, end: ProgramEnd) -> str:
    """Cause of a failure, after the change of the script that would help."""
    if any("No module named 'smdistributed" in line for line in end.log):
        return f"{container.entry_point} requires smdistributed.modelparallel. {_WITHOUT_LIBRARY}"
    if end.error is not None and any(map(_IN_CONTAINER.search, end.log)):
        return "\n".join([*_absolute_paths(container)[:1], str(end.error)])
    return "" if end.error is None else str(end.error)


def _absolute_paths(container: Container) -> list[str]:
    """A sentence with the variable to use for each path of the container in the script, except next to a variable."""
    script = container.code / container.entry_point
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    paths = [path for line in lines if "SM_" not in line for path in _ABSOLUTE.findall(line)]
    return [
        f"{path} exists only in SageMaker's container: use {_variable(path)} in the script."
        for path in dict.fromkeys(paths)
    ]


def _variable(path: str) -> str:
    """Python expression for a folder under ``/opt/ml``."""
    relative = path.removeprefix("/opt/ml").strip("/")
    channel = re.match(r"input/data/([\w-]+)", relative)
    if channel:
        return f'os.environ["SM_CHANNEL_{channel[1].upper().replace("-", "_")}"]'
    name = next((name for folder, name in _VARIABLES if f"{relative}/".startswith(f"{folder}/")), "")
    return f'os.environ["{name}"]' if name else "a hyperparameter for this folder"


def _command(container: Container, processes: int, steps: int | None) -> list[str]:
    logs = container.base.parent / "logs"
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={processes}"]
        command += ["--tee=3", f"--log-dir={logs}"]  # complete lines, each with its rank
    if steps is not None:
        command += [str(_STOP_AFTER_STEPS), str(steps)]
    return [*command, container.entry_point, *container.arguments]


def _require_integer(name: str, value: object, maximum: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (maximum is not None and value > maximum):
        bounds = "of at least 1" if maximum is None else f"from 1 to {maximum}"
        raise ProfileError(f"{name} must be an integer {bounds}, not {value!r}.")
