"""Report of an estimator check: findings, the configuration that was read, its comparison with a recommended plan."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs import estimate_many
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.findings.report import Report
from smp_advisor.guidance.practices import Difference
from smp_advisor.libraries import mismatches
from smp_advisor.libraries.schema import schema
from smp_advisor.wording import Shown, compared, cost_per_million, degree_of_change, fit, gib, throughput

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison(Shown):
    """Two plans for one model, compared by setting."""

    yours: Plan
    recommended: Plan
    your_estimate: Estimate
    recommended_estimate: Estimate
    differences: tuple[Difference, ...]
    """Settings that differ, each with the effect of changing only it in the first plan."""
    gain: str
    """The gain of all changes together, in a few sentences."""

    def __str__(self) -> str:
        rows = (f"  {row.setting}: {row.reference} -> {row.recommended}. {row.because}" for row in self.differences)
        return "\n".join([fill(self.gain, 100), *(fill(row.rstrip(), 100, subsequent_indent=" " * 6) for row in rows)])


def compare(
    model: Model,
    yours: Plan,
    recommended: Plan,
    *,
    cluster: Cluster,
    job: Job,
    recommended_cluster: Cluster | None = None,
    recommended_job: Job | None = None,
    min_fit_probability: float = 0.95,
) -> Comparison:
    """Compare a plan with the recommended one by the same cost model."""
    there = recommended_cluster or cluster
    now = estimate_plan(model, cluster, job, yours)
    recommended_for = recommended_job or job
    trained = replace(recommended_for, precision=recommended.precision, fp8=bool(getattr(recommended, "fp8", False)))
    then = estimate_plan(model, there, trained, recommended)
    return Comparison(
        yours=yours,
        recommended=recommended,
        your_estimate=now,
        recommended_estimate=then,
        differences=_differences(model, yours, recommended, cluster, there, job, now),
        gain=_gain(model, now, then, min_fit_probability),
    )


def _differences(
    model: Model, yours: Plan, recommended: Plan, cluster: Cluster, there: Cluster, job: Job, now: Estimate
) -> tuple[Difference, ...]:
    rows = []
    if cluster != there:
        before, after = (f"{place.nodes} x {place.instance.name}" for place in (cluster, there))
        rows.append(_row("cluster", before, after, ""))
    if yours.library != recommended.library:
        before, after = (f"{schema(plan.library).name} {plan.version}" for plan in (yours, recommended))
        return (*rows, _row("library", before, after, "Each library has its own settings."))
    names = [
        setting.name
        for setting in fields(yours)
        if setting.name != "library" and getattr(yours, setting.name) != getattr(recommended, setting.name)
    ]
    alone = {name: _alone(yours, cluster, job, {name: getattr(recommended, name)}) for name in names}
    # The cost model does not distinguish versions of a library.
    possible = {name: plan for name, plan in alone.items() if name != "version" and plan not in (None, yours)}
    results = estimate_many(model, cluster, job, list(possible.values())) if possible else []
    estimates = dict(zip(possible, results, strict=True))
    for name in names:
        because = "Only together with the other changes."
        if name in estimates:
            because = f"Alone, the plan {compared(now, estimates[name])}."
        elif alone[name] is not None or name == "version":
            because = ""
        rows.append(_row(name, getattr(yours, name), getattr(recommended, name), because))
    return tuple(rows)


def _alone(plan: Plan, cluster: Cluster, job: Job, changes: dict[str, Any]) -> Plan | None:
    """The plan with one change; None if it is not valid, or trains in another precision than the job."""
    try:
        changed = replace(plan, **changes)
        precise = (changed.precision, changed.fp8) == (job.precision, job.fp8)
        return changed if precise and not any(True for _ in mismatches(changed, cluster)) else None
    except AdvisorError:
        return None


def _row(setting: str, yours: object, recommended: object, because: str) -> Difference:
    def shown(value: object) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return "the default" if value is None else str(value)

    return Difference(setting=setting, reference=shown(yours), recommended=shown(recommended), because=because)


def _gain(model: Model, now: Estimate, then: Estimate, least: float) -> str:
    speed = degree_of_change(now.samples_per_second, then.samples_per_second)
    sentences = [
        f"Your plan {fit(now, least)} (it needs {gib(now.needed_gib)} per GPU).",
        f"The recommended plan {fit(then, least)} (it needs {gib(then.needed_gib)} per GPU).",
        f"It processes {throughput(then)} instead of {throughput(now)}: {speed}.",
    ]
    ours, theirs = cost_per_million(model, now), cost_per_million(model, then)
    if ours != theirs:
        sentences.append(f"It costs {theirs} instead of {ours}.")
    if now.global_batch_size != then.global_batch_size:
        sentences.append(
            f"Its global batch is {then.global_batch_size:,} samples instead of {now.global_batch_size:,}:"
            " adjust the learning rate."
        )
    if not now.fits and then.fits:
        sentences.append("The speeds are compared although your plan would run out of memory.")
    return " ".join(sentences)


def _described(reading: Reading) -> str:
    """The plan in one line."""
    if reading.plan is None:
        return f"{reading.title}: no plan can be read from its settings."
    settings = reading.plan.parameters | reading.plan.hyperparameters
    for name, value in settings.items():
        # Flags of scripts are 1 and 0.
        if isinstance(value, int) and value in (0, 1) and isinstance(getattr(reading.plan, name, None), bool):
            settings[name] = bool(value)
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{reading.title} is {schema(reading.plan.library).name} {reading.plan.version}: {words}."


def _lines(reading: Reading) -> list[str]:
    """The plan and cluster of one job, and inferred settings."""
    sentences = [f"Line {reading.line}: {_described(reading)}"]
    if reading.cluster is not None:
        sentences.append(f"  On {reading.cluster.summary}.")
    sentences += [f"  Inferred: {sentence}" for sentence in reading.inferred]
    if reading.estimate is not None:
        now, words = reading.estimate, ""
        if reading.checkpointed is not None:
            words = f"{gib(now.needed_gib)} per GPU without activation checkpointing, which the text does not set, and "
            now = reading.checkpointed
        with_it = " with it" if words else " per GPU"
        sentences.append(f"  By the memory model, it needs {words}{gib(now.needed_gib)}{with_it}: it {fit(now, 0.95)}.")
    return sentences


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One job in the text, and its configuration."""

    title: str
    """``PyTorch(...)``."""
    form: str
    """``estimator``, ``model trainer``, ``parameters``, ``recipe`` or ``request``."""
    line: int
    library: str | None
    plan: Plan | None
    cluster: Cluster | None
    job: Job | None
    model: Model | None
    estimate: Estimate | None
    """The estimate of the plan, if the model and the cluster are known."""
    checkpointed: Estimate | None = None
    """The estimate with activation checkpointing, if the text does not set it and the plan does not fit without it."""
    inferred: tuple[str, ...]
    """Assumptions for settings that are not in the text."""
    open: tuple[str, ...]
    """Parts that could not be determined."""


