"""Displays of a notebook: progress, results, and the advice that was displayed last."""

from __future__ import annotations

import ast
import time
from collections import deque
from html import escape
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from IPython.core.getipython import get_ipython
from IPython.display import display

from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from types import TracebackType

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor

__all__ = ["ProgressDisplay", "displayed_last", "required", "set_displayed_last", "show_result"]


_last: WeakKeyDictionary[InteractiveShell, Advisor] = WeakKeyDictionary()


def displayed_last(shell: InteractiveShell | None) -> Advisor | None:
    """The advisor that was displayed last in a notebook; None before the first."""
    return None if shell is None else _last.get(shell)


def required(shell: InteractiveShell, lack: str, instead: str = "") -> Advisor:
    """The advisor that was displayed last; without one, an error: ``no plan to start yet``."""
    advisor = displayed_last(shell)
    if advisor is None:
        raise AdvisorError(f"There is {lack}: run %smp_advise first{instead}.")
    return advisor


def set_displayed_last(shell: InteractiveShell | None, advisor: Advisor) -> None:
    """Make an advisor that of the magics."""
    if shell is not None:
        _last[shell] = advisor


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


_LINES = 12
_DRAWS_PER_SECOND = 4.0
_DRAWS_AT_ONCE = 8.0
"""Limits of redrawing for a process that writes many lines. A few lines after a pause are shown at once."""
_CODE = "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 13px)"


class ProgressDisplay:
    """A progress bar and a live log, redrawn in place. Outside a notebook, it prints the lines.

    Examples
    --------
    >>> with ProgressDisplay("The scaled copy") as progress:  # doctest: +SKIP
    ...     smp_advisor.profile(model, on_line=progress.add_line, on_progress=progress.update)
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.share: float | None = None
        self.text = ""
        self._handle: Any = None
        self._started = time.monotonic()
        self._saved_draws = _DRAWS_AT_ONCE
        self._counted = time.monotonic()
        self._plain = False
        self.has_failed = False
        """Whether the process has ended with an error."""

    def __enter__(self) -> Self:
        shell = get_ipython()
        self._plain = shell is None or not hasattr(shell, "kernel")
        if not self._plain:
            self._handle = display(self._data("running"), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._draw(("failed" if self.has_failed else "done") if kind is None else "stopped")

    def add_line(self, text: str) -> None:
        """Add a line to the log."""
        if self._plain:
            print(text)  # noqa: T201 (a terminal shows nothing else)
        self.lines.append(text)
        self._redraw()

    def update(self, done: float, total: float, text: str = "") -> None:
        """Show progress: `done` parts of `total`."""
        self.share = done / total if total else None
        self.text = text
        self._redraw()

    @property
    def left(self) -> str:
        """Time left at the pace so far, and how to cancel; empty before a twentieth is done."""
        if self.share is None or not 0.05 <= self.share < 1:
            return ""
        seconds = (time.monotonic() - self._started) * (1 - self.share) / self.share
        amount = f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
        return f"about {amount} left; interrupt the kernel to cancel"

    def _redraw(self) -> None:
        now = time.monotonic()
        self._saved_draws = min(_DRAWS_AT_ONCE, self._saved_draws + (now - self._counted) * _DRAWS_PER_SECOND)
        self._counted = now
        if self._handle is not None and self._saved_draws >= 1:
            self._saved_draws -= 1
            self._draw("running")

    def _draw(self, state: str) -> None:
        self._handle.update(self._data(state), raw=True)

    def _data(self, state: str) -> dict[str, str]:
        status = self.text or state if state == "running" else state
        label = f"{self.title}: {status}"
        if state == "running" and self.left:
            label += f" ({self.left})"
        log = "\n".join(line[:200] for line in self.lines)
        bar = ""
        if state == "running":
            share = "" if self.share is None else f' value="{min(max(self.share, 0.0), 1.0):.3f}"'
            name = escape(self.title, quote=True)
            bar = f'<progress aria-label="{name}" max="1"{share} style="width:240px"></progress> '
        box = f'<pre style="{_CODE};max-height:16em;overflow:auto;margin:4px 0" tabindex="0">{escape(log)}</pre>'
        if state == "running":
            shown = box if log else ""
        else:
            folded = '<details><summary style="cursor:pointer">Last lines of its output</summary>'
            shown = f"{folded}{box}</details>" if log else ""
        html = f'<div class="smp-advisor-live"><p role="status">{bar}{escape(label)}</p>{shown}</div>'
        return {"text/html": html, "text/plain": f"{label}\n{log}" if log else label}


def show_result(shell: InteractiveShell, magic: str, result: object) -> None:
    """Display the result of a line magic, unless IPython displays it as the value of its cell."""
    inputs = getattr(shell.history_manager, "input_hist_raw", [""])
    if not _is_value(shell.transform_cell(inputs[-1]), magic):
        display(result)


def _is_value(cell: str, magic: str) -> bool:
    """Whether the last expression of a cell is the magic."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return False
    if not body or not isinstance(body[-1], ast.Expr) or not isinstance(body[-1].value, ast.Call):
        return False
    call = body[-1].value
    name = call.args[0] if call.args else None
    return ast.unparse(call.func).endswith("run_line_magic") and isinstance(name, ast.Constant) and name.value == magic
