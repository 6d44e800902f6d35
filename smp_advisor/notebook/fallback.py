"""The advisor in core ipywidgets, for pages that cannot load its front end."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.cells import cells
from smp_advisor.notebook.static_view import bars_html, facts_html, title_html, verdict_html

if TYPE_CHECKING:
    from smp_advisor.notebook.advisor import Advisor

__all__ = ["NOTICE", "Fallback", "fallback_bundle"]

NOTICE = (
    "The advisor's own view could not load in this page. If you installed smp_advisor while the page was open, "
    "reload the browser page once and run the cell again. Until then, this simpler view has the same controls."
)


class Fallback:
    """Controls, figures and code as core widgets. `widget` contains them."""

    def __init__(self, advisor: Advisor) -> None:
        self._advisor = advisor
        self._moving = False
        self._controls = w.VBox()
        self._figures = w.HTML()
        self._code = w.Textarea(layout=w.Layout(width="100%", height="220px", display="none"))
        self._note = w.HTML()
        shown = advisor.recommendation
        self.widget = w.VBox(
            [
                w.HTML(_lines(f'<p role="status"><strong>{escape(NOTICE)}</strong></p>{title_html(shown)}')),
                self._controls,
                self._figures,
                self._note,
                w.HBox(
                    [self._button("Reset to recommended", self._reset), self._button("Show the cells", self._export)]
                ),
                self._code,
            ],
            layout=w.Layout(max_width="1040px"),
        )
        advisor.observe(self._draw, "_state")
        self._draw()

    @staticmethod
    def _button(text: str, action: Any) -> w.Button:
        button = w.Button(description=text, layout=w.Layout(width="auto"))
        button.on_click(action)
        return button

    def _draw(self, _: object = None) -> None:
        state = self._advisor.state
        self._controls.children = [self._control(control, state) for control in state["controls"]]
        shown, now = self._advisor.recommendation, state["snapshot"]
        self._figures.value = _lines(verdict_html(shown, now) + bars_html(shown, now) + facts_html(shown, now))
        self._note.value = escape(state["problem"] or state["summary"])

    def _control(self, control: dict[str, Any], state: dict[str, Any]) -> w.Widget:
        name, value = control["name"], state["settings"][control["name"]]
        options: dict[str, Any] = {"description": control["label"], "style": {"description_width": "170px"}}
        layout = w.Layout(width="520px")
        widget: w.Widget
        if control["kind"] == "checkbox":
            widget = w.Checkbox(value=value, indent=True, layout=layout, **options)
        else:
            kind = w.Dropdown if control["kind"] == "select" else w.SelectionSlider
            pairs = list(zip(control["texts"], control["values"], strict=True))
            widget = kind(options=pairs, value=value, disabled=len(pairs) < 2, layout=layout, **options)
        widget.observe(lambda change: self._move(name, change["new"]), "value")
        return widget

    def _move(self, name: str, value: Any) -> None:
        try:
            self._advisor.move(**{name: value})
        except AdvisorError as error:
            self._draw()
            self._note.value = escape(str(error))

    def _reset(self, _: object) -> None:
        self._advisor.reset()

    def _export(self, _: object) -> None:
        try:
            sources = cells(self._advisor.advice, self._advisor.plan)
        except AdvisorError as error:
            self._note.value = escape(str(error))
            return
        self._code.value = "\n\n\n".join(sources)
        self._code.layout.display = ""
        self._note.value = "Copy each cell from here, or run %smp_export in a new cell."


def _lines(html: str) -> str:
    # ipywidgets sets the line height of text to the height of its buttons.
    return f'<div style="line-height:1.5">{html}</div>'


def fallback_bundle(advisor: Advisor) -> dict[str, Any]:
    """The mime bundle of the fallback view. It still contains the static view."""
    fallback = Fallback(advisor)
    advisor.fallbacks.append(fallback)
    bundle = fallback.widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    own = advisor._repr_mimebundle_()[0]
    return {**own, **{name: value for name, value in data.items() if name not in {"text/html", "text/plain"}}}
