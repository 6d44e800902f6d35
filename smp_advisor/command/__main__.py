"""``smp-advisor advise 10B --instance ml.p4d.24xlarge --count 16``: the advisor on the command line and in CI."""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from smp_advisor._version import __version__
from smp_advisor.advice.request import SETTINGS
from smp_advisor.arguments import hint, worded
from smp_advisor.arguments import options as options_table
from smp_advisor.core.files import write_text
from smp_advisor.core.words import plain
from smp_advisor.errors import AdvisorError
from smp_advisor.review.scripts.command.options import add_options, settle
from smp_advisor.session.options import keywords_of, line_of, line_options, request_options
from smp_advisor.tools.answers import SCHEMA, WRONG
from smp_advisor.tools.verbs import EXPORTS, VERBS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

_PAGES = (".json", ".html")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the verb with its options. `settings` holds the options that the verb does not have."""
    command_words = list(sys.argv[1:] if arguments is None else arguments)
    if command_words[:1] in (["help"], ["-V"], ["version"]):
        command_words[0] = "--help" if command_words[0] == "help" else "--version"
        command_words = [*command_words[1:2], "--help"] if command_words[0] == "--help" else command_words
    options, words = parser().parse_known_args(command_words)
    settings = settings_of(words)
    for name, value in settings.items():
        _require_option(options, name, value)
    names = [] if options.takes_settings != "request" else [of.get("dest", names[0]) for names, of in request_options()]
    texts = {name: getattr(options, name) for name in (name.removeprefix("--").replace("-", "_") for name in names)}
    options.settings = keywords_of(texts) | settings
    if options.verb == "why" and options.log == "-":
        options.log, options.text = None, sys.stdin.read()
    if options.verb == "check":
        settle(options)
    if getattr(options, "output", None) and options.verb == "advise" and Path(options.output).suffix not in _PAGES:
        raise AdvisorError(f"--output takes a file that ends in {', '.join(_PAGES)}, not {options.output!r:.80}.")
    if options.verb == "compare":
        options.counts = options_table()["counts"].read(options.counts, "--counts") if options.counts else ()
        options.libraries = [name.strip() for name in options.libraries.split(",") if name.strip()]
    if options.verb == "check" and options.cluster:
        options.settings["cluster"] = options.cluster
    return options


_SWITCHES = {entry.name: entry.switches[0] for entry in options_table().values()}


def _require_option(options: Namespace, name: str, value: Any) -> None:
    """Refuse an option that the verb does not have, with the one that is meant."""
    setting_names = SETTINGS if options.takes_settings else frozenset[str]()
    if name in setting_names or options.verb == "profile":
        return
    keywords = {*setting_names, *(key for key in vars(options) if key not in ("verb", "takes_settings"))}

    def spelled(key: str) -> str:
        return _SWITCHES.get(key, f"--{key.replace('_', '-')}")

    meaning = hint(name, keywords, value, spelled).replace("=", " ") or f"smp-advisor {options.verb} --help lists them."
    raise AdvisorError(f"{options.verb} has no option --{name.replace('_', '-')}; {meaning}")


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings of words such as ``--sequence-length 512 --fp8 --precision=bf16``, by their Python names."""
    settings: dict[str, Any] = {}
    name = ""
    for word in words:
        if re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word, re.DOTALL):
            name, separator, text = word[2:].partition("=")
            name = name.replace("-", "_")
            settings[name] = _value(text) if separator else True
            name = "" if separator else name
        elif name:
            settings[name], name = _value(word), ""
        else:
            several = " or several values with commas" if settings or re.fullmatch(r"[\d.]+", word) else ""
            raise AdvisorError(
                f"{word!r:.80} belongs to no option: write --name {word!r:.80},{several or ' or quotes'}."
            )
    return settings


