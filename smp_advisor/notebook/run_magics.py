"""Magics of code that runs: profiles and rehearsals in child processes; starting, watching and learning."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.display import display

from smp_advisor.core.files import user_path
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.shown import (
    ProgressDisplay,
    model_named,
    parsed,
    required,
    show_result,
    value_of,
    with_options,
)
from smp_advisor.profiling.precision import PRECISIONS
from smp_advisor.session.options import named_texts, named_values

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.profiling.result import Profile
    from smp_advisor.rehearsal import Rehearsal
    from smp_advisor.runs.watching import Run
    from smp_advisor.session import Advice


# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.


@magics_class
class ProfileMagics(Magics):
    """Magics without state; ``--plan`` uses the plan of the advisor displayed last."""

    shell: InteractiveShell

    @with_options(precision=tuple(PRECISIONS))
    @line_magic
    def smp_profile(self, line: str) -> Profile:
        """Profile a model before paying for a cluster: ``profile = %smp_profile model``.

        Displays the profile and returns it. Traces the full model without allocating it, and trains a scaled copy for
        two steps on this machine. Child processes do all the work and cannot harm the kernel.
        """
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
        memory, inputs = value_of(arguments, "memory"), arguments.inputs
        if inputs is not None:
            if inputs not in self.shell.user_ns:
                raise UsageError(f"The notebook has no variable {inputs!r}.")
            inputs = self.shell.user_ns[inputs]
        options: dict[str, Any] = {
            **{name: getattr(arguments, name) for name in ("precision", "attention", "library")},
            **{name: value_of(arguments, name) for name in ("batch", "seconds", "sequence_length")},
            "stages": tuple(arguments.stage) if arguments.stage else None,
            "inputs": inputs,
            "memory_bytes": None if memory is None else int(memory * 2**30),
        }
        settings = {name: value for name, value in options.items() if value is not None}
        if arguments.plan:
            advisor = required(self.shell, "no plan yet", ", or leave out --plan")
            length = settings.pop("sequence_length", advisor.advice.job.sequence_length)
            settings |= {"plan": advisor.plan, "job": replace(advisor.advice.job, sequence_length=length)}
        return settings

    @with_options()
    @line_cell_magic
    def smp_rehearse(self, line: str, cell: str | None = None) -> Rehearsal:
        """Run a training script here for a few updates, as a job starts it: ``%smp_rehearse train.py``.

        GPUs and NCCL are processors. It reports what would break on the cluster: hangs, gradients that are not
        averaged, arguments that do not arrive, checkpoints that do not resume, models that do not load.
        """
        arguments = parsed(self.smp_rehearse, line)
        if (cell is None) == (arguments.script is None) and not (cell is None and arguments.plan):
            raise UsageError("Name a script, %smp_rehearse train.py, or put %%smp_rehearse before a cell with one.")
        with ProgressDisplay(arguments.script or arguments.name) as progress:
            try:
                result = self._rehearsed(arguments, cell, progress)
            except KeyboardInterrupt:
                raise UsageError("The rehearsal was interrupted; all its processes have ended.") from None
            progress.has_failed = not result.ok
        show_result(self.shell, "smp_rehearse", result)
        return result

    @with_options("smp_rehearse")
    @cell_magic
    def smp_local(self, line: str, cell: str) -> Rehearsal:
        """Rehearse the cell: another name of ``%%smp_rehearse``, which has its options."""
        result: Rehearsal = self.smp_rehearse(line, cell)
        return result

    def _rehearsed(self, arguments: Namespace, cell: str | None, progress: ProgressDisplay) -> Rehearsal:
        from smp_advisor.rehearsal import rehearse

        if cell is None and arguments.script is None:
            return self._rehearsed_plan(arguments, progress)
        job: Any = arguments.job
        own = named_values(arguments.hyperparameter, "--hyperparameter")
        if arguments.plan:
            job = required(self.shell, "no plan yet", ", or leave out --plan").plan
        elif job is not None:
            job = self.shell.user_ns.get(job, job)
        elif own:
            job = {"hyperparameters": own}
        source = None if cell is None else _written(cell, arguments.name, arguments.source_dir)
        script = user_path(arguments.script, AdvisorError) if source is None else source / arguments.name
        settings: dict[str, Any] = {
            "processes": value_of(arguments, "processes") or 2,
            "data": named_texts(arguments.channel, "--channel") or None,
            "compare": None if arguments.compare is None else user_path(arguments.compare, AdvisorError),
            "environment": arguments.environment, "steps": value_of(arguments, "steps"),
            "on_line": progress.add_line, "on_progress": progress.update,
        }  # fmt: skip
        try:
            return _confined(rehearse, script, job, **settings)
        finally:
            if source is not None:
                shutil.rmtree(source.parent, ignore_errors=True)  # the run has a copy

    def _rehearsed_plan(self, arguments: Namespace, progress: ProgressDisplay) -> Rehearsal:
        """Return the rehearsal of the plan displayed last with its own script, which marks it on the page."""
        advice = required(self.shell, "no plan yet", "").advice
        return _confined(
            advice.rehearse, processes=value_of(arguments, "processes") or 2,
            data=named_texts(arguments.channel, "--channel") or None,
            on_line=progress.add_line, on_progress=progress.update,
        )  # fmt: skip


def _confined(rehearse: Any, *parts: Any, **settings: Any) -> Rehearsal:
    """Return the rehearsal; where the script cannot be confined, a person has to agree first."""
    try:
        result: Rehearsal = rehearse(*parts, **settings)
    except AdvisorError as error:
        question, answer = f"{str(error).partition(':')[0]}. Run it? Enter yes: ", ""
        if "allow_unconfined" in str(error):
            with suppress(EOFError, OSError, RuntimeError):  # kernels without a prompt
                answer = input(question).strip().lower()
        if answer != "yes":
            raise
        result = rehearse(*parts, allow_unconfined=True, **settings)
    return result


def _written(cell: str, name: str, source_dir: str | None) -> Path:
    """Write the cell to a script in a new folder, along with the files of `source_dir`."""
    if Path(name).name != name or not name.endswith(".py"):
        raise UsageError(f"--name must be the name of a Python file such as train.py, not {name!r}.")
    if source_dir is not None and not user_path(source_dir, AdvisorError).is_dir():
        raise UsageError(f"There is no folder {source_dir!r}.")
    folder = Path(tempfile.mkdtemp(prefix="smp-local-")) / "source"
    if source_dir is None:
        folder.mkdir()
    else:
        shutil.copytree(source_dir, folder)
    (folder / name).write_text(cell, encoding="utf-8")
    return folder


_shown: WeakKeyDictionary[Run, list[Any]] = WeakKeyDictionary()
"""Displays of each run that is being watched."""


def show_run(run: Run) -> None:
    """Display a run. In a notebook, a thread polls it and updates its displays in place, until it ends."""
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        print(run)  # noqa: T201 - a terminal
        return
    handle = display(_data(run), raw=True, display_id=True)
    if run.done:
        return
    if run in _shown:
        _shown[run].append(handle)
        return
    _shown[run] = [handle]

    def draw() -> None:
        for shown in list(_shown[run]):
            shown.update(_data(run), raw=True)

    def follow() -> None:
        try:
            for _ in run:
                draw()
        except AdvisorError as error:
            run.problem = str(error)
            draw()
        finally:
            _shown.pop(run, None)

    threading.Thread(target=follow, name=f"smp-watch {run.name}", daemon=True).start()


def _data(run: Run) -> dict[str, str]:
    return {"text/html": run._repr_html_(), "text/plain": str(run)}


def _run_named(text: str, names: Mapping[str, Any], advice: Advice | None = None) -> Run:
    """Return the run in the notebook's variable of that name, else that of a log, a folder or a training job."""
    from smp_advisor.estimators import watch
    from smp_advisor.runs.watching import Run

    word = text.strip("'\"")
    value = names.get(word)
    return value if isinstance(value, Run) else watch(value if isinstance(value, str | Path) else word, advice)


