"""Runs the blocks of hand-written pages, and writes their outputs into the pages.

A page runs like a notebook: its blocks share one namespace and one temporary folder, in the order of the page.

- ``python``: a cell of IPython, magics included. An error is a failure.
- ``sh``: lines of ``smp-advisor`` and ``make``. The first run in this process, with ``> FILE`` for a file; a line
  with an exit status other than 0 ends in ``# exit status 1``. ``make TARGET`` must be a
  target of the Makefile. Any other command is an error.
- ``text`` after a line ``<!-- output -->``: the output of the block above. It is compared, and written by `make pages`.

Comments in front of a block, which readers do not see, are those of Sybil:

- ``<!-- skip: next "Requires a GPU." -->``: the block does not run.
- ``<!-- skip: start "Requires an account of AWS." -->`` and ``<!-- skip: end -->``: the same for several blocks.
- ``<!-- invisible-code-block: python``, code and ``-->`` in lines of their own: a block that only prepares the page.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import SkipTest

from IPython.core.interactiveshell import InteractiveShell
from sybil import Region, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from traitlets.config import Config

from smp_advisor.command.__main__ import main as smp_advisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Document, Example

__all__ = ["Run", "executed_pages", "run"]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh)$", re.MULTILINE)
OUTPUT = re.compile(r"^<!-- output -->\n+```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Run:
    """Outcome of the blocks of a page."""

    executed: int
    """Blocks that ran."""
    skipped: tuple[tuple[str, str], ...]
    """First line and reason of each block that did not run."""
    text: str
    """The page with the outputs of this run."""


def executed_pages() -> list[Path]:
    """README.md and the pages of docs/ with blocks. The examples of the checks belong to the tests of the checks."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page.parent.name != "checks" and BLOCK.search(page.read_text("utf-8"))]


class Blocks:
    """The blocks of one page, which run in this shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.executed = 0
        self.skipped: list[tuple[str, str]] = []
        self.outputs: list[tuple[int, int, str]] = []
        self.last = StringIO()

    def run(self, page: Path) -> Run:
        block_parsers = (CodeBlockParser("python", self.python), CodeBlockParser("sh", self.commands))
        document = Sybil([*block_parsers, self.expected, SkipParser()]).parse(page)
        for example in document.examples():
            try:
                example.evaluate()
            except SkipTest as skip:
                if example.region.evaluator != self.output:
                    self.skipped.append((str(example.parsed).split("\n", 1)[0], str(skip)))
        text = document.text
        for start, end, output in reversed(self.outputs):
            text = f"{text[:start]}{output}{text[end:]}"
        return Run(self.executed, tuple(self.skipped), text)

    def expected(self, document: Document) -> Iterator[Region]:
        for match in OUTPUT.finditer(document.text):
            yield Region(*match.span("text"), evaluator=self.output)

    def output(self, example: Example) -> None:
        lines = (line.rstrip() for line in self.last.getvalue().strip("\n").splitlines())
        self.outputs.append((example.start, example.end, "".join(f"{line}\n" for line in lines)))

    def python(self, example: Example) -> None:
        self.executed += 1
        self.last = StringIO()
        with redirect_stdout(self.last):
            self.shell.run_cell(example.parsed).raise_error()

    def commands(self, example: Example) -> str | None:
        self.executed += 1
        self.last = StringIO()
        for line in example.parsed.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            expected = re.search(r"# exit status (\d+)$", line)
            with redirect_stdout(self.last):
                status = execute(words)
            if status != int(expected[1] if expected else 0):
                return f"`{line}` has exit status {status}:\n{self.last.getvalue()}"
        return None


def execute(words: list[str]) -> int:
    """Exit status of one command."""
    program, *arguments = words
    if program == "make":
        targets = {word for word in arguments if "=" not in word}
        return int(not targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)))
    if program != "smp-advisor":
        raise ValueError(f"a block with `{program}` cannot run here: mark it with a skip comment and its reason")
    output = StringIO()
    target = arguments[arguments.index(">") + 1] if ">" in arguments else None
    if target:
        arguments = arguments[: arguments.index(">")]
    try:
        with redirect_stdout(output):
            status = smp_advisor(arguments)
    except SystemExit as ended:  # `--help`
        status = ended.code if isinstance(ended.code, int) else 1
    if target:
        Path(target).write_text(output.getvalue(), "utf-8")
    else:
        print(output.getvalue(), end="")
    return status


@contextmanager
def new_shell() -> Iterator[InteractiveShell]:
    """IPython without history and without prompts in front of outputs."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config, colors="nocolor")
    shell.displayhook.write_output_prompt = lambda: None
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()


def run(page: Path) -> Run:
    """Run all blocks of a page.

    Raises
    ------
    Exception
        Of the first block that fails; `sybil.example.SybilFailure` if a command has another exit status than stated.
    """
    with new_shell() as shell, tempfile.TemporaryDirectory() as folder, chdir(folder), importing_from(folder):
        return Blocks(shell).run(page)


@contextmanager
def importing_from(folder: str) -> Iterator[None]:
    """Let blocks import the modules that they write, as a notebook does, and forget them afterwards."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(folder):
                del sys.modules[name]
