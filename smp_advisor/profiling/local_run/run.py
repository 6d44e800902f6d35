"""Running a training script as its SageMaker container would, or in that container where Docker can start it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.local_run.container import prepare
from smp_advisor.profiling.result_html import NotebookResult, box, details, table
from smp_advisor.profiling.sandbox import Limits, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.local_run.container import Container
    from smp_advisor.profiling.sandbox import ProgramEnd

__all__ = ["Docker", "LocalRun", "find_docker", "losses_in", "run", "run_cell", "run_settings"]


_LOSS = re.compile(r"\bloss\b[\"']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)\b", re.IGNORECASE)

_LABELS = {
    "process": (
        "Run as a process with this machine's Python and packages, not in SageMaker's container. The model parallel "
        "library is not available here. This run checks the script, its options, its data and its loss."
    ),
    "container": "Run on this machine in SageMaker's container, with the SDK's local mode.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRun(NotebookResult):
    """Run of a training script on this machine.

    It has a notebook display; `ok` is whether the script succeeded.
    """

    script: str
    how: Literal["process", "container"]
    why_no_container: str = ""
    """Why SageMaker's local mode was not used."""
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
    def label(self) -> str:
        """Kind of the run, as text for the user."""
        why = self.why_no_container
        return f"{_LABELS[self.how]} No container was started: {why}." if why else _LABELS[self.how]

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
            f"<p>{escape(self.label)}</p>",
            *(f"<p>{escape(sentence)}</p>" for sentence in self.notices),
            details("Environment variables of the script", table(self.variables.items(), ("variable", "value"))),
            details("Shell command", f"<pre>{escape(self.command)}</pre>"),
            details("Last lines of the log", f"<pre>{escape(chr(10).join(self.log[-40:]))}</pre>", is_open=not self.ok),
            ok=self.ok,
        )

    _repr_pretty_ = NotebookResult._repr_pretty_

    def __str__(self) -> str:
        return "\n".join([self.error or self.summary, self.label, *self.notices])


def losses_in(lines: Iterable[str]) -> tuple[float, ...]:
    """Losses in the lines of a log."""
    return tuple(float(match[1]) for line in lines if (match := _LOSS.search(line)))


_STOP_AFTER_STEPS = Path(__file__).with_name("stop_after_steps.py")
_REQUIREMENTS = "requirements.txt"
_INSTALL_SECONDS = 3600.0
_ANSWER_SECONDS = 60
"""A last guard against a Docker engine that never answers."""
_MAX_PROCESSES = 16
_MAX_PLAN_PROCESSES = 8
"""Maximum processes for the degrees of a plan; a notebook instance has few cores."""
_WITHOUT_LIBRARY = (
    "The model parallel library exists only in SageMaker's containers: make the script work without it if the import "
    "fails, or check the script with %smp_check, which does not run it."
)
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
class Docker:
    """Requirements of local mode: a running Docker engine, and Compose."""

    engine: str
    """Version of the engine; empty if none is running."""
    compose: str
    """Output of ``docker compose version``, or the path of docker-compose; empty if neither exists."""
    gpus: bool
    """Whether the engine has the NVIDIA runtime; local mode is then ``local_gpu``."""
    silent: str = ""
    """The command that did not answer; empty if all did."""

    @property
    def usable(self) -> bool:
        """Whether SageMaker's local mode can run."""
        return not self.missing

    @property
    def instance_type(self) -> str:
        """The estimator's instance type for local mode."""
        return "local_gpu" if self.gpus else "local"

    @property
    def missing(self) -> str:
        """Why local mode cannot run; empty if it can."""
        if self.silent:
            return f"`{self.silent}` did not answer within {_ANSWER_SECONDS} seconds"
        if not self.engine:
            return "no Docker engine is running"
        return "" if self.compose else "Docker Compose is not installed"


def find_docker() -> Docker:
    """Detect a Docker engine and Compose."""
    try:
        engine = _output("docker", "info", "--format", "{{.ServerVersion}}")
        if not engine:
            return Docker(engine="", compose="", gpus=False)
        compose = _output("docker", "compose", "version") or shutil.which("docker-compose") or ""
        gpus = "nvidia" in _output("docker", "info", "--format", "{{json .Runtimes}}") and shutil.which("nvidia-smi")
    except subprocess.TimeoutExpired as error:
        return Docker(engine="", compose="", gpus=False, silent=" ".join(error.cmd[:2]))
    return Docker(engine=engine, compose=compose, gpus=bool(gpus))


