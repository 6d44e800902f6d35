"""``%smp_profile`` and ``%%smp_local``: thin doors to the profiler."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

import ast
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.groups import reduced_data_parallel_degree
from smp_advisor.notebook.arguments import amount, helped, model_named, parsed, read, whole
from smp_advisor.notebook.live import Live

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.profiling.local_run import LocalRun
    from smp_advisor.profiling.measured import Profile

__all__ = ["ProfileMagics"]

_STAGES = ("trace", "copy", "local", "rehearsal")


@magics_class
class ProfileMagics(Magics):
    """No state of its own: ``--plan`` takes the plan of the advisor shown last."""

    shell: InteractiveShell

    @helped
    @magic_arguments()
    @argument(
        "model",
        help="A variable that holds a model or a config, the path of a config.json, a count (10B), or a script.",
    )
    @argument("--sequence-length", "-s", help="Tokens a sample; 2048 if not given.")
    @argument(
        "--precision",
        choices=("fp32", "amp", "bf16", "fp16"),
        help="fp16 if not given: SMP v1's, 20 bytes a parameter.",
    )
    @argument("--attention", choices=("fused", "eager"), help="What the library's PyTorch runs, if not given.")
    @argument("--library", help="smp-v1 if not given; decides the attention.")
    @argument("--batch", help="Samples of a microbatch for the figures that are shown.")
    @argument("--stage", action="append", choices=_STAGES, help="Run this stage alone; may be given several times.")
    @argument("--plan", action="store_true", help="With the plan of the advisor shown last, which is rehearsed too.")
    @argument("--inputs", help="A variable with example inputs, where they cannot be inferred.")
    @argument("--script", help="A training script to run as SageMaker would.")
    @argument("--memory", help="GiB that a child process may take.")
    @argument("--seconds", help="Time that a child process may take.")
    @line_magic
    def smp_profile(self, line: str) -> Profile:
        """Profile a model before paying for a cluster: ``profile = %smp_profile model``.

        Traces the full model without allocating it, trains a scaled copy for a few steps on this machine, and, with a
        plan, rehearses that on local processes. All of it runs in child processes that cannot harm the kernel.
        """
        from smp_advisor.profiling import profile

        arguments = parsed(self.smp_profile, line)
        with Live(f"Profile of {arguments.model}") as live:
            try:
                model = model_named(arguments.model, self.shell.user_ns)
                return profile(model, **self._settings(arguments), on_line=live.line, on_progress=live.progress)
            except AdvisorError as error:
                raise UsageError(str(error)) from None
            except KeyboardInterrupt:
                raise UsageError("The profile was interrupted; nothing of it is left running.") from None

    def _settings(self, arguments: Namespace) -> dict[str, Any]:
        memory = read(arguments.memory, amount)
        given: dict[str, Any] = {
            "stages": tuple(arguments.stage) if arguments.stage else None,
            "precision": arguments.precision,
            "attention": arguments.attention,
            "library": arguments.library,
            "batch": read(arguments.batch, whole),
            "script": arguments.script,
            "inputs": None if arguments.inputs is None else self._variable(arguments.inputs),
            "memory_bytes": None if memory is None else int(memory * 2**30),
            "seconds": read(arguments.seconds, amount),
            "sequence_length": read(arguments.sequence_length, whole),
        }
        stated = {name: value for name, value in given.items() if value is not None}
        if arguments.plan:
            advisor = self._advisor()
            job = advisor.advice.job
            length = stated.pop("sequence_length", job.sequence_length)
            stated |= {
                "plan": advisor.plan,
                "job": replace(job, sequence_length=length),
                "data_parallel_degree": reduced_data_parallel_degree(advisor.plan, advisor.advice.cluster),
            }
        return stated

    @helped
    @magic_arguments()
    @argument("--processes", "-n", help="Started by torchrun, over gloo; 1 if not given, with --plan its degrees.")
    @argument("--steps", help="End the script after so many optimizer steps; its own end if not given.")
    @argument("--seconds", help="Stop it after that time; 600 if not given.")
    @argument("--memory", help="GiB that it may take.")
    @argument(
        "--hyperparameter", "-p", action="append", default=[], help="NAME=VALUE, an option of the script; repeatable."
    )
    @argument("--channel", "-c", action="append", default=[], help="NAME=FOLDER, data of a channel; repeatable.")
    @argument("--plan", action="store_true", help="With mp_parameters and settings of the advisor shown last.")
    @argument("--name", default="train.py", help="Name of the script; train.py if not given.")
    @argument("--source-dir", help="Folder that is copied beside the script, as the estimator uploads it.")
    @argument(
        "--no-container", action="store_true", help="A process of this machine even where Docker could run a container."
    )
    @cell_magic
    def smp_local(self, line: str, cell: str) -> LocalRun:
        """Run the cell as a training script under SageMaker's contract: ``%%smp_local --processes 2 --steps 20``.

        In SageMaker's own container where this machine has Docker, else as a process with the container's folders,
        options and SM_* variables.
        """
        arguments = parsed(self.smp_local, line)
        with Live(arguments.name) as live:
            try:
                found = self._run(arguments, cell, live)
            except AdvisorError as error:
                raise UsageError(str(error)) from None
            except KeyboardInterrupt:
                raise UsageError(f"{arguments.name} was interrupted; nothing of it is left running.") from None
            live.has_failed = not found.ok
            return found

    def _run(self, arguments: Namespace, cell: str, live: Live) -> LocalRun:
        from smp_advisor.profiling.local_run import find_docker, planned, run

        hyperparameters: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        processes = 1
        if arguments.plan:
            given = planned(self._advisor().plan)
            hyperparameters, parameters = given["hyperparameters"], given["parameters"]
            processes = given["processes"]
        hyperparameters |= {name: _value(text) for name, text in _pairs(arguments.hyperparameter).items()}
        processes = whole(arguments.processes) if arguments.processes else processes
        channels = _pairs(arguments.channel)
        seconds = read(arguments.seconds, amount) or 600.0
        memory = read(arguments.memory, amount)
        source = _written(cell, arguments.name, arguments.source_dir)
        docker = find_docker()
        needs_process = {
            "--no-container was given": arguments.no_container,
            "several processes of one machine need GPUs in the container": processes > 1,
            "a container cannot be ended after --steps": arguments.steps is not None,
        }
        because = [reason for reason, holds in needs_process.items() if holds]
        if docker.usable and not because:
            from smp_advisor.export.local_mode import local_mode_cell
            from smp_advisor.profiling.local_run import run_cell

            options = hyperparameters | ({"mp_parameters": parameters} if parameters else {})
            program = local_mode_cell(
                arguments.name,
                instance_type=docker.instance_type,
                hyperparameters=options,
                channels=channels,
                output_directory=str(source / "output"),
            )
            return run_cell(program, docker, script=arguments.name, seconds=seconds, folder=source, on_line=live.line)
        return run(
            arguments.name,
            source_dir=source,
            hyperparameters=hyperparameters,
            parameters=parameters,
            channels=channels,
            processes=processes,
            steps=read(arguments.steps, whole),
            seconds=seconds,
            memory_bytes=None if memory is None else int(memory * 2**30),
            why_no_container=docker.missing or "; ".join(because),
            on_line=live.line,
        )

    def _advisor(self) -> Advisor:
        magics = self.shell.magics_manager.registry.get("AdvisorMagics")
        advisor: Advisor | None = getattr(magics, "last", None)
        if advisor is None:
            raise UsageError("There is no plan yet: run %smp_advise first, or leave out --plan.")
        return advisor

    def _variable(self, name: str) -> Any:
        if name not in self.shell.user_ns:
            raise UsageError(f"The notebook has no variable {name!r}.")
        return self.shell.user_ns[name]


def _pairs(words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or not name:
            raise UsageError(f"{word!r} is not of the form NAME=VALUE.")
        pairs[name] = value
    return pairs


def _value(text: str) -> Any:
    """A hyperparameter as Python would read it, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _written(cell: str, name: str, source_dir: str | None) -> Path:
    """A folder with the cell's text as a script, and what lies beside it."""
    import shutil

    if Path(name).name != name or not name.endswith(".py"):
        raise UsageError(f"--name must be the name of a Python file such as train.py, not {name!r}.")
    folder = Path(tempfile.mkdtemp(prefix="smp-local-")) / "source"
    if source_dir is None:
        folder.mkdir()
    elif not Path(source_dir).is_dir():
        raise UsageError(f"There is no folder {source_dir!r}.")
    else:
        shutil.copytree(source_dir, folder)
    (folder / name).write_text(cell, encoding="utf-8")
    return folder
