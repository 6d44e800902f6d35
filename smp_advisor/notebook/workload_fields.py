"""The workload bar: the request as texts, the changes that other texts mean, and their searches in a thread."""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import LIMITS, amount_of, options
from smp_advisor.cluster import Cluster, Instance, instances
from smp_advisor.core.files import data_file
from smp_advisor.core.sheet import with_signs
from smp_advisor.costs.wording import probability
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.libraries.library import Settings, get_library, libraries
from smp_advisor.notebook.figures import headlines, memory
from smp_advisor.search.clusters import ANY, AUTO
from smp_advisor.session import control_state
from smp_advisor.session.control_state import changed
from smp_advisor.session.settings import dollars, require_name, require_settings, with_labels
from smp_advisor.workload import format_count
from smp_advisor.workload.from_config import model_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.ways_out import WayOut, WaysOut
    from smp_advisor.session import Advice
    from smp_advisor.session.control_state import ControlState


def workload_fields(advice: Recommendation) -> list[dict[str, Any]]:
    """Return the request of an advice."""
    value = _values(advice)
    library, job, cluster = get_library(advice.plan.library), advice.job, advice.cluster
    days, usd = advice.estimate.days, advice.estimate.usd_total
    automatic, objectives = (AUTO, "automatic"), data_file("notebook", "page")["objectives"]
    shown = {
        "model": advice.model.name,
        "sequence_length": f"{job.sequence_length:,} tokens",
        "cluster": cluster.instance.name,
        "instance_count": f"{cluster.nodes:,}",
        "library": f"{_auto(value, 'library')}{library.title}",
        "objective": objectives[advice.objective],
        "precision": f"{_auto(value, 'precision')}{job.precision}",
        "global_batch_size": f"{advice.estimate.global_batch_size:,} samples",
        "tokens": value["tokens"] or "not set",
        "max_days": f"{days:.3g} days" if days is not None else "not set",
        "max_usd": f"${usd:,.0f}" if usd is not None else "not set",
        "max_gpu_hours": f"{24 * days * cluster.gpus:,.0f}" if days is not None else "not set",
        "min_fit_probability": f"{value['min_fit_probability']} %",
    }
    selects = {
        "library": [automatic, *((record.name, record.title) for record in libraries())],
        "objective": list(objectives.items()),
        "precision": [automatic, *((name, name) for name in ("bf16", "fp16", "fp32"))],
    }
    return [
        {
            "name": name,
            "label": options()[name].label,
            "kind": "select" if name in selects else "text",
            "value": value[name],
            "shown": text,
            "options": selects.get(name, []),
            "hint": options()[name].hint,
        }
        for name, text in shown.items()
        if name != "sequence_length" or advice.model.reads_tokens
    ]


def suggestions() -> dict[str, list[tuple[str, str]]]:
    """Return the values to choose from in the fields of text, which a page requests when one has the focus."""
    return {
        "model": [(name, name) for name in model_names()],
        "cluster": [(ANY, "any suitable type"), *((machine.name, machine.name) for machine in instances())],
    }


def changes_of(advice: Recommendation, texts: Mapping[str, object]) -> dict[str, Any]:
    """Changes of the request that other texts of the fields mean, as keywords of `advise`; None removes a setting."""
    present, changes = _values(advice), dict[str, Any]()
    for name, text in texts.items():
        if name not in present or not isinstance(text, str):
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


_LONGEST_DAYS = 365
"""A run that lasts longer is no offer, unless there is no other."""


def by_cost(ways: WaysOut) -> list[WayOut]:
    """Return the ways out by their cost: in total, or per hour without a number of tokens, then by what they change."""

    def cost(way: WayOut) -> tuple[float, int, str]:
        total = way.size.estimate.usd_total if way.size.estimate is not None else None
        return (total or way.size.cluster.usd_per_hour or math.inf, _BURDENS.index(way.change), way.words)

    short = [way for way in ways.ways if way.size.estimate is None or (way.size.estimate.days or 0) <= _LONGEST_DAYS]
    return sorted(short or ways.ways, key=cost)


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
    """A way out in words for a page: with the name of a library, without price and time, which have their places."""
    if way.change == "library" and way.size.library:
        return get_library(way.size.library).title
    return re.sub(r", [\d,.e+]+ (USD/h|days)", "", way.words).replace(" x ", " × ")


