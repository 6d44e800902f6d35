"""Shell scripts of jobs: the commands in them with their variables filled in, and Slurm's batch files as jobs."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Gap, Setting, count
from smp_advisor.review.reading.source import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCH = "#SBATCH"
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?(\w+)")
_ASSIGNS = re.compile(
    r"\s*(?:export\s+|readonly\s+|local\s+|declare\s+(?:-\w+\s+)?)?(\w+)="
    r"(\([^()]*(?:\([^()]*\)[^()]*)*\)|(?:\"[^\"]*\"|'[^']*'|[^\s;\"'])*)[\s;]*"
)
_EXPORTED = re.compile(r"^[ \t]*export[ \t]+((?:ACCELERATE|FSDP)_\w+)=([^\s;$]+)", re.MULTILINE)
_QUOTES = re.compile("[\"']")
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\}|\$(\w+)")
_PRODUCT = re.compile(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)")
_PRINTED = re.compile(r"\$\([^()]*\)")
_OPENS, _CLOSES = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
_STARTS = ("torchrun", "launch", "deepspeed", "mpirun", "torch.distributed.run", "lightning")
_GOES_ON = re.compile(r"(?!(?:&&?|\|\|?|;|[\d&]?>.*|<.*)$)").match
"""Not for words that end a command or send its output elsewhere."""
_MORE = re.compile(r"\s-|\.py\b")
_GPUS = re.compile(r"gpu:(?:[^\W\d]\w*:)?(\d+)|^(?:\w+:)?(\d+)$")
_SHORT = re.compile(r"(?<!\S)-([Nn])[ =]*(?=\d)")
_MOST_LINES = 2_000


def is_shell(text: str) -> bool:
    """Return whether a text is a shell script or a batch file of Slurm, by its first lines."""
    head = "\n".join(takewhile(lambda line: line[:1] in ("", "#"), text.lstrip()[:4_000].split("\n")))
    return re.match(rf"#!.*sh\b|(?s:.*\n)?{_BATCH}\b", head) is not None


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
            (branches if depth else names)[match[1]] = _value(filled(_QUOTES.sub("", match[2])))
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


def around_the_script(words: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the words before the Python file that a command starts, the file, and the words after it.

    Of ``python prepare.py && torchrun train.py`` this is the file of the launcher.
    """
    files = [number for number, word in enumerate(words) if word.endswith(".py")]
    launched = [number for number in files if starts_processes(words[:number])]
    place = next(iter(launched or files), len(words))
    parts = [number + 1 for number, word in enumerate(words[:place]) if word in ("&&", "||", ";")]
    before = words[max(parts, default=0) : place]
    return before, "".join(words[place : place + 1]), [*takewhile(_GOES_ON, words[place + 1 :])]


def started(commands: list[list[str]]) -> list[str]:
    """Return the words of the command that starts the training: with a launcher and a Python file, else the first."""
    both = (words for words in commands if starts_processes(words) and around_the_script(words)[1])
    return next(both, next((words for words in commands if around_the_script(words)[1]), commands[0]))


def options_of(words: list[str]) -> dict[str, Any]:
    """Return the options of a command: ``--layers=32``, ``--layers 32``, ``--resume``."""
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = digits_as_number(value) if equals else True
            name = "" if equals else name
        elif name:  # -m is an option, and no value of the one before
            options[name], name = re.fullmatch("-[A-Za-z]", word) is not None or digits_as_number(word), ""
    return options


def passed_by(words: list[str]) -> dict[str, Any]:
    """Return the options of a script whose values are known, and those for which no default is taken."""
    decides = re.compile("fsdp|deepspeed(_config)?|(per_device_)?(train_)?batch_size").fullmatch
    return {name: value for name, value in options_of(words).items() if "$" not in str(value) or decides(name)}


def starts_processes(words: list[str]) -> bool:
    """Return whether the words of a command have a launcher that starts a process per GPU."""
    return any(start in word for word in words if not word.endswith(".py") for start in _STARTS)


def exports(text: str) -> dict[str, str]:
    """Return the variables of accelerate that a shell script exports."""
    return {match[1]: match[2].strip("\"'") for match in _EXPORTED.finditer(text)}


def configuration_of_shell(text: str) -> Configuration:
    """Return the job of a batch file of Slurm, or of a shell script that starts one."""
    lines = [line.partition(_BATCH)[2] for line in text.split("\n") if line.lstrip().startswith(_BATCH)]
    long_options = [_SHORT.sub(lambda match: f"--{'nodes' if match[1] == 'N' else 'ntasks'}=", line) for line in lines]
    words = [word for line in long_options for word in _split(_COMMENT.sub("", line))]
    options, kind = options_of(words), "Slurm job" if lines else "shell script"
    tasks = count(options.get("ntasks_per_node")) or 1
    nodes = count(options.get("nodes")) or ((count(options.get("ntasks")) or 0) // tasks if tasks > 1 else None)
    nodes = nodes or (1 if lines and not {"nodes", "ntasks"} & options.keys() else None)
    per_node = _GPUS.search(str(options.get("gpus_per_node", options.get("gres"))))
    gpus = count(int(per_node[1] or per_node[2])) if per_node else None
    names = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    names |= {"SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus}
    commands = commands_of(text, **{name: str(number) for name, number in names.items() if number})
    starts = [words for words in commands if starts_processes(words) or around_the_script(words)[1]]
    if not starts:
        pairs = [pair for words in commands for pair in pairwise(words)]
        module = next((name for option, name in pairs if option == "-m" and name not in ("pip", "venv")), "")
        runs = f"runs the module {module!r:.80}, which is no file here" if module else "starts no Python file"
        raise AdvisorError(
            f"The {kind} {runs}, and no launcher that can be read: paste the script or the command that starts the"
            " training."
        )
    words = started(starts)
    before, entry, after = around_the_script(words)
    span, launcher = Span(0, len(text)), options_of(before)
    configuration = Configuration("manifest", f"The {kind}", span)
    if nodes := nodes or count(launcher.get("nnodes")) or count(launcher.get("num_machines")):
        configuration.settings["instance_count"] = Setting(nodes, span)
    else:
        configuration.gaps.append(Gap("instance_count", "the script leaves it to the call of sbatch", span))
    processes = (launcher.get("nproc_per_node"), gpus, tasks if tasks > 1 else None)
    if processes_per_host := next(filter(None, map(count, processes)), None):
        configuration.settings["processes_per_host"] = Setting(processes_per_host, span)
    by_tasks = words[0] == "srun" and tasks > 1
    launchers = [place for place, word in enumerate(before) if word in ("torchrun", "torch.distributed.run")]
    of_srun = before[: launchers[0]] if launchers else ["-n"]
    again = by_tasks and count(launcher.get("nproc_per_node")) == tasks and tasks * tasks > (gpus or tasks)
    own = ("--ntasks", "--tasks", "-n", "--gpus-per-task")  # tasks, or GPUs of each task
    again = again and "gpus_per_task" not in options and not any(word.startswith(own) for word in of_srun)
    configuration.set(starts_twice="srun" if again else "")
    for start in starts:
        if starts_processes(start) and (name := around_the_script(start)[1]) not in ("", entry):
            configuration.gaps.append(Gap(name, f"the {kind} starts it as well, and is read for {entry} alone", span))
    configuration.set(requests_efa=True, command=shlex.join(words), starts=by_tasks or starts_processes(before))
    configuration.set(launcher=exports(text) | launcher)
    if entry:
        configuration.set(entry_point=entry)
    configuration.hyperparameters |= {name: Setting(value, span) for name, value in passed_by(after).items()}
    return configuration
