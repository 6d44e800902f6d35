"""The runs of an advice: starting them, learning from them, and what a probe or another cluster would change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import sentence
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import CalibrationError, ExportError, NoPlanFitsError, RunError
from smp_advisor.session.cells import run_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from smp_advisor.cluster import Cluster
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.rehearsal import Rehearsal
    from smp_advisor.runs import Failure, Probe
    from smp_advisor.runs.start import Terms
    from smp_advisor.runs.watching import Run
    from smp_advisor.session import Advice
    from smp_advisor.workload import Job


_REHEARSED_STEPS = 6
_LESS = 0.95
"""Share of the memory of a plan that ran out of it that the next plan needs at most, both as first predicted."""
_SURER = (0.99, 0.999)
"""Probabilities of the fit to require if the next plan needs more than that."""


def calibrate(
    advice: Advice,
    run: Any = None,
    *,
    step_seconds: float | None = None,
    peak_gib: float | None = None,
    peak_kind: str | None = None,
    out_of_memory: bool = False,
    probe: bool | Probe = False,
    plan: Plan | None = None,
    cluster: Cluster | None = None,
    job: Job | None = None,
    accept: bool = False,
) -> Advice:
    """Return the advice with what a measured run taught. `learned` shows the estimate before and after.

    Parameters
    ----------
    run
        Path or text of a log (exported script, Megatron-LM, NeMo, torchtitan, AWS's SMP and FSDP scripts,
        DeepSpeed, a progress bar, JSON lines, ``trainer_state.json``), or a DataFrame with one row per step. Or a
        `Run` of `smp_advisor.watch`: if it has a prediction, it measured its own plan, as that of a probe does.
    step_seconds
        Measured seconds per optimizer step, instead of a log.
    peak_gib, peak_kind
        Measured peak per GPU in GiB, and its kind: ``allocated``, ``reserved`` or ``total`` (nvidia-smi).
    out_of_memory
        Whether the run ran out of GPU memory.
    probe
        Whether the run is that of `probe` instead of the plan's; or its probe.
    plan, cluster, job
        Those of the run; the advice's own if None.
    accept
        Whether to learn from a figure that is possible but far from the estimate.
    """
    from smp_advisor.runs import Probe, measure
    from smp_advisor.runs.measure import log_of_figures
    from smp_advisor.runs.watching import Run

    model, ran = advice.model, (cluster or advice.cluster, job or advice.job, plan or advice.plan)
    if probe:
        chosen = probe if isinstance(probe, Probe) else advice.probe(plan)
        model, ran = chosen.model, (chosen.cluster, chosen.job, chosen.plan)
    if isinstance(run, Run):
        own, run = run.measured(ran[0])
        if own is not None and not (probe or plan or cluster or job):
            model, ran = own.model, (own.cluster, own.job, own.plan)
    figures = log_of_figures(step_seconds, peak_gib, peak_kind, out_of_memory=out_of_memory)
    if (run is None) == figures.is_empty:
        raise CalibrationError(
            "Pass one run: a log, or figures (step_seconds=, peak_gib=, out_of_memory=True). Two are two calls."
        )
    run = figures if run is None else run
    learned = measure(model, *ran, run=run, earlier=advice.job.calibration, accept=accept)
    return advice.again(replace(advice.job, calibration=learned))


def rehearse(
    advice: Advice,
    *,
    processes: int = 2,
    data: Any = None,
    environment: Any = None,
    allow_unconfined: bool = False,
    on_line: Callable[[str], None] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> Rehearsal:
    """Rehearse the plan on screen, and mark it: the report and the page then show `rehearsed`.

    The script is that of the request, or the generated one with a small model of the family. See
    `smp_advisor.rehearse`.
    """
    from smp_advisor.export import small_script
    from smp_advisor.rehearsal import rehearse

    plan = advice.plan
    settings: dict[str, Any] = {
        "processes": processes, "data": data, "environment": environment, "allow_unconfined": allow_unconfined,
        "on_line": on_line, "on_progress": on_progress,
    }  # fmt: skip
    if advice.script:
        done = rehearse(Path(advice.script), plan, **settings)
    else:
        text = small_script(advice.model, advice.cluster, advice.job, plan, as_planned=True)
        if text is None:
            raise ExportError(f"No script can be generated for {advice.model.name!r}: pass script= to advise().")
        with TemporaryDirectory(prefix="smp-advice-") as folder:
            (script := Path(folder, "train.py")).write_text(text, encoding="utf-8")
            job = {"hyperparameters": {"max_steps": _REHEARSED_STEPS, "checkpoint_every": 2}, "checkpoints": True}
            done = rehearse(script, job, **settings)
    # The small model of the generated script is not loaded from a file.
    advice.mark(done if advice.script else replace(done, copies=()))
    return done


def after(advice: Advice, failure: Failure | str, *, plan: Plan | None = None) -> Advice:
    """The advice after a run that ran out of GPU memory: the next plan with more headroom, and what the run taught.

    Parameters
    ----------
    failure
        A failure of `smp_advisor.read_failure`, or the text of its log.
    plan
        Plan of the run; that of the failure, or the advice's own if None.
    """
    from smp_advisor.runs.failures import failure_of_plan

    read = failure_of_plan(failure, advice.cluster)
    ran = plan or read.plan or advice.plan
    advice = advice.calibrate(read.as_log, plan=ran)
    plain = replace(advice.job, calibration=None)
    most = _LESS * estimate(advice.model, advice.cluster, plain, ran).needed_gib
    for probability in _SURER:  # a failure teaches little about other kinds of plans, which have to need less, too
        if estimate(advice.model, advice.cluster, plain, advice.plan).needed_gib <= most:
            break
        try:
            advice = advice.again(advice.job, min_fit_probability=max(probability, advice.min_fit_probability))
        except NoPlanFitsError:
            break
    return advice


def probe(advice: Advice, plan: Plan | None = None) -> Probe:
    """Return the cheapest short job on one or two nodes that teaches the most about the plan's step time."""
    from smp_advisor.runs import best_probe

    least = advice.min_fit_probability
    return best_probe(*run_of(advice, plan), scalable=advice.script is None, min_fit_probability=least)


