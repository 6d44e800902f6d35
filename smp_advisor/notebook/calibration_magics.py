"""``%smp_calibrate``: a magic for the calibration with your own runs."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.options import parsed, table_options, value_of, with_help
from smp_advisor.notebook.shown import displayed_last

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.advice import Advice
    from smp_advisor.notebook.advisor import Advisor

__all__ = ["CalibrationMagics"]


@magics_class
class CalibrationMagics(Magics):
    """Magic without state; it uses the advisor displayed last."""

    shell: InteractiveShell

    @with_help
    @magic_arguments()
    @argument("log", nargs="?", help="Path of a log, or a variable with a log or a DataFrame.")
    @argument("--job", help="Name of a SageMaker training job: reads its log and metrics with your AWS credentials.")
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
        advisor = displayed_last(self.shell)
        if advisor is None:
            raise UsageError("There is no plan yet: run %smp_advise first.")
        try:
            calibrated = self._calibrated(advisor, arguments)
        except AdvisorError as error:
            raise UsageError(str(error)) from None
        calibrated.show_now()
        return calibrated

    def _calibrated(self, advisor: Advisor, arguments: Namespace) -> Advisor:
        from dataclasses import replace

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
            "job_name": arguments.job,
        }
        run = self._run(arguments.log)
        has_run = run is not None or any(value for name, value in figures.items() if name != "peak_kind")
        if has_run or not arguments.load:
            advice = advice.calibrate(run, plan=advisor.plan, probe=arguments.probe, accept=arguments.accept, **figures)
        else:
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