def _output(*command: str) -> str:
    """Standard output of a command; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


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
    requirements: bool = False,
    why_no_container: str | None = None,
    on_line: Callable[[str], None] | None = None,
) -> LocalRun:
    """Run a training script in a child process with the layout of SageMaker's container.

    The environment variables of the container (``SM_MODEL_DIR``, ``SM_CHANNEL_<NAME>``, ...) name folders of the run.
    For a fixed path below ``/opt/ml``, the result names the variable to use. Temporary files are in a private folder
    that is removed afterwards.

    Parameters
    ----------
    script
        Path of the script, relative to `source_dir` if there is one.
    source_dir
        Folder to copy. Without it, only the script is copied, as the SDK uploads it.
    hyperparameters
        Hyperparameters of the estimator; they become options of the script.
    parameters
        ``mp_parameters`` of a plan.
    channels
        Data folders by channel, for ``SM_CHANNEL_<NAME>``.
    processes
        Number of processes. Several are started by torchrun and communicate over gloo.
    steps
        Optimizer steps after which the script is stopped; None runs it to its end.
    seconds, memory_bytes
        Limits of the run. None for `memory_bytes` is half of the available memory.
    folder
        Folder for the container's files; None creates a temporary folder that is not deleted.
    requirements
        Whether to install requirements.txt of `source_dir` with pip, into the run's folder.
    why_no_container
        Why the run is not in SageMaker's container, for the report; None checks the requirements of local mode.
    on_line
        Called with each line of the log.

    Returns
    -------
    LocalRun
        Losses, outcome and settings of the run. A failure of the script raises no exception.

    Raises
    ------
    ProfileError
        The script or the data do not exist, or a setting is out of range.
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
        end = _install_requirements(container, temporary, on_line) if requirements else None
        installed = end is not None and end.error is None
        if end is None or installed:
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
    variables = {name: value for name, value in container.variables.items() if name.startswith(("SM_", "TRAINING_"))}
    return LocalRun(
        script=container.entry_point,
        how="process",
        why_no_container=find_docker().missing if why_no_container is None else why_no_container,
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
        notices=_notices(container, installed=installed),
        error=error,
    )


def run_cell(
    cell: str,
    docker: Docker,
    *,
    script: str = "train.py",
    seconds: float = 3600.0,
    folder: str | os.PathLike[str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> LocalRun:
    """Run a cell that starts SageMaker's local mode in a child process, so that the kernel does not import the SDK.

    `cell` is the output of `smp_advisor.export.local_cell`; `folder` is its working directory, with its script.
    """
    if not docker.usable:
        raise ProfileError(f"SageMaker's local mode cannot run on this machine: {docker.missing}.")
    base = Path(folder or tempfile.mkdtemp(prefix="smp-local-")).resolve()
    program = base / "local_mode.py"
    program.write_text(cell, encoding="utf-8")
    end = run_program(
        [sys.executable, program.name],
        cwd=base,
        environment=os.environ | {"PYTHONUNBUFFERED": "1", "SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
        what=script,
        # The limits do not cover the containers, which belong to the Docker engine.
        limits=Limits(seconds=seconds, processes=256, output_bytes=64 * 2**20),
        on_line=on_line,
    )
    return LocalRun(
        script=script,
        how="container",
        command=f"cd {shlex.quote(str(base))} && {shlex.join([sys.executable, program.name])}",
        variables={},
        folder=str(base),
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        losses=losses_in(end.log),
        log=end.log,
        error="" if end.error is None else str(end.error),
    )


def _environment(container: Container, temporary: Path) -> dict[str, str]:
    """Environment of the script."""
    python_path = (container.code, _packages(container), os.environ.get("PYTHONPATH"))
    return {
        **os.environ,
        **container.variables,
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)),
        "PYTHONPATH": os.pathsep.join(str(path) for path in python_path if path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _packages(container: Container) -> Path:
    """Folder of the packages of requirements.txt."""
    return container.base.parents[1] / "packages"


def _error(container: Container, end: ProgramEnd) -> str:
    """Cause of a failure, after the change of the script that would help."""
    if any("No module named 'smdistributed" in line for line in end.log):
        return f"{container.entry_point} requires smdistributed.modelparallel. {_WITHOUT_LIBRARY}"
    if end.error is not None and any("/opt/ml" in line for line in end.log):
        return "\n".join([*_absolute_paths(container)[:1], str(end.error)])
    return "" if end.error is None else str(end.error)


def _install_requirements(container: Container, temporary: Path, on_line: Callable[[str], None] | None) -> ProgramEnd:
    """Install requirements.txt of the source directory for this run only, with pip."""
    if not (container.code / _REQUIREMENTS).is_file():
        raise ProfileError(
            "There is no requirements.txt next to the script: pass the folder that has it as source_dir."
        )
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    return run_program(
        [*command, "--target", str(_packages(container)), "-r", _REQUIREMENTS],
        cwd=container.code,
        environment=os.environ | {"TMPDIR": str(temporary)},
        what=f"the installation of {_REQUIREMENTS}",
        limits=Limits(seconds=_INSTALL_SECONDS),
        on_line=on_line,
    )


def _notices(container: Container, *, installed: bool) -> tuple[str, ...]:
    """Differences from a container, one sentence each."""
    sentences = _absolute_paths(container)
    if not installed and (container.code / _REQUIREMENTS).is_file():
        sentences.append(f"{_REQUIREMENTS} was not installed: the script used the packages of this machine.")
    return tuple(sentences)


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
