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
from smp_advisor.session.options import keywords_of, request_options
from smp_advisor.tools.answers import SCHEMA, WRONG
from smp_advisor.tools.verbs import EXPORTS, VERBS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

_MODEL = "a parameter count (10B), the name of a model (llama-3-70b), or the path of a config.json"
_OTHER = (
    "Other settings of the job, the model's shape and the plan are options of their names, for example"
    " `--sequence-length 4096 --tokens 300B --tensor-parallel-degree 2`."
)
_EXAMPLE = "Example: smp-advisor {name} llama-3-8b --instance p5 --count 2 --sequence-length 4k."
_STATUS = (
    "Exit status: 0 if the answer is yes, 1 if it is no, 2 if the input is wrong or could not be read, 130 after an"
    " interrupt."
)
_PAGES = (".json", ".html", ".md")


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

    def verb(name: str, text: str, *, takes_settings: bool = False) -> argparse.ArgumentParser:
        example = "" if name == "profile" else _EXAMPLE.format(name=name)
        epilog = f"{example} {_OTHER} {_STATUS}".strip() if takes_settings else _STATUS
        added = verbs.add_parser(name, help=text, description=text, epilog=epilog, allow_abbrev=False)
        added.add_argument("--json", action="store_const", const="compact", help="print JSON of at most 4 kB")
        added.add_argument(
            "--json=full", dest="json", action="store_const", const="full", help="print all data as JSON"
        )
        added.set_defaults(takes_settings=takes_settings)
        return added

    advise = verb("advise", "Recommend a configuration for a model on a cluster.", takes_settings=True)
    advise.add_argument("model", help=_MODEL)
    _add_request(advise)
    advise.add_argument("--full", action="store_true", help="print the report with its reasons")
    advise.add_argument("--output", metavar="FILE", help="also write the advice: .json, .html or .md")

    estimate = verb("estimate", "Estimate memory, time and cost of one plan.", takes_settings=True)
    estimate.add_argument("model", help=_MODEL)
    _add_request(estimate)

    about = "Whether a model fits on a cluster, or a saved advice, a recipe or an estimator cell with its own plan."
    fits = verb("fits", about, takes_settings=True)
    fits.add_argument("source", help=f"a file of these, or {_MODEL}")
    _add_request(fits)
    fits.add_argument("--model", help="model of a file that does not name it")

    check = verb("check", "Check training scripts, estimator cells and recipes against the documented pitfalls.")
    about = "a script, a notebook, an estimator cell, a recipe, a folder, a pattern such as 'src/**/train*.py', or -"
    check.add_argument("paths", nargs="+", metavar="FILE", help=about)
    check.add_argument("--model", help="model of a cell or recipe, for its memory")
    check.add_argument("--instance", dest="cluster", help="instance of a cell or recipe that names none")
    check.set_defaults(texts=())
    add_options(check)

    why = verb("why", "Read why a training job failed, and the change that fixes it.")
    why.add_argument("log", metavar="LOG", help="file with the job's log, its FailureReason, or both")
    why.add_argument("--advice", metavar="FILE", help="saved advice of the job, for the next plan after full memory")
    why.set_defaults(text="")

    about = "Compare plans with the libraries, instances or numbers of instances that are given."
    compare = verb("compare", about, takes_settings=True)
    compare.add_argument("model", help=_MODEL)
    _add_request(compare)
    compare.add_argument("--counts", help="numbers of instances with commas: 1,2,4,8")
    compare.add_argument("--libraries", default="", help="libraries with commas: fsdp,smp-v2")
    compare.set_defaults(plans=())

    profile = verb("profile", "Profile the model of a transformers configuration.", takes_settings=True)
    profile.add_argument("config", help="path of a config.json")

    _add_others(verb)
    return command


def _add_others(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The verbs of a saved advice, of scripts and of the installation."""
    about = "Run a training script here for a few updates, as a job starts it, and report what would break."
    rehearse = verb("rehearse", about)
    rehearse.add_argument("script", help="training script; it runs with copies of its folder, without a network")
    rehearse.add_argument("--job", metavar="FILE", help="cell with the estimator or ModelTrainer, or a saved advice")
    rehearse.add_argument("--command", dest="start", metavar="COMMAND", help="command of the job, in quotes")
    rehearse.add_argument(
        "--hyperparameter", "-p", action="append", default=[], metavar="NAME=VALUE", help="hyperparameter; repeatable"
    )
    rehearse.add_argument("--data", action="append", default=[], metavar="CHANNEL=FOLDER", help="data; repeatable")
    rehearse.add_argument("--processes", type=int, default=2, help="processes, each with a GPU of its own; default 2")
    rehearse.add_argument("--compare", metavar="FILE", help="another version of the script to compare with")
    rehearse.add_argument("--environment", metavar="FOLDER", help="environment with the image's versions that runs it")
    rehearse.add_argument(
        "--allow-unconfined", action="store_true", help="run it although this system cannot keep it from your files"
    )

    export = verb("export", "Write the code of a saved advice, or of the advice for a request.", takes_settings=True)
    export.add_argument("advice", help=f"file of `smp-advisor advise --output`; or with --instance: {_MODEL}")
    _add_request(export)
    export.add_argument("--what", choices=EXPORTS, default="job", help="default: job, the cell that starts it")
    export.add_argument("--sdk", choices=("auto", "v2", "v3"), default="auto", help="version of the SageMaker SDK")
    export.add_argument("--image-uri", metavar="URI", help="container image of the job; Kubernetes requires one")
    export.add_argument("--output", metavar="FILE", help="file to write instead of printing")

    watch = verb("watch", "Watch a training job, a local run or a log next to its prediction. It only reads.")
    watch.add_argument("run", help="name of a training job, or path of a log or of a folder with one")
    watch.add_argument("--advice", metavar="FILE", help="saved advice to compare it with; default: that of the run")
    watch.add_argument("--once", action="store_true", help="read once instead of until the run ends")
    watch.add_argument("--learn", metavar="FILE", help="add what the run measured to a calibration that a team shares")

    mcp = verb("mcp", "Serve the verbs to assistants by the Model Context Protocol, on standard input and output.")
    root = "folder whose files may be read; several times for several; default: the working folder"
    mcp.add_argument("--root", metavar="FOLDER", action="append", default=[], help=root)
    about = "add the tool that runs training scripts of these folders, confined"
    mcp.add_argument("--allow-rehearsals", action="store_true", help=about)

    skill = verb("skill", "Print the skill with which assistants use the verbs.")
    skill.add_argument("--install", metavar="PATH", help="folder of skills to write it into")

    completion = verb("completion", "Print the completion of this command for a shell: eval its output.")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell (requires the package shtab)")


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


_OTHERS: Mapping[str, Callable[[Namespace], str]] = {"completion": _completion, "mcp": _serve, "skill": _skill}
"""Verbs that answer no question."""


if __name__ == "__main__":
    sys.exit(main())
