"""Display of an advisor: saved outputs, the fall-back without a view, and the page of a request that fits nowhere."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from IPython.core.getipython import get_ipython
from IPython.display import display

from smp_advisor.arguments import options
from smp_advisor.core.sheet import heading, sheet, strip, tank, title, verdict_strip, with_signs
from smp_advisor.core.tables import Table
from smp_advisor.core.words import escape
from smp_advisor.notebook.figures import FITS, in_words_of_the_page
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.notebook.workload_fields import by_cost, dear, keywords_of, offer_cells, offer_columns, title_of
from smp_advisor.session.written import html_report
from smp_advisor.workload import Adapter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from IPython.core.display_functions import DisplayHandle

    from smp_advisor.errors import NoPlanFitsError
    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.notebook.view_state import Data
    from smp_advisor.session import Advice


VIEW_MIME = "application/vnd.smp-advisor.view+json"
"""Marks an output of the advisor. The lab extension shows its picture if the kernel with the widget is gone."""
PATIENCE_SECONDS = 15.0
"""A busy browser draws a view in less; one that comes later is put back."""
QUIET_SECONDS = 1.0
"""The output is written after this time without a change."""
_MOST = 8
"""Outputs of one advisor that are kept up to date; those of earlier displays stay as they are."""


class SavedOutputs:
    """Outputs of an advisor, written while the application keeps its views when they are, or has none."""

    def __init__(self, advisor: Advisor) -> None:
        self._advisor = advisor
        self._handles: list[DisplayHandle] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_behind = False
        self._quiet_since = 0.0
        """When the last cell ended, in the time of the loop."""
        self.keeps_views = False
        self.has_views = False
        """Whether a view has reported; none does where a notebook is run without a page."""
        self.is_static = False
        """Whether no view loads: then the outputs follow the plan as pictures."""

    def add(self, handle: DisplayHandle) -> None:
        """Follow the plan in one more output. Without an event loop, outputs stay as they are."""
        self._handles = [*self._handles, handle][-_MOST:]
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
            return
        self._quiet_since = self._loop.time()
        if not self.has_views:
            self._loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Write pictures if no view has reported for a while after the last cell ended, else wait on."""
        if self.has_views or self._loop is None:
            return
        left = PATIENCE_SECONDS - (self._loop.time() - self._quiet_since)
        if left > 0.01:
            self._loop.call_later(left, self._give_up)
        else:
            self.write(is_static=True)

    def arrived(self, *, keeps_views: bool) -> None:
        """A view has reported: it takes the place of a picture."""
        self.has_views, self.keeps_views = True, self.keeps_views or keeps_views
        if self.is_static:
            self.write(is_static=False)

    def changed(self) -> None:
        """The plan on screen changed, in any thread."""
        loop, self._is_behind = self._loop, True
        if (self.keeps_views or self.is_static) and self._handles and loop is not None and not loop.is_closed():

            def wait() -> None:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_later(QUIET_SECONDS, self.write)

            loop.call_soon_threadsafe(wait)

    def cell_ended(self) -> None:
        """Write the plan at the end of a cell, while no view has reported: nothing of a page could be lost."""
        if self._loop is not None:
            self._quiet_since = self._loop.time()
        if self._is_behind and not self.has_views:
            self.write()

    def write(self, *, is_static: bool | None = None) -> None:
        """Write the present plan into every output, as a picture if no view loads."""
        self._is_behind = False
        self.is_static = self.is_static if is_static is None else is_static
        data, metadata = (static_bundle(self._advisor), {}) if self.is_static else self._advisor._repr_mimebundle_()
        for handle in self._handles:
            handle.update(data, metadata=metadata, raw=True)


NOTICE = (
    "The page of the advice could not load here. If you installed smp_advisor while this page was open, reload it once "
    "and run the cell again. Until then, advice.move(batch_size=32) in a new cell moves a setting, and %smp_export "
    "writes the code."
)


def static_bundle(advisor: Advisor) -> dict[str, Any]:
    """Return the mime bundle without the view: the saved picture, below the reason for it."""
    data = advisor._repr_mimebundle_()[0]
    notice = f'<p role="status"><strong>{escape(NOTICE)}</strong></p>'
    return {"text/html": notice + data["text/html"], "text/plain": f"{NOTICE}\n\n{data['text/plain']}"}


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


