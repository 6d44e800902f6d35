"""Advice: the chosen plan with everything that argues for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.step import Pitfall, Reference, Step
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.search import SearchResult
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["Advice"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation: `plan`, its `estimate`, the ordered `steps` that explain it, and the cell that launches it."""

    model: Model
    cluster: Cluster
    """The cluster of the plan; the objective ``cost`` may choose another than was asked about."""
    job: Job
    """As given; `estimate.global_batch_size` says which batch the search chose."""
    plan: Plan
    estimate: Estimate
    objective: str
    min_fit_probability: float
    steps: tuple[Step, ...]
    """The ordered practices: each technique's decision, the figures that decided it, its trade-off and source."""
    pitfalls: tuple[Pitfall, ...]
    """What the plan demands of the training script and the data pipeline."""
    reference: Reference | None
    """AWS's nearest reference configuration and what differs; None where it publishes none for the library."""
    library_because: str = ""
    """Why this library, where the advisor chose it (``library="auto"``)."""
    because: str
    """Why this plan won, and which batch was chosen and why."""
    defaults: tuple[str, ...]
    """Settings the user did not give: "sequence length 2,048 tokens", ..."""
    plans_enumerated: int
    """Plans the library can express on the cluster(s) searched; all were scored for memory."""
    plans_scored: int
    """Plans whose memory and fit were computed."""
    plans_fit: int
    """Plans that fit with the probability asked for; their time was computed too."""
    script: str | None = None
    """Path of the user's own training script; None for the generated one."""
    data: str | None = None
    """S3 URI of the training channel; None for synthetic tokens."""
    result: SearchResult = field(repr=False, compare=False)

    @property
    def alternatives(self) -> pd.DataFrame:
        """Best first, one row a combination of techniques, with why it lost."""
        from smp_advisor.search.alternatives import alternatives

        return alternatives(
            self.result,
            sequence_length=self.model.sequence_length(self.job.sequence_length),
            min_fit_probability=self.min_fit_probability,
        )

    def cell(self, sdk: str = "auto", plan: Plan | None = None, **options: Any) -> str:
        """The cell that starts the job, for `plan` or the recommended one.

        Parameters
        ----------
        sdk
            Version of the SageMaker Python SDK to write for: ``"v2"``, ``"v3"``, or ``"auto"``, the one installed.
        plan
            As the controls have it, for example; the recommended one if None.
        options
            Of the job: ``data``, ``checkpoints``, ``spot``, ``subnets`` and so on, see `JobOptions`.
        """
        from smp_advisor.export import estimator_cell

        chosen = plan or self.plan
        return estimator_cell(self.model, self.cluster, self.job, chosen, sdk=sdk, **self._options(options))

    def local_cell(self, plan: Plan | None = None, **options: Any) -> str:
        """The ``%%smp_local`` cell that tries the training on this machine, with a small model of the family."""
        from smp_advisor.export import local_cell

        return local_cell(self.model, self.cluster, self.job, plan or self.plan, **self._options(options))

    def monitoring_cell(self) -> str:
        """The cell that shows what the hosts of the running job do: metrics, logs, links to the console."""
        from smp_advisor.export import monitoring_cell

        return monitoring_cell(self.cluster)

    def permissions_cell(self, plan: Plan | None = None, **options: Any) -> str:
        """The cell with the least that the job's execution role has to be allowed."""
        from smp_advisor.export import permissions_cell

        return permissions_cell(self.cluster, plan or self.plan, **self._options(options))

    def quota_cell(self, **options: Any) -> str:
        """The cell that asks AWS for the account's quota and today's price, with a time limit."""
        from smp_advisor.export import quota_cell

        return quota_cell(self.cluster, **self._options(options))

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"script": self.script, "data": self.data} | given

    def script_cell(self, plan: Plan | None = None) -> str:
        """The ``%%writefile`` cell with a complete training script for this model; empty for the user's own script."""
        from smp_advisor.export import script_cell

        return "" if self.script else script_cell(self.model, self.cluster, self.job, plan or self.plan)

    def __str__(self) -> str:
        from smp_advisor.guidance.report import report

        return report(self)
