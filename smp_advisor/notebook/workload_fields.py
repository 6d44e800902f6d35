"""Fields of the workload bar: the request as texts, and the changes that other texts mean."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.live.settings import dollars
from smp_advisor.arguments import amount_of, options
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import Instance, instances
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import get_library, libraries
from smp_advisor.notebook.figures import headlines, memory
from smp_advisor.search.clusters import ANY, AUTO
from smp_advisor.search.sizes import time_and_cost
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.from_config import model_names
from smp_advisor.workload.job import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.search.ways_out import WayOut, WaysOut


OBJECTIVES = {
    "throughput": "fastest",
    "cost": "cheapest",
    "headroom": "most memory free",
    "simplicity": "fewest techniques",
}
_LONGEST = 200


def workload_fields(advice: Advice) -> list[dict[str, Any]]:
    """The request of an advice; none for advice made by hand, which cannot be searched again."""
    if advice.call is None:
        return []
    value = _values(advice)
    library, job, cluster = get_library(advice.plan.library), advice.job, advice.cluster
    days, usd = advice.estimate.days, advice.estimate.usd_total
    automatic = (AUTO, "automatic")
    shown = {
        "model": advice.model.name,
        "sequence_length": f"{job.sequence_length:,} tokens",
        "cluster": cluster.instance.name,
        "instance_count": f"{cluster.nodes:,}",
        "library": f"{_auto(value, 'library')}{library.title}",
        "objective": OBJECTIVES[advice.objective],
        "precision": f"{_auto(value, 'precision')}{job.precision}",
        "global_batch_size": f"{advice.estimate.global_batch_size:,} samples",
        "tokens": value["tokens"] or "not set",
        "max_days": f"{days:.3g} days" if days is not None else "not set",
        "max_usd": f"${usd:,.0f}" if usd is not None else "not set",
        "min_fit_probability": f"{value['min_fit_probability']} %",
    }
    selects = {
        "library": [automatic, *((record.name, record.title) for record in libraries())],
        "objective": list(OBJECTIVES.items()),
        "precision": [automatic, *((name, name) for name in ("bf16", "fp16", "fp32"))],
    }
    suggestions = {
        "model": [(name, name) for name in model_names()],
        "cluster": [(ANY, "any suitable type"), *((machine.name, machine.name) for machine in instances())],
    }
    return [
        {
            "name": name,
            "label": options()[name].label,
            "kind": "select" if name in selects else "text",
            "value": value[name],
            "shown": text,
            "options": selects.get(name) or suggestions.get(name, []),
            "hint": options()[name].hint,
        }
        for name, text in shown.items()
        if name != "sequence_length" or advice.model.reads_tokens
    ]


def changes_of(advice: Advice, texts: Mapping[str, object]) -> dict[str, Any]:
    """Changes of the request that other texts of the fields mean, as keywords of `advise`; None removes a setting."""
    present, changes = _values(advice), dict[str, Any]()
    for name, text in texts.items():
        if name not in present or not isinstance(text, str) or len(text) > _LONGEST:
            raise AdvisorError(f"The workload has no field {name!r:.40} with the value {text!r:.80}.")
        if text.strip() != present[name]:
            changes[name] = _read(name, text.strip())
    if changes.get("model", "") is None:
        raise AdvisorError("The model is missing: enter a number of parameters such as 10B, or a name.")
    if changes.get("cluster", "") is None:
        raise AdvisorError("The instance is missing: enter a type such as ml.p4d.24xlarge, or any.")
    return changes


_BURDENS = ("setting", "library", "optimizer", "batch", "adapter", "sequence", "nodes", "instance")
"""Kinds of changes by what they change of the training; more or other machines also cost more per hour."""


def by_cost(ways: WaysOut) -> list[WayOut]:
    """The ways out by their cost to the user: price per hour, then what they change of the training."""
    return sorted(
        ways.ways, key=lambda way: (way.size.cluster.usd_per_hour or math.inf, _BURDENS.index(way.change), way.words)
    )


def keywords_of(way: WayOut, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `advise` that a way out changes; None removes a setting."""
    size = way.size
    freed = list(pins) if way.words == "no fixed settings" else [way.words.removesuffix(" not fixed")]
    changes: dict[str, dict[str, Any]] = {
        "setting": dict.fromkeys(freed),
        "nodes": {"instance_count": size.cluster.nodes},
        "instance": {"cluster": size.cluster.instance.name, "instance_count": size.cluster.nodes},
        "library": {},
        "batch": {"global_batch_size": size.job.global_batch_size},
        "optimizer": {"optimizer": size.job.optimizer},
        "sequence": {"sequence_length": size.job.sequence_length},
        "adapter": {"adapter": size.job.adapter},
    }
    return changes[way.change] | ({"library": size.library} if way.change in {"library", "adapter"} else {})