@magics_class
class RunMagics(Magics):
    """Magics without state; they use the advisor displayed last."""

    shell: InteractiveShell

    @with_options()
    @line_magic
    def smp_start(self, line: str) -> Run | None:
        """Start the plan of the advisor displayed last as a training job, and watch it: ``%smp_start``.

        The price is shown, and the job starts after the answer ``yes``.
        """
        arguments = parsed(self.smp_start, line)
        advice = required(self.shell, "no plan to start yet").advice
        folder = None if arguments.folder is None else arguments.folder.strip("'\"")
        options = named_values(arguments.option)
        if not arguments.yes:
            print(f"This job would run on {advice.terms(sdk=arguments.sdk, **options)}")  # noqa: T201
            try:
                answer = input("Start it for this price? Enter yes: ")
            except (EOFError, OSError, RuntimeError):  # kernels without a prompt
                hint = "There is nobody to answer here: %smp_start --yes starts the job for its price."
                raise UsageError(hint) from None
            if answer.strip().lower() != "yes":
                print("Nothing was started.")  # noqa: T201
                return None
        run = advice.start(confirm=True, folder=folder, sdk=arguments.sdk, **options)
        show_result(self.shell, "smp_start", run)
        return run

    @with_options()
    @line_magic
    def smp_watch(self, line: str) -> Run:
        """Watch a run next to its prediction until it ends: ``run = %smp_watch llm-2026-11-27-08-30-00``.

        The prediction is in its ``advice.json``, in the environment of the job, or the plan in its request. It only
        reads.
        """
        arguments = parsed(self.smp_watch, line)
        lack, instead = "no plan to compare with yet", ", or leave out --plan"
        advice = required(self.shell, lack, instead).advice if arguments.plan else None
        run = _run_named(arguments.run, self.shell.user_ns, advice)
        show_result(self.shell, "smp_watch", run)
        return run

    @with_options()
    @line_magic
    def smp_calibrate(self, line: str) -> Advisor:
        """Correct the estimates with a measured run of the plan displayed last: ``%smp_calibrate job.log``.

        Shows what was read and the estimate before and after, then the new advice, and returns it.
        """
        arguments = parsed(self.smp_calibrate, line)
        from smp_advisor.notebook.advisor import advisor_of
        from smp_advisor.workload import load_calibration

        advisor = required(self.shell, "no plan yet")
        advice: Advice = advisor.advice
        if arguments.load:
            earlier = load_calibration(arguments.load)
            advice = type(advice)(replace(advice.recommended, job=replace(advice.job, calibration=earlier)))
        figures: dict[str, Any] = {
            "step_seconds": value_of(arguments, "step_seconds"),
            "peak_gib": value_of(arguments, "peak_gib"),
            "peak_kind": arguments.peak_kind,
            "out_of_memory": arguments.out_of_memory,
        }
        for name in arguments.job:  # of the plan that each carries, or else that on screen
            run = _run_named(name, self.shell.user_ns)
            run.wait(lambda run: print(run.headline, flush=True))  # noqa: T201
            advice = advice.calibrate(run, plan=None if run.advice else advisor.plan, accept=arguments.accept)
        log: Any = None
        if arguments.log is not None:  # the notebook's variable of that name, else the path
            word = arguments.log.strip("'\"")
            log = self.shell.user_ns[word] if word in self.shell.user_ns else user_path(word, AdvisorError)
            log = _run_named(word, {}) if isinstance(log, Path) and log.is_dir() else log
        has_run = log is not None or any(value for name, value in figures.items() if name != "peak_kind")
        if has_run or not (arguments.load or arguments.job):
            advice = advice.calibrate(log, plan=advisor.plan, probe=arguments.probe, accept=arguments.accept, **figures)
        elif not arguments.job:
            advice = advice.again()
        calibration = advice.job.calibration
        if arguments.save and calibration is not None:
            calibration.save(arguments.save)
        display(advice.learned)
        calibrated = advisor_of(advice)
        calibrated.show_now()
        return calibrated
