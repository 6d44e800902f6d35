"""``%smp_advise``, ``%smp_export`` and ``%smp_check``: thin doors to the Python API."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.registry import LIBRARIES
from smp_advisor.notebook.arguments import amount, helped, model_named, parsed, read, whole
from smp_advisor.notebook.cells import KINDS

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.scripts import Report

__all__ = ["AdvisorMagics"]


@magics_class
class AdvisorMagics(Magics):
    """State: the advisor shown last, which ``%smp_export`` writes out."""

    shell: InteractiveShell
    last: Advisor | None = None

    @helped
    @magic_arguments()
    @argument("model", help="A parameter count (10B), the path of a config.json, or a variable that holds either.")
    @argument("--instance", "-i", required=True, help="SageMaker instance type, for example ml.p4d.24xlarge.")
    @argument("--count", "-n", default="1", help="Number of instances; 1 if not given.")
    @argument("--library", choices=("auto", *LIBRARIES), help="smp-v1 if not given; auto chooses and says why.")
    @argument("--framework", help="With --library auto, what the script is written for: pytorch-1.13, tensorflow.")
    @argument("--sequence-length", "-s", help="Tokens a sample; 2048 if not given.")
    @argument("--vocab", help="Vocabulary size, where the model is a parameter count.")
    @argument("--precision", choices=("fp16", "bf16", "fp32"), help="The library's own if not given.")
    @argument("--global-batch", help="Samples per step over the whole cluster; free if not given.")
    @argument("--objective", choices=("throughput", "cost", "headroom", "simplicity"), help="throughput if not given.")
    @argument("--tokens", help="Tokens to train on, for days and total cost: 300B.")
    @argument("--min-fit-probability", help="Only plans at least as likely to fit; 0.95 if not given.")
    @argument("--script", help="Your own training script, for the exported cell.")
    @argument("--data", help="S3 URI of the training data, for the exported cell.")
    @line_magic
    def smp_advise(self, line: str) -> Advisor:
        """Recommend a SageMaker model-parallel configuration, show why, and let it be tried out.

        Shows the advisor and returns it: ``advice = %smp_advise 10B --instance ml.p4d.24xlarge --count 16``.
        """
        arguments = parsed(self.smp_advise, line)
        try:
            advisor = self._advise(arguments)
        except AdvisorError as error:
            raise UsageError(str(error)) from None
        self.last = advisor
        advisor.show_now()
        return advisor

    def _advise(self, arguments: Namespace) -> Advisor:
        from smp_advisor.notebook.advisor import Advisor
        from smp_advisor.recommendation import advise

        given: dict[str, Any] = {
            "sequence_length": read(arguments.sequence_length, whole),
            "vocab": read(arguments.vocab, whole),
            "global_batch_size": read(arguments.global_batch, whole),
            "tokens": read(arguments.tokens, amount),
            "min_fit_probability": read(arguments.min_fit_probability, amount),
            "precision": arguments.precision,
            "library": arguments.library,
            "framework": arguments.framework,
            "objective": arguments.objective,
            "script": arguments.script,
            "data": arguments.data,
        }
        model = model_named(arguments.model, self.shell.user_ns)
        stated = {name: value for name, value in given.items() if value is not None}
        return Advisor(advise(model, arguments.instance, instance_count=whole(arguments.count), **stated))

    @helped
    @magic_arguments()
    @argument(
        "what", nargs="?", choices=KINDS, default="job", help="The job if not given; its script or a cell beside."
    )
    @argument("--script", action="store_true", help="The cell of the training script, not the job's.")
    @argument("--sdk", choices=("auto", "v2", "v3"), default="auto", help="SageMaker SDK to write for.")
    @argument("--data", help="Training data: s3://bucket/prefix, or fsx://file-system-id/mount-name/path.")
    @argument("--checkpoints", help="Where checkpoints go, in S3 or on FSx for Lustre.")
    @argument("--spot", action="store_true", help="Run on spare capacity; needs --checkpoints.")
    @argument("--keep-alive", help="Seconds to keep the instances for the next job (a warm pool).")
    @argument("--subnet", action="append", default=[], help="Subnet of the job; repeatable.")
    @argument("--security-group", action="append", default=[], help="Security group of the job; repeatable.")
    @line_magic
    def smp_export(self, line: str) -> None:
        """Put the code of the advisor shown last, as its controls stand, into the next cell.

        ``%smp_export`` is the cell that starts the job; it needs the training script, which ``%smp_export script``
        writes. ``%smp_export local`` tries the script here; ``monitoring``, ``permissions`` and ``quota`` are the cells
        beside the job.
        """
        arguments = parsed(self.smp_export, line)
        if self.last is None:
            raise UsageError("There is no advice to export yet: run %smp_advise first.")
        what = "script" if arguments.script else arguments.what
        try:
            sources = self.last.cells(what, arguments.sdk, **_job_options(arguments))
        except AdvisorError as error:
            raise UsageError(str(error)) from None
        if not sources:
            raise UsageError("The training script is your own: there is none to write.")
        self.shell.set_next_input(sources[-1])
        if len(sources) > 1:
            print("The cell that starts the job follows; %smp_export --script puts the one that writes its script.")  # noqa: T201

    @helped
    @magic_arguments()
    @argument("script", nargs="?", help="Path of a .py or .ipynb file; the cell's text where it is a cell magic.")
    @argument("--plan", action="store_true", help="Check against the plan of the advisor shown last.")
    @argument("--estimator", action="store_true", help="Check the estimator in it, even where it looks like a script.")
    @line_cell_magic
    def smp_check(self, line: str, cell: str | None = None) -> Report:
        """Say what in a training script will fail, hang, train wrongly or waste money on the cluster.

        ``%smp_check train.py`` reads a file, ``%%smp_check`` the cell itself; neither runs it. A cell that makes an
        estimator or ModelTrainer, a request or a recipe is checked as such: ``%smp_check recipe.yaml``.
        """
        from smp_advisor.notebook.estimator_cell import check_if_estimator
        from smp_advisor.scripts import check_script

        arguments = parsed(self.smp_check, line)
        if arguments.plan and self.last is None:
            raise UsageError("There is no plan to check against yet: run %smp_advise first, or leave out --plan.")
        if (arguments.script is None) == (cell is None):
            raise UsageError("Name a script, as in %smp_check train.py, or write one below %%smp_check.")
        plan = self.last.plan if arguments.plan and self.last else None
        # With the magic's own line, so that the lines are counted as the notebook counts them.
        source: str | Path = Path(arguments.script) if cell is None else f"%%smp_check\n{cell}"
        advice = self.last.advice if arguments.plan and self.last else None
        try:
            found = check_if_estimator(source, self.shell.user_ns, advice, forced=arguments.estimator)
            return found if found is not None else check_script(source, plan)
        except AdvisorError as error:
            raise UsageError(str(error)) from None


def _job_options(arguments: Namespace) -> dict[str, Any]:
    given = {
        "data": arguments.data,
        "checkpoints": arguments.checkpoints,
        "spot": arguments.spot or None,
        "keep_alive_seconds": read(arguments.keep_alive, whole),
        "subnets": tuple(arguments.subnet) or None,
        "security_group_ids": tuple(arguments.security_group) or None,
    }
    return {name: value for name, value in given.items() if value is not None}