def offer_columns(ways: WaysOut) -> tuple[str, ...]:
    """Titles of `offer_cells`: without a number of tokens, the speed and the price per token."""
    timed = any(way.size.days is not None for way in ways.ways)
    ends = ("Days (95 %)", "Total") if timed else ("Speed", "Price")
    return ("Memory", "Per hour", *ends, "Probability to fit")


def offer_cells(ways: WaysOut, way: WayOut) -> list[str]:
    """Memory, price per hour, time, total and probability of the best plan after a way out."""
    now = way.size.estimate
    if now is None:
        return [""] * 5
    speed, time, money = headlines(ways.request.model, now)
    price = way.size.cluster.usd_per_hour
    first = f"{time.value} {time.unit} ({time.range})" if now.days is not None else f"{speed.value} {speed.unit}"
    hourly = "unknown" if price is None else f"{dollars(price)} per hour"
    return [memory(now), hourly, first, f"{money.value} {money.unit}", probability(now.fit_probability)]


def dear(ways: WaysOut, way: WayOut) -> str:
    """Return by how much a way out exceeds the price per hour of the request, if by a large factor; else empty."""
    price, before = way.size.cluster.usd_per_hour, ways.request.cluster.usd_per_hour
    if price is None or not before or price < _DEAR * before:
        return ""
    return f"{price / before:.0f} times the price per hour of the request"


def effect_of(ways: WaysOut, way: WayOut) -> str:
    """Memory, price, time, cost and probability of the best plan after a way out."""
    *figures, odds = offer_cells(ways, way)
    return ", ".join(filter(None, (*figures, odds and f"fits with {odds} probability", dear(ways, way))))


_DEAR = 10
"""Multiple of the request's price per hour from which an offer states it."""


def ways_of(advice: Recommendation, ways: WaysOut) -> list[dict[str, Any]]:
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


def _values(advice: Recommendation) -> dict[str, str]:
    """Return the texts of the fields."""
    request = advice.request
    cluster, model, job = request.cluster, request.model, request.job
    nodes = cluster.nodes if isinstance(cluster, Cluster) else request.instance_count
    name = model if isinstance(model, str) else advice.model.name
    if isinstance(model, int | float):
        name = format_count(model).replace(" ", "")
    return {
        "model": name,
        "sequence_length": str(advice.job.sequence_length),
        "cluster": _cluster_text(cluster),
        "instance_count": "" if nodes is None else str(nodes),
        "library": request.library,
        "objective": request.objective,
        "precision": advice.job.precision if "precision" in request.named_settings else AUTO,
        "global_batch_size": "" if job.global_batch_size is None else str(job.global_batch_size),
        "tokens": _amount(job.tokens),
        **{name: _amount(getattr(request, name)) for name in LIMITS},
        "min_fit_probability": f"{100 * advice.min_fit_probability:g}",
    }


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
    """Return the value that the text of a field means; None removes the setting."""
    if not text or (text == AUTO and name == "precision"):
        return None
    option = options()[name]
    if option.type == "share":
        return amount_of(option.label, text.removesuffix("%").strip(), "95") / 100
    return text if option.type == "choice" else option.read(text, option.label)


_REPORTS_PER_SECOND = 5.0


class _CanceledError(Exception):
    """Ends a search from its progress."""


