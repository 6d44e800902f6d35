"""Shell scripts of jobs: the commands in them with their variables filled in, and Slurm's batch files as jobs."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from typing import Any

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import Configuration, Gap, Setting, count
from smp_advisor.review.reading.commands import around_the_script, commands_of, started, starts_processes
from smp_advisor.review.reading.source import Span

_BATCH = "#SBATCH"
_EXPORTED = re.compile(r"^[ \t]*export[ \t]+((?:ACCELERATE|FSDP)_\w+)=([^\s;$]+)", re.MULTILINE)
_INSTALLS = re.compile(r"\bpip3?[ \t]+install\b([^\n;&|]*)")
_GPUS = re.compile(r"gpu:(?:[^\W\d]\w*:)?(\d+)|^(?:\w+:)?(\d+)$")
_OPTION = re.compile(r"(?:--|-(?=[A-Za-z]))([^=]*)(?:=(.*))?", re.DOTALL)
_SHORT = re.compile(r"(?<!\S)-([Nn])[ =]*(?=\d)")
_SOURCES = ("source", ".", "chmod", "cp", "mv", "echo", "cd")
VERL = re.compile(r"verl\.trainer\.(?:main_(?:ppo|sft)|\w*sft_trainer)$")
"""Modules of verl that train."""
NEURON = re.compile(r"\bNEURON_|\bneuron_parallel_compile|neuronx|optimum[.-]neuron|torch_neuron")
"""Words of jobs on AWS Trainium."""


def is_shell(text: str) -> bool:
    """Return whether a text is a shell script or a batch file of Slurm, by its first lines."""
    head = "\n".join(takewhile(lambda line: line[:1] in ("", "#"), text.lstrip()[:4_000].split("\n")))
    return re.match(rf"#!.*sh\b|(?s:.*\n)?{_BATCH}\b", head) is not None


def options_of(words: list[str]) -> dict[str, Any]:
    """Return the options of a command: ``--layers=32``, ``--layers 32``, ``--resume``, ``-b 64``."""
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if flag := _OPTION.fullmatch(word):
            options.pop(name := flag[1].replace("-", "_"), None)  # the last one counts
            options[name] = True if flag[2] is None else digits_as_number(flag[2])
            name = "" if flag[2] is not None else name
        elif name:
            options[name], name = digits_as_number(word), ""
    return options


def passed_by(words: list[str]) -> dict[str, Any]:
    """Return the options of a script whose values are known, and those for which no default is taken."""
    decides = re.compile("fsdp|deepspeed(_config)?|(per_device_)?(train_)?batch_size").fullmatch
    return {name: value for name, value in options_of(words).items() if "$" not in str(value) or decides(name)}


def take_command(configuration: Configuration, words: list[str], exported: dict[str, str], span: Span | None) -> None:
    """Take what a command starts, the options that it passes, and those of its launcher."""
    before, entry, after = around_the_script(words)
    if entry:
        configuration.set(entry_point=entry)
    configuration.set(command=shlex.join(words), starts=starts_processes(before))
    configuration.set(launcher=exported | options_of(before))
    configuration.hyperparameters |= {name: Setting(value, span) for name, value in passed_by(after).items()}


def installs(text: str) -> dict[str, str]:
    """Return the versions of packages that a shell script installs: ``pip install trl==0.15.2``."""
    words = (word for match in _INSTALLS.finditer(text) for word in match[1].split())
    pins = (word.strip("\"'").partition("==") for word in words)
    return {name.partition("[")[0].lower().replace("_", "-"): version for name, _, version in pins if version}


def exports(text: str) -> dict[str, str]:
    """Return the variables of accelerate that a shell script exports."""
    return {match[1]: match[2].strip("\"'") for match in _EXPORTED.finditer(text)}


def configuration_of_shell(text: str) -> Configuration:
    """Return the job of a batch file of Slurm, or of a shell script that starts one."""
    lines = [line.partition(_BATCH)[2] for line in text.split("\n") if line.lstrip().startswith(_BATCH)]
    # Options of sbatch in one spelling.
    long_options = [_SHORT.sub(lambda match: f"--{'nodes' if match[1] == 'N' else 'ntasks'}=", line) for line in lines]
    words = [word for line in long_options for command in commands_of(line) for word in command]
    options, kind = options_of(words), "Slurm job" if lines else "shell script"
    # Nodes and GPUs, from whichever option states them.
    tasks = count(options.get("ntasks_per_node")) or 1
    nodes = count(options.get("nodes")) or ((count(options.get("ntasks")) or 0) // tasks if tasks > 1 else None)
    nodes = nodes or (1 if lines and not {"nodes", "ntasks"} & options.keys() else None)
    per_node = _GPUS.search(str(options.get("gpus_per_node", options.get("gres"))))
    gpus = count(int(per_node[1] or per_node[2])) if per_node else None
    names = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    names |= {"SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus}
    commands = commands_of(text, **{name: str(number) for name, number in names.items() if number})
    # The command that trains: the first that starts processes, else the first that runs a file.
    starts = [words for words in commands if any(map(VERL.match, words))]
    starts = starts or [words for words in commands if starts_processes(words) or around_the_script(words)[1]]
    scripts = [words for words in commands if words[0] not in _SOURCES and any(word.endswith(".sh") for word in words)]
    starts = starts or scripts[:1]
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
    alone = 1 if not lines and not {"nnodes", "num_machines"} & launcher.keys() else None
    if nodes := nodes or count(launcher.get("nnodes")) or count(launcher.get("num_machines")) or alone:
        configuration.settings["instance_count"] = Setting(nodes, span)
    else:
        configuration.gaps.append(Gap("instance_count", "the script leaves it to the call of sbatch", span))
    total = (count(launcher.get("num_processes")) or 0) // (nodes or 1)  # of accelerate
    processes = (launcher.get("nproc_per_node"), gpus, tasks if tasks > 1 else None, total)
    if processes_per_host := next(filter(None, map(count, processes)), None):
        configuration.settings["processes_per_host"] = Setting(processes_per_host, span)
    # srun and torchrun may each start one process per GPU: together, the square of them.
    by_tasks = words[0] == "srun" and tasks > 1
    launchers = [place for place, word in enumerate(before) if word in ("torchrun", "torch.distributed.run")]
    of_srun = before[: launchers[0]] if launchers else ["-n"]
    again = by_tasks and count(launcher.get("nproc_per_node")) == tasks and tasks * tasks > (gpus or tasks)
    own = ("--ntasks", "--tasks", "-n", "--gpus-per-task")  # tasks, or GPUs of each task
    again = again and "gpus_per_task" not in options and not any(word.startswith(own) for word in of_srun)
    configuration.set(starts_twice="srun" if again else "")
    for words_of_start in starts:
        _, name, options_there = around_the_script(words_of_start)
        if name == entry and options_there != after:
            configuration.gaps.append(Gap(name, f"the {kind} starts it again with other options, not read", span))
        elif starts_processes(words_of_start) and name not in ("", entry):
            configuration.gaps.append(Gap(name, f"the {kind} starts it as well, and is read for {entry} alone", span))
    take_command(configuration, words, exports(text), span)
    configuration.set(starts=by_tasks or configuration.get("starts"))
    configuration.set(installs=installs(text), requests_efa=True, neuron=NEURON.search(text) is not None)
    return configuration
