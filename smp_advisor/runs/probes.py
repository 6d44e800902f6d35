"""Short jobs that measure a plan, and which of them to run."""

from __future__ import annotations

import json
import textwrap
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Shown
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.wording import step_time
from smp_advisor.errors import AdvisorError, CalibrationError
from smp_advisor.libraries.library import plan_fields
from smp_advisor.libraries.validation import mismatches
from smp_advisor.workload import Job, Model
from smp_advisor.workload.settings import families

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan

    Where = tuple[Model, Cluster, Job, Plan]


MEASURED_STEPS = 20
WARM_UP_STEPS = 5
_MOST_NODES = 2
_WIDTH = 88
"""Characters of a line of a cell."""


@dataclass(frozen=True, kw_only=True)
class Probe(Shown):
    """A short job that measures a plan, or its shape per GPU, on one or two nodes."""

    model: Model
    """The model, with fewer layers if the full one does not fit."""
    cluster: Cluster
    job: Job
    plan: Plan
    estimate: Estimate
    of_plan: Estimate
    """Estimate of the plan on its own cluster."""
    layers: tuple[int, int]
    """Layers of the probe and of the full model."""

    @property
    def seconds(self) -> float:
        """Billed seconds: start of the job, warm-up and measured steps."""
        return self.estimate.effective.startup_seconds + self.steps * self.estimate.step_seconds

    @property
    def usd(self) -> float | None:
        """Price; None if the on-demand price is unknown."""
        rate = self.cluster.usd_per_hour
        return None if rate is None else rate * self.seconds / 3600

    @property
    def steps(self) -> int:
        """Optimizer steps of the job."""
        return WARM_UP_STEPS + MEASURED_STEPS

    @property
    def comment(self) -> str:
        """`lines` as Python comments."""
        text = [*self.lines, "Afterwards: advice.calibrate(log, probe=True), with the path of the log."]
        if self.layers[0] != self.layers[1]:
            text.append("The probe has a script of its own: write that of the plan again before its job.")
        return "\n".join(
            textwrap.fill(part, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
            for part in text
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Size, price and effect, one sentence each."""
        probe, full = self.layers
        shape = f"{probe} of {full} layers" if probe != full else f"all {full} layers"
        price = "price unknown" if self.usd is None else f"about {self.usd:,.2f} USD"
        hourly = self.of_plan.usd_per_hour
        compared = "" if hourly is None else f" The cluster of the plan costs {hourly:,.2f} USD per hour."
        counts = {"warm_up": WARM_UP_STEPS, "measured": MEASURED_STEPS, "layers": shape, "nodes": self.cluster.nodes}
        costs = {"minutes": self.seconds / 60, "price": price, "hourly": compared}
        where, time = self.cluster.instance.name, step_time(self.estimate)
        is_whole = probe == full and self.plan == self.of_plan.plan
        effect = sentence("runs", "probe_of_plan" if is_whole else "probe_of_shape", before=step_time(self.of_plan))
        return sentence("runs", "probe", **counts, **costs, instance=where, step_time=time), effect

    def __str__(self) -> str:
        return "\n".join(self.lines)


def best_probe(*where: *Where, scalable: bool = True, min_fit_probability: float = 0.95) -> Probe:
    """Return the short job that teaches the most about a plan.

    A plan that runs as it is on two nodes is measured there, with the exchange between nodes. Any other job is of a
    similar plan only, which narrows the interval of the plan little: then one node, with most of the layers, costs the
    least.
    """
    _, cluster, _, plan = where
    probes = list(candidates(*where, scalable=scalable, min_fit_probability=min_fit_probability))
    as_planned = [probe for probe in probes if probe.plan == plan and probe.layers[0] == probe.layers[1]]
    if not probes:
        raise CalibrationError(sentence("runs", "no_probe", nodes=_MOST_NODES, instance=cluster.instance.name))
    return as_planned[-1] if as_planned else probes[0]


def candidates(*where: *Where, scalable: bool = True, min_fit_probability: float = 0.95) -> Iterator[Probe]:
    """Yield probes on one and two nodes, with all layers and then with fewer, that fit with the probability."""
    model, cluster, job, plan = where
    short, of_plan = replace(job, global_batch_size=None, tokens=None), estimate(*where)
    for nodes in range(1, min(_MOST_NODES, cluster.nodes) + 1):
        small = Cluster(cluster.instance, nodes)
        smaller = _smaller_plan(plan, small, short)
        if smaller is None:
            continue
        for reduced in _models(model, smaller, plan, scalable=scalable):
            if any(mismatches(smaller, small, reduced, short)):
                continue
            try:
                figures = estimate(reduced, small, short, smaller)
            except AdvisorError:
                continue
            if figures.host_memory_fits and figures.fit_probability >= min_fit_probability:
                yield Probe(
                    model=reduced, cluster=small, job=short, plan=smaller, estimate=figures, of_plan=of_plan,
                    layers=(reduced.layer_count, model.layer_count),
                )  # fmt: skip


def _smaller_plan(plan: Plan, cluster: Cluster, job: Job) -> Plan | None:
    """The plan on fewer GPUs: with a shorter pipeline and smaller sharding groups, if necessary; None if impossible."""
    fields = plan_fields(plan.library)
    degrees = [name for name in ("sharded_data_parallel_degree", "hybrid_shard_degree") if name in fields]
    pipelines = [plan.pipeline_parallel_degree]
    while "pipeline_parallel_degree" in fields and pipelines[-1] > 1:
        pipelines.append(pipelines[-1] // 2)
    for pipeline in pipelines:
        changes: list[dict[str, int]] = [{}]
        for name in degrees:
            degree = getattr(plan, name)
            while isinstance(degree, int) and degree > 1:
                degree //= 2
                changes.append({name: degree})
        for change in changes:
            if pipeline != plan.pipeline_parallel_degree:
                change["pipeline_parallel_degree"] = pipeline
            with suppress(AdvisorError):  # a degree that the library does not accept
                smaller = replace(plan, **change)
                if not any(mismatches(smaller, cluster, None, job)):
                    return smaller
    return None


def _models(model: Model, smaller: Plan, plan: Plan, *, scalable: bool) -> Iterator[Model]:
    """Yield the model with as many layers per stage, and with fewer."""
    full = model.layer_count * smaller.pipeline_parallel_degree // plan.pipeline_parallel_degree
    if full == model.layer_count:
        yield model
    config = json.loads(model.config_json)
    family = families().get(model.family)
    key = None if family is None else family.shape_keys.get("layers")
    if not scalable or key is None or config.get(key) != model.layer_count:
        return
    layers = full if full < model.layer_count else full // 2
    while layers >= max(2, smaller.pipeline_parallel_degree):
        yield Model.from_config({**config, key: layers})
        layers //= 2