class Searching:
    """The search of an advice in a thread, of which there is at most one: a newer one replaces it."""

    def __init__(self, advice: Advice, send: Callable[[dict[str, Any]], object]) -> None:
        self._advice, self._send = advice, send
        self._thread: Thread | None = None
        self._number = 0
        """Of the newest search: an older one has no result."""
        self._ways: list[dict[str, Any]] = []
        self._lock = Lock()

    def start(self, content: Mapping[str, Any]) -> None:
        """Search the workload of a message: ``{"id": ..., "workload": {field: text}}``."""
        identity = str(content.get("id", ""))
        with self._lock:
            self._number += 1
            try:
                pins, (changes, plan) = self._pinned(content.get("pin")), self._changes(content)
            except AdvisorError as error:
                self._answer(identity, error)
                return
            if not changes and not content.get("again"):
                self._answer(identity, None)
                return
            with self._advice.turn:
                search = partial(changed, self._advice.recommended, changes, all_pins := {**self._advice.pins, **pins})
            self._send(_progress(identity, 0, 0, "", None))
            task = (self._number, identity, search, all_pins, plan)
            self._thread = Thread(target=self._run, args=task, name="smp-advisor-search", daemon=True)
            self._thread.start()

    def _changes(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], Plan | None]:
        """Return the changes of the request that a message means, and the plan that an offer keeps."""
        workload = content.get("workload")
        changes = changes_of(self._advice.recommended, workload if isinstance(workload, dict) else {})
        # A way out that no field shows: the kernel has its values.
        way, fit = content.get("way"), content.get("fit")
        changes |= self._ways[way] if isinstance(way, int) and 0 <= way < len(self._ways) else {}
        if not isinstance(fit, int):
            return changes, None
        controls = self._advice.controls
        settings = require_settings(content.get("settings"), controls.advice.plan.library)
        offers = ways_to_fit(self._advice, control_state.require(control_state.apply(controls, settings)))
        if not 0 <= fit < len(offers):
            raise AdvisorError("The settings have changed: choose again.")
        return changes | offers[fit]["changes"], offers[fit]["plan"]

    def _run(
        self, number: int, identity: str, search: Callable[..., Recommendation], pins: Settings, plan: Plan | None
    ) -> None:
        started, reported = time.monotonic(), 0.0

        def report(done: float, total: float, text: str) -> None:
            nonlocal reported
            if number != self._number:
                raise _CanceledError
            now = time.monotonic()
            if now - reported >= 1 / _REPORTS_PER_SECOND or done >= total:
                reported = now
                left = (now - started) * (total - done) / done if done else None
                self._send(_progress(identity, done, total, text, left))

        result: Recommendation | AdvisorError
        try:
            result = search(on_progress=report)
        except _CanceledError:
            return
        except AdvisorError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - the page must not wait for ever
            result = AdvisorError(f"The search failed: {type(error).__name__}: {error}")
        with self._advice.turn:
            if number != self._number:
                return
            if isinstance(result, AdvisorError):
                self._answer(identity, result)
                return
            state = None
            if plan is not None and plan.library == result.plan.library:
                with suppress(AdvisorError):  # the new recommendation has no such plan
                    state = control_state.adopt(control_state.recommended(result), plan)
            self._advice.renew(result, state=state, pins=pins)
            self._answer(identity, None)

    def cancel(self, content: Mapping[str, Any] | None = None) -> None:
        """End the search. The advice stays as it is."""
        del content
        with self._lock:
            self._number += 1
            self._send({"kind": "searched", "id": "", "problem": "", "ways": []})

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the present search."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _pinned(self, pin: object) -> Settings:
        """Return the setting that a message pins at a value: ``{"name": ..., "value": ...}``; none without one."""
        if not isinstance(pin, dict):
            return {}
        name, library = str(pin.get("name")), self._advice.plan.library
        require_name(name, library)
        require_settings({**self._advice.controls.settings, name: pin.get("value")}, library)
        return {name: pin["value"]}

    def _answer(self, identity: str, error: AdvisorError | None) -> None:
        problem = "" if error is None else with_signs(with_labels(self._advice.plan.library, str(error)))
        ways = error.ways_out if isinstance(error, NoPlanFitsError) else None
        offers = [] if ways is None else ways_of(self._advice.recommended, ways)
        if offers:  # each is a button
            problem = f"{problem.partition('; changes that fit:')[0].removesuffix('.')}."
        self._ways = [offer["changes"] for offer in offers]
        shown = [{name: offer[name] for name in ("text", "note", "workload")} for offer in offers]
        self._send({"kind": "searched", "id": identity, "problem": problem, "ways": shown})


def _progress(identity: str, done: float, total: float, text: str, left: float | None) -> dict[str, Any]:
    return {"kind": "searching", "id": identity, "done": done, "total": total, "text": text, "seconds_left": left}


def ways_to_fit(advice: Advice, state: ControlState) -> list[dict[str, Any]]:
    """Return the changes of the request after which the plan of the controls fits, with all its settings."""
    try:
        changed(advice.recommended, {"library": state.advice.plan.library}, state.valid_settings)
    except NoPlanFitsError as error:
        return [] if error.ways_out is None else ways_of(advice.recommended, error.ways_out)
    except AdvisorError:
        return []
    return []
