"""``%smp_profile``, ``%%smp_local`` and ``%smp_prove``: magics that run code in child processes."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

import shlex
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from smp_advisor.advice.options import named_texts, named_values
from smp_advisor.libraries.groups import reduced_data_parallel_degree
from smp_advisor.notebook.options import model_named, parsed, table_options, value_of, with_help
from smp_advisor.notebook.shown import ProgressDisplay, required, show_result
from smp_advisor.profiling.precision import PRECISIONS
from smp_advisor.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.profiling.local_run import LocalRun
    from smp_advisor.profiling.result import Profile
    from smp_advisor.proving import Proof

__all__ = ["ProfileMagics"]

_STAGES = ("trace", "copy", "local", "rehearsal")


@magics_class
class ProfileMagics(Magics):
    """Magics without state; ``--plan`` uses the plan of the advisor displayed last."""

    shell: InteractiveShell

    @with_help
    @magic_arguments()
    @argument(
        "model",
        help="A variable with a model or a config, the path of a config.json, a parameter count (10B), or a script.",
    )
    @table_options("sequence_length")
    @argument(
        "--precision",
        choices=tuple(PRECISIONS),
        help="Training precision; default: 16 bits in the form of the library (fp16 with SMP v1, mixed with FSDP).",
    )
    @argument(
        "--attention",
        choices=("fused", "eager"),
        help="Attention kernel; default: the kernel of the library's PyTorch.",
    )
    @argument(
        "--library",
        help="Training library, which decides precision and attention kernel; default: those that the advisor prefers.",
    )
    @table_options("batch", "memory", "seconds")
    @argument("--stage", action="append", choices=_STAGES, help="Run only this stage; repeatable.")
    @argument("--plan", action="store_true", help="Use and rehearse the plan of the advisor displayed last.")
    @argument("--inputs", help="A variable with example inputs, required if they cannot be inferred.")
    @argument("--script", help="A training script to run under SageMaker's contract.")
    @line_magic
    def smp_profile(self, line: str) -> Profile:
        """Profile a model before paying for a cluster: ``profile = %smp_profile model``.

        Displays the profile and returns it. Traces the full model without allocating it, trains a scaled copy for a few
        steps on this machine, and with ``--plan`` rehearses the plan on local processes. Child processes do all the
        work and cannot harm the kernel.
        """
        with uninterrupted():
            from smp_advisor.profiling import profile

        arguments = parsed(self.smp_profile, line)
        with ProgressDisplay(f"Profile of {arguments.model}") as progress:
            try:
                model = model_named(arguments.model, self.shell.user_ns)
                result = profile(
                    model, **self._settings(arguments), on_line=progress.add_line, on_progress=progress.update
                )
            except KeyboardInterrupt:
                raise UsageError("The profile was interrupted; all its processes have ended.") from None
        show_result(self.shell, "smp_profile", result)
        return result

    def _settings(self, arguments: Namespace) -> dict[str, Any]:
        memory = value_of(arguments, "memory")
        options: dict[str, Any] = {
            "stages": tuple(arguments.stage) if arguments.stage else None,
            "precision": arguments.precision,
            "attention": arguments.attention,
            "library": arguments.library,
            "batch": value_of(arguments, "batch"),
            "script": arguments.script,
            "inputs": None if arguments.inputs is None else self._variable(arguments.inputs),
            "memory_bytes": None if memory is None else int(memory * 2**30),
            "seconds": value_of(arguments, "seconds"),
            "sequence_length": value_of(arguments, "sequence_length"),
        }
        settings = {name: value for name, value in options.items() if value is not None}
        if arguments.plan:
            advisor = required(self.shell, "no plan yet", ", or leave out --plan")
            job = advisor.advice.job
            length = settings.pop("sequence_length", job.sequence_length)
            settings |= {
                "plan": advisor.plan,
                "job": replace(job, sequence_length=length),
                "data_parallel_degree": reduced_data_parallel_degree(advisor.plan, advisor.advice.cluster),
            }
        return settings

    @with_help
    @magic_arguments()
    @table_options("processes", "steps", "seconds", "memory")
    @argument(
        "--hyperparameter", "-p", action="append", default=[], help="NAME=VALUE: option of the script; repeatable."
    )
    @argument("--channel", "-c", action="append", default=[], help="NAME=FOLDER: data of a channel; repeatable.")
    @argument("--plan", action="store_true", help="Use mp_parameters and settings of the advisor displayed last.")
    @argument("--name", default="train.py", help="Name of the script; default train.py.")
    @argument("--source-dir", help="Folder to copy along with the script, as the estimator uploads it.")
    @cell_magic
    def smp_local(self, line: str, cell: str) -> LocalRun:
        """Run the cell as a training script under SageMaker's contract: ``%%smp_local --processes 2 --steps 20``.

        It runs as a process with the folders, options and SM_* variables of SageMaker's container.
        """
        arguments = parsed(self.smp_local, line)
        with ProgressDisplay(arguments.name) as progress:
            try:
                result = self._run(arguments, cell, progress)
            except KeyboardInterrupt:
                raise UsageError(f"{arguments.name} was interrupted; all its processes have ended.") from None
            progress.has_failed = not result.ok
            return result

    def _run(self, arguments: Namespace, cell: str, progress: ProgressDisplay) -> LocalRun:
        with uninterrupted():
            from smp_advisor.profiling.local_run import run, run_settings

        hyperparameters: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        processes = 1
        if arguments.plan:
            settings = run_settings(required(self.shell, "no plan yet", ", or leave out --plan").plan)
            hyperparameters, parameters = settings["hyperparameters"], settings["parameters"]
            processes = settings["processes"]
        hyperparameters |= named_values(arguments.hyperparameter, "--hyperparameter")
        processes = value_of(arguments, "processes") or processes
        channels = named_texts(arguments.channel, "--channel")
        seconds = value_of(arguments, "seconds") or 600.0
        memory = value_of(arguments, "memory")
        source = _written(cell, arguments.name, arguments.source_dir)
        try:
            return run(
                arguments.name,
                source_dir=source,
                hyperparameters=hyperparameters,
                parameters=parameters,
                channels=channels,
                processes=processes,
                steps=value_of(arguments, "steps"),
                seconds=seconds,
                memory_bytes=None if memory is None else int(memory * 2**30),
                on_line=progress.add_line,
            )
        finally:
            shutil.rmtree(source.parent, ignore_errors=True)  # the run has a copy

    @with_help
    @magic_arguments()
    @argument("original", help="The script before its adaptation.")
    @argument("adapted", help="The script after it.")
    @argument("--library", help="Training library of the adaptation; default: the plan of the advisor displayed last.")
    @argument("--root", help="Folder to copy; default: that of the script.")
    @argument("--arguments", default="", help="Command line of the script, in quotes.")
    @line_magic
    def smp_prove(self, line: str) -> Proof:
        """Prove an adaptation, whoever wrote it: ``%smp_prove train.py train_fsdp.py``.

        Both scripts run for a few updates on two processes with small data, and everything that they do is compared.
        """
        from smp_advisor.proving import prove

        arguments = parsed(self.smp_prove, line)
        plan = None if arguments.library else required(self.shell, "no plan yet", ", or leave out --plan").plan
        words = shlex.split(arguments.arguments.strip("\"'"))
        proof = prove(
            Path(arguments.original), Path(arguments.adapted), plan,
            library=arguments.library, root=arguments.root, arguments=words,
        )  # fmt: skip
        show_result(self.shell, "smp_prove", proof)
        return proof

    def _variable(self, name: str) -> Any:
        if name not in self.shell.user_ns:
            raise UsageError(f"The notebook has no variable {name!r}.")
        return self.shell.user_ns[name]


def _written(cell: str, name: str, source_dir: str | None) -> Path:
    """Write the cell to a script in a new folder, along with the files of `source_dir`."""
    if Path(name).name != name or not name.endswith(".py"):
        raise UsageError(f"--name must be the name of a Python file such as train.py, not {name!r}.")
    if source_dir is not None and not Path(source_dir).is_dir():
        raise UsageError(f"There is no folder {source_dir!r}.")
    folder = Path(tempfile.mkdtemp(prefix="smp-local-")) / "source"
    if source_dir is None:
        folder.mkdir()
    else:
        shutil.copytree(source_dir, folder)
    (folder / name).write_text(cell, encoding="utf-8")
    return folder