def show_refusal(error: NoPlanFitsError, line: str) -> None:
    """Show a request for which no plan fits: the shortfall, and changes after which one fits, each with its line."""
    ways = error.ways_out
    cluster, nearest = ways.request.cluster, ways.nearest_gib
    usable, offers = cluster.instance.usable_gpu_memory_gib, by_cost(ways)
    facts = [("", str(len(offers)), "changes fit" if len(offers) > 1 else "change fits")]
    parts = [heading(ways.request.model.name, (f"{cluster.nodes} × {cluster.instance.name}",), "No plan fits")]
    if nearest is None:
        parts.append(strip("over", "Does not fit", facts))
    else:
        times = f"{nearest / usable:.0f}" if nearest > 3 * usable else f"{nearest / usable:.1f}"
        text = f"The nearest plan needs {times} times the memory of a {cluster.instance.gpu}."
        parts += [verdict_strip("over", "Does not fit", nearest, usable, facts), f"<p>{escape(text)}</p>"]
        parts += [title("Memory per GPU", "of the nearest plan"), tank(nearest, usable)]
    table = Table(
        columns=("Change that fits", *offer_columns(ways), "Line"),
        rows=[
            (
                " – ".join(filter(None, (title_of(way), dear(ways, way)))),
                *offer_cells(ways, way),
                changed_line(line, keywords_of(way, ways.request.pins)),
            )
            for way in offers
        ],
    )
    parts += [title("Changes that fit", "cheapest first"), f'<div style="overflow-x:auto">{table.html()}</div>']
    display({"text/html": with_signs(sheet("No plan fits", *parts)), "text/plain": str(table)}, raw=True)


def changed_line(line: str, changes: Mapping[str, Any]) -> str:
    """Return the line of a magic with other options."""
    for keyword, value in changes.items():
        name, replaced = keyword, [keyword]
        if isinstance(value, Adapter):
            name, replaced = "qlora" if value.quantized else "lora", ["lora", "qlora"]
            value = value.rank  # noqa: PLW2901
        switches = "|".join(re.escape(switch) for option in replaced for switch in options()[option].switches)
        line = re.sub(rf"\s(?:{switches})(?:[ =]+(?!-)\S+)?(?=\s|$)", "", line)
        line += "" if value is None else f" {options()[name].switches[0]} {value}"
    return line


_displayed: WeakSet[Advisor] = WeakSet()
"""Advisors with outputs, which follow the notebook's variables after each cell."""


def _compare(*_: object) -> None:
    shell = get_ipython()
    if shell is not None:
        for advisor in list(_displayed):
            advisor.compare_with(shell.user_ns)
            advisor.outputs.cell_ended()


def show(advisor: Advisor) -> None:
    """Display an advisor, which becomes that of the magics."""
    data, metadata = advisor._repr_mimebundle_()
    shell = get_ipython()
    set_displayed_last(shell, advisor)
    if shell is None or not hasattr(shell, "kernel"):
        print(data["text/plain"])  # noqa: T201 (a terminal shows nothing else)
        return
    handle = display(data, metadata=metadata, raw=True, display_id=True)
    if _compare not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _compare)
    _displayed.add(advisor)
    advisor.outputs.add(handle)


def static_html(advice: Advice, shown: Data, now: Data) -> str:
    """Return the HTML of the plan on screen: verdict, tank, change, bars, ladder and reasons, then folded details."""
    costs, usable = now["costs"], shown["usable_gib"]
    words, gib = FITS[costs["fit"]], costs["gib"]
    # A plan that cannot run has no speed and no price.
    figures = [] if costs["fit"] == "over" else now["headline"]
    facts = [
        (about, value, f"{unit}{ends and f' ({ends})'}{note and f', {note}'}")
        for about, value, unit, note, ends in figures
    ]
    if costs["memory"]:
        verdict = strip(costs["fit"], words, [("", "", costs["memory"]), *facts])
    else:
        verdict = verdict_strip(costs["fit"], words, gib, usable, facts)
    recommended = now["configuration"] == shown["recommended"]["configuration"]
    lead, reason = shown["decisive"] if recommended else ("Your plan.", "Its settings are below.")
    state, activations, likely = costs["state"], costs["activations"], now["likely"]
    return sheet(
        "SMP Advisor",
        heading(shown["title"], ()),
        verdict,
        f"<p><b>{escape(lead)}</b> {escape(reason)}</p>",
        title(f"{likely[:1].upper()}{likely[1:]}"),
        tank(gib, usable, (state, activations, gib - state - activations), costs["edge"]),
        ""
        if advice.is_recommended
        else f"<p><b>Against the recommended plan:</b> {escape(advice.compare().summary)}</p>",
        f"<div>{in_words_of_the_page(html_report(advice), advice.plan.library)}</div>",
    )
