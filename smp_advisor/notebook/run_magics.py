"""``%smp_start``, ``%smp_watch`` and ``%smp_calibrate``: magics of runs, and their live display."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from smp_advisor.advice.options import named_values
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.options import parsed, table_options, value_of, with_help
from smp_advisor.notebook.shown import required, show_result

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.advice import Advice
    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.runs.watching import Run

__all__ = ["RunMagics", "show_run"]

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
    threading.Thread(target=_follow, args=(run,), name=f"smp-watch {run.name}", daemon=True).start()


def _follow(run: Run) -> None:
    """Poll a run to its end, and update its displays."""
    try:
        for _ in run:
            for handle in list(_shown[run]):
                handle.update(_data(run), raw=True)
    except AdvisorError as error:
        run.problem = str(error)
        for handle in list(_shown[run]):
            handle.update(_data(run), raw=True)
    finally:
        _shown.pop(run, None)


def _is_confirmed() -> bool:
    """The answer of the user."""
    try:
        return input("Start it for this price? Enter yes: ").strip().lower() == "yes"
    except (EOFError, OSError, RuntimeError):  # kernels without a prompt
        raise UsageError("There is nobody to answer here: %smp_start --yes starts the job for its price.") from None


def _data(run: Run) -> dict[str, str]:
    return {"text/html": run._repr_html_(), "text/plain": str(run)}


@magics_class
class RunMagics(Magics):
    """Magics without state; they use the advisor displayed last."""

    shell: InteractiveShell

    @with_help
    @magic_arguments()
    @argument("--local", action="store_true", help="Train a small model in two processes of this machine.")
    @argument("--yes", action="store_true", help="Start the job for its price without a question.")
    @argument("--folder", help="Folder for log, script and advice.json; default: a new one in smp_runs.")
    @argument("--sdk", choices=("auto", "v2", "v3"), default="auto", help="Version of the SageMaker SDK.")
    @argument(
        "--option",
        action="append",
        default=[],
        help="Option of the job as NAME=VALUE, such as role=..., data=s3://... or spot=True; repeatable.",
    )
    @line_magic
    def smp_start(self, line: str) -> Run | None:
        """Start the plan of the advisor displayed last, and watch it: ``%smp_start --local``.

        Without ``--local``, it is a training job: its price is shown, and it starts after the answer ``yes``.
        """
        arguments = parsed(self.smp_start, line)
        advice = required(self.shell, "no plan to start yet").advice
        folder = None if arguments.folder is None else arguments.folder.strip("'\"")
        options = named_values(arguments.option)
        if not arguments.local and not arguments.yes:
            print(f"This job would run on {advice.terms(sdk=arguments.sdk, **options)}")  # noqa: T201
            if not _is_confirmed():
                print("Nothing was started.")  # noqa: T201
                return None
        run = advice.start(local=arguments.local, confirm=True, folder=folder, sdk=arguments.sdk, **options)
        show_result(self.shell, "smp_start", run)
        return run

    @with_help
    @magic_arguments()
    @argument("run", help="Name of a training job, or path of a log or of a folder with one.")
    @argument("--plan", action="store_true", help="Compare it with the plan of the advisor displayed last.")
    @line_magic
    def smp_watch(self, line: str) -> Run:
        """Watch a run next to its prediction until it ends: ``run = %smp_watch llm-2026-11-27-08-30-00``.

        The prediction is in its ``advice.json``, in the environment of the job, or the plan in its request. It only
        reads.
        """
        from smp_advisor.estimators import watch

        arguments = parsed(self.smp_watch, line)
        lack, instead = "no plan to compare with yet", ", or leave out --plan"
        advice = required(self.shell, lack, instead).advice if arguments.plan else None
        run = watch(arguments.run.strip("'\""), advice)
        show_result(self.shell, "smp_watch", run)
        return run

    @with_help
    @magic_arguments()
    @argument("log", nargs="?", help="Path of a log, or a variable with a log or a DataFrame.")
    @argument(
        "--job",
        action="append",
        default=[],
        help="Name of a training job, whose end is awaited; with your AWS credentials. Repeatable, as for probes.",
    )
    @table_options("step_seconds", "peak_gib")
    @argument("--peak-kind", choices=("allocated", "reserved", "total"), help="Kind of the peak; default allocated.")
    @argument("--out-of-memory", action="store_true", help="The run ran out of GPU memory.")
    @argument("--probe", action="store_true", help="The run is that of %%smp_export probe instead of the plan's.")
    @argument("--accept", action="store_true", help="Learn from a figure that is far from the estimate, too.")
    @argument("--load", help="Path of a saved calibration to start from.")
    @argument("--save", help="Path for the calibration with the run, for later advice.")
    @line_magic
    def smp_calibrate(self, line: str) -> Advisor:
        """Correct the estimates with a measured run of the plan displayed last: ``%smp_calibrate job.log``.

        Shows what was read and the estimate before and after, then the new advice, and returns it.
        """
        arguments = parsed(self.smp_calibrate, line)
        calibrated = self._calibrated(required(self.shell, "no plan yet"), arguments)
        calibrated.show_now()
        return calibrated

    def _calibrated(self, advisor: Advisor, arguments: Namespace) -> Advisor:
        from dataclasses import replace

        from smp_advisor.estimators import watch
        from smp_advisor.notebook.advisor import advisor_of
        from smp_advisor.workload import load_calibration

        advice: Advice = advisor.advice
        if arguments.load:
            earlier = load_calibration(arguments.load)
            advice = replace(advice.recommended, job=replace(advice.job, calibration=earlier))
        figures: dict[str, Any] = {
            "step_seconds": value_of(arguments, "step_seconds"),
            "peak_gib": value_of(arguments, "peak_gib"),
            "peak_kind": arguments.peak_kind,
            "out_of_memory": arguments.out_of_memory,
        }
        for name in arguments.job:  # of the plan that each carries, or else that on screen
            run = watch(name.strip("'\""))
            run.wait(lambda run: print(run.headline, flush=True))  # noqa: T201
            advice = advice.calibrate(run, plan=None if run.advice else advisor.plan, accept=arguments.accept)
        run = self._run(arguments.log)
        has_run = run is not None or any(value for name, value in figures.items() if name != "peak_kind")
        if has_run or not (arguments.load or arguments.job):
            advice = advice.calibrate(run, plan=advisor.plan, probe=arguments.probe, accept=arguments.accept, **figures)
        elif not arguments.job:
            advice = advice.again()
        calibration = advice.job.calibration
        if arguments.save and calibration is not None:
            calibration.save(arguments.save)
        display(advice.learned)
        return advisor_of(advice)

    def _run(self, name: str | None) -> Any:
        """The notebook's variable of that name, else the path."""
        if name is None:
            return None
        word = name.strip("'\"")
        return self.shell.user_ns[word] if word in self.shell.user_ns else Path(word)
