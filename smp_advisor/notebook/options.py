"""Lines of the magics: their options from the table, the model that a word names, and errors in one sentence."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.utils.process import arg_split  # type: ignore[attr-defined]  # re-exported for each platform

from smp_advisor.advice.options import request_options, specification
from smp_advisor.arguments import SMALLEST, meant, options
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.shown import ProgressDisplay
from smp_advisor.workload.from_config import is_model_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["comparing", "model_named", "parsed", "table_options", "value_of", "with_help"]


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


_ANY = "any"


def model_named(text: str, namespace: Mapping[str, Any]) -> Any:
    """The notebook's variable of that name, else the text: a parameter count, a model's name, or the path of a config.

    Raises
    ------
    AdvisorError
        The text is a name, and the notebook has no variable of that name.
    """
    word = text.strip("'\"")
    if word in namespace:
        return namespace[word]
    if word.isidentifier() and not is_model_name(word):
        raise AdvisorError(
            f"The notebook has no variable {word!r}: give a parameter count such as 10B, the name of a model such as "
            "llama-3-70b, the path of a config.json, or the name of a variable that holds a model or its config."
        )
    return word


def with_help(magic: Any) -> Any:
    """The same magic, with an option ``--help`` that only prints its options, and errors without a trace."""

    @wraps(magic)
    def answer(self: Any, line: str, *cell: str) -> Any:
        if "--help" not in line.split():
            try:
                return magic(self, line, *cell)
            except (AdvisorError, UsageError) as error:
                raise UsageError(str(AdvisorError(str(error)))) from None  # shortened, if a word is long
        print(magic.parser.format_help())  # noqa: T201 (the purpose of --help)
        return None

    return answer


def table_options(*names: str) -> Callable[[Any], Any]:
    """Options of the table for a magic: those of these names, or of a request without any."""

    def decorate(magic: Any) -> Any:
        entries = [specification(options()[name]) for name in names] if names else list(request_options())
        for switches, settings in reversed(entries):
            magic = argument(*switches, **settings)(magic)
        return magic

    return decorate


def parsed(magic: Any, line: str) -> Namespace:
    """The options of a magic's line.

    Raises
    ------
    UsageError
        A quotation mark is not closed, or an option or its value is unknown.
    """
    try:
        # argparse takes a word with a space for a value: the reader of "-5B" then reports the error.
        words = [f" {word}" if re.match(r"-\d", word) else word for word in arg_split(line)]
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
    """An error of argparse as a sentence: an unknown option before a missing one, with the most similar."""
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
    """The value of an option of the table; None without the option."""
    text = getattr(arguments, name)
    return None if text is None else options()[name].read(text)


@contextmanager
def comparing(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """The keyword of `advise` that shows the progress of a comparison; none for a single cluster."""
    limited = arguments.instance_count is None and (arguments.max_days or arguments.max_usd)
    several = arguments.cluster == _ANY or "," in arguments.cluster
    if not (several or limited or arguments.instance_count == SMALLEST or arguments.objective == "cost"):
        yield {}
        return
    with ProgressDisplay("Comparing clusters") as progress:
        yield {"on_progress": progress.update}
