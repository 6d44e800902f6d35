"""Running a script as its container would."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.local_run.container import prepare
from smp_advisor.profiling.local_run.docker import find_docker
from smp_advisor.profiling.local_run.result import LocalRun, losses_in
from smp_advisor.profiling.sandbox import Limits, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.local_run.container import Container
    from smp_advisor.profiling.local_run.docker import Docker

__all__ = ["planned", "run", "run_cell"]

_STOPPING = Path(__file__).with_name("stopping.py")
_MOST_PROCESSES = 16
_MOST_PLANNED = 8
"""Processes for a plan's degrees: a notebook's machine has few cores."""
_WITHOUT_LIBRARY = (
    "The model parallel library exists only in SageMaker's containers: let the script do without it where it cannot be "
    "imported, or check it with %smp_check, which runs nothing."
)


def planned(plan: Plan) -> dict[str, Any]:
    """What `run` is given to run a script as a plan says: options, ``mp_parameters``, processes of one replica."""
    processes = plan.pipeline_parallel_degree * plan.tensor_parallel_degree
    return {
        "hyperparameters": dict(plan.hyperparameters),
        "parameters": dict(plan.parameters),
        "processes": min(processes, _MOST_PLANNED),
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
    why_no_container: str | None = None,
    on_line: Callable[[str], None] | None = None,
) -> LocalRun:
    """Run a training script in a child process laid out as SageMaker's container is.

    Parameters
    ----------
    script
        Its path; relative to `source_dir` where that is given.
    source_dir
        Copied whole; without it the script alone, as the SDK uploads it. Its requirements.txt is not installed.
    hyperparameters
        Of the estimator; they become the script's options.
    parameters
        ``mp_parameters`` of a plan.
    channels
        Folders of data by channel, for ``SM_CHANNEL_<NAME>``.
    processes
        More than one are started by torchrun, and talk over gloo: the product of a plan's degrees, say.
    steps
        End the script after that many optimizer steps; None runs it to its own end.
    seconds, memory_bytes
        It is stopped beyond them; no `memory_bytes` is half of what the machine has to give.
    folder
        Where the container's folders are laid out; a temporary folder, which stays, if None.
    why_no_container
        Why this is no run of SageMaker's own container, for the report; None to find out what is missing for one.
    on_line
        Called with each line of its log.

    Returns
    -------
    LocalRun
        Its losses, its end, and what it was given; a script that failed is reported, not raised.

    Raises
    ------
    ProfileError
        Script or data are not there, or a setting is out of range.
    """
    _require_whole("processes", processes, most=_MOST_PROCESSES)
    if steps is not None:
        _require_whole("steps", steps)
    given = dict(hyperparameters or {})
    if parameters:
        given["mp_parameters"] = dict(parameters)
    container = prepare(
        Path(script),
        source_dir=None if source_dir is None else Path(source_dir),
        hyperparameters=given,
        channels=channels,
        folder=None if folder is None else Path(folder),
    )
    command = _command(container, processes, steps)
    added = {**container.variables, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    lines: list[str] = []

    def read(line: str) -> None:
        if losses_in([line]):
            lines.append(line)
        if on_line is not None:
            on_line(line)

    end = run_program(
        command,
        cwd=container.code,
        environment=os.environ | added,
        what=container.entry_point,
        limits=Limits(seconds=seconds, memory_bytes=memory_bytes, processes=64 + 8 * processes),
        on_line=read,
    )
    error = "" if end.error is None else str(end.error)
    if any("No module named 'smdistributed" in line for line in end.log):
        error = f"{container.entry_point} needs smdistributed.modelparallel. {_WITHOUT_LIBRARY}"
    if error:
        (container.base / "output" / "failure").write_text("\n".join(end.log), encoding="utf-8")
    shown = {name: value for name, value in container.variables.items() if name.startswith(("SM_", "TRAINING_"))}
    return LocalRun(
        script=container.entry_point,
        how="process",
        why_no_container=find_docker().missing if why_no_container is None else why_no_container,
        processes=processes,
        steps=steps,
        command=f"cd {shlex.quote(str(container.code))} && {shlex.join(command)}",
        arguments=container.arguments,
        variables=shown,
        folder=str(container.base),
        seconds=end.seconds,
        peak_bytes=end.peak_bytes,
        losses=losses_in(lines),
        log=end.log,
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
    """Run a cell that starts SageMaker's local mode, in a child process: the kernel imports nothing of it.

    Parameters
    ----------
    cell
        Code for the SDK, such as `smp_advisor.export.local_cell` writes.
    docker
        What was found here.
    script
        The cell's training script, for the report.
    seconds
        It is stopped beyond.
    folder
        Where the cell runs, in which its script lies; a temporary folder if None.
    on_line
        Called with each line of its log.

    Raises
    ------
    ProfileError
        SageMaker's local mode cannot run here.
    """
    if not docker.usable:
        raise ProfileError(f"SageMaker's local mode cannot run here: {docker.missing}.")
    base = Path(folder or tempfile.mkdtemp(prefix="smp-local-")).resolve()
    program = base / "local_mode.py"
    program.write_text(cell, encoding="utf-8")
    end = run_program(
        [sys.executable, program.name],
        cwd=base,
        environment=os.environ | {"PYTHONUNBUFFERED": "1", "SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
        what=script,
        # What the containers take is not this process's; the engine bounds it.
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


def _command(container: Container, processes: int, steps: int | None) -> list[str]:
    logs = container.base.parent / "logs"
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc_per_node={processes}"]
        command += ["--tee=3", f"--log-dir={logs}"]  # whole lines, each with its rank, however they meet
    if steps is not None:
        command += [str(_STOPPING), str(steps)]
    return [*command, container.entry_point, *container.arguments]


def _require_whole(name: str, value: object, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        bounds = "of at least 1" if most is None else f"from 1 to {most}"
        raise ProfileError(f"{name} must be a whole number {bounds}, not {value!r}.")
