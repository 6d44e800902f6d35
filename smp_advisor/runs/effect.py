"""Short jobs that measure a plan, and the one whose run teaches the most about it."""

from __future__ import annotations

import json
import math
import textwrap
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Shown
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.observation import observed
from smp_advisor.costs.wording import step_time
from smp_advisor.errors import AdvisorError, CalibrationError
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import plan_fields
from smp_advisor.libraries.validation import mismatches
from smp_advisor.workload import Calibration, Job, Model
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
    """A short job with the per-GPU shape of a plan on one or two nodes."""

    model: Model
    """The model, with fewer layers if the full one does not fit."""
    cluster: Cluster
    job: Job
    plan: Plan
    estimate: Estimate
    target: Estimate
    """Estimate of the plan before the probe."""
    width: float
    """Expected width of the plan's interval of the step time after the probe, relative to the present one."""
    interval: tuple[float, float]
    """Expected 95 % interval of the plan's step time after the probe, if the probe takes the predicted time."""
    layers: tuple[int, int]
    """Layers of the probe and of the full model."""

    @property
    def seconds(self) -> float:
        """Billed seconds: start of the job, warm-up and measured steps."""
        return self.estimate.effective.startup_seconds + (MEASURED_STEPS + WARM_UP_STEPS) * self.estimate.step_seconds

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
        """Size, price and expected effect, one sentence each."""
        probe, full = self.layers
        shape = f"{probe} of {full} layers" if probe != full else f"all {full} layers"
        low, high = self.interval
        price = "price unknown" if self.usd is None else f"about {self.usd:,.2f} USD"
        hourly = self.target.usd_per_hour
        compared = "" if hourly is None else f" The cluster of the plan costs {hourly:,.2f} USD per hour."
        counts = {"warm_up": WARM_UP_STEPS, "measured": MEASURED_STEPS, "layers": shape, "nodes": self.cluster.nodes}
        costs = {"minutes": self.seconds / 60, "price": price, "hourly": compared}
        where, time = self.cluster.instance.name, step_time(self.estimate)
        narrower = 100 * (1 - self.width)
        return (
            sentence("runs", "probe", **counts, **costs, instance=where, step_time=time),
            sentence("runs", "effect", before=step_time(self.target), low=low, high=high, narrower=narrower),
        )

    def __str__(self) -> str:
        return "\n".join(self.lines)


def best_probe(*where: *Where, scalable: bool = True, min_fit_probability: float = 0.95) -> Probe:
    """Return the probe that narrows the interval most, and of equal ones the cheapest."""
    probes = list(candidates(*where, scalable=scalable, min_fit_probability=min_fit_probability))
    if not probes:
        raise CalibrationError(sentence("runs", "no_probe", nodes=_MOST_NODES, instance=where[1].instance.name))
    return min(probes, key=lambda probe: (round(probe.width, 2), probe.cluster.nodes * probe.seconds))


def candidates(*where: *Where, scalable: bool = True, min_fit_probability: float = 0.95) -> Iterator[Probe]:
    """Probes on one and two nodes, with all layers and with fewer, that fit with the probability."""
    model, cluster, job, plan = where
    short = replace(job, global_batch_size=None, tokens=None)
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
                yield _probe(where, (reduced, small, short, smaller), figures)


def _probe(where: Where, short: Where, figures: Estimate) -> Probe:
    """Return a short job with these figures, and its expected effect on the plan if it takes the predicted time."""
    (model, cluster, job, plan), target = where, estimate(*where)
    layout = layout_of_plan(short[3], short[2], short[1])
    run = observed(*short[:3], layout, step_seconds=figures.step_seconds)
    calibration = Calibration(runs=(run,)) if job.calibration is None else job.calibration.with_runs([run])
    after = estimate(model, cluster, replace(job, calibration=calibration), plan)
    widths = [math.log(high / low) for low, high in (after.step_factors, target.step_factors)]
    return Probe(
        model=short[0],
        cluster=short[1],
        job=short[2],
        plan=short[3],
        estimate=figures,
        target=target,
        width=widths[0] / widths[1],
        interval=after.step_seconds_range,
        layers=(short[0].layer_count, model.layer_count),
    )


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