def title_of(way: WayOut) -> str:
    """A way out in words for a page, with the name of a library instead of the keyword."""
    return get_library(way.size.library).title if way.change == "library" and way.size.library else way.words


def effect_of(ways: WaysOut, way: WayOut) -> str:
    """Memory, speed and cost of the best plan after a way out."""
    now = way.size.estimate
    if now is None:
        return ""
    cost = re.sub(r" \([^)]*\)", "", time_and_cost(ways.request.model, now)[1])
    speed = headlines(ways.request.model, now)[0]
    price = way.size.cluster.usd_per_hour
    hourly = "" if price is None else f", {dollars(price)} per hour"
    return f"{memory(now)}, {speed.value} {speed.unit}, {cost}{hourly}"


def ways_of(advice: Advice, ways: WaysOut) -> list[dict[str, Any]]:
    """Ways out that a search from the page can take: texts of fields, or other changes of the request."""
    present, library = _values(advice), advice.plan.library
    offers: list[dict[str, Any]] = []
    for way in by_cost(ways):
        changes = keywords_of(way, {})
        if way.change == "setting":
            continue
        texts = {name: str(value) for name, value in changes.items() if name in present}
        if present["library"] not in (AUTO, way.size.library) and way.size.library != library:
            texts["library"] = way.size.library
        elif present["library"] == AUTO:
            texts.pop("library", None)
        more = {name: value for name, value in changes.items() if name not in present}
        plan = None if way.size.estimate is None else way.size.estimate.plan
        note = effect_of(ways, way)
        offers.append({"text": title_of(way), "note": note, "workload": texts, "changes": more, "plan": plan})
    return offers


def _values(advice: Advice) -> dict[str, str]:
    """Texts of the fields."""
    call = {} if advice.call is None else advice.call.keywords
    job, cluster, model = call.get("job") or Job(), call["cluster"], call["model"]
    nodes = cluster.nodes if isinstance(cluster, Cluster) else call.get("instance_count")
    own = {name for name in ("precision",) if name in call or getattr(job, name) != getattr(Job(), name)}
    batch, tokens = call.get("global_batch_size", job.global_batch_size), call.get("tokens", job.tokens)
    return {
        "model": _model_text(model, advice),
        "sequence_length": str(call.get("sequence_length") or advice.job.sequence_length),
        "cluster": _cluster_text(cluster),
        "instance_count": "" if nodes is None else str(nodes),
        "library": call.get("library") or AUTO,
        "objective": call.get("objective") or "throughput",
        "precision": advice.job.precision if "precision" in own else AUTO,
        "global_batch_size": "" if batch is None else str(batch),
        "tokens": _amount(tokens),
        "max_days": _amount(call.get("max_days")),
        "max_usd": _amount(call.get("max_usd")),
        "min_fit_probability": f"{100 * advice.min_fit_probability:g}",
    }


def _model_text(model: object, advice: Advice) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, int | float):
        return format_count(model).replace(" ", "")
    return advice.model.name


def _cluster_text(cluster: object) -> str:
    if isinstance(cluster, list | tuple):
        return ", ".join(map(_cluster_text, cluster))
    machine = cluster.instance if isinstance(cluster, Cluster) else cluster
    return machine.name if isinstance(machine, Instance) else str(machine)


def _amount(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return format_count(float(str(value))).replace(" ", "") if float(str(value)) >= 1000 else f"{float(str(value)):g}"


def _auto(values: Mapping[str, str], name: str) -> str:
    return "automatic: " if values[name] == AUTO else ""


def _read(name: str, text: str) -> Any:
    """The value that the text of a field means; None removes the setting."""
    if not text or (text == AUTO and name == "precision"):
        return None
    option = options()[name]
    if option.type == "share":
        return amount_of(option.label, text.removesuffix("%").strip(), "95") / 100
    return text if option.type == "choice" else option.read(text, option.label)
