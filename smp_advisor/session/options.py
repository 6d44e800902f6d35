"""Options of a request: keywords that notebooks complete, and the parsers of magics and of the command."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from importlib import resources
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, TypeVar

from smp_advisor.arguments import Option, options, options_of
from smp_advisor.core.files import data_file
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import libraries, schema
from smp_advisor.libraries.library import meant_library
from smp_advisor.workload.adapter import NAMED_ADAPTERS
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Function = TypeVar("Function", bound=Callable[..., Any])
    Specification = tuple[tuple[str, ...], dict[str, Any]]


def completes(*stubs: str) -> Callable[[Function], Function]:
    """Replace ``**keywords`` by those of ``keywords.pyi``, in the signature from which notebooks complete."""

    def complete(function: Function) -> Function:
        positional = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        names = (name for stub in stubs for name in keyword_names(stub))
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]
        function.__signature__ = Signature([*positional, *more])  # type: ignore[attr-defined]
        return function

    return complete


def keyword_names(stub: str) -> list[str]:
    """Return the names in a class of ``keywords.pyi``, which is generated from the fields that they set."""
    text = resources.files("smp_advisor").joinpath("keywords.pyi").read_text("utf-8")
    return re.findall(r"^    (\w+):", text.partition(f"class {stub}(")[2].partition("\nclass ")[0], re.MULTILINE)


RANK = "16"
"""Of an adapter without one."""
_TUNING = {"lora": "--lora", "qlora": "--qlora", "full_finetune": "--full-finetune"}
_CONSTANTS = {"none": None, "true": True, "false": False}


def specification(option: Option) -> Specification:
    """Return names and settings of an option for `argparse`, which hands its text to `keywords_of`."""
    settings: dict[str, Any] = {"dest": option.name, "help": option.help.replace("%", "%%")}
    if option.type == "flag":
        settings["action"] = "store_true"
    elif option.type == "rank":
        settings |= {"nargs": "?", "const": RANK, "metavar": "RANK"}
    elif option.name == "library":
        settings |= {"choices": ("auto", *(record.name for record in libraries())), "type": meant_library}
    elif option.choices:
        settings |= {"choices": option.choices, "type": option.choice}
    return option.switches, settings


def request_options(*, cluster_required: bool = True) -> Iterator[Specification]:
    """Yield the options of a request: those of the table with a help text, and the settings of the training script."""
    for option in options_of("request", "job", "shape", "adapter", "plan"):
        if option.help:
            names, settings = specification(option)
            yield names, settings | ({"required": cluster_required} if option.name == "cluster" else {})
    for setting in training_settings().values():
        kind: dict[str, Any] = {"choices": tuple(setting.values)} if setting.values else {"action": "store_true"}
        yield (f"--{setting.name.replace('_', '-')}",), kind | {"help": setting.help.replace("%", "%%")}


def line_of(name: str) -> Mapping[str, Any]:
    """Return what ``lines.toml`` has on a magic or a verb of the command."""
    line: Mapping[str, Any] = data_file("arguments", "lines")[name]
    return line


def line_options(name: str, **choices: Iterable[str]) -> Iterator[Specification]:
    """Yield the options of a magic or a verb besides those of a request; `choices` of those with a table elsewhere."""
    for entry in line_of(name).get("options", ()):
        if "table" in entry:
            yield from (specification(options()[option]) for option in entry["table"])
            continue
        settings = {key: int if value == "int" else value for key, value in entry.items() if key != "names"}
        first = entry["names"][0].lstrip("-")
        yield tuple(entry["names"]), settings | ({"choices": choices[first]} if first in choices else {})


def keywords_of(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `advise` for the texts of options, by their names; None and False are options that are not set."""
    table, values = options(), dict[str, Any]()
    for name, text in texts.items():
        if text is None or text is False or name in _TUNING or name == "adapter_targets":
            continue
        option = table.get(name)
        if option is None or text is True:
            values[name] = text
        elif option.of == "plan":
            values[name] = _plan_value(name, text)
        else:
            values[name] = None if text.lower() == "none" and option.type == "integer" else option.read(text)
    return values | _fine_tuning(texts)


def _plan_value(name: str, text: str) -> Any:
    """Return a field of plans, as the schema of a library that has it describes it."""
    if name == "activation_checkpointing":
        return False if text == "none" else text
    described = (schema(record.name).described(name) for record in libraries())
    kind = next(parameter.type for parameter in described if parameter is not None)
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    return options()["counts"].read(text, f"--{name.replace('_', '-')}")[0] if kind == "int" else text


def _fine_tuning(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of training and adapter of the options for fine-tuning."""
    chosen = [name for name in _TUNING if texts.get(name)]
    targets = texts.get("adapter_targets")
    if len(chosen) > 1:
        raise AdvisorError(
            f"{' and '.join(_TUNING[name] for name in chosen)} contradict each other: leave one of them out."
        )
    if targets and chosen not in (["lora"], ["qlora"]):
        raise AdvisorError("--adapter-targets needs an adapter: add --lora or --qlora.")
    if not chosen:
        return {}
    name = chosen[0]
    if name == "full_finetune":
        return {"training": "fine-tuning"}
    try:
        rank = options()[name].read(texts[name])
    except AdvisorError as error:
        raise AdvisorError(f"{str(error).removesuffix('.')}. A model goes before the option.") from None
    return {"adapter": replace(NAMED_ADAPTERS[name], rank=rank, targets=targets or "all-linear")}


def named_texts(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return options as NAME=VALUE, with values as they are: the paths of channels."""
    pairs = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or name == text:
            raise AdvisorError(f"{option} takes NAME=VALUE, not {text!r}.")
        pairs[name] = value
    return pairs


def named_values(texts: Iterable[str], option: str = "--option") -> dict[str, Any]:
    """Return options as NAME=VALUE. A value is a literal of Python, else text."""
    options: dict[str, Any] = {}
    for name, value in named_texts(texts, option).items():
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[name] = value
    return options
