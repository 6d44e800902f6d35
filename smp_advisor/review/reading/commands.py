"""Commands of shell scripts, with their variables filled in, and the script or module that each starts."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_QUOTED = r"\"[^\"\\]*(?:\\.[^\"\\]*)*(?:\"|$)|'[^']*(?:'|$)|\\."
_COMMENT = re.compile(rf"({_QUOTED})|(?:^|(?<=\s))#.*")
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
_SHELL = re.compile(r"(?:\S*/)?(?:ba)?sh -l?c ").match
_CLOSED = re.compile(r";\s*(?:fi|done|esac)\b").search
_LAUNCHER = re.compile(
    r"(?:torchrun|deepspeed(?:\.\S+)?|mpirun|mpiexec|hyperpodrun|accelerate[-.]\S*launch"
    r"|torch\.distributed\.(?:run|launch))$"
).match
_LAUNCHES = {"accelerate": "launch", "lightning": "run", "fabric": "run"}
_APPENDED = re.compile(r"(?<![\w$])(\w+)\+=")
_PART = re.compile(rf"\d*[<>]|&>|#.*|[;&|]+|(?P<word>(?:{_QUOTED}|[^\s\"'\\;&|<>])+)")
_GOES_ON = re.compile(r"(?!(?:&&?|\|\|?|;|[\d&]?>.*|<[^>]*)$)").match
"""Not for words that end a command or send its output elsewhere."""
_OWN_MODULE = re.compile(r"(?!(?:pip|venv|torch|accelerate|deepspeed)\b)[^\W\d]")
_MORE = re.compile(r"\s-|\.py\b")
_CLOSED_QUOTES = re.compile(r"\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^']*'|\\.")
_MOST_LINES = 2_000


def commands_of(text: str, /, **names: str) -> list[list[str]]:
    """Return the words of each command of a shell script, with the values of its variables.

    A value from a branch is taken where nothing else sets the variable; what stays unknown keeps its ``$``, as the
    values of options that a branch adds to a variable.
    """
    branches: dict[str, str] = {}

    def filled(part: str) -> str:
        return _filled(part, names, branches)

    def add_unknown(match: re.Match[str]) -> None:
        table = names if match[1] in names else branches
        added = [word.partition("=")[0] for word in _QUOTES.sub(" ", match[3]).split() if word.startswith("--")]
        base = [table.get(match[1], "")]
        table[match[1]] = " ".join([*base, *(f"{word}=$()" for word in added)] if added else ["$()"])

    commands, depth, block = [], 0, 0
    blocks: dict[str, int] = {}  # the branch that set a variable
    for line in _statements(text):
        word = line.split(maxsplit=1)[0].rstrip(";")
        closes = word in _CLOSES or (word in _OPENS and _CLOSED(line) is not None)
        depth = max(0, depth + (word in _OPENS) - closes)
        block += closes or word in _OPENS or word in ("else", "elif") or word.endswith(")")
        if (match := _ASSIGNS.fullmatch(line)) is not None and depth and match[2]:
            add_unknown(match)
        elif match is not None:
            table = branches if depth else names
            more = table.get(match[1], "") if match[2] else ""  # OPTIONS+=" --bf16"
            more += " " if more and match[3].startswith("(") else ""
            value = more + _value(filled(_QUOTES.sub("", match[3])))
            differs = depth and blocks.get(match[1], block) != block and branches.get(match[1]) != value
            table[match[1]], blocks[match[1]] = "$()" if differs else value, block
        else:
            inline = (_ASSIGNS.match(line, place.start()) for place in _APPENDED.finditer(line))
            for match in filter(None, inline):  # of [ -n "$X" ] && OPTIONS+=" --bf16"
                add_unknown(match)
            commands.append([part.strip("\"'") for part in _split(filled(line))])
    return commands


def _filled(part: str, names: Mapping[str, str], branches: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return names.get(name) or match[2] or branches.get(name) or match[0]

    for _ in range(3):  # a value may name others
        part = _PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), _VARIABLE.sub(value, part))
    return part[:20_000]


def exact_words(text: str) -> list[list[str]]:
    """Return the words of each command of one line as the shell passes them; none of what is no such line."""
    line = _filled(text.strip().replace("\\\n", " "), {}, {})
    try:
        shlex.split(line)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    for part in () if "\n" in line else _PART.finditer(line):
        if part["word"]:
            commands[-1] += shlex.split(part["word"])
        else:
            commands.append([])
    nested = [exact_words(words[2]) if _SHELL(" ".join(words)) else [] for words in commands]
    return [words for pair in zip(commands, nested, strict=True) for words in pair[1] or [pair[0]] if words]


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
        statement = _COMMENT.sub(lambda match: match[1] or "", f"{statement} {line}").strip()
        document = DOCUMENT.search(statement)
        end = document[1] if document is not None else ""
        is_open = '"' in _CLOSED_QUOTES.sub("", statement) or (
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
    names = [word.strip("$()`;").rpartition("/")[2] for word in words]
    pairs = [*pairwise(["", *names])]
    starts = (_LAUNCHER(name) and name[-3:] != ".py" and before not in ("-n", "--name") for before, name in pairs)
    return any(starts) or any(_LAUNCHES.get(before) == name for before, name in pairs)
