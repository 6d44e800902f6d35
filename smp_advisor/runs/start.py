"""Starting a run of an advice: on this machine with a small model, or as a training job with the exported cell."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import LOG, read_text, user_path, write_text
from smp_advisor.errors import AdvisorError, RunError
from smp_advisor.export import small_training, terms_of
from smp_advisor.runs.local import MOST_TIMES, SETTINGS
from smp_advisor.runs.measure import PROCESSOR
from smp_advisor.runs.sources import ADVICE, LOCAL_NOTES, PROCESS, STATUS, LocalFolder, TrainingJob, environment
from smp_advisor.runs.steps import STEADY_STEPS
from smp_advisor.runs.watching import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice

_PROCESSES, _STEPS = 2, 40
"""Gloo workers and steps of a local run: warm-up, and the steady steps of a calibration."""
_TFLOPS_PER_PROCESS = 0.1
"""fp32 of a process with one thread: two 8-wide FMA per cycle at 3 GHz. Assumed: machines differ by a factor of 4."""
_GB_PER_SECOND, _GIB = 2.0, 16.0
"""Exchange of gloo over shared memory, and memory per process, which is not measured: both assumed."""
_MOST_STEPS = 10_000
_STARTED = re.compile(r"^Started (\S+):|^Job \d+ of up to \d+: \S*#/jobs/(\S+)", re.MULTILINE)
"""Lines of the exported cell about its job."""
_SCRIPT = "train.py"
_JOB, _JOB_LOG = "job.py", "job.log"
"""Files in the folder of a job: its cell, and what that prints."""
TAG = "smp-advisor-plan"
_START_SECONDS = 1800
"""A last guard against a cell that neither starts a job nor ends."""


def plan_tag(advice: Advice, plan: Plan | None = None) -> str:
    """Eight characters that identify a plan of an advice with its model, cluster and job."""
    job = replace(advice.job, calibration=None)
    # A field that a later version adds leaves the tags of today as they are.
    settings = {name: value for name, value in asdict(job).items() if name not in job.defaulted()}
    parts = [advice.model.name, advice.model.config_json, advice.cluster.instance.name, advice.cluster.nodes]
    text = json.dumps([*parts, asdict(plan or advice.plan), settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The job that `Advice.start` would start, and its price."""

    run: str
    """Hardware, duration and price of the run, in words."""
    probe: str
    """A short job that measures the plan, with its price; empty if none fits."""
    cell: str
    """The request, as the cell that starts the job."""

    def __str__(self) -> str:
        return f"{self.run} {self.probe}".strip()


def terms_of_start(advice: Advice, options: dict[str, Any], *, sdk: str = "auto", tag: bool = True) -> Terms:
    """Return the job of an advice; refuses one that is not expected to train."""
    place = (advice.model, advice.cluster, advice.job, advice.plan)
    settings = {"script": advice.script, "data": advice.data, **options}
    words, objections = terms_of(*place, min_fit_probability=advice.min_fit_probability, **settings)
    if objections:
        raise RunError(f"The advisor does not expect this job to train. {' '.join(objections)}")
    try:
        probe = advice.probe().lines[0]
    except AdvisorError:
        probe = ""
    return Terms(run=words, probe=probe, cell=advice.cell(sdk, tag=tag, **options))


