"""The tools of assistants: their names, descriptions and input schemas, and calls of the same verbs as the command."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.request import sort_settings
from smp_advisor.arguments import Option, hint, options_of, worded
from smp_advisor.core.files import Text, confined, data_file, is_path
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import libraries
from smp_advisor.runs.sources import is_job_name
from smp_advisor.session.options import RANK, keywords_of
from smp_advisor.tools.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MOST_DETAILS, MOST_CODE = 24_000, 1_000_000
"""Bytes of an answer with details, and of one with complete code."""
_FILES = ("path", "calibration", "script", "advice", "config", "job", "compare")
"""Arguments that name a file."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who calls: the folders whose files may be read, and what hears of progress and may stop the work."""

    roots: tuple[Path, ...] = field(default_factory=lambda: (Path.cwd(),))
    progress: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not self.roots:
            raise AdvisorError("Name at least one folder whose files may be read.")

    def file(self, name: str) -> str:
        """Return the path of a file that the caller named."""
        if not is_path(name):
            raise AdvisorError(f"{name!r:.80} is no path of a file.")
        path = Path(os.path.realpath(self.roots[0] / name))
        if not any(path.is_relative_to(os.path.realpath(root)) for root in self.roots):
            folders = ", ".join(map(str, self.roots))
            raise AdvisorError(f"{name!r:.200} is not in {folders}: only files of this folder are read.")
        return str(path)

    def run(self, text: str) -> str:
        """Return the name of a training job; or the path of a log or its folder, which must be the caller's."""
        return self._file_or_name(text, is_file=not is_job_name(text))

    def model(self, text: str) -> str:
        """Return the name of a model; or the path of a configuration or its folder, which must be the caller's."""
        return self._file_or_name(text, is_file=PurePath(text).suffix == ".json")

    def _file_or_name(self, text: str, *, is_file: bool) -> str:
        """Return a path outside of the folders is refused whether or not there is such a file."""
        away = text.startswith("~") or PurePath(text).is_absolute() or ".." in PurePath(text).parts
        there = os.path.exists(self.roots[0] / text)  # noqa: PTH110 - False for any text
        return self.file(text) if is_file or away or there else text


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool."""

    name: str
    title: str
    description: str
    parts: tuple[str, ...] = ()
    """Parts of the table of options that it takes."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its further arguments, as JSON schemas."""
    required: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """Parts that its answer has on request."""
    open_world: bool = False
    """Whether it may read more than this machine: a job of the user's account."""

    @property
    def options(self) -> dict[str, Option]:
        """Its options of the table by their names in a call: those of the command line."""
        options = (
            option for option in options_of(*self.parts) if option.help and option.name not in ("script", "data")
        )
        return {option.switches[0].lstrip("-").replace("-", "_"): option for option in options}

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments: types, units, ranges, defaults; the first tool explains the options."""
        explained = self.name == next(iter(TOOLS))
        properties: dict[str, Any] = {**self.own}
        properties |= {name: _schema(option, explained=explained) for name, option in self.options.items()}
        if self.details:
            kinds = {"type": "string", "enum": list(self.details)}
            properties["details"] = {"type": "array", "items": kinds, "description": "Further parts of the answer."}
        return {
            "type": "object", "properties": properties, "required": list(self.required), "additionalProperties": False
        }  # fmt: skip

    def read(self, arguments: Mapping[str, Any], caller: Caller) -> Namespace:
        """Return the arguments as those of the verb."""
        table, values, texts = self.options, dict[str, Any](), dict[str, Any]()
        by_keyword = {option.name: option for option in table.values()}
        for name, value in arguments.items():
            if value is None or name == "details":
                continue
            option = table.get(name) or by_keyword.get(name)
            if name in _FILES:
                value = caller.file(value)  # noqa: PLW2901 - from here on, the file itself
            if option is not None:
                texts[option.name] = _text(option, name, value)
            elif name in self.own:
                values[name] = _checked(name, value, self.own[name])
            else:
                raise self._unknown(name, value)
        present = values.keys() | {name for name, option in table.items() if option.name in texts}
        if missing := [name for name in self.required if name not in present]:
            raise AdvisorError(f"{self.name} requires {missing[0]}.")
        readers = {"model": caller.model, "run": caller.run}
        values |= {name: reader(values[name]) for name, reader in readers.items() if name in values}
        namespace: dict[str, Any] = {"model": None, "output": None, "full": False, **_of_verb(self.name, values)}
        namespace["settings"] = keywords_of(texts) | _plain(values.get("settings", {}), caller)
        namespace["plans"] = [_plain(plan, caller, also=("library",)) for plan in values.get("plans", ())]
        if "instance" in values:
            namespace["settings"]["cluster"] = values["instance"]
        if self.name == "profile":
            namespace["settings"] = {name: value for name, value in values.items() if name != "config"}
        return Namespace(**namespace, progress=caller.progress, folder=caller.roots[0])

    def _unknown(self, name: str, value: Any) -> AdvisorError:
        table = self.options
        spelled = {option.name: key for key, option in table.items()}
        takes_settings = "settings" in self.own
        plans = {option.name for option in options_of("plan", "shape")} if takes_settings else set[str]()
        of_settings = {key: f"{key} in settings" for key in plans - spelled.keys()}
        names = {*table, *spelled, *self.own, *plans}
        meaning = hint(name, names, value, lambda key: spelled.get(key) or of_settings.get(key, key))
        meaning = meaning or f"it takes {', '.join((*self.own, *table))}."
        return AdvisorError(f"{self.name} takes no argument {name!r:.80}; {meaning}")


def _plain(settings: Mapping[str, Any], caller: Caller, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Settings of jobs and plans, and no others: the request has arguments of its own, and files are the caller's."""
    sort_settings({name: value for name, value in settings.items() if name not in also})
    return {name: caller.file(value) if name in _FILES else value for name, value in settings.items()}


