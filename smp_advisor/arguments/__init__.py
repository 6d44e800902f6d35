"""Arguments of public calls: the table of options, types, and the keyword that an unknown one means."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments.amounts import DAYS_OF, number_in
from smp_advisor.core import MOST
from smp_advisor.core.files import data_file, is_path
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

SMALLEST = "smallest"
_MOST_COUNTS = 1024
"""Clusters of one comparison: each is a search."""
"""The smallest number of nodes that fits."""
LIMITS = ("max_days", "max_usd", "max_gpu_hours")
"""Options that limit a run: fields of `smp_advisor.search.clusters.Limits`."""
_LINE = 120
"""Characters of the `repr` of a value."""


def brief(kind: str, parts: Iterable[str]) -> str:
    """Return a ``repr`` in one line: the kind of a value with as many of its parts as fit."""
    text = " ".join(f"{kind}({', '.join(parts)})".split())
    return text if len(text) <= _LINE else f"{text[: _LINE - 4]}...)"


def amount_of(name: str, amount: object, example: str = "300B", most: float = MOST, unit: str = "") -> float:
    """Read a positive amount, such as tokens, days or USD, from a number or from text."""
    number = number_in(amount, unit) if isinstance(amount, str) else amount
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0 or number == math.inf:
        of_unit = f" of {unit}" if unit else ""
        raise AdvisorError(f"{name} must be a positive number{of_unit}, for example {example}, not {shown(amount)}.")
    if number > most:
        raise AdvisorError(f"{name} must be at most {most:,.0f}, not {shown(amount)}.")
    return float(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """An option of a request: a keyword of Python, an option of magics and the command, and a field of the page."""

    name: str
    of: str
    """Part of the request, or the magic that alone has the option."""
    type: Literal[
        "", "integer", "amount", "share", "choice", "flag", "text", "path", "nodes", "types", "numbers", "rank"
    ] = ""
    """Empty for values that only Python passes, and for fields of plans, whose library describes them."""
    least: int = 1
    most: int = 10**9
    unit: str = ""
    example: str = "16"
    default: str | float | None = None
    """Of the keyword, where it is the same for every request."""
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other names of choices: ``bfloat16`` for ``bf16``."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Values to pass instead of known ones that are no choices."""
    binary: bool = False
    """Whether ``4k`` is 4,096."""
    help: str = ""
    """Purpose and default; empty for keywords that are no options of magics and the command."""
    flags: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Other names of the same thing."""
    label: str = ""
    """Title of the page's field; empty without one."""
    hint: str = ""

    @property
    def switches(self) -> tuple[str, ...]:
        """Names of the option in a line: ``--count``, ``-n``."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def checked(self, value: Any, title: str = "") -> Any:  # noqa: C901, PLR0912 - one branch a type
        """Return the value, as a Python call passes it: text is read as that of a line."""
        title = title or self.name
        if isinstance(value, str) and self.type in ("integer", "nodes", "rank", "share"):
            return self.read(value, title)
        match self.type:
            case "integer" | "nodes" | "rank":
                if self.type == "nodes" and value == SMALLEST and isinstance(value, str):
                    return value
                or_smallest = f" or '{SMALLEST}'" if self.type == "nodes" else ""
                if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
                    least = f"{self.least:,}{or_smallest}"
                    raise AdvisorError(f"{title} must be a whole number of at least {least}, not {shown(value)}.")
                if value > self.most:
                    raise AdvisorError(f"{title} must be at most {self.most:,}, not {shown(value)}.")
            case "share":
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0.5 <= value < 1:
                    between = f"between 0.5 and 1, for example {self.example}"
                    raise AdvisorError(f"{title} must lie {between}, not {shown(value)}.")
            case "amount":
                most = self.most if self.most != 10**9 else MOST
                return amount_of(title, value, self.example, most, self.unit)
            case "choice":
                name = self.choice(value)
                if name not in self.choices:
                    instead = f": {self.instead[name]}" if isinstance(name, str) and name in self.instead else ""
                    choices = ", ".join(self.choices)
                    raise AdvisorError(f"{title} must be one of {choices}, not {shown(value)}{instead}.")
                return name
            case "flag":
                if not isinstance(value, bool):
                    raise AdvisorError(f"{title} must be True or False, not {shown(value)}.")
            case "text":
                if not isinstance(value, str):
                    raise AdvisorError(f"{title} must be text, not {shown(value)}.")
            case "path":
                if not is_path(value):
                    raise AdvisorError(f"{title} must be the path of a file, not {shown(value)}.")
        return value

    def choice(self, value: Any) -> Any:
        """Return the choice that a text means, in any case; the text itself if it means none."""
        if not isinstance(value, str) or value in self.choices:
            return value
        plain = value.strip().lower()
        return self.synonyms.get(plain, plain)

    def read(self, text: str, title: str = "") -> Any:
        """Return the value that a text of a line or a field means."""
        title = title or self.switches[0]
        match self.type:
            case "integer" | "nodes" | "rank":
                number = number_in(text, self.unit, binary=self.binary)
                if number is not None and math.isfinite(number) and number.is_integer():
                    return self.checked(int(number), title)
                if self.type == "nodes" and text == SMALLEST:
                    return text
                kind = "a number" if number is None else "a whole number"
                kind += f" or '{SMALLEST}'" if self.type == "nodes" else ""
                raise AdvisorError(f"{title}: {text!r:.80} is not {kind}; write for example {self.example}.")
            case "share":
                number = number_in(text.removesuffix("%"))
                if number is None:
                    raise AdvisorError(f"{title}: {text!r:.80} is not a number; write for example {self.example}.")
                return self.checked(number / 100 if text.endswith("%") else number, title)
            case "types":
                names = [name.strip() for name in text.split(",")]
                return names if len(names) > 1 else text
            case "numbers":
                return self._numbers(text, title)
        return self.checked(text, title)

    def _numbers(self, text: str, title: str) -> list[int]:
        """Return the numbers of nodes: ``1,2,4``, ``1-4``."""
        numbers: list[int] = []
        for part in filter(None, re.split(r"[\s,]+", re.sub(r"(?<!\s)\s*+-\s*", "-", text.strip()))):
            first, *last = (options()["instance_count"].read(end, title) for end in part.split("-", 1))
            numbers += range(first, last[0] + 1) if last else [first]
        if not 0 < len(numbers) <= _MOST_COUNTS:
            problem = f"has {len(numbers):,} numbers, {_MOST_COUNTS:,} are compared" if numbers else "has no number"
            raise AdvisorError(f"{title}: {text!r:.80} {problem}; write for example 1,2,4 or 1-4.")
        return numbers


def shown(value: object) -> str:
    """Return a value in the sentence of an error: the start of its text. A whole number may be too long for a text."""
    if isinstance(value, int) and abs(value) > 10**60:
        return "a number with over 60 digits"
    return f"{value!r:.80}"


@cache
def options() -> Mapping[str, Option]:
    table: dict[str, Option] = {}
    for entry in data_file("arguments", "options")["option"]:
        fields: dict[str, Any] = {name: tuple(of) if isinstance(of, list) else of for name, of in entry.items()}
        table[entry["name"]] = Option(**fields)
    return MappingProxyType(table)


def options_of(*parts: str) -> tuple[Option, ...]:
    """Return the options of some parts of a request, in the order of the table."""
    return tuple(option for option in options().values() if option.of in parts)


def check(arguments: Mapping[str, Any], error: type[AdvisorError] = AdvisorError) -> dict[str, Any]:
    """Return the values of arguments, or refuse those of the wrong type or out of range.

    None is not set, and names without an option stay as they are.
    """
    table, values = options(), dict(arguments)
    for name, value in arguments.items():
        if value is not None and name in table:
            try:
                values[name] = table[name].checked(value)
            except AdvisorError as problem:
                raise error(str(problem)) from None
    return values


def require_whole(name: str, value: object, error: type[AdvisorError], most: int = MOST) -> None:
    """Refuse a value that is no whole number of at least 1; a notebook may pass text despite annotations."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (number := int(value)) < 1:
        raise error(f"{name} must be a whole number of at least 1, not {shown(value)}.")
    if number > most:
        raise error(f"{name} must be at most {most:,}, not {shown(value)}.")