def _new_folder(folder: str | os.PathLike[str] | None, kind: str) -> Path:
    """Return the folder of the user's choice, or the next free one next to the notebook."""
    if folder is None:
        place = next(path for number in range(1, 10_000) if not (path := Path(f"smp_runs/{kind}-{number}")).exists())
    else:
        place = user_path(folder, RunError)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise RunError(f"{str(place)!r:.200} is not an empty folder: choose another one for the run.")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{str(place)!r:.200} cannot be made: {error.strerror or error}.") from None
    return place.resolve()


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """State in a sentence that the folder of a run cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise RunError(f"The run's folder {str(folder)!r:.200} cannot be written: {error.strerror or error}.") from None


def start_local(
    advice: Advice,
    place: str | os.PathLike[str] | None,
    steps: int | None,
    options: dict[str, Any],
    advise: Callable[..., Any],
) -> Run:
    """The small training in a process tree, with the prediction of `advise`; its folder is new once all is accepted."""
    steps = _STEPS if steps is None else steps
    count: object = steps
    if type(count) is not int or not 1 <= steps <= _MOST_STEPS:
        raise RunError(f"steps must be an integer from 1 to 10,000, not {steps!r:.40}.")
    if unknown := set(options) - {"processes", "data", "allow_unconfined"}:
        names = "folder, steps, processes, data and allow_unconfined"
        raise RunError(f"A local run has no option {min(unknown)}: it has {names}.")
    processes = options.get("processes", _PROCESSES)
    small = None if advice.script else small_training(advice.model, advice.cluster, advice.job, advice.plan)
    if small is None and not advice.script:
        raise RunError(f"No script can be generated for {advice.model.name!r}: pass script= to advise().")
    # The prediction and the settings are in the folder before the process starts: it may be watched from elsewhere.
    folder = _new_folder(place, "local")
    with _written(folder):
        source = folder / "source"
        source.mkdir(exist_ok=True)
        # The code of a script of yours is confined; the generated one also runs where namespaces are refused.
        settings: dict[str, Any] = {
            "script": str(advice.script or source / _SCRIPT), "processes": processes, "steps": steps,
            "hyperparameters": {}, "data": options.get("data"),
            "allow_unconfined": bool(options.get("allow_unconfined", small is not None)),
        }  # fmt: skip
        prediction: Advice | None = None
        notes: tuple[str, ...] = LOCAL_NOTES
        if small is not None:
            # The run ends before: after its steps, once enough of them are regular.
            most = MOST_TIMES * steps if steps >= STEADY_STEPS else steps
            settings["hyperparameters"] = {"max_steps": most, "log_every": 1}
            write_text(source / _SCRIPT, small.script)
            prediction, reason = _prediction(advise, small, processes, steps)
            notes = (*notes, *reason)
            if prediction is not None:
                write_text(folder / ADVICE, prediction.as_json())
        else:
            notes = (*notes, "A script of yours has its own model, so there is no prediction for it on this machine.")
        write_text(folder / SETTINGS, json.dumps(settings))
        write_text(folder / STATUS, json.dumps({"status": "InProgress", "transitions": []}))
        process = _child(
            [sys.executable, "-P", "-m", "smp_advisor.runs.local", str(folder)], Path.cwd(), folder / "process.log"
        )
        write_text(folder / PROCESS, str(process.pid))
    return Run(LocalFolder(folder, process), prediction, notes=notes).poll()


def _prediction(
    advise: Callable[..., Any], small: Any, processes: int, steps: int
) -> tuple[Advice | None, tuple[str, ...]]:
    """Return the advice for the small training on this machine."""
    if small.model is None:
        return None, ("The family of the model has no cost model, so there is no prediction of its local run.",)
    batch = processes * small.plan.batch_size
    length = small.model.sequence_length(small.job.sequence_length)
    place = Cluster.custom(
        gpu=PROCESSOR,
        name="this machine",
        usable_gpu_memory_gib=_GIB,
        peak_tflops=_TFLOPS_PER_PROCESS,
        gpus_per_node=processes,
        nodes=1,
        intra_node_gb_per_s=_GB_PER_SECOND,
        inter_node_gbps=1.0,
    )
    job = replace(
        small.job,
        precision="fp32",
        global_batch_size=batch,
        tokens=float(batch * length * steps),
        calibration=None,
        overheads=replace(small.job.overheads, parts=()),
    )
    try:
        prediction = advise(small.model, place, job, library=small.plan.library)
        prediction.adopt(small.plan)
    except AdvisorError as error:
        return None, (f"No prediction for this machine: {error}",)
    return prediction, ()


def start_job(advice: Advice, cell: str, place: str | os.PathLike[str] | None, *, generated: bool) -> Run:
    """Run the cell in a child process with the user's environment, until it names its job."""
    folder = _new_folder(place, "job")
    with _written(folder):
        write_text(folder / ADVICE, advice.as_json())
        write_text(folder / _JOB, cell)
        if generated:
            first, _, script = advice.script_cell(advice.plan).partition("\n")
            write_text(folder / first.removeprefix("%%writefile "), script)
    log = folder / _JOB_LOG
    # A script of the user is named from the folder of the notebook.
    process = _child([sys.executable, str(folder / _JOB)], folder if generated else Path.cwd(), log)
    for _ in range(10 * _START_SECONDS):
        ended = process.poll() is not None
        text = read_text(log, LOG, RunError, decoding="replace")
        if match := _STARTED.search(text):
            name = match[1] or match[2]
            note = f"Started by the cell in {folder / _JOB}, whose output is in {_JOB_LOG}."
            return Run(TrainingJob(name), advice, notes=(note,)).poll()
        if ended:
            lines = [line for line in text.splitlines() if line.strip()]
            raise RunError(f"The cell started no job. {lines[-1] if lines else 'It printed nothing.'} See {log}.")
        time.sleep(0.1)
    raise RunError(f"The cell named no job within {_START_SECONDS // 60} minutes and still runs: see {log}.")


def _child(command: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Return a process that outlives this one, with its output in a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
