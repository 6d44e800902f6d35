"""Input and output of magics: lines with options of the table, progress, results, and the advice displayed last."""

from __future__ import annotations

import ast
import re
import shlex
import time
from collections import deque
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakKeyDictionary

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from smp_advisor.arguments import meant, options
from smp_advisor.core.files import sentence
from smp_advisor.core.words import escape
from smp_advisor.errors import AdvisorError
from smp_advisor.session.options import line_of, line_options, request_options
from smp_advisor.workload.from_config import configuration_to_trace, is_model_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor.notebook.advisor import Advisor


_last: WeakKeyDictionary[InteractiveShell, Advisor] = WeakKeyDictionary()


def displayed_last(shell: InteractiveShell | None) -> Advisor | None:
    """Return the advisor that was displayed last in a notebook; None before the first."""
    return None if shell is None else _last.get(shell)


def required(shell: InteractiveShell, lack: str, instead: str = "") -> Advisor:
    """Return the advisor that was displayed last; without one, an error: ``no plan to start yet``."""
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
    """A progress bar and a live log, redrawn in place from the first report on. A terminal gets the lines."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.share: float | None = None
        self.text = ""
        self._handle: Any = None
        self._started = time.monotonic()
        self._saved_draws = _DRAWS_AT_ONCE
        self._counted = time.monotonic()
        self._plain = True
        self.has_failed = False
        """Whether the process has ended with an error."""

    def __enter__(self) -> Self:
        shell = get_ipython()
        self._plain = shell is None or not hasattr(shell, "kernel")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._plain and (self._handle is not None or self.has_failed):
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
        if not self._plain and self._saved_draws >= 1:
            self._saved_draws -= 1
            self._draw("running")

    def _draw(self, state: str) -> None:
        if self._handle is None:
            self._handle = display(self._data(state), raw=True, display_id=True)
        else:
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
            name = escape(self.title)
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
    """Display the result of a line magic, unless the magic is the last expression of its cell, which IPython shows."""
    inputs = getattr(shell.history_manager, "input_hist_raw", [""])
    body: list[ast.stmt] = []
    with suppress(SyntaxError):
        body = ast.parse(shell.transform_cell(inputs[-1])).body
    if body and isinstance(body[-1], ast.Expr) and isinstance(call := body[-1].value, ast.Call):
        name = call.args[0] if call.args else None
        is_line = ast.unparse(call.func).endswith("run_line_magic")
        if is_line and isinstance(name, ast.Constant) and name.value == magic:
            return
    display(result)


_ANY = "any"


def model_named(text: str, namespace: Mapping[str, Any]) -> Any:
    """The notebook's variable of that name, else the text: a parameter count, a model's name, or a path of a config."""
    word = text.strip("'\"")
    if word in namespace:
        return namespace[word]
    if word.isidentifier() and not (is_model_name(word) or configuration_to_trace(word)):
        raise AdvisorError(sentence("notebook", "no_variable", word=word))
    return word


class RefusalError(UsageError):
    """A refused line: an error output of one sentence, which papermill, nbconvert and voila show, too.

    IPython prints a plain `UsageError` to standard error only.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"UsageError: {self}"]


def with_options(line: str = "", **choices: Iterable[str]) -> Callable[[Any], Any]:
    """Give a magic the options of ``lines.toml``, with `choices` of some, and ``--help``; its errors have no trace."""

    def decorate(magic: Any) -> Any:
        name = line or magic.__name__
        entries = [*line_options(name, **choices), *(request_options() if "request" in line_of(name) else ())]
        for switches, settings in reversed(entries):
            magic = argument(*switches, **settings)(magic)
        magic = magic_arguments()(magic)

        @wraps(magic)
        def answer(self: Any, line: str, *cell: str) -> Any:
            if "--help" not in line.split():
                try:
                    return magic(self, line, *cell)
                except (AdvisorError, UsageError) as error:
                    raise RefusalError(str(AdvisorError(str(error)))) from None  # shortened, if a word is long
            print(magic.parser.format_help())  # noqa: T201 (the purpose of --help)
            return None

        return answer

    return decorate


_BRACES = re.compile(r"\{[A-Za-z_]\w*\}")


def parsed(magic: Any, line: str) -> Namespace:
    """Return the options of a magic's line."""
    if unfilled := _BRACES.search(line):
        raise UsageError(
            f"IPython did not fill {unfilled[0]}: a name in braces of this line is no variable of the notebook, and it"
            " fills all names of a line or none."
        )
    try:
        # argparse takes a word with a space for a value: the reader of "-5B" then reports the error.
        lexer = shlex.shlex(line, posix=True)
        lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""  # a backslash is part of a path
        words = [f" {word}" if re.match(r"-\d", word) else word for word in lexer]
        options = cast("Namespace", magic.parser.parse_args(words))
    except ValueError as error:
        raise UsageError(f"The line cannot be read: {error}.") from None
    except UsageError as error:
        raise UsageError(_explained(magic, str(error), words)) from None
    for name, value in vars(options).items():
        if isinstance(value, str):
            setattr(options, name, value.strip())
    return options


def _explained(magic: Any, problem: str, words: Sequence[str]) -> str:
    """Return an error of argparse as a sentence: an unknown option before a missing one, with the most similar."""
    name = f"%{magic.__name__}"
    names = [name for action in magic.parser._actions for name in action.option_strings]  # noqa: SLF001 (no other way)
    written = [word.split("=")[0] for word in words if word.startswith("--")]
    unknown = [word for word in written if not any(name.startswith(word) for name in names)]
    if problem.startswith("unrecognized arguments: "):
        unknown = problem.removeprefix("unrecognized arguments: ").split()
    if not unknown:
        return f"{problem[:1].upper()}{problem[1:]}; {name} --help explains them."
    keywords = {name.lstrip("-").replace("-", "_"): name for name in names if name.startswith("--")}
    keyword = meant(unknown[0].split("=")[0].lstrip("-"), keywords)
    hint = f"did you mean {keywords[keyword]}?" if keyword else f"{name} --help lists its options."
    return f"{name} has no option {' '.join(unknown)}; {hint}"


def value_of(arguments: Namespace, name: str) -> Any:
    """Return the value of an option of the table; None without the option."""
    text = getattr(arguments, name)
    return None if text is None else options()[name].read(text)
