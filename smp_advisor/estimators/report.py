"""What a check of an estimator answers: the findings, and what the configuration amounts to."""

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
    """One job of the text, and what it was read into."""

    title: str
    """``PyTorch(...)``."""
    line: int
    library: str | None
    plan: Plan | None
    cluster: Cluster | None
    job: Job | None
    model: Model | None
    estimate: Estimate | None
    """What the plan costs, where model and cluster are known."""
    inferred: tuple[str, ...]
    """What nobody wrote down and was taken to be so."""
    open: tuple[str, ...]
    """What could not be said."""


@dataclass(frozen=True, slots=True, repr=False)
class EstimatorReport(Report):
    """Findings in the order of the text, the plan they are about, and the text without the defects."""

    readings: tuple[Reading, ...] = ()
    text: str = field(default="", repr=False)
    """The text that was read."""
    corrected: str = field(default="", repr=False)
    """The text with every safe change made; the text itself where there is none."""
    mended: Reading | None = None
    """What the corrected text is read into, where something was corrected."""

    @property
    def main(self) -> Reading | None:
        """The job that the report is about: the first that reads into a plan, else the first."""
        return next((one for one in self.readings if one.plan is not None), next(iter(self.readings), None))

    @property
    def plan(self) -> Plan | None:
        """The plan; None where it cannot be said, `main.open` says why."""
        return self.main.plan if self.main is not None else None

    @property
    def cluster(self) -> Cluster | None:
        """Instances the job runs on."""
        return self.main.cluster if self.main is not None else None

    @property
    def job(self) -> Job | None:
        """Sequence length and precision."""
        return self.main.job if self.main is not None else None

    @property
    def model(self) -> Model | None:
        """The model, as given or as its shape stands in the hyperparameters."""
        return self.main.model if self.main is not None else None

    def recommended(self, model: Any = None, *, hold_global_batch: bool = True, **settings: Any) -> Comparison:
        """From this plan to the one that `smp_advisor.advise` recommends for the same model, cluster and job.

        Parameters
        ----------
        model
            As for `advise`, where the text does not tell; else the model of the report.
        hold_global_batch
            Whether the recommendation keeps this plan's global batch, and with it the learning rate; where no plan fits
            with it, and otherwise, the search chooses another.
        **settings
            For `advise`: `objective`, `min_fit_probability`, `library` (that of the plan, where it is not given), ...

        Raises
        ------
        AdvisorError
            Where the plan, its cluster or the model is not known, or nothing fits.
        """
        from smp_advisor.estimators.comparison import compare
        from smp_advisor.libraries.groups import global_batch_size
        from smp_advisor.recommendation import advise, read_model

        main = self.main
        if (main is None or main.plan is None) and self.mended is not None:
            main = self.mended
        if main is None or main.plan is None or main.cluster is None or main.job is None:
            raise AdvisorError("There is no plan on a known cluster to compare with: the report says what is missing.")
        if model is None and main.model is None:
            raise AdvisorError("The text does not say what is trained: pass a model, for example recommended('10B').")
        trained = main.model if model is None else read_model(model, sequence_length=main.job.sequence_length)
        settings = {"library": main.plan.library, **settings}
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
        """Unified diff from the text to the corrected one; empty where nothing changes."""
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
        """What each job was read into."""
        return [line for reading in self.readings for line in lines(reading)]

    @property
    def outcome(self) -> list[str]:
        """What the corrected text amounts to, and what only its author can correct."""
        return outcome(self)
