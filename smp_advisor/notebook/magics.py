"""Magics for the Python API, loading of the extension, and completion of the magics' options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from smp_advisor.arguments import LIMITS
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.notebook.run_magics import ProfileMagics, RunMagics
from smp_advisor.notebook.shown import (
    ProgressDisplay,
    model_named,
    parsed,
    required,
    value_of,
    with_options,
)
from smp_advisor.session.cells import KINDS
from smp_advisor.session.options import keywords_of, named_values
from smp_advisor.workload.stack import AUTO

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.review.scripts import Report
    from smp_advisor.search.sizes import ClusterSizes


# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.


@magics_class
class AdvisorMagics(Magics):
    """Magics for recommendations, their export, and checks of scripts."""

    shell: InteractiveShell

    @with_options()
    @line_magic
    def smp_advise(self, line: str) -> Advisor:
        """Recommend a SageMaker model-parallel configuration, with reasons and controls to try others.

        Displays the advisor and returns it: ``advice = %smp_advise 10B --instance ml.p4d.24xlarge --count 16``. Where
        nothing fits, the changes after which a plan fits are shown, each with its line.
        """
        from smp_advisor.notebook.advisor import advisor_of
        from smp_advisor.notebook.display import show_refusal
        from smp_advisor.session.advise import advise

        arguments = parsed(self.smp_advise, line)
        keywords = keywords_of({name: text for name, text in vars(arguments).items() if name != "model"})
        cluster = keywords.pop("cluster")
        model = model_named(arguments.model, self.shell.user_ns)
        try:
            # Only a comparison of clusters and the trace of a family without formulas report progress.
            with ProgressDisplay(f"Advice for {arguments.model}") as progress:
                advisor = advisor_of(advise(model, cluster, on_progress=progress.update, **keywords))
        except NoPlanFitsError as error:
            if error.ways_out is not None and error.ways_out.ways:
                show_refusal(error, f"%smp_advise {line}")
            raise
        advisor.show_now()
        return advisor

    @with_options(what=KINDS)
    @line_magic
    def smp_export(self, line: str) -> None:
        """Put code for the plan of the advisor displayed last into the next cell.

        ``%smp_export`` exports the cell that starts the job. The job requires the training script, which
        ``%smp_export script`` exports. ``local`` runs the script on this machine; ``monitoring``, ``permissions`` and
        ``quota`` are cells for watching and preparing the job. ``kubernetes`` and ``slurm`` write the job for another
        launcher into a file; Kubernetes requires ``--option image_uri=...``.
        """
        arguments = parsed(self.smp_export, line)
        advisor = required(self.shell, "no advice to export yet", ", or display the result of advise()")
        what = "script" if arguments.script else arguments.what
        options = {
            "data": arguments.data,
            "checkpoints": arguments.checkpoints,
            "spot": arguments.spot or None,
            "keep_alive_seconds": value_of(arguments, "keep_alive"),
            "subnets": tuple(arguments.subnet) or None,
            "security_group_ids": tuple(arguments.security_group) or None,
        }
        options = {name: value for name, value in options.items() if value is not None}
        sources = advisor.cells(what, arguments.sdk, **options | named_values(arguments.option))
        if not sources:
            raise UsageError("There is no training script to export: the job runs your own script.")
        self.shell.set_next_input(sources[-1])
        if len(sources) > 1:
            print("The next cell starts the job. %smp_export script exports the cell that writes its training script.")  # noqa: T201

    @with_options()
    @line_cell_magic
    def smp_check(self, line: str, cell: str | None = None) -> Report:
        """Find lines of a training script that fail, hang, train incorrectly or waste money on the cluster.

        ``%smp_check train.py`` reads a file and ``%%smp_check`` its cell; neither runs the code. Cells with an
        estimator or ModelTrainer, requests and recipes have checks of their own: ``%smp_check recipe.yaml``. With
        ``--plan``, the advisor's estimate is that of the script's kind of code.
        """
        from smp_advisor.cluster.cluster import Cluster
        from smp_advisor.cluster.table import completed_instance
        from smp_advisor.notebook.checks import check_if_estimator
        from smp_advisor.review.scripts import check_script, read_stack

        arguments = parsed(self.smp_check, line)
        lack, instead = "no plan to check against yet", ", or leave out --plan"
        advisor = required(self.shell, lack, instead) if arguments.plan else None
        if (arguments.script is None) == (cell is None):
            raise UsageError(
                "Enter the path of a script, as in %smp_check train.py, or write a script below %%smp_check."
            )
        # With the line of the magic, so that line numbers are those of the cell.
        source: str | Path = Path(arguments.script) if cell is None else f"%%smp_check\n{cell}"
        plan, advice = (None, None) if advisor is None else (advisor.plan, advisor.advice)
        count, cluster = value_of(arguments, "instance_count"), None
        if arguments.instance is not None:
            cluster = completed_instance(arguments.instance) if count is None else Cluster(arguments.instance, count)
        elif count is not None:
            raise AdvisorError("--count needs an instance: add --instance, for example --instance ml.p5.48xlarge.")
        of_estimator = check_if_estimator(
            source, self.shell.user_ns, advice, cluster=cluster, forced=arguments.estimator
        )
        if of_estimator is not None:
            return of_estimator
        report = check_script(source, plan)
        if advisor is not None:  # the control Code follows the script
            code = read_stack(source)
            if code.stack not in {AUTO, advisor.state["settings"]["stack"]}:
                advisor.move(stack=code.stack)
                print(f"{code.summary} The advisor's control Code shows it.")  # noqa: T201
        return report

    @with_options()
    @line_magic
    def smp_clusters(self, line: str) -> ClusterSizes:
        """Compare days and cost of other clusters for the advice displayed last: ``%smp_clusters --instance any``.

        Shows the best plan on each cluster with its interval, and the knee of each instance type. The stop button ends
        the comparison with the clusters compared by then.
        """
        arguments = parsed(self.smp_clusters, line)
        advisor = required(self.shell, "no advice to compare clusters for yet")
        with ProgressDisplay("Comparing clusters") as progress:
            return advisor.advice.compare_clusters(
                value_of(arguments, "cluster"),
                value_of(arguments, "counts"),
                **{name: value_of(arguments, name) for name in LIMITS},
                on_progress=progress.update,
            )


_of_shell: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def magics_of(shell: InteractiveShell) -> dict[str, Any]:
    """Return the magics of a shell by name; they know the shell that runs them."""
    if shell not in _of_shell:
        groups = [group(shell) for group in (AdvisorMagics, ProfileMagics, RunMagics)]
        _of_shell[shell] = {name: of for group in groups for kind in group.magics.values() for name, of in kind.items()}
    return _of_shell[shell]
