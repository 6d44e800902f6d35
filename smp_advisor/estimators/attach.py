"""`watch`: attaching to a job or log, and finding the prediction that it is compared with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import user_path
from smp_advisor.errors import AdvisorError, RunError
from smp_advisor.estimators.check import check_estimator
from smp_advisor.runs.sources import ADVICE, TrainingJob, child, is_job_name, source_in
from smp_advisor.runs.watching import Run
from smp_advisor.session import Advice
from smp_advisor.session.advise import advise
from smp_advisor.session.files import load
from smp_advisor.session.written import CARRIED, carried_from

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smp_advisor.workload.model import Model
__all__ = ["watch"]


@checked
def watch(run: str | os.PathLike[str], advice: Advice | None = None, *, model: Model | None = None) -> Run:
    r"""Attach to a run: a training job by its name, the folder of a run, or a log. Only reads.

    The first poll is done. `Run.poll` reads what is new, `Run.wait` polls until the end.

    Parameters
    ----------
    run
        The name of a SageMaker training job, which is read with your credentials; or the path of a log, or of a folder
        with one.
    advice
        The prediction, with the plan of the run on screen. If None: ``advice.json`` next to a log; what the exported
        cell put into the environment of a job, or else the plan in its request.
    model
        The model of a job whose request does not describe it.

    Raises
    ------
    RunError
        There is no such run, or it must not be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("train.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n")
    >>> watch("train.log").step  # or the name of a training job
    7
    """
    if not str(run).strip():
        raise RunError(f"A run is the name of a training job, or the path of a log or folder, not {run!r:.80}.")
    path = user_path(run, RunError)
    if os.path.exists(path):  # noqa: PTH110 - False for any text that is no path
        source = source_in(path)
        notes: tuple[str, ...] = ()
        if advice is None:
            advice, notes = _beside(path if path.is_dir() else path.parent)
        return Run(source, advice, notes=notes).poll()
    name = str(run)
    if not is_job_name(name):
        raise RunError(f"There is no file or folder {name!r:.200}, and no training job can have this name.")
    notes = ()
    if advice is None:
        advice, notes = _of_job(name, model)
    return Run(TrainingJob(name), advice, notes=notes).poll()


def _beside(folder: Path) -> tuple[Advice | None, tuple[str, ...]]:
    if not (folder / ADVICE).is_file():
        return None, (f"There is no {ADVICE} next to the log: pass watch(..., advice=) to compare it.",)
    value = load(folder / ADVICE)
    if not isinstance(value, Advice):
        raise RunError(f"{folder / ADVICE} holds a {type(value).__name__}, and an advice is required.")
    return value, (f"Prediction: {ADVICE} of the run.",)


def _of_job(name: str, model: Model | None) -> tuple[Advice | None, tuple[str, ...]]:
    """Return the prediction of a job: what the exported cell put into its environment, or the plan in its request."""
    request = child(name, "attach")
    if error := request.get("error"):
        raise RunError(f"The job {name} cannot be read. {' '.join(str(error).split()):.300}")
    notes: tuple[str, ...] = ()
    if CARRIED in request.get("Environment", {}):
        resources = request["ResourceConfig"]
        try:
            described, job, plan, terms = carried_from(request["Environment"])
            cluster = Cluster(resources.get("InstanceType", ""), resources.get("InstanceCount", 0))
            advice = advise(described, cluster, job, library=plan.library, **terms)
            advice.adopt(plan)
        except (AdvisorError, TypeError) as error:
            notes = (f"The prediction in the environment of the job cannot be read: {error}",)
        else:
            return advice, ("Prediction: model, job and plan in the environment of the job.",)
    prediction, more = _of_request(request, model)
    return prediction, (*notes, *more)


def _of_request(request: Mapping[str, Any], model: Model | None) -> tuple[Advice | None, tuple[str, ...]]:
    """Return an advice with the plan that the request states, as `check_estimator` reads it."""
    fields = ("AlgorithmSpecification", "HyperParameters", "ResourceConfig", "StoppingCondition", "CheckpointConfig")
    plain = {name: request[name] for name in fields if name in request}
    try:
        report = check_estimator(plain, model=model)
        advice, main = report.recommended(hold_global_batch=False), report.main
        if main is None or main.plan is None:
            return None, ("No prediction: the request states no plan that its library accepts.",)
        advice.adopt(main.plan)
    except AdvisorError as error:
        return None, (f"No prediction: {error} Pass watch(..., advice=) or model=.",)
    return advice, ("Prediction: the plan in the request of the job.", *main.inferred)
