"""Commands of shell scripts, with their variables filled in, and the script or module that each starts."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?(\w+)")
_ASSIGNS = re.compile(
    r"\s*(?:export\s+|readonly\s+|local\s+|declare\s+(?:-\w+\s+)?)?(\w+)(\+?)="
    r"(\([^()]*(?:\([^()]*\)[^()]*)*\)|(?:\"[^\"]*\"|'[^']*'|[^\s;\"'])*)[\s;]*"
)
_QUOTES = re.compile("[\"']")
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$(\w+)")
_PRODUCT = re.compile(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)")
_PRINTED = re.compile(r"\$\([^()]*\)")
_OPENS, _CLOSES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
_STARTS = ("torchrun", "launch", "deepspeed", "mpirun", "torch.distributed.run", "lightning")
_GOES_ON = re.compile(r"(?!(?:&&?|\|\|?|;|[\d&]?>.*|<[^>]*)$)").match
"""Not for words that end a command or send its output elsewhere."""
_OWN_MODULE = re.compile(r"(?!(?:pip|venv|torch|accelerate|deepspeed)\b)[^\W\d]")
_MORE = re.compile(r"\s-|\.py\b")
_MOST_LINES = 2_000


def commands_of(text: str, /, **names: str) -> list[list[str]]:
    """Return the words of each command of a shell script, with the values of its variables.

    A value from a branch is taken where nothing else sets the variable; what stays unknown keeps its ``$``.
    """
    branches: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return names.get(name) or match[2] or branches.get(name) or match[0]

    def filled(part: str) -> str:
        for _ in range(3):  # a value may name others
            part = _PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), _VARIABLE.sub(value, part))
        return part[:20_000]

    commands, depth = [], 0
    for line in _statements(text):
        word = line.split(maxsplit=1)[0].rstrip(";")
        depth = max(0, depth + (word in _OPENS) - (word in _CLOSES))
        if (match := _ASSIGNS.fullmatch(line)) is not None:
            table = branches if depth else names
            more = table.get(match[1], "") if match[2] else ""  # OPTIONS+=" --bf16"
            table[match[1]] = more + _value(filled(_QUOTES.sub("", match[3])))
        else:
            commands.append([part.strip("\"'") for part in _split(filled(line))])
    return commands


def _value(text: str) -> str:
    """Return the words of an array, or a value; what a command prints is not known."""
    listed = text[1:-1] if text.startswith("(") else text
    return _PRINTED.sub("$()", listed)


def _split(line: str) -> list[str]:
    """Words of a command; those of a quoted command, as of ``bash -c``, one by one, and values as they are."""
    try:
        parts = shlex.split(line)
    except ValueError:
        return line.split()
    pairs = zip(["", *parts], parts, strict=False)
    flagged = (("--" in (before[:2], part[:2]) and not _MORE.search(part), part) for before, part in pairs)
    return [word for is_value, part in flagged for word in ([part] if is_value else part.split())]


def _statements(text: str) -> Iterator[str]:
    """Yield the lines of a script without comments and documents, each with the lines that continue it."""
    statement, end = "", ""
    for line in text.replace("\r\n", "\n").replace("\\\n", " ").split("\n")[:_MOST_LINES]:
        if end:
            end = "" if line.strip() == end else end
            continue
        statement = f"{statement} {_COMMENT.sub('', line)}".strip()
        document = DOCUMENT.search(statement)
        end = document[1] if document is not None else ""
        is_open = statement.count('"') % 2 or (
            re.search(r"\w=\(", statement) and statement.count("(") > statement.count(")")
        )
        if statement and (end or not is_open):
            yield statement
            statement = ""


def around_the_script(words: list[str], *, modules: bool = False) -> tuple[list[str], str, list[str]]:
    """Return the words before the Python file or module that a command starts, its name, and the words after it.

    Of ``python prepare.py && torchrun train.py`` this is the file of the launcher.
    """
    names = [number for number, word in enumerate(words) if word.endswith(".py")]
    if modules:
        pairs = enumerate(pairwise(words), 1)
        names += [number for number, pair in pairs if pair[0] in ("-m", "--module") and _OWN_MODULE.match(pair[1])]
        names.sort()
    launched = [number for number in names if starts_processes(words[:number])]
    place = next(iter(launched or names), len(words))
    parts = [number + 1 for number, word in enumerate(words[:place]) if word in ("&&", "||", ";")]
    before = words[max(parts, default=0) : place]
    return before, "".join(words[place : place + 1]), [*takewhile(_GOES_ON, words[place + 1 :])]


def started(commands: list[list[str]], *, modules: bool = False) -> list[str]:
    """Return the words of the command that starts the training: with a launcher and a Python file, else the first."""
    starts = [words for words in commands if around_the_script(words, modules=modules)[1]]
    return next(filter(starts_processes, starts), next(iter(starts or commands)))


def starts_processes(words: list[str]) -> bool:
    """Return whether the words of a command have a launcher that starts a process per GPU."""
    return any(start in word for word in words if not word.endswith(".py") for start in _STARTS)