def start(
    advice: Advice,
    *,
    confirm: bool = False,
    folder: str | os.PathLike[str] | None = None,
    sdk: str = "auto",
    tag: bool = True,
    **options: Any,
) -> Run:
    """Start the plan as a training job, which is then watched.

    The job is started by the exported cell, in a child process with your credentials. Nothing starts without
    `confirm`: without it, the price of the run is the text of the error. The prediction is in ``advice.json`` of
    the run's folder and of the job's source, where `smp_advisor.watch` finds it. ``smp_advisor.toml`` of the folder
    or above supplies the team's tags and container, and its policy is kept.

    Parameters
    ----------
    confirm
        Whether to start a job for its price.
    folder
        Folder for log, script and ``advice.json``; a new one in ``smp_runs`` if None.
    sdk
        As for `cell`.
    tag
        As for `cell`.
    options
        As for `cell`.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B")
    >>> advice.start()
    Traceback (most recent call last):
    smp_advisor.errors.RunError: Nothing was started. This job would run on 1 x ml.p4d.24xlarge...
    """
    from smp_advisor.runs.start import start_job

    terms = advice.terms(sdk=sdk, tag=tag, **options)
    if not confirm:
        raise RunError(sentence("session", "not_started", terms=terms))
    script = options.get("script", advice.script)
    return start_job(advice, terms.cell, folder, generated=script is None)


def terms(advice: Advice, *, sdk: str = "auto", tag: bool = True, **options: Any) -> Terms:
    """The request and the price of the job that `start` would start, and the price of a probe. Starts nothing."""
    from smp_advisor.runs.start import terms_of_start
    from smp_advisor.session.project import project_of

    project = project_of(Path.cwd())
    return terms_of_start(advice, project.started(advice.cluster, advice.estimate, options), sdk=sdk, tag=tag)
