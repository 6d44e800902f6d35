"""Rehearse a training script: prepare what is copied, run the stages in a confined child, and judge the records."""

from __future__ import annotations

import os  # noqa: TC003 - checked at run time
import re
import sys
import tempfile
from collections.abc import Mapping  # noqa: TC003 - checked at run time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked
from smp_advisor.errors import AdvisorError, ProfileError
from smp_advisor.rehearsal import comparisons
from smp_advisor.rehearsal import findings as judge
from smp_advisor.rehearsal import request as prepare
from smp_advisor.rehearsal.contract import unexportable
from smp_advisor.rehearsal.jobs import job_of
from smp_advisor.rehearsal.report import KINDS, MOST_PROCESSES, PROVOCATIONS, Observed, Rehearsal
from smp_advisor.sandbox import Limits, run_isolated
from smp_advisor.sandbox.confinement import clean_environment
from smp_advisor.sandbox.limits import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.rehearsal.contract import Job

_MOST_STEPS, _NEVER = 10_000_000, 1 << 30
_READS_OTHERWISE = re.compile(r"sys\.argv|\b(?:fire|click|hydra|typer|absl|tyro|jsonargparse|simple_parsing|draccus)\b")


@checked
def rehearse(
    script: str | os.PathLike[str],
    job: Any = None,
    processes: int = 2,
    data: Mapping[str, str | os.PathLike[str]] | str | os.PathLike[str] | None = None,
    compare: str | os.PathLike[str] | None = None,
    *,
    environment: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    keep_half_precision: bool = False,
    allow_unconfined: bool = False,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Rehearsal:
    """Run a training script here, small and unchanged, as a SageMaker job starts it, and report what would break.

    The stages are a few updates on several processes, the same samples on one, accumulation folded into the batch,
    nodes of one GPU, a kill after a save with a new start, and the saved model loaded. GPUs and NCCL are processors and
    gloo without the script knowing. The script sees copies of its folder, no network and no secrets.

    Parameters
    ----------
    script
        Training script, or its content.
    job
        Plan or advice, cell with an estimator or ModelTrainer (text or path), command, or a mapping with
        ``hyperparameters``, ``sdk``, ``command``, ``environment``, ``checkpoints``, ``input_mode``,
        ``channels`` (input mode by name).
    processes
        Processes of the run, each with a GPU of its own for the script: 1 to 4.
    data
        Folder or file by channel, or that of the channel ``train``, seen read-only. A few rows of it are read; without
        it stand-ins are, which the result names.
    compare
        Another version of the script, such as the one before a change: losses, gradients, parameters and saved names of
        the two are compared.
    environment
        Python, or folder of a virtual or conda environment, that runs the script instead of this one: with the versions
        of the image, errors of these versions show. It needs Python 3.11, PyTorch and psutil.
    steps
        Updates of one run that stays alive to be watched, with its data and loops as they are, instead of all stages.
    keep_half_precision
        Compute in the script's types of 16 bits instead of fp32: errors of types then show, and sums are less exact.
    allow_unconfined
        Run the script although this system refuses namespaces; the result states what it could reach.
    on_line
        Called with each line that the script writes.
    on_progress
        Called with stages done, stages in total, and the name of the stage.

    Raises
    ------
    AdvisorError
        An argument has the wrong type, or a file cannot be read.
    ProfileError
        The child process cannot be started, or namespaces are refused.

    Examples
    --------
    >>> print(rehearse("train.py", {"hyperparameters": {"epochs": 1}}))  # doctest: +SKIP
    """
    if sys.platform != "linux":
        raise ProfileError("A rehearsal runs on Linux: use a SageMaker notebook, or WSL on Windows.")
    if type(processes) is not int or not 1 <= processes <= MOST_PROCESSES:
        raise AdvisorError(f"rehearse() takes 1 to {MOST_PROCESSES} processes, not {processes!r}.")
    if steps is not None and (type(steps) is not int or not 1 <= steps <= _MOST_STEPS):
        raise AdvisorError(f"rehearse() takes 1 to {_MOST_STEPS:,} steps, not {steps!r:.40}.")
    interpreter = None if environment is None else prepare.interpreter_of(environment)
    start, extra = job_of(job)
    if start.is_given and not start.launches:
        processes = 1
    with tempfile.TemporaryDirectory(prefix="smp-rehearsal-") as name:

        def requested(file: Any, place: str) -> tuple[prepare.Code, dict[str, Any]]:
            code = prepare.copied(file, extra, Path(name) / place, start)
            channels = prepare.channels_of(data)
            request = prepare.request_of(code, start, processes, channels, allow_unconfined, keep_half_precision)
            return code, request | {"pins": prepare.pins_of(code.folder, extra.get("versions", {}))}

        code, request = requested(script, "code")
        if steps is not None:
            request |= {"stages": "live", "steps": steps, "batches": _NEVER, "most": steps + prepare.MOST}
        recorded = _recorded(request, interpreter, on_line, on_progress)
        result = _judged(code, start, processes, recorded)
        if hasattr(job, "mark"):  # an advice
            job.mark(result)
        if compare is None:
            return result
        _, first = requested(compare, "compared")
        first["stages"] = "first"
        return comparisons.compared(result, recorded, _recorded(first, interpreter, on_line, on_progress))


def _recorded(request: dict[str, Any], interpreter: str | None, on_line: Any, on_progress: Any) -> dict[str, Any]:
    memory = max(2 * 2**30, available_memory_bytes() * 3 // 4)
    recorded: dict[str, Any] = run_isolated(
        "smp_advisor.rehearsal.stages:run", request, what=f"the rehearsal of {request['script']}",
        limits=Limits(memory_bytes=memory, seconds=request["seconds"], processes=64), environment=clean_environment(),
        on_line=on_line, on_progress=on_progress, interpreter=interpreter,
    )  # fmt: skip
    return recorded


def _judged(code: prepare.Code, job: Job, processes: int, recorded: dict[str, Any]) -> Rehearsal:
    stages = {stage["name"]: stage for stage in recorded["stages"]}
    first = stages["several processes"]
    findings: list[Observed] = []
    skipped: dict[str, str] = {}
    for name in unexportable(job.hyperparameters, job.sdk):
        text = f"the container of version 3 ends before the script: {name!r} cannot be a variable of the shell"
        findings.append(Observed(kind="arguments", text=text))
    findings += judge.arguments(
        first, job.hyperparameters, job.words(), reads_otherwise=bool(_READS_OTHERWISE.search(code.text))
    )
    # An error of ours, of a missing package or another release is no error of the script.
    why = judge.not_rehearsed(first) or ("" if job.hyperparameters or job.has_command else judge.unstated(first))
    why = why or judge.of_other_version(first, recorded["differing"])
    if why:
        skipped["failure"] = why
    else:
        findings += judge.failures(first)
    findings += [*judge.apart(first), *judge.alone(first), *judge.training(first)]
    names = bool(re.search("checkpoint|ckpt", code.text, re.IGNORECASE))  # it may save later than the run lasts
    findings += judge.saves(first, keeps_checkpoints=job.keeps_checkpoints, names_checkpoints=names)
    unwraps = "def model_fn" not in code.text  # with which the endpoint loads what is saved
    findings += [entry for entry in judge.loaded(first) if unwraps or "begins with" not in entry.text]
    findings += _of_further(stages, job, recorded["differing"], skipped)
    # Consequences of a finding are not findings.
    if any(entry.kind in ("same batches", "no group") for entry in findings):
        findings = [entry for entry in findings if entry.kind != "scale"]
    if any(entry.kind == "no group" for entry in findings):
        findings = [entry for entry in findings if entry.kind not in ("not averaged", "written twice")]
    texts = {event["what"] for event in judge.events(first, 0, "stand-in")}
    left_out = sorted(text for text in texts if text.endswith(" that is here"))
    findings += [Observed(kind="failure", text=f"left out: {text}", level="note") for text in left_out]
    skipped |= {"failure": f"{left_out[0]}, and left out"} if left_out and not why else {}
    needs = "is not installed here: the job needs it in its image, its folder or requirements.txt"
    findings += [Observed(kind="failure", text=f"{n} {needs}", level="note") for n in judge.not_installed(first)]
    version_texts = [text for name, text in recorded["differing"].items() if name in recorded["versions"]]
    findings += [Observed(kind="failure", text=text, level="note") for text in version_texts]
    problems = _once(entry for entry in findings if entry.level != "note")
    ran = {stage["name"] for stage in recorded["stages"]}
    observed, missed = _looked_at(ran, first, processes, skipped)
    ends = [
        "as planned" if any(judge.events(stage, rank, "killed") for rank in judge.ranks_of(stage))
        else "stopped" if stage["failed"] else "to the end"
        for stage in recorded["stages"]
    ]  # fmt: skip
    failed = next((rank for rank in judge.ranks_of(first) if first["ranks"][rank]["end"]), 0)
    stand_ins = sorted({
        event["what"] for stage in recorded["stages"] for rank in judge.ranks_of(stage)
        for event in judge.events(stage, rank, "stand-in")
    })  # fmt: skip
    return Rehearsal(
        script=code.name, processes=processes, outcome=_outcome(first, why),
        updates=max((event["update"] for event in first["ranks"][0]["events"]), default=0),
        findings=problems, notes=_once(entry for entry in findings if entry.level == "note"),
        stages=tuple((stage["name"], how) for stage, how in zip(recorded["stages"], ends, strict=True)),
        stand_ins=tuple(stand_ins), observed=observed, not_observed=missed, copies=judge.copies(first),
        reachable=tuple(recorded["reachable"]), versions=tuple(recorded["versions"].items()),
        processor_seconds=recorded["import_seconds"] + sum(stage["seconds"] for stage in recorded["stages"]),
        log=tuple(first["ranks"][failed]["log"]),
    )  # fmt: skip


def _of_further(
    stages: dict[str, Any], job: Job, differing: Mapping[str, str], skipped: dict[str, str]
) -> list[Observed]:
    """Return the findings of the stages after the first one."""
    findings: list[Observed] = []
    first, single = stages["several processes"], stages.get("one process")
    for kind, name in (("scale", "one process"), ("accumulation", "accumulation folded")):
        if (reference := stages.get(name)) is not None:
            compared, why = comparisons.scale(first, reference, kind)
            steps = judge.events(first, 0, "step")  # by a library, whose other versions may scale otherwise
            why = why or next((differing[name] for name in steps[0]["libraries"] if compared and name in differing), "")
            findings += [] if why else compared
            skipped |= {kind: why} if why else {}
    findings += comparisons.planned_rate(first, single if single is not None and not single["failed"] else None)
    if (nodes := stages.get("nodes of one GPU")) is not None:
        of_nodes = [*comparisons.nodes(nodes, first)]
        findings += of_nodes or ([] if judge.not_rehearsed(nodes) else [*judge.failures(nodes)])
    for kind, name in PROVOCATIONS.items():
        if (provoked := stages.get(name)) is None:
            continue
        if kind == "half":  # other types may fail on processors alone
            texts = "FP16 gradients" if judge.events(provoked, 0, "autocast") else "FP16 gradients|the same dtype"
            findings += [entry for entry in judge.failures(provoked) if re.search(texts, entry.text)]
        elif why := judge.not_rehearsed(provoked):
            skipped[kind] = f"the stage with {name}: {why}"
        else:
            findings += judge.parted(provoked, kind)
    killed = stages.get("killed after a save")
    again = stages.get("resumed", stages.get("started again after its end"))
    if killed is not None:
        if again is not None and not judge.not_rehearsed(again):
            findings += [replace(entry, kind="resume") for entry in judge.failures(again)]
        findings += comparisons.resumed(killed, again, keeps_checkpoints=job.keeps_checkpoints)
    return findings


def _once(findings: Any) -> tuple[Observed, ...]:
    """Return each finding once, by its kind, text and line."""
    first_of_kind: dict[tuple[str, str, str], Observed] = {}
    for entry in findings:
        first_of_kind.setdefault((entry.kind, entry.text, entry.site), entry)
    return tuple(first_of_kind.values())


def _outcome(first: dict[str, Any], why: str) -> str:
    updates = max((event["update"] for event in first["ranks"][0]["events"]), default=0)
    if why:
        return f"not rehearsed after {updates} updates: {why}"
    if not first["failed"]:
        limited = any(event["limited"] for event in judge.events(first, 0, "finished"))
        return f"stopped after {updates} updates" if limited else "ran to the end"
    failure = next(iter(judge.failures(first)), None)
    if failure is None:
        return "stopped at an unknown line"
    return f"stopped at {failure.site or 'the start'} because {failure.text}"


_BEFORE = "the run stopped before"
_STAGE_OF = {
    "scale": ("one process", _BEFORE), "accumulation": ("accumulation folded", "no accumulation"),
    "node": ("nodes of one GPU", _BEFORE), "resume": ("resumed", "nothing was saved during the run"),
    "bad batch": (PROVOCATIONS["bad batch"], "the script tests no batch"),
}  # fmt: skip
"""The stage that shows a kind, and why it was not made after a first one that did not fail."""
_OF_SEVERAL = (
    "order", "alone", "not averaged", "no group", "same batches", "same order", "uneven", "written twice",
    "late",
)  # fmt: skip


def _looked_at(
    ran: set[str], first: dict[str, Any], processes: int, skipped: dict[str, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    missed: dict[str, str] = dict(skipped)
    trained = bool(judge.events(first, 0, "step"))
    for kind in KINDS:
        stage, why = _STAGE_OF.get(kind, ("", ""))
        if kind in missed:
            continue
        if kind in _OF_SEVERAL and processes < 2:
            missed[kind] = "one process"
        elif stage and stage not in ran:
            missed[kind] = _BEFORE if first["failed"] else why
        elif kind == "load" and not first.get("loaded"):
            missed[kind] = "no model was saved"
        elif not trained and kind not in ("failure", "arguments", "order", "late", "no group", "place"):
            missed[kind] = "no update was seen"
    return tuple(kind for kind in KINDS if kind not in missed), tuple(missed.items())
