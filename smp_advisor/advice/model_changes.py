"""Slight changes of the model that make its training faster: sizes that tensor cores and degrees divide."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.practices import Step
from smp_advisor.core.files import data_file
from smp_advisor.costs.wording import listed, percent, unit
from smp_advisor.errors import AdvisorError
from smp_advisor.search.search import search
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.families import model_from_values
from smp_advisor.workload.settings import families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smp_advisor.advice.variants import PlannedRun
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload import Job, Model

_LABELS = {
    "vocab": "vocabulary",
    "hidden": "hidden size",
    "heads": "attention heads",
    "ffn": "feed-forward size",
    "layers": "layers",
}


def adjusted_sizes(model: Model, *, pretrained: bool = False) -> dict[str, int]:
    """Sizes of the shape to change, with their new values; empty if there is nothing to change."""
    rules, shape = data_file("advice", "model_changes"), model.shape
    sizes = {"vocab": -(-shape.vocab // rules["vocabulary"]) * rules["vocabulary"]}
    if not pretrained:
        sizes |= dict(_width(model))
        sizes["ffn"] = _nearest(shape.ffn * sizes.get("hidden", shape.hidden) / shape.hidden, rules["feed_forward"])
    return {name: value for name, value in sizes.items() if value != getattr(shape, name)}


def _width(model: Model) -> Iterator[tuple[str, int]]:
    """Hidden size, heads and layers, at about the same number of parameters."""
    rules, shape = data_file("advice", "model_changes"), model.shape
    width = shape.hidden // shape.heads
    if shape.hidden % rules["hidden"] == 0 and shape.heads % rules["heads"] == 0 and width % rules["head_width"] == 0:
        return
    hidden = _nearest(shape.hidden, rules["hidden"])
    heads = min(
        (
            heads
            for heads in range(rules["heads"], hidden // 32 + 1, rules["heads"])
            if hidden % (heads * rules["head_width"]) == 0
        ),
        key=lambda heads: (hidden // heads % rules["fast_head_width"] != 0, abs(hidden / heads - width)),
        default=0,
    )
    if not heads or (shape.kv_heads != shape.heads and heads % shape.kv_heads):
        return
    yield "hidden", hidden
    yield "heads", heads
    if shape.kv_heads == shape.heads:
        yield "kv_heads", heads
    yield "layers", max(1, round(shape.layers * (shape.hidden / hidden) ** 2))


def _nearest(size: float, multiple: int) -> int:
    return max(multiple, round(size / multiple) * multiple)


def model_changes(run: PlannedRun, limits: Mapping[str, Any], *, order: int) -> tuple[Step, ...]:
    """Return the step that adjusts the model, if its fastest plan is then visibly faster at the same global batch."""
    model, job, now, rules = run.model, run.job, run.estimate, data_file("advice", "model_changes")
    if model.origin == "measured":
        return ()
    sizes = adjusted_sizes(model, pretrained=job.training == "fine-tuning" or job.adapter is not None)
    fixed = replace(job, global_batch_size=now.global_batch_size)
    words = {name: size for name, size in sizes.items() if name == "vocab"}
    speed, best, adjusted = now.samples_per_second, dict[str, int](), model
    # A longer vocabulary alone keeps the architecture, so other sizes must gain more than it.
    for changes, least_gain in ((words, rules["visible_gain"]), (sizes, rules["least_gain"])):
        changed = _rebuilt(model, changes) if changes else None
        reached = 0.0 if changed is None else _speed(changed, run.cluster, fixed, limits)
        if changed is not None and reached >= speed * (1 + least_gain):
            speed, best, adjusted = reached, changes, changed
    if not best:
        return ()
    scale = model.sequence_length(job.sequence_length) if model.reads_tokens else 1
    speeds = [f"{value * scale:,.0f} {unit(model)}/s" for value in (speed, now.samples_per_second)]
    texts = [
        f"{_LABELS[name]} {getattr(model.shape, name):,} to {size:,}" for name, size in best.items() if name in _LABELS
    ]
    gain = speed / now.samples_per_second - 1
    doubt = "" if gain >= rules["least_gain"] else ", less than the cost model resolves"
    because = (
        f"Change {listed(texts)}: {speeds[0]} instead of {speeds[1]} ({percent(gain)} faster{doubt}) with the same"
        " global batch."
    )
    details = (
        f"{because} The model then has {format_count(adjusted.parameter_count)} parameters instead of"
        f" {format_count(model.parameter_count)}. Tensor cores and tensor parallelism divide its products without a"
        " remainder. The comparison is between the fastest plans of both models."
    )
    return (
        Step(
            order=order,
            technique="model_changes",
            title=rules["title"],
            decision="not used",
            because=because,
            details=details,
            trade_off=rules["trade_off"],
            figures=(("throughput with", speeds[0]), ("throughput without", speeds[1])),
            source_title=rules["source_title"],
            source_url=rules["source_url"],
        ),
    )


def _speed(model: Model, cluster: Cluster, job: Job, limits: Mapping[str, Any]) -> float:
    """Samples per second of the fastest plan; 0 if none fits."""
    try:
        result = search(model, cluster, job, **limits)
    except AdvisorError:
        return 0.0
    fastest = float(result.scores.tokens_per_second[0]) if len(result.ranked) else 0.0
    return fastest / model.sequence_length(job.sequence_length)


def _rebuilt(model: Model, sizes: Mapping[str, int]) -> Model | None:
    """Return the model with other sizes; None if its family has no such sizes."""
    family = families().get(model.family)
    if family is None:
        return None
    values = json.loads(model.config_json)
    for name, size in sizes.items():
        if name in family.shape_keys:
            values[family.shape_keys[name]] = size
        elif name != "kv_heads" and not (name == "ffn" and size == 4 * sizes.get("hidden", model.shape.hidden)):
            return None
    try:
        return model_from_values(values, source="the adjusted model", name=model.name)
    except AdvisorError:
        return None