def _of_verb(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a verb by the names that it has for them."""
    model = {"model": values["model"]} if "model" in values else {}
    match name:
        case "compare":
            return {"counts": (), "libraries": (), "plans": (), **values}
        case "check":
            texts = [Text(values["text"])] if values.get("text", "").strip() else []
            paths = [values["path"]] if "path" in values else []
            if len(texts) + len(paths) != 1:
                raise AdvisorError("check requires either the path of a file or its text.")
            unset = dict.fromkeys(("diff", "fix", "strict", "plan", "library"))
            return {"paths": (), "texts": [*texts, *map(Path, paths)], "format": "text", **unset, **model}
        case "why":
            if len({"path", "text"} & values.keys()) != 1:
                raise AdvisorError("why requires either the path of a log or its text.")
            return {"log": values.get("path"), "text": values.get("text", ""), "advice": values.get("advice")}
        case "rehearse":
            defaults = {"job": None, "compare": None, "processes": 2, **values, "data": [], "start": None}
            pairs = [f"{name}={value}" for name, value in values.get("hyperparameters", {}).items()]
            return {**defaults, "hyperparameter": pairs, "allow_unconfined": False}
        case "export":
            source = values.get("advice") or values.get("model")
            if source is None:
                raise AdvisorError("export requires a model with its instance, or the file of a saved advice.")
            return {"advice": source, "what": "job", "sdk": "auto", "image_uri": None} | {
                key: values[key] for key in ("what", "sdk", "image_uri") if key in values
            }
        case "watch":
            # An assistant reads once and writes nothing; jobs have names, everything else is a file of the caller.
            return {"advice": None, **values, "once": True, "learn": None}
    return values


def _schema(option: Option, *, explained: bool) -> dict[str, Any]:
    limits = {"minimum": option.least, **({"maximum": option.most} if option.most != 10**9 else {})}
    kinds: dict[str, dict[str, Any]] = {
        "integer": {"type": "integer", **limits},
        "rank": {"type": "integer", **limits},
        "nodes": {"anyOf": [{"type": "integer", **limits}, {"const": "smallest"}]},
        "amount": {"type": ["number", "string"], "exclusiveMinimum": 0},
        "share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "types": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "flag": {"type": "boolean"},
        "choice": {"enum": list(option.choices)},
    }
    if option.name == "library":
        kinds["text"] = {"enum": ["auto", *(record.name for record in libraries())]}
    unit = f"Unit: {option.unit}." if option.unit else ""
    words = re.sub(r"--([a-z-]+)", lambda match: match[1].replace("-", "_"), option.help) if explained else ""
    about = {"description": " ".join(filter(None, (words, unit)))} if words or unit else {}
    default = {} if option.default is None else {"default": option.default}
    return {**kinds.get(option.type, {"type": "string"}), **about, **default}


def _text(option: Option, name: str, value: Any) -> Any:
    """Return a JSON value as the text of an option; flags stay."""
    if isinstance(value, bool):
        return None if not value else value if option.type == "flag" else RANK if option.type == "rank" else repr(value)
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    if isinstance(value, int | float | str):
        return value if isinstance(value, str) else repr(value)
    raise AdvisorError(f"{name} must be a number or text, not {value!r:.80}.")


_KINDS: dict[str, tuple[type, str]] = {
    "string": (str, "text"),
    "object": (dict, "an object"),
    "array": (list, "a list"),
    "integer": (int, "a whole number"),
}


def _checked(name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """Return an argument of the tool's own, of the type of its schema."""
    kind, title = _KINDS[schema["type"]]
    if name == "model" and isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise AdvisorError(f"{name} must be {title}, not {value!r:.80}.")
    if "enum" in schema and value not in schema["enum"]:
        raise AdvisorError(f"{name} must be one of {', '.join(schema['enum'])}, not {value!r:.80}.")
    if isinstance(value, list):
        return [_checked(f"an entry of {name}", entry, schema["items"]) for entry in value]
    return value


_TABLE = data_file("tools", "tools")
_ALL = {
    entry["name"]: Tool(
        name=entry["name"],
        title=entry["title"],
        description=entry["description"],
        parts=("request", "job", "adapter") if entry.get("options") else (),
        own={name: _TABLE["arguments"][name] for name in entry["own"]} | entry.get("arguments", {}),
        required=tuple(entry.get("required", ())),
        details=tuple(entry.get("details", ())),
        open_world=entry.get("open_world", False),
    )
    for entry in _TABLE["tool"]
}
_RUNS_CODE = "rehearse"
TOOLS = {name: tool for name, tool in _ALL.items() if name != _RUNS_CODE}
"""The tools by their names. A tool is a verb of the command with a description for assistants."""


def allow_rehearsals() -> None:
    """Add the tool that runs scripts, which the person who starts the server requests."""
    TOOLS[_RUNS_CODE] = _ALL[_RUNS_CODE]


def call(name: str, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """Return the compact answer of a tool with the requested details."""
    if name not in TOOLS:
        raise AdvisorError(f"There is no tool {name!r:.80}: the tools are {', '.join(TOOLS)}.")
    tool = TOOLS[name]
    parts = arguments.get("details") or []
    if not isinstance(parts, list) or not set(map(str, parts)) <= set(tool.details):
        raise AdvisorError(
            f"details of {name} must be a list of {', '.join(tool.details) or 'nothing'}, not {parts!r:.80}."
        )
    try:
        with confined(caller.roots):
            answer = VERBS[name](tool.read(arguments, caller))
    except AdvisorError as error:
        raise AdvisorError(worded(str(error), command=False)) from None
    present = [part for part in parts if part in answer.details]
    most = MOST_CODE if {"code", "files"} & set(present) else MOST_DETAILS
    return answer.compact(present, most) if present else answer.compact()
