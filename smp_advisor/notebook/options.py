"""Options of the magics: lines and amounts, clusters, and the kind of training."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument
from IPython.utils.process import arg_split  # type: ignore[attr-defined]  # re-exported for each platform

from smp_advisor.arguments import meant
from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.shown import ProgressDisplay
from smp_advisor.workload.adapter import Adapter, AdapterTargets
from smp_advisor.workload.from_config import is_model_name
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "amount",
    "comparing",
    "fine_tuning",
    "fine_tuning_options",
    "instances",
    "model_named",
    "node_count",
    "parsed",
    "plan_options",
    "plan_settings",
    "read",
    "training_options",
    "whole_number",
    "with_help",
]


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


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


_ANY, _SMALLEST = "any", "smallest"


def instances(text: str) -> str | list[str]:
    """One instance, ``any``, or the instances between commas."""
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 else text


def node_count(text: str) -> int | str:
    """A number of nodes, or ``smallest``."""
    return text if text == _SMALLEST else whole_number(text)


@contextmanager
def comparing(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """The keyword of `advise` that shows the progress of a comparison; none for a single cluster."""
    limited = arguments.count is None and (arguments.max_days or arguments.max_usd)
    several = arguments.instance == _ANY or "," in arguments.instance
    if not (several or limited or arguments.count == _SMALLEST or arguments.objective == "cost"):
        yield {}
        return
    with ProgressDisplay("Comparing clusters") as progress:
        yield {"on_progress": progress.update}


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


_RANK = "16"
_MOST = 1024
"""A larger rank is the model of a line such as ``--lora 10B``."""
_OPTIONS = {"lora": "--lora", "qlora": "--qlora", "full_finetune": "--full-finetune"}


def fine_tuning_options(magic: Any) -> Any:
    """The same magic, with the options for fine-tuning."""
    arguments = (
        argument(
            "--lora",
            nargs="?",
            const=_RANK,
            metavar="RANK",
            help=f"Fine-tune with LoRA: an adapter of this rank over the frozen model; default rank {_RANK}.",
        ),
        argument(
            "--qlora",
            nargs="?",
            const=_RANK,
            metavar="RANK",
            help=f"Fine-tune with QLoRA: an adapter over the model in 4 bits; default rank {_RANK}.",
        ),
        argument("--full-finetune", action="store_true", help="Fine-tune all parameters, with batches of fine-tuning."),
        argument(
            "--adapter-targets",
            choices=get_args(AdapterTargets),
            help="Products with an adapter; default all-linear, as in AWS's recipes.",
        ),
    )
    for decorate in reversed(arguments):
        magic = decorate(magic)
    return magic


def fine_tuning(arguments: Namespace) -> dict[str, Any]:
    """Keywords of `advise` for the options; None for those that are not set.

    Raises
    ------
    AdvisorError
        Two of the options contradict each other.
    """
    chosen = [option for name, option in _OPTIONS.items() if getattr(arguments, name)]
    if len(chosen) > 1:
        raise AdvisorError(f"{' and '.join(chosen)} contradict each other: leave one of them out.")
    if arguments.adapter_targets and chosen not in (["--lora"], ["--qlora"]):
        raise AdvisorError("--adapter-targets needs an adapter: add --lora or --qlora.")
    if arguments.full_finetune:
        return {"training": "fine-tuning", "adapter": None}
    text = arguments.lora or arguments.qlora
    if text is None:
        return {"training": None, "adapter": None}
    quantized, rank = arguments.qlora is not None, whole_number(text)
    if rank > _MOST:
        raise AdvisorError(f"{chosen[0]} takes a rank of at most {_MOST:,}, not {text}: write the model before it.")
    adapter = Adapter(
        rank=rank,
        targets=arguments.adapter_targets or "all-linear",
        base_bits=4 if quantized else 16,
        double_quantization=quantized,
    )
    return {"training": None, "adapter": adapter}
