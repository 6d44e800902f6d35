"""Running a training script as its SageMaker container would."""

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
from smp_advisor.profiling.local_run.mounts import OPT_ML
from smp_advisor.profiling.local_run.result import LocalRun, losses_in
from smp_advisor.profiling.local_run.surroundings import install_requirements, surroundings
from smp_advisor.profiling.sandbox import Limits, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.local_run.container import Container
    from smp_advisor.profiling.local_run.docker import Docker

__all__ = ["run", "run_cell", "run_settings"]

_STOP_AFTER_STEPS = Path(__file__).with_name("stop_after_steps.py")
_MAX_PROCESSES = 16
_MAX_PLAN_PROCESSES = 8
"""Maximum processes for the degrees of a plan; a notebook instance has few cores."""
_WITHOUT_LIBRARY = (
    "The model parallel library exists only in SageMaker's containers: make the script work without it if the import "
    "fails, or check the script with %smp_check, which does not run it."
)


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

    Where the system allows private mounts, ``/opt/ml`` is the run's own folder for the script, and for no other
    process. Temporary files are in a private folder that is removed afterwards. Other files that the script writes
    outside its folder are in the result's notices.

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

    with surroundings(container, is_temporary=folder is None) as around:
        end = install_requirements(around, on_line) if requirements else None
        installed = end is not None and end.error is None
        if end is None or installed:
            end = run_program(
                command,
                cwd=container.code,
                environment=os.environ
                | {**container.variables, **around.variables, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
                what=container.entry_point,
                limits=Limits(seconds=seconds, memory_bytes=memory_bytes, processes=64 + 8 * processes),
                enter=around.enter,
                on_line=read,
            )
        outside = around.outside()
        notices = around.notices(outside, installed=installed)
    error = "" if end.error is None else str(end.error)
    if any("No module named 'smdistributed" in line for line in end.log):
        error = f"{container.entry_point} requires smdistributed.modelparallel. {_WITHOUT_LIBRARY}"
    if error and not around.mounts and any(str(OPT_ML) in line for line in end.log):
        error = "\n".join([*around.absolute_paths()[:1], error])
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
        notices=notices,
        outside=outside,
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

    Parameters
    ----------
    cell
        Code for the SDK, such as the output of `smp_advisor.export.local_cell`.
    docker
        The Docker installation, from `find_docker`.
    script
        Name of the cell's training script, for the report.
    seconds
        Time limit.
    folder
        Working directory of the cell, with its script; None creates a temporary folder.
    on_line
        Called with each line of the log.

    Raises
    ------
    ProfileError
        SageMaker's local mode cannot run on this machine.
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