def meant(name: str, keywords: Collection[str]) -> str:
    """Return the keyword of a call that an unknown name means; empty if none is similar."""
    plain = name.lower().replace("-", "_")
    for option in options().values():
        names = (option.name, *option.also)
        if plain in names:
            # Other names only if the call has them: --count is the number of nodes of magics.
            for candidate in names:
                if candidate in keywords:
                    return candidate
    return nearest(plain, keywords, 0.8)


def nearest(name: str, names: Iterable[str], similarity: float = 0.6) -> str:
    """Return the most similar of some names, for "did you mean"; empty if none is similar enough."""
    return "".join(difflib.get_close_matches(name[:100], sorted(names), 1, similarity))


_OF_PRICE = frozenset(
    ["region", "aws_region", "spot", "use_spot", "use_spot_instances", "savings_plan", "capacity_block", "discount"]
)
"""Names of what changes only the price."""


def hint(name: str, keywords: Collection[str], value: Any = None, spelled: Callable[[str], str] = str) -> str:
    """Return the meaning of an unknown keyword: ``did you mean max_days=2 (days)?``; empty if nothing is near."""
    plain = name.lower().replace("-", "_")
    if plain in DAYS_OF and "max_days" in keywords:
        number = number_in(value) if isinstance(value, str) else value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        days = f"={float(number or 0) * DAYS_OF[plain]:g}" if is_number else ""
        return f"did you mean {spelled('max_days')}{days} (days)?"
    if plain in _OF_PRICE and "usd_per_hour" in keywords:
        return (
            f"prices are on demand in us-east-1: pass {spelled('usd_per_hour')}, what you pay per instance and hour"
            " (spot, a savings plan, another region)."
        )
    if plain in ("batch", "bs"):
        return (
            f"{spelled('global_batch_size')} is the samples per step of the cluster, {spelled('batch_size')} those per"
            " GPU and pass."
        )
    keyword = meant(name, keywords)
    if not keyword:
        return ""
    unit = next((option.unit for option in options().values() if keyword in (option.name, *option.also)), "")
    return f"did you mean {spelled(keyword)}{f' ({unit})' if unit else ''}?"


_ASSIGNED = re.compile(r"(?<![\w.-])([a-z][a-z_0-9]*)=(?:'([^']*)'|([\w.-]+))")


def without_python(text: str) -> str:
    """Return a sentence without calls of Python, which neither the command line nor the tools of assistants have."""
    for words, instead in data_file("arguments", "phrases").items():
        text = text.replace(words, instead)
    return text


def worded(text: str, *, command: bool) -> str:
    """A sentence in the words of the command line (``--batch-size 4``), or in those of the tools of assistants."""
    text = without_python(text)
    if not command:
        return re.sub(r"(?<![\w-])--([a-z][\w-]*)", lambda match: match[1].replace("-", "_"), text)

    def option(match: re.Match[str]) -> str:
        entry = options().get(match[1])
        switch = entry.switches[0] if entry is not None else f"--{match[1].replace('_', '-')}"
        value = match[3] if match[2] is None else match[2]
        return switch if value == "True" else f"{switch} {value}"

    return _ASSIGNED.sub(option, text)
