"""Arguments of magics: numbers such as 300B, and models by name, path or parameter count."""

# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.

from __future__ import annotations

import re
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.utils.process import arg_split  # type: ignore[attr-defined]  # re-exported for each platform

from smp_advisor.errors import AdvisorError
from smp_advisor.meanings import meant
from smp_advisor.workload.names import is_model_name
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

__all__ = [
    "amount",
    "model_named",
    "parsed",
    "plan_options",
    "plan_settings",
    "read",
    "training_options",
    "whole_number",
    "with_help",
]

T = TypeVar("T")

_PLAN_SETTINGS = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "microbatches",
    "sharded_data_parallel_degree",
    "hybrid_shard_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
)
_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def amount(text: str) -> float:
    """A number: ``300B``, ``3e11``, ``300_000_000``.

    Raises
    ------
    AdvisorError
        The text is not a number.
    """
    word = text.strip().lower()
    scale = _SCALES.get(word[-1:], 1.0)
    try:
        return float(word[:-1] if scale != 1.0 else word) * scale
    except ValueError:
        raise AdvisorError(f"{text!r} is not a number; write for example 300B, 3e11 or 300_000_000.") from None


def whole_number(text: str) -> int:
    """A whole number.

    Raises
    ------
    AdvisorError
        The text is not a number.
    """
    try:
        value = amount(text)
    except AdvisorError:
        raise AdvisorError(f"{text!r} is not a number; write for example 16 or 2_048.") from None
    if not value.is_integer():
        raise AdvisorError(f"{text!r} is not a whole number.")
    return int(value)


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


def training_options(magic: Any) -> Any:
    """The same magic, with an option for each setting of the training script."""
    for setting in reversed(list(training_settings().values())):
        option, text = f"--{setting.name.replace('_', '-')}", setting.help.replace("%", "%%")
        keywords: dict[str, Any] = {"choices": tuple(setting.values)} if setting.values else {"action": "store_true"}
        magic = argument(option, help=text, **keywords)(magic)
    return magic


def plan_options(magic: Any) -> Any:
    """The same magic, with an option for each degree of a plan. The advisor chooses a library that has it."""
    for name in reversed(_PLAN_SETTINGS):
        text = f"Fix the {name.replace('_', ' ')}; default: any."
        magic = argument(f"--{name.replace('_', '-')}", help=text)(magic)
    return magic


def plan_settings(options: Namespace) -> dict[str, int]:
    """Settings of the plan that the options fix."""
    values = {name: read(getattr(options, name), whole_number) for name in _PLAN_SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


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
        raise UsageError(_explained(magic, str(error))) from None
    for name, value in vars(options).items():
        if isinstance(value, str):
            setattr(options, name, value.strip())
    return options


def _explained(magic: Any, problem: str) -> str:
    """An error of argparse as a sentence, with the most similar option."""
    name = f"%{magic.__name__}"
    unknown = problem.removeprefix("unrecognized arguments: ").split()
    if unknown == problem.split():
        return f"{problem[:1].upper()}{problem[1:]}; {name} --help explains them."
    names = [name for action in magic.parser._actions for name in action.option_strings]  # noqa: SLF001 (no other way)
    keywords = {name.lstrip("-").replace("-", "_"): name for name in names if name.startswith("--")}
    keyword = meant(unknown[0].split("=")[0].lstrip("-"), keywords)
    hint = f"did you mean {keywords[keyword]}?" if keyword else f"{name} --help lists its options."
    return f"{name} has no option {' '.join(unknown)}; {hint}"


def read(text: str | None, reader: Callable[[str], T]) -> T | None:
    """Value that `reader` returns for the text of an option; None without the option."""
    return None if text is None else reader(text)
