"""Display of an advisor: saved outputs, the fall-back without a view, and the page of a request that fits nowhere."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import ipywidgets as w
from IPython.core.getipython import get_ipython
from IPython.display import display

from smp_advisor.arguments import options
from smp_advisor.core.sheet import heading, sheet, strip, tank, title, verdict_strip, with_signs
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.figures import FITS, in_words_of_the_page
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.notebook.workload_fields import by_cost, dear, keywords_of, offer_cells, offer_columns, title_of
from smp_advisor.session.written import html_report
from smp_advisor.workload import Adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.display_functions import DisplayHandle

    from smp_advisor.errors import NoPlanFitsError
    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.notebook.view_state import Data
    from smp_advisor.search.ways_out import WayOut
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
        self._handles: list[DisplayHandle | NothingFits] = []
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

    def add(self, handle: DisplayHandle | NothingFits) -> None:
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


class NothingFits:
    """A request for which no plan fits, as a page: the shortfall, and changes after which one fits, one click each.

    It is the value of the magic's variable until an offer is taken; then the variable holds the advice.
    """

    def __init__(
        self, error: NoPlanFitsError, advise: Callable[[dict[str, Any]], Advisor], variable: str = "", cell: str = ""
    ) -> None:
        ways = error.ways_out
        self._ways, self._advise, self._variable, self._cell = ways, advise, variable, cell
        self.sentence = str(error)
        self.offers = by_cost(ways)
        """The changes, cheapest first."""
        self._note = w.HTML('<p role="status"></p>')
        self._handle: DisplayHandle | None = None
        usable, nearest = ways.request.cluster.instance.usable_gpu_memory_gib, ways.nearest_gib
        count = len(self.offers)
        facts = [("", str(count), f"change{'s' * (count > 1)} fit{'s' * (count == 1)}")]
        cluster = ways.request.cluster
        about = (f"{cluster.nodes} × {cluster.instance.name}",)
        parts = [heading(ways.request.model.name, about, "No plan fits")]
        if nearest is None:
            parts.append(strip("over", "Does not fit", facts))
        else:
            times = f"{nearest / usable:.0f}" if nearest > 3 * usable else f"{nearest / usable:.1f}"
            text = f"The nearest plan needs {times} times the memory of a {cluster.instance.gpu}."
            parts += [verdict_strip("over", "Does not fit", nearest, usable, facts), f"<p>{escape(text)}</p>"]
            parts += [title("Memory per GPU", "of the nearest plan"), tank(nearest, usable)]
        parts.append(title("Changes that fit", "cheapest first; Use changes this page, its cell and its variable"))
        columns = "".join(f"<span>{escape(name)}</span>" for name in ("Change", *offer_columns(ways)))
        self._sheet = sheet("No plan fits", *parts[:-1])
        head = w.HTML(f'{sheet("No plan fits", *parts)}<div class="smp-offer smp-offer-head">{columns}</div>')
        self.widget = w.VBox([head, *map(self._offer, self.offers), self._note])
        self.widget.add_class("smp-refusal")

    def use(self, number: int = 1) -> Advisor:
        """Take an offer of the page by its number, as its button does, and return the advice."""
        if not 1 <= number <= len(self.offers):
            raise AdvisorError(f"There is no offer {number}: the page has {len(self.offers)}.")
        return self._use(self.offers[number - 1])

    def __str__(self) -> str:
        return f"{self.sentence}\n{self._ways}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        how = f"take one of its offers: {self._variable or 'it'}.use(1)"
        raise AttributeError(f"There is no advice yet with {name!r}, since no plan fits; {how}.")

    def _offer(self, way: WayOut) -> w.Box:
        title, note = title_of(way), dear(self._ways, way)
        name = f"{title[:1].upper()}{title[1:]}"
        button = w.Button(description="Use", tooltip=f"Use {name}", layout=w.Layout(width="60px", flex="none"))
        button.on_click(lambda _: self._taken(way))
        more = f"<br><small>{escape(note)}</small>" if note else ""
        figures = (cell.removesuffix(" per GPU") for cell in offer_cells(self._ways, way))
        cells = [f"<b>{escape(name)}</b>{more}", *map(escape, figures)]
        style = "smp-offer smp-offer-costly" if note else "smp-offer"
        row = f'<div class="{style}">{"".join(f"<span>{cell}</span>" for cell in cells)}</div>'
        place = w.Layout(flex="1 1 0", min_width="0", margin="0 0 0 8px")
        return w.Box([button, w.HTML(row, layout=place)], layout=w.Layout(align_items="center", padding="4px 16px"))

    def display(self) -> None:
        """Show the page; where widgets cannot be shown, the changes as a table."""
        text = str(self if self._variable else self._ways)  # without a variable, the sentence is that of the error
        html = f"{self._sheet}{with_signs(self._ways._repr_html_())}"
        data = {**self._view, "text/html": html, "text/plain": text}
        self._handle = display(data, raw=True, display_id=True)

    _ipython_display_ = display

    @property
    def _view(self) -> dict[str, Any]:
        """The view of the page; without its kernel, the lab extension shows the picture."""
        return {**self.widget._repr_mimebundle_(), VIEW_MIME: {"model_id": self.widget.model_id}}

    def update(self, data: Mapping[str, Any], **options: Any) -> None:
        """Write a picture of the advice into the output of the page, which keeps its view."""
        if self._handle is not None:
            pictures = {kind: data[kind] for kind in ("text/html", "text/plain")}
            self._handle.update({**self._view, **pictures}, **options)

    def _taken(self, way: WayOut) -> None:
        self._say(f"Searching with {title_of(way)} …")
        try:
            self._use(way)
        except AdvisorError as error:
            self._say(str(error))

    def _use(self, way: WayOut) -> Advisor:
        changes = keywords_of(way, self._ways.request.pins)
        advisor = self._advise(changes)
        shell, variable_note = get_ipython(), ""
        if self._variable and shell is not None:
            shell.user_ns[self._variable] = advisor
            variable_note = f" The variable {self._variable} has this advice."
        advisor.rewrite = (self._cell, changed_line(self._cell, changes))
        self._say(f"With {title_of(way)}:{variable_note}")
        set_displayed_last(shell, advisor)
        self.widget.children = (self._note, advisor)
        advisor.outputs.add(self)
        advisor.outputs.write()
        return advisor

    def _say(self, text: str) -> None:
        self._note.value = f'<p role="status">{escape(text)}</p>'


def changed_line(cell: str, changes: Mapping[str, Any]) -> str:
    """Return a cell whose line of ``%smp_advise`` has other options; the same cell if it has no such line."""
    match = re.search(r"^.*%smp_advise\b.*$", cell, re.MULTILINE)
    if match is None:
        return cell
    line = match[0]
    for keyword, value in changes.items():
        name = keyword
        if isinstance(value, Adapter):
            name, value = ("qlora" if value.quantized else "lora"), value.rank  # noqa: PLW2901
        switches = "|".join(map(re.escape, options()[name].switches))
        line = re.sub(rf"\s(?:{switches})(?:[ =]+(?!-)\S+)?(?=\s|$)", "", line)
        line += "" if value is None else f" {options()[name].switches[0]} {value}"
    return cell.replace(match[0], line, 1)


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
