"""The cells and scripts of an advice's plan: those of the job, and those that prepare and watch it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, ExportError, NoScriptError, PlanError
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.validation import unscripted_optimizer
from smp_advisor.session.options import completes
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from typing import Unpack

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.keywords import JobOptionSettings
    from smp_advisor.runs import Probe
    from smp_advisor.session import Advice
    from smp_advisor.workload import Job, Model

    Run = tuple[Model, Cluster, Job, Plan]


@completes("JobOptionSettings")
def cell(
    advice: Advice,
    sdk: str = "auto",
    plan: Plan | None = None,
    *,
    tag: bool = True,
    **options: Unpack[JobOptionSettings],
) -> str:
    """Return the cell that starts the job, for `plan` or the recommended plan.

    Parameters
    ----------
    sdk
        Version of the SageMaker Python SDK to write for: ``"v2"``, ``"v3"``, or ``"auto"``, the one installed.
    plan
        Another plan, for example with the values of the controls; the recommended plan if None.
    tag
        Whether the job has the tag ``smp-advisor-plan``, which identifies the plan in searches and cost reports. It
        requires the permission ``sagemaker:AddTags``.
    options
        Options of the job: ``data``, ``checkpoints``, ``spot``, ``subnets`` and others; see `JobOptions`.
    """
    from smp_advisor.export import estimator_cell
    from smp_advisor.runs.start import TAG, plan_tag

    run, tags = run_of(advice, plan), options.get("tags")
    if tag and (tags is None or isinstance(tags, Mapping)):  # others are refused below
        options["tags"] = {TAG: plan_tag(advice, run[-1]), **(tags or {})}
    text = estimator_cell(*run, sdk=sdk, **_checked(advice) | _carrying(advice, run, _options(advice, options)))
    unit = call_of_inputs(advice.recommended)
    return re.sub(r'("batch_size": \d+,)(?=\n)', rf"\1  # calls {unit}", text, count=1) if unit else text


def call_of_inputs(advice: Recommendation) -> str:
    """Return the unit of a sample that is one call with the inputs of a profile: ``of 512 rows``; empty otherwise."""
    if not advice.model.sample_is_call:
        return ""
    inputs = getattr(advice.request.model, "inputs", "")
    rows = {int(count.replace(",", "")) for count in re.findall(r"\bof ([\d,]+)(?: x [\d,]+)?\b(?! x)", inputs)}
    return f"of {rows.pop():,} rows" if len(rows) == 1 else "with your inputs"


def export(advice: Advice, format: str, plan: Plan | None = None, **options: Any) -> str:  # noqa: A002 - users' word
    """Return the job as a Kubernetes PyTorchJob or a Slurm batch script.

    Parameters
    ----------
    format
        ``"kubernetes"`` or ``"slurm"``.
    plan
        Another plan; the recommended plan if None.
    options
        ``script``, ``data``, ``shared_directory``, ``image_uri`` and others, see
        `smp_advisor.export.formats.ClusterOptions`.
    """
    from smp_advisor.export import exported

    settings = {"script": advice.script, **options} if advice.script is not None else options
    return exported(*run_of(advice, plan), format=format, **_checked(advice) | settings)


@completes("JobOptionSettings")
def local_cell(advice: Advice, plan: Plan | None = None, **options: Unpack[JobOptionSettings]) -> str:
    """Return the ``%%smp_local`` cell that tries the training on this machine, with a small model of the family."""
    from smp_advisor.export import local_cell

    return local_cell(*run_of(advice, plan), **_options(advice, options))


def script_cell(
    advice: Advice, plan: Plan | None = None, *, trainer: str | None = None, objective: str | None = None
) -> str:
    """Return the ``%%writefile`` cell with a complete training script for this model; empty for the user's own script.

    `trainer` and `objective` are those of the job's cell, see `JobOptions`.
    """
    from smp_advisor.export import script_cell

    return "" if advice.script else script_cell(*run_of(advice, plan), trainer=trainer, objective=objective)


def scripted(advice: Recommendation) -> Recommendation:
    """Return the recommendation; refuse a plan without a generated script, although the model has a family."""
    from smp_advisor.export.script import builds, writable

    # Whoever names a version, or what their code does, has a script for it.
    request, of_code = advice.request, {"stack", *training_settings()}
    own = advice.script or request.framework or "version" in request.pins or of_code & request.user_settings
    try:
        if not (own or unscripted_optimizer(advice.plan.library, advice.job)) and builds(advice.model):
            writable(advice.model, advice.cluster, advice.job, advice.plan)
    except AdvisorError as error:
        raise NoScriptError(str(error), advice) from None
    return advice


def script_files(
    advice: Advice, plan: Plan | None = None, *, trainer: str | None = None, objective: str | None = None
) -> dict[str, str]:
    """Return the texts of the files that the generated script reads, by name, which the job's cell writes, too."""
    from smp_advisor.export.script import builds, companions, writable

    return (
        {}
        if advice.script or not builds(advice.model)
        else companions(writable(*run_of(advice, plan), trainer=trainer, objective=objective))
    )


