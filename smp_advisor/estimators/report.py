"""Report of an estimator check: the findings, and the configuration that was read."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.estimators.summary import lines, outcome
from smp_advisor.findings.report import Report

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.estimators.comparison import Comparison
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["EstimatorReport", "Reading"]


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
        from smp_advisor.estimators.comparison import compare
        from smp_advisor.libraries.groups import global_batch_size
        from smp_advisor.model_input import read_model
        from smp_advisor.recommendation import advise

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
        return [line for reading in self.readings for line in lines(reading)]

    @property
    def outcome(self) -> list[str]:
        """The configuration of the corrected text, and errors that only its author can correct."""
        return outcome(self)
