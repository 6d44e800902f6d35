"""Starting a training job of an advice with the exported cell."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import LOG, read_text, user_path, write_text
from smp_advisor.errors import AdvisorError, RunError
from smp_advisor.export import terms_of
from smp_advisor.runs.sources import ADVICE, TrainingJob, environment
from smp_advisor.runs.watching import Run

if TYPE_CHECKING:
    import os

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.session import Advice

_STARTED = re.compile(r"^Started (\S+):|^Job \d+ of up to \d+: \S*#/jobs/(\S+)", re.MULTILINE)
"""Lines of the exported cell about its job."""
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


def _new_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the user's choice, or the next free one next to the notebook."""
    if folder is None:
        place = next(path for number in range(1, 10_000) if not (path := Path(f"smp_runs/job-{number}")).exists())
    else:
        place = user_path(folder, RunError)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise RunError(f"{str(place)!r:.200} is not an empty folder: choose another one for the run.")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{str(place)!r:.200} cannot be made: {error.strerror or error}.") from None
    return place.resolve()


def start_job(advice: Advice, cell: str, place: str | os.PathLike[str] | None, *, generated: bool) -> Run:
    """Run the cell in a child process with the user's environment, until it names its job."""
    folder = _new_folder(place)
    log = folder / _JOB_LOG
    try:
        write_text(folder / ADVICE, advice.as_json())
        write_text(folder / _JOB, cell)
        if generated:
            first, _, script = advice.script_cell(advice.plan).partition("\n")
            write_text(folder / first.removeprefix("%%writefile "), script)
        output = log.open("wb")
    except OSError as error:
        raise RunError(f"The run's folder {str(folder)!r:.200} cannot be written: {error.strerror or error}.") from None
    with output:
        process = subprocess.Popen(
            [sys.executable, str(folder / _JOB)],
            cwd=folder if generated else Path.cwd(),  # a script of the user is named from the folder of the notebook
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this process
        )
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