@completes("JobOptionSettings")
def probe_cell(
    advice: Advice,
    sdk: str = "auto",
    plan: Plan | None = None,
    *,
    probe: Probe | None = None,
    **options: Unpack[JobOptionSettings],
) -> str:
    """Return the cell that starts the job of `probe`, with its price and its expected effect as comments.

    `probe_script_cell` writes its training script. ``advice.calibrate(log, probe=True)`` reads its log.
    """
    from smp_advisor.export import estimator_cell

    probe = probe or advice.probe(plan)
    short = {"job_name": "probe", "checkpoints": False, "long_run_without_checkpoints": True}
    settings: dict[str, Any] = short | _options(advice, options)
    extra: dict[str, Any] = {"max_steps": probe.steps} | ({} if settings["script"] else {"log_every": 1})
    own: Any = settings.get("extra_hyperparameters")
    settings["extra_hyperparameters"] = extra if own is None else extra | {**own} if isinstance(own, Mapping) else own
    ran = (probe.model, probe.cluster, probe.job, probe.plan)
    return f"{probe.comment}\n{estimator_cell(*ran, sdk=sdk, **_checked(advice) | _carrying(advice, ran, settings))}"


def probe_script_cell(advice: Advice, plan: Plan | None = None, *, probe: Probe | None = None) -> str:
    """Return the ``%%writefile`` cell with the training script of `probe`; empty for the user's own script."""
    from smp_advisor.export import script_cell

    probe = probe or advice.probe(plan)
    return "" if advice.script else script_cell(probe.model, probe.cluster, probe.job, probe.plan)


def monitoring_cell(advice: Advice, *, region: str | None = None) -> str:
    """Return the cell that shows metrics and logs of the running job, with links to the console."""
    from smp_advisor.export import monitoring_cell

    return monitoring_cell(advice.cluster, region=region)


@completes("JobOptionSettings")
def permissions_cell(
    advice: Advice, plan: Plan | None = None, *, sdk: str = "auto", **options: Unpack[JobOptionSettings]
) -> str:
    """The cell with the minimum permissions of the job's execution role, for the SDK version of the job's cell."""
    from smp_advisor.export import permissions_cell

    return permissions_cell(
        advice.cluster, plan or advice.plan, model_name=advice.model.name, sdk=sdk, **_options(advice, options)
    )


@completes("JobOptionSettings")
def quota_cell(advice: Advice, **options: Unpack[JobOptionSettings]) -> str:
    """Return the cell that requests the account's quota and the current price from AWS, with a time limit."""
    from smp_advisor.export import quota_cell

    return quota_cell(advice.cluster, **_options(advice, options))


KINDS = (
    "job", "script", "local", "rehearsal", "monitoring", "permissions", "quota", "probe", "kubernetes", "slurm",
)  # fmt: skip
"""Kinds of code: the job with its training script, the script alone, cells that prepare and watch jobs, the short job
that measures the plan on one or two nodes, and jobs of other launchers."""
_LEARN = "# Afterwards: the advice with what it measured, once it has ended.\n%smp_calibrate --job {job_name}"


def cells_of(advice: Advice, plan: Plan, what: str = "job", sdk: str = "auto", **options: Any) -> list[str]:
    """Return the cells of one of `KINDS`, in the order in which they run."""
    from smp_advisor.export import FORMATS, format_cell

    kind = {name: options[name] for name in ("trainer", "objective") if name in options}
    match what:
        case "job":  # the estimator first: if it refuses the plan, no cell is returned
            estimator = advice.cell(sdk, plan, **options)
            sources = ["" if options.get("script") else advice.script_cell(plan, **kind), estimator]
        case "script":
            files = advice.script_files(plan, **kind).items()
            sources = [advice.script_cell(plan, **kind), *(f"%%writefile {name}\n{text}" for name, text in files)]
        case "local":
            sources = [advice.local_cell(plan, **options)]
        case "rehearsal":  # of the plan displayed last
            sources = ["%smp_rehearse --plan\n"]
        case "monitoring":
            sources = [advice.monitoring_cell(region=options.get("region"))]
        case "permissions":
            sources = [advice.permissions_cell(plan, sdk=sdk, **options)]
        case "quota":
            sources = [advice.quota_cell(**options)]
        case "probe":
            estimator = advice.probe_cell(sdk, plan, **options)
            sources = ["" if options.get("script") else advice.probe_script_cell(plan), estimator, _LEARN]
        case _ if what in FORMATS:
            sources = [format_cell(advice.export(what, plan, **options), what)]
        case _:
            raise ExportError(f"There is no cell {what!r} to export: choose one of {', '.join(KINDS)}.")
    return [source for source in sources if source.strip()]


def run_of(advice: Advice, plan: Plan | None = None) -> Run:
    """Return model, cluster, job and plan of a job: the plan on screen, or another one."""
    if plan is not None and not isinstance(plan, Plan):
        raise PlanError(f"plan must be a Plan, or None for the recommended one, not {type(plan).__name__}.")
    return advice.model, advice.cluster, advice.job, plan or advice.plan


def _options(advice: Advice, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"script": advice.script, "data": advice.data, **options}


def _checked(advice: Advice) -> dict[str, Any]:
    """Return options of the checks of a job before it is written."""
    return {"min_fit_probability": advice.min_fit_probability, "script_check": _script_warnings}


def _carrying(advice: Advice, run: Run, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a job with its prediction in the environment."""
    from smp_advisor.session.written import carried

    environment = options.get("environment")
    environment = {} if environment is None else environment
    if not isinstance(environment, Mapping):
        return options  # it is refused
    objective = "throughput" if advice.objective == "cost" else advice.objective  # which compares other clusters
    terms = {"objective": objective, "min_fit_probability": advice.min_fit_probability, **advice.request.pins}
    model, _, job, plan = run
    return options | {"environment": {**carried(model, job, plan, terms), **environment} or None}


def _script_warnings(script: str, plan: Plan, hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the check of a script of the user, which jobs with a generated script do not import."""
    from smp_advisor.review.scripts.changes import warnings_of_script

    return warnings_of_script(script, plan, hyperparameters)
