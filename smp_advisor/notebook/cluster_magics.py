"""``%smp_clusters``: a magic that compares clusters for the advisor displayed last."""

# mypy: allow-untyped-calls, allow-untyped-decorators
# IPython does not annotate the decorators that make a magic.

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.options import parsed, table_options, value_of, with_help
from smp_advisor.notebook.shown import ProgressDisplay, displayed_last

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.search.sizes import ClusterSizes

__all__ = ["ClusterMagics"]


@magics_class
class ClusterMagics(Magics):
    """Magic without state; it uses the advisor displayed last."""

    shell: InteractiveShell

    @with_help
    @magic_arguments()
    @argument(
        "--instance", "-i", dest="cluster", help="Instance types with commas, or any; default: that of the advice."
    )
    @table_options("counts", "max_days", "max_usd")
    @line_magic
    def smp_clusters(self, line: str) -> ClusterSizes:
        """Compare days and cost of other clusters for the advice displayed last: ``%smp_clusters --instance any``.

        Shows the best plan on each cluster with its interval, and the knee of each instance type. The stop button ends
        the comparison with the clusters compared by then.
        """
        arguments = parsed(self.smp_clusters, line)
        advisor = displayed_last(self.shell)
        if advisor is None:
            raise UsageError("There is no advice to compare clusters for yet: run %smp_advise first.")
        try:
            with ProgressDisplay("Comparing clusters") as progress:
                return advisor.advice.compare_clusters(
                    value_of(arguments, "cluster"),
                    value_of(arguments, "counts"),
                    max_days=value_of(arguments, "max_days"),
                    max_usd=value_of(arguments, "max_usd"),
                    on_progress=progress.update,
                )
        except AdvisorError as error:
            raise UsageError(str(error)) from None
