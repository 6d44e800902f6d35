"""A recommendation as a value, which reports, charts and runs read: its plan, the figures and the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from smp_advisor.errors import PlanError
from smp_advisor.libraries.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from functools import partial

    import pandas as pd

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.practices import Pitfall, Reference, Step
    from smp_advisor.search.clusters import Question
    from smp_advisor.search.decision import Decision
    from smp_advisor.search.search import SearchResult
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


@dataclass(frozen=True, kw_only=True, repr=False)
class Recommended:
    """The plan that the search chose, with its estimate and its reasons."""

    model: Model
    cluster: Cluster
    """Cluster of the plan. The objective ``cost`` may choose another cluster than the requested one."""
    job: Job
    """Training run. `estimate.global_batch_size` is the batch that the search chose."""
    plan: Plan
    estimate: Estimate
    objective: str
    min_fit_probability: float
    decision: Decision
    """How certain the choice is, and the reasons for its global batch."""
    steps: tuple[Step, ...]
    """The ordered practices, each with its decision, figures, trade-off and source."""
    pitfalls: tuple[Pitfall, ...]
    """Requirements of the plan for the training script, the data pipeline and the job."""
    reference: Reference | None
    """AWS's nearest reference configuration, with the differences; None if AWS publishes none for the library."""
    library_because: str = ""
    """The library with its status, and the reason for it, if the advisor chose it (``library="auto"``)."""
    library_comparisons: tuple[str, ...] = ()
    """One sentence for each other library, if the advisor chose the library."""
    because: str
    """Reasons for the plan and for its batch."""
    defaults: tuple[str, ...]
    """Settings that the user left at their default: "sequence length 2,048 tokens", ..."""
    plans_enumerated: int
    """Number of plans that the library can express on the searched clusters."""
    plans_scored: int
    """Number of plans whose memory and fit were computed."""
    plans_fit: int
    """Number of plans that fit with the required probability. Their time was computed, too."""
    requested: tuple[str, ...] = ()
    """Settings of the user: "sequence length 512", "tensor parallel degree 4", ..."""
    warnings: tuple[str, ...] = ()
    """Warnings about the plan, and what was read of the user's script."""
    script: str | None = None
    """Path of the user's own training script; None for the generated one."""
    data: str | None = None
    """S3 URI of the training channel; None for synthetic tokens."""
    result: SearchResult = field(compare=False)
    sizes: ClusterSizes | None = field(default=None, compare=False)
    """The compared clusters, if the request left the cluster open or its objective is the cost."""
    question: Question | None = field(default=None, compare=False)
    """The request as it is searched on other clusters; None for advice made by hand."""
    request: partial[Any] | None = field(default=None, compare=False)
    """The call of `advise` for the same model, cluster and pins, without its job; None for advice made by hand."""
    call: partial[Any] | None = field(default=None, compare=False)
    """The call of `advise` as it was made, with all its keywords, to search again with changed ones."""

    if TYPE_CHECKING:  # the code and the runs of a recommendation, which `Advice` adds
        calibrate: ClassVar[Callable[..., Self]]
        as_json: ClassVar[Callable[..., str]]
        cell: ClassVar[Callable[..., str]]
        script_cell: ClassVar[Callable[..., str]]
        probe: ClassVar[Callable[..., Any]]
        probe_cell: ClassVar[Callable[..., str]]
        probe_script_cell: ClassVar[Callable[..., str]]

        @property
        def recommended(self) -> Recommended: ...

        @property
        def learned(self) -> Any: ...

    @property
    def alternatives(self) -> pd.DataFrame:
        """The best plan of each combination of techniques, best first, with the reason why it is not recommended."""
        from smp_advisor.search.search import alternatives

        return alternatives(self.result, self.model, self.job, min_fit_probability=self.min_fit_probability)

    def again(self, job: Job | None = None, **changes: Any) -> Self:
        """The advice for the same request, with the present `job` or another one, and changed keywords of `advise`."""
        from smp_advisor.errors import CalibrationError

        if self.request is None:
            raise CalibrationError("Only advice made by advise() can be made again.")
        advice = self.request(job=self.job if job is None else job, **changes)
        words = ("requested", "defaults", "library_because", "library_comparisons")
        value: Self = advice.recommended
        return replace(value, **{name: getattr(self, name) for name in words})

    def _run_of(self, plan: Plan | None = None) -> tuple[Model, Cluster, Job, Plan]:
        if plan is not None and not isinstance(plan, Plan):
            raise PlanError(f"plan must be a Plan, or None for the recommended one, not {type(plan).__name__}.")
        return self.model, self.cluster, self.job, plan or self.plan

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
        from smp_advisor.errors import AdvisorError
        from smp_advisor.search.clusters import COUNTS, Limits, places_of
        from smp_advisor.search.sizes import compare

        if self.question is None:
            raise AdvisorError("Only advice made by advise() can be compared with other clusters.")
        question = self.question.training(calibration=self.job.calibration)
        limits = Limits.of(question.request.job, max_days=max_days, max_usd=max_usd)
        kinds = self.cluster.instance if instances is None else instances
        places = places_of(kinds, None, limits=limits, library=question.library, counts=counts or COUNTS)
        clusters = tuple(dict.fromkeys((*places.clusters, self.cluster)))
        here = replace(places, clusters=clusters, goal="cheapest", requested=self.cluster)
        return compare(question, here, limits, on_progress)
