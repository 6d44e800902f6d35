"""Advice: the recommended plan with its estimate and its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from smp_advisor.advice.options import JobOptionSettings, completes
from smp_advisor.arguments import brief
from smp_advisor.arguments.signatures import checked_methods
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError, CalibrationError, NoPlanFitsError, RunError
from smp_advisor.guidance.rank_map import RankTable, rank_map
from smp_advisor.guidance.recommended import Recommended
from smp_advisor.guidance.report import ladder_of, plan_of, report

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Unpack

    import pandas as pd

    from smp_advisor.charts.chart import Chart
    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.guidance.ladder import Ladder
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.runs import Failure, Probe, Summary
    from smp_advisor.runs.start import Terms
    from smp_advisor.runs.watching import Run
    from smp_advisor.runs.worth import Worth
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.workload import Job, Model


_LESS = 0.95
"""Share of the memory of a plan that ran out of it that the next plan needs at most, both as first predicted."""
_SURER = (0.99, 0.999)
"""Probabilities of the fit to require if the next plan needs more than that."""


@checked_methods
@dataclass(frozen=True, kw_only=True, repr=False)
class Advice(Recommended):
    """A recommendation: `plan`, its `estimate`, the ordered `steps` that explain it, and the cell that launches it.

    `smp_advisor.advise` returns its live form, `LiveAdvice`.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
    >>> advice.estimate.fits, advice.plan.library
    (True, 'fsdp')
    >>> advice.cell(sdk="v2").splitlines()[0]
    '# SageMaker training job on 1 x ml.p4d.24xlarge (8 GPUs, about $...
    """

    @property
    def recommended(self) -> Advice:
        """The recommendation: this value itself, and that of a `LiveAdvice`, whatever plan is on screen."""
        return self

    @completes(JobOptionSettings)
    def cell(
        self, sdk: str = "auto", plan: Plan | None = None, *, tag: bool = True, **options: Unpack[JobOptionSettings]
    ) -> str:
        """The cell that starts the job, for `plan` or the recommended plan.

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

        run, tags = self._run_of(plan), options.get("tags") or {}
        if tag and isinstance(tags, Mapping):  # others are refused below
            options["tags"] = {TAG: plan_tag(self, run[-1]), **tags}
        return estimator_cell(*run, sdk=sdk, **self._checked | self._carrying(run, self._options(options)))

    def _carrying(self, run: tuple[Model, Cluster, Job, Plan], options: dict[str, Any]) -> dict[str, Any]:
        """The options of a job with its prediction in the environment."""
        from smp_advisor.advice.written import carried

        environment = options.get("environment") or {}
        if not isinstance(environment, Mapping):
            return options  # it is refused
        pins = {} if self.request is None else self.request.pins
        objective = "throughput" if self.objective == "cost" else self.objective  # which compares other clusters
        terms = {"objective": objective, "min_fit_probability": self.min_fit_probability, **pins}
        model, _, job, plan = run
        return options | {"environment": {**carried(model, job, plan, terms), **environment} or None}

    def export(self, format: str, plan: Plan | None = None, **options: Any) -> str:  # noqa: A002 - the users' word
        """The job as a Kubernetes PyTorchJob or a Slurm batch script.

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

        settings = {"script": self.script, **options} if self.script is not None else options
        return exported(*self._run_of(plan), format=format, **self._checked | settings)

    @completes(JobOptionSettings)
    def local_cell(self, plan: Plan | None = None, **options: Unpack[JobOptionSettings]) -> str:
        """The ``%%smp_local`` cell that tries the training on this machine, with a small model of the family."""
        from smp_advisor.export import local_cell

        return local_cell(*self._run_of(plan), **self._options(options))

    def monitoring_cell(self, *, region: str | None = None) -> str:
        """The cell that shows metrics and logs of the running job, with links to the console."""
        from smp_advisor.export import monitoring_cell

        return monitoring_cell(self.cluster, region=region)

    @completes(JobOptionSettings)
    def permissions_cell(
        self, plan: Plan | None = None, *, sdk: str = "auto", **options: Unpack[JobOptionSettings]
    ) -> str:
        """The cell with the minimum permissions of the job's execution role, for the SDK version of the job's cell."""
        from smp_advisor.export import permissions_cell

        return permissions_cell(
            self.cluster, plan or self.plan, model_name=self.model.name, sdk=sdk, **self._options(options)
        )

    @completes(JobOptionSettings)
    def quota_cell(self, **options: Unpack[JobOptionSettings]) -> str:
        """The cell that requests the account's quota and the current price from AWS, with a time limit."""
        from smp_advisor.export import quota_cell

        return quota_cell(self.cluster, **self._options(options))

    def calibrate(
        self,
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
        """The advice with what a measured run taught. `learned` shows the estimate before and after.

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

        Raises
        ------
        CalibrationError
            The run cannot be read, contradicts the plan, or has a figure that no hardware reaches.
        """
        from smp_advisor.runs import Probe, measure
        from smp_advisor.runs.watching import Run

        model, ran = self.model, (cluster or self.cluster, job or self.job, plan or self.plan)
        if probe:
            chosen = probe if isinstance(probe, Probe) else self.probe(plan)
            model, ran = chosen.model, (chosen.cluster, chosen.job, chosen.plan)
        if isinstance(run, Run):
            own, run = run.measured(ran[0])
            if own is not None and not (probe or plan or cluster or job):
                model, ran = own.model, (own.cluster, own.job, own.plan)
        figures, earlier = (step_seconds, peak_gib, peak_kind, out_of_memory), self.job.calibration
        learned = measure(model, *ran, run=run, figures=figures, earlier=earlier, accept=accept)
        return self.again(replace(self.job, calibration=learned))

    def again(self, job: Job | None = None, **changes: Any) -> Self:
        """Search again for the same model, cluster and library, with the present `job` or another one.

        `changes` are keywords of `advise`. What the user set stays in the words of the first request.
        """
        if self.request is None:
            raise CalibrationError("Only advice made by advise() can be made again.")
        from smp_advisor.advice.recommendation import recommend
        from smp_advisor.advice.request import repeated

        advice = recommend(repeated(self.request, self, job or self.job).changed(**changes))
        words = ("requested", "defaults", "library_because", "library_comparisons")
        return replace(advice, **{name: getattr(self, name) for name in words})  # type: ignore[return-value]

    def compare_clusters(
        self,
        instances: Instance | str | Sequence[Instance | str] | None = None,
        counts: Sequence[int] | None = None,
        *,
        max_days: float | str | None = None,
        max_usd: float | str | None = None,
        on_progress: Progress | None = None,
    ) -> ClusterSizes:
        """Days, cost and memory of the best plan on other clusters, and the knee of each instance type.

        Parameters
        ----------
        instances
            An instance type, several, or ``"any"``; the advice's own type if None.
        counts
            Numbers of nodes; 16 numbers from 1 to 256 if None.
        max_days, max_usd
            Deadline and budget of the run.
        on_progress
            As for `advise`. An interrupt ends the comparison with the clusters compared by then.

        Raises
        ------
        AdvisorError
            The clusters or limits are not valid, or the advice was not made by `advise`.

        Examples
        --------
        >>> import smp_advisor as smpa
        >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B")
        >>> [size.cluster.nodes for size in advice.compare_clusters(counts=(1, 2)).sizes]
        [1, 2]
        """
        from smp_advisor.advice.request import question_of
        from smp_advisor.search.clusters import COUNTS, Limits, places_of
        from smp_advisor.search.sizes import compare

        if self.request is None:
            raise AdvisorError("Only advice made by advise() can be compared with other clusters.")
        question = question_of(self.request, self.cluster).training(calibration=self.job.calibration)
        limits = Limits.of(question.request.job, max_days=max_days, max_usd=max_usd)
        kinds = self.cluster.instance if instances is None else instances
        places = places_of(kinds, None, limits=limits, library=question.library, counts=counts or COUNTS)
        clusters = tuple(dict.fromkeys((*places.clusters, self.cluster)))
        here = replace(places, clusters=clusters, goal="cheapest", requested=self.cluster)
        return compare(question, here, limits, on_progress)

    def start(
        self,
        *,
        local: bool = False,
        confirm: bool = False,
        folder: str | os.PathLike[str] | None = None,
        sdk: str = "auto",
        tag: bool = True,
        steps: int | None = None,
        **options: Any,
    ) -> Run:
        """Start the plan as a run, which is then watched: a training job, or a small model on this machine.

        A job is started by the exported cell, in a child process with your credentials. Nothing starts without
        `confirm`: without it, the price of the run is the text of the error. The prediction is in ``advice.json`` of
        the run's folder and of the job's source, where `smp_advisor.watch` finds it. ``smp_advisor.toml`` of the folder
        or above supplies the team's tags and container, and its policy is kept.

        Parameters
        ----------
        local
            Whether to train the small model of `local_cell` in two gloo processes of this machine, with a prediction
            for it.
        confirm
            Whether to start a job for its price.
        folder
            Folder for log, script and ``advice.json``; a new one in ``smp_runs`` if None.
        sdk
            As for `cell`.
        tag
            As for `cell`.
        steps
            Steps of a local run; 40 if None.
        options
            As for `cell`; of a local run, ``processes``.

        Raises
        ------
        RunError
            The start was not confirmed, or the run cannot be started.
        AdvisorError
            As for `cell`, or the policy of the project does not allow the job.

        Examples
        --------
        >>> import smp_advisor as smpa
        >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="20B")
        >>> advice.start()
        Traceback (most recent call last):
        smp_advisor.errors.RunError: Nothing was started. This job would run on 1 x ml.p4d.24xlarge...
        """
        from smp_advisor.runs.start import start_job, start_local

        if local:
            from smp_advisor.advice.recommendation import advise

            return start_local(self, folder, steps, options, advise)
        if steps is not None:
            raise RunError("steps= is for local runs: pass extra_hyperparameters={'max_steps': ...} for a job.")
        terms = self.terms(sdk=sdk, tag=tag, **options)
        if not confirm:
            raise RunError(
                f"Nothing was started. This job would run on {terms.run} print(advice.terms().cell) shows its request;"
                " pass confirm=True to start it."
            )
        script = options.get("script", self.script)
        return start_job(self, terms.cell, folder, generated=script is None)

    def terms(self, *, sdk: str = "auto", tag: bool = True, **options: Any) -> Terms:
        """The request and the price of the job that `start` would start, and the price of a probe. Starts nothing."""
        from smp_advisor.advice.project import project_of
        from smp_advisor.runs.start import terms_of_start

        project = project_of(Path.cwd())
        return terms_of_start(self, project.started(self.cluster, self.estimate, options), sdk=sdk, tag=tag)

    def after(self, failure: Failure | str, *, plan: Plan | None = None) -> Advice:
        """The advice after a run that ran out of GPU memory: the next plan with more headroom, and what the run taught.

        Parameters
        ----------
        failure
            A failure of `smp_advisor.read_failure`, or the text of its log.
        plan
            Plan of the run; that of the failure, or the advice's own if None.

        Raises
        ------
        CalibrationError
            Another plan does not avoid the failure, or its message has figures of another GPU.
        NoPlanFitsError
            No plan of the request needs enough less memory.
        """
        from smp_advisor.runs.failures import failure_of_plan

        read = failure_of_plan(failure, self.cluster)
        ran = plan or read.plan or self.plan
        advice = self.calibrate(read.as_log, plan=ran)
        plain = replace(self.job, calibration=None)
        most = _LESS * estimate(self.model, self.cluster, plain, ran).needed_gib
        for probability in _SURER:  # a failure teaches little about other kinds of plans, which have to need less, too
            if estimate(advice.model, advice.cluster, plain, advice.plan).needed_gib <= most:
                break
            try:
                advice = self.again(advice.job, min_fit_probability=max(probability, self.min_fit_probability))
            except NoPlanFitsError:
                break
        return advice

    def probe(self, plan: Plan | None = None) -> Probe:
        """The cheapest short job on one or two nodes that teaches the most about the plan's step time.

        Raises
        ------
        CalibrationError
            No short job with the plan's shape per GPU fits on two nodes.
        """
        from smp_advisor.runs import best_probe

        least = self.min_fit_probability
        return best_probe(*self._run_of(plan), scalable=self.script is None, min_fit_probability=least)

    def worth_measuring(self) -> Worth:
        """Whether a short probe of the leading plans saves more than it costs, which one, and its cells.

        The saving is the expected value of sample information over the joint draws of the plans' step times
        (`Worth.expected_saving_usd`).

        Raises
        ------
        CalibrationError
            The cost of the run is unknown: the job has no `tokens`, or the instance no price.

        Examples
        --------
        >>> import smp_advisor as smpa
        >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", tokens="1B")
        >>> advice.worth_measuring().measure
        False
        """
        from smp_advisor.runs.worth import worth_measuring

        return worth_measuring(self.recommended)

    @completes(JobOptionSettings)
    def probe_cell(
        self,
        sdk: str = "auto",
        plan: Plan | None = None,
        *,
        probe: Probe | None = None,
        **options: Unpack[JobOptionSettings],
    ) -> str:
        """The cell that starts the job of `probe`, with its price and its expected effect as comments.

        `probe_script_cell` writes its training script. ``advice.calibrate(log, probe=True)`` reads its log.
        """
        from smp_advisor.export import estimator_cell

        probe = probe or self.probe(plan)
        short = {"job_name": "probe", "checkpoints": False, "long_run_without_checkpoints": True}
        settings: dict[str, Any] = short | self._options(options)
        extra: dict[str, Any] = {"max_steps": probe.steps} | ({} if settings["script"] else {"log_every": 1})
        settings["extra_hyperparameters"] = extra | dict(settings.get("extra_hyperparameters") or {})
        ran = (probe.model, probe.cluster, probe.job, probe.plan)
        return f"{probe.comment}\n{estimator_cell(*ran, sdk=sdk, **self._checked | self._carrying(ran, settings))}"

    def probe_script_cell(self, plan: Plan | None = None, *, probe: Probe | None = None) -> str:
        """The ``%%writefile`` cell with the training script of `probe`; empty for the user's own script."""
        from smp_advisor.export import script_cell

        probe = probe or self.probe(plan)
        return "" if self.script else script_cell(probe.model, probe.cluster, probe.job, probe.plan)

    @property
    def learned(self) -> Summary | None:
        """The effect of your measured runs on the plan, before and after; None without a calibration."""
        from smp_advisor.runs import summary

        return summary(*self._run_of())

    def _options(self, options: JobOptionSettings) -> dict[str, Any]:
        return {"script": self.script, "data": self.data, **options}

    @property
    def _checked(self) -> dict[str, Any]:
        """Options of the checks of a job before it is written."""
        return {"min_fit_probability": self.min_fit_probability, "script_check": _script_warnings}

    def script_cell(self, plan: Plan | None = None, *, trainer: str | None = None, objective: str | None = None) -> str:
        """The ``%%writefile`` cell with a complete training script for this model; empty for the user's own script.

        `trainer` and `objective` are those of the job's cell, see `JobOptions`.
        """
        from smp_advisor.export import script_cell

        return "" if self.script else script_cell(*self._run_of(plan), trainer=trainer, objective=objective)

    def script_files(self, plan: Plan | None = None) -> dict[str, str]:
        """Texts of the files that the generated script reads, by name; the job's cell writes them beside it."""
        from smp_advisor.export.script import builds, companions, writable

        return {} if self.script or not builds(self.model) else companions(writable(*self._run_of(plan)))

    def ladder(self, plan: Plan | int | None = None) -> Ladder:
        """AWS's techniques in order, each added to those before it, up to the plan: memory, fit, time, decision.

        Parameters
        ----------
        plan
            Another plan for the same model, cluster and job, or the row of one in `alternatives`; the recommended plan
            if None.

        Raises
        ------
        PlanError
            The plan does not suit the model or the cluster, or there is no such row.
        """
        return ladder_of(self, plan)

    def ranks(self, plan: Plan | int | None = None, placement_strategy: str | None = None) -> RankTable:
        """Which GPU of which node holds which stage, slice, shard and replica, as text or a table in a notebook.

        Parameters
        ----------
        plan
            As for `ladder`.
        placement_strategy
            Another placement of SMP v1, for example ``PTD``; the plan's own if None.

        Raises
        ------
        PlanError
            The plan does not suit the model or the cluster, or there is no such row or placement.
        """
        return rank_map(plan_of(self, plan), self.cluster, placement_strategy)

    def rank_map(self, plan: Plan | int | None = None, placement_strategy: str | None = None) -> pd.DataFrame:
        """`ranks` as a DataFrame with one row per GPU, and the numbers of its PP, TP, RDP and DP groups."""
        return self.ranks(plan, placement_strategy).frame()

    def chart(self, name: str, plan: Plan | int | None = None) -> Chart:
        """A chart as a picture in notebooks, a table in text, and an SVG file with `Chart.save`.

        Parameters
        ----------
        name
            ``memory``, ``time``, ``alternatives``, ``clusters``, or ``modules`` of a profile.
        plan
            As for `ladder`.

        Raises
        ------
        AdvisorError
            There is no such chart, or no such plan.

        Examples
        --------
        >>> import smp_advisor as smpa
        >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
        >>> advice.chart("memory").rows[-1][0]
        'Peak'
        """
        from smp_advisor.charts import chart_of

        return chart_of(self, name, plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the advice to a JSON file for `smp_advisor.load`, or its report to a file of HTML or Markdown.

        Parameters
        ----------
        path
            The file. A name that ends in ``.html`` or ``.md`` is that of a report of the plan on screen, with its
            figures, reasons and the cell that starts the job.

        Raises
        ------
        StorageError
            The file cannot be written. Its earlier content stays.

        Examples
        --------
        >>> advice.save("advice.json"), advice.save("advice.html")  # doctest: +SKIP
        """
        from smp_advisor.advice.written import html_page, markdown_page, write_text

        name = str(path).lower()
        pages = {".html": html_page, ".md": markdown_page}
        page = next((page for suffix, page in pages.items() if name.endswith(suffix)), None)
        write_text(self.as_json() if page is None else page(self), path)

    def as_json(self) -> str:
        """The advice as JSON text, the content of the file of `save`."""
        from smp_advisor.advice.written import as_text

        return as_text(self)

    def report(self, *, details: bool = False) -> str:
        """The recommendation as text: verdict, ladder and reasons; with every figure and assumption on request."""
        return report(self, details=details)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        place = f"{self.cluster.nodes} x {self.cluster.instance.name}"
        return brief(type(self).__name__, [repr(self.model.name), place, repr(self.plan)])


def _script_warnings(script: str, plan: Plan, hyperparameters: Mapping[str, Any]) -> tuple[str, ...]:
    """The check of a script of the user, which jobs with a generated script do not import."""
    from smp_advisor.scripts.check import warnings_of_script

    return warnings_of_script(script, plan, hyperparameters)
