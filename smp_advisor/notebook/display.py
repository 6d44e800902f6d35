"""Display of an advisor, with a fallback view for pages that cannot load its front end."""

# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython
from IPython.display import display

from smp_advisor.notebook.displayed import set_displayed_last
from smp_advisor.notebook.handshake import Handshake

if TYPE_CHECKING:
    from smp_advisor.notebook.advisor import Advisor

__all__ = ["show"]


def show(advisor: Advisor) -> None:
    """Display an advisor, which becomes that of the magics.

    If no view of it responds within seconds, the fallback view replaces it.
    """
    from smp_advisor.notebook.fallback import fallback_bundle

    data, metadata = advisor._repr_mimebundle_()
    shell = get_ipython()
    set_displayed_last(shell, advisor)
    if shell is None or not hasattr(shell, "kernel"):
        print(data["text/plain"])  # noqa: T201 (a terminal shows nothing else)
        return
    handle = display(data, metadata=metadata, raw=True, display_id=True)
    advisor.outputs.add(handle)
    advisor.handshakes.append(
        Handshake(
            replace=lambda: handle.update(fallback_bundle(advisor), raw=True),
            restore=advisor.outputs.write,
            events=shell.events,
        ).start()
    )