@dataclass(frozen=True, slots=True, repr=False)
class EstimatorReport(Report):
    """Findings in the order of the text, the plan, and the corrected text."""

    readings: tuple[Reading, ...] = ()
    text: str = field(default="", repr=False)
    """The text as it was read."""
    corrected: str = field(default="", repr=False)
    """The text with every safe change; the original text if there is none."""
    mended: Reading | None = None
    """Configuration of the corrected text, if it has changes."""

    @property
    def main(self) -> Reading | None:
        """The job of the report: the first one with a plan, else the first."""
        return next((reading for reading in self.readings if reading.plan is not None), next(iter(self.readings), None))

    @property
    def plan(self) -> Plan | None:
        """The plan; None if it is not known, with the reason in `main.open`."""
        return self.main.plan if self.main is not None else None

    @property
    def cluster(self) -> Cluster | None:
        """Instances of the job."""
        return self.main.cluster if self.main is not None else None

    @property
    def job(self) -> Job | None:
        """Sequence length and precision."""
        return self.main.job if self.main is not None else None

    @property
    def model(self) -> Model | None:
        """The model, as passed or with the shape in the hyperparameters."""
        return self.main.model if self.main is not None else None

    def recommended(self, model: Any = None, *, hold_global_batch: bool = True, **settings: Any) -> Comparison:
        """Compare this plan with the one that `smp_advisor.advise` recommends for the same model, cluster and job.

        Parameters
        ----------
        model
            As for `advise`, if the text does not determine it; otherwise the model of the report.
        hold_global_batch
            Whether the recommendation keeps this plan's global batch, and so the learning rate. If not, or if no plan
            fits with it, the search chooses another batch.
        **settings
            For `advise`: `objective`, `min_fit_probability`, `library` (by default that of the plan), ...

        Raises
        ------
        AdvisorError
            If the plan, its cluster or the model is not known, or no plan fits.
        """
        from smp_advisor.advice.recommendation import advise
        from smp_advisor.advice.request import read_model
        from smp_advisor.libraries.groups import global_batch_size

        main = self.main
        if (main is None or main.plan is None) and self.mended is not None:
            main = self.mended
        if main is None or main.plan is None or main.cluster is None or main.job is None:
            raise AdvisorError("The report has no plan on a known cluster to compare with, and lists what is missing.")
        if model is None and main.model is None:
            raise AdvisorError("The text does not describe the model: pass one, for example recommended('10B').")
        trained = main.model if model is None else read_model(model, sequence_length=main.job.sequence_length)
        settings = {"library": main.plan.library, **settings}
        accumulation = getattr(main.plan, "gradient_accumulation_steps", None)
        if main.form == "recipe" and accumulation == 1 and settings["library"] == main.plan.library:
            # Recipes with such a plan have no setting for accumulation.
            settings = {"gradient_accumulation_steps": 1, **settings}
        batch = global_batch_size(main.plan, main.cluster) if hold_global_batch else None
        try:
            advice = advise(trained, main.cluster, replace(main.job, global_batch_size=batch), **settings)
        except NoPlanFitsError:
            if batch is None:
                raise
            advice = advise(trained, main.cluster, main.job, **settings)
        return compare(
            advice.model,
            main.plan,
            advice.plan,
            cluster=main.cluster,
            job=main.job,
            recommended_cluster=advice.cluster,
            recommended_job=advice.job,
        )

    @property
    def diff(self) -> str:
        """Unified diff from the text to the corrected text; empty if nothing changes."""
        if self.corrected == self.text:
            return ""
        lines = difflib.unified_diff(
            self.text.splitlines(keepends=True),
            self.corrected.splitlines(keepends=True),
            f"a/{self.path}",
            f"b/{self.path}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    @property
    def introduction(self) -> list[str]:
        """The configuration of each job."""
        return [line for reading in self.readings for line in _lines(reading)]

    @property
    def outcome(self) -> list[str]:
        """The configuration of the corrected text, and errors that only its author can correct."""
        if self.mended is None:
            return []
        left = [finding for finding in self.of("error") if finding.fix is None]
        sentences = [f"Not corrected automatically ({finding.id}): {finding.message}" for finding in left]
        return sentences if left and self.mended.plan is None else [f"Corrected: {_described(self.mended)}", *sentences]