def _value(text: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for reader in (int, float):
        try:
            return reader(text)
        except ValueError:
            continue
    return text


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the way to the help."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+?)(/\S+)*: ", r"\1: ", message)
        raise AdvisorError(f"{message[:1].upper()}{message[1:]}; {self.prog} --help explains it.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command, with a parser for each verb."""
    command = _Parser(
        prog="smp-advisor", description="Recommend and check training jobs for SageMaker.", allow_abbrev=False
    )
    command.add_argument("-V", "--version", action="version", version=f"smp-advisor {__version__}")
    verbs = command.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = line_of("command")
    for name in (*VERBS, *_OTHERS):
        line = line_of(name)
        text, takes_settings = line["about"], line.get("settings", False)
        example = "" if name == "profile" else about["example"].format(name=name)
        epilog = f"{example} {about['other']} {about['status']}".strip() if takes_settings else about["status"]
        verb = verbs.add_parser(name, help=text, description=text, epilog=epilog, allow_abbrev=False)
        verb.add_argument("--json", action="store_const", const="compact", help="print JSON of at most 4 kB")
        verb.add_argument("--json=full", dest="json", action="store_const", const="full", help="print all data as JSON")
        verb.set_defaults(takes_settings=takes_settings, **line.get("defaults", {}))
        for names, settings in line_options(name, what=EXPORTS):
            verb.add_argument(*names, **settings | {"help": settings["help"].replace("{model}", about["model"])})
        if "request" in line:
            _add_request(verb)
        if name == "check":
            add_options(verb)
    return command


class _Several(argparse.Action):
    """An option that can be repeated: its values with commas."""

    def __call__(self, _: Any, namespace: Namespace, values: Any, __: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


_GROUPS = {
    "request": "cluster and choice", "job": "training job", "adapter": "fine-tuning", "shape": "shape of a count",
    "plan": "fixed fields of the plan", "": "training code",
}  # fmt: skip


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Add the options of a request, in groups."""
    groups = {part: parser.add_argument_group(title) for part, title in _GROUPS.items()}
    table = options_table()
    for switches, settings in request_options(cluster_required=False):
        if "--instance" in switches:
            settings["action"] = _Several
        option = table.get(settings.get("dest", ""))
        if not {"choices", "action", "nargs"} & settings.keys() or "--instance" in switches:
            settings["metavar"] = switches[0].lstrip("-").upper().replace("-", "_")
        groups["" if option is None else option.of].add_argument(*switches, **settings)
    parser.set_defaults(takes_settings="request")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit status: 0 for yes, 1 for no, 2 for an input that is wrong."""
    command_words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(arguments)
        if options.verb in _OTHERS:
            return _say(_OTHERS[options.verb](options))
        answer = VERBS[options.verb](options)
        if options.json == "full":
            text = _json({"schema": SCHEMA, "verb": options.verb, "status": answer.status, "value": answer.full()})
        else:
            text = _json(answer.compact()) if options.json else answer.text
    except AdvisorError as error:
        problem = worded(str(error), command=True)
        if "--json" in command_words or "--json=full" in command_words:
            _say(_json({"schema": SCHEMA, "error": problem}))
        print(f"smp-advisor: {problem}", file=sys.stderr)  # noqa: T201 - a command line program
        return WRONG
    except KeyboardInterrupt:
        return 130
    _say(text)
    return answer.status


def check() -> int:
    """``smp-advisor-check`` for hooks: it is ``smp-advisor check``."""
    return main(["check", *sys.argv[1:]])


def _say(text: str) -> int:
    try:
        print(plain(text), end="\n" if text else "")  # noqa: T201 - a command line program
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough
    return 0


def _json(data: Any) -> str:
    return plain(json.dumps(data, ensure_ascii=False))


def _completion(options: Namespace) -> str:
    """Return the script with which a shell completes verbs, options and their values."""
    try:
        import shtab
    except ImportError:
        raise AdvisorError("Completion requires shtab: pip install 'smp-advisor[tools]'.") from None
    return str(shtab.complete(parser(), shell=options.shell))


def _serve(options: Namespace) -> str:
    from smp_advisor.tools.server import serve

    if options.allow_rehearsals:
        from smp_advisor.tools.interface import allow_rehearsals

        allow_rehearsals()
    serve(tuple(Path(folder).resolve() for folder in options.root) or (Path.cwd(),))
    return ""


def _skill(options: Namespace) -> str:
    """Return the skill, or where it was written."""
    text = (files("smp_advisor.tools") / "data" / "SKILL.md").read_text(encoding="utf-8")
    if not options.install:
        return text
    place = Path(options.install) / "smp-advisor" / "SKILL.md"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
    except OSError as error:
        raise AdvisorError(f"{str(place)!r:.200} cannot be written: {error.strerror or error}.") from None
    return f"Wrote {place}."


_OTHERS: Mapping[str, Callable[[Namespace], str]] = {"mcp": _serve, "skill": _skill, "completion": _completion}
"""Verbs that answer no question."""


if __name__ == "__main__":
    sys.exit(main())
