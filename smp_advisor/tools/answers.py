"""Short answers: at most 20 lines of text, at most 4 kB of JSON, and the way to everything else."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.choice import certainty
from smp_advisor.arguments import without_python
from smp_advisor.core.tables import Table, between, number
from smp_advisor.costs.estimate import CATEGORIES, Estimate
from smp_advisor.costs.guesses import assumed, guesses
from smp_advisor.costs.wording import (
    amount,
    cost_per_million,
    fit,
    fits,
    gib,
    global_batch,
    percent,
    probability,
    rate,
    run_cost,
    run_time,
    step_time,
    unit,
    utilization,
)
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import get_library, plan_defaults
from smp_advisor.search.clusters import hourly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.estimators.report import EstimatorReport
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.findings.report import Report
    from smp_advisor.runs.failures import Failure
    from smp_advisor.search.clusters import ClusterSize
    from smp_advisor.search.sizes import ClusterSizes
    from smp_advisor.search.ways_out import WaysOut
    from smp_advisor.session import Advice
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

YES, NO, WRONG = 0, 1, 2
"""Exit statuses: yes, no, an input that is wrong."""
SCHEMA = 1
"""Version of the answers' JSON. A field may be added without a new one."""
MOST_BYTES = 4_000
"""Of a compact answer as JSON."""
MOST_CODE = 2_800
"""Bytes of code in a compact answer; longer code has its first lines there."""
_FIRST = 20
_MOST_LINES = 20
_EXPLAIN = {"Library", "Needed", "Certainty", "Instead", "Assumed", "Heed"}
"""Rows without figures of the plan."""
_WIDTH = 100
_DIGITS = 4

Details = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question."""

    text: str
    """For a terminal."""
    data: dict[str, Any]
    """The compact form, plain data."""
    full: Callable[[], Any]
    """Everything, as plain data."""
    details: Details = field(default_factory=dict)
    """Further parts of the compact form, by their names."""
    status: int = YES

    def compact(self, parts: Iterable[str] = (), most: int = MOST_BYTES) -> dict[str, Any]:
        """Return the compact form with further parts, shortened to the limit: what was left out is counted in it."""
        more = {} if not self.details else {"details": list(self.details)}
        data = {"schema": SCHEMA, **self.data, **{part: self.details[part]() for part in parts}, **more}
        return shortened(data, most)


def size_of(data: Any) -> int:
    """Return the bytes of data as JSON."""
    return len(json.dumps(data, ensure_ascii=False).encode())


def shortened(data: dict[str, Any], most: int) -> dict[str, Any]:
    """Return the data within a number of bytes: the largest lists and texts lose their ends, which is marked."""
    data, left_out = dict(data), dict[str, int]()
    while size_of(data) > most:
        name = max((key for key, value in data.items() if value), key=lambda key: size_of(data[key]))
        value = data[name]
        if isinstance(value, list) and len(value) > 1:
            data[name] = value[: len(value) - max(1, len(value) // 4)]
            left_out[name] = left_out.get(name, 0) + len(value) - len(data[name])
        elif isinstance(value, str):
            data[name] = f"{value[: len(value) * 3 // 4].rstrip(' …')} …"
        else:
            data[name] = shortened(value, size_of(value) * 3 // 4) if isinstance(value, dict) else "…"
        data |= {"left_out": left_out} if left_out else {}
    return data


def folded(rows: Iterable[tuple[str, str]]) -> str:
    """Rows with their labels on at most so many lines: those that only explain lose their ends if there are more."""
    shown = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in shown), default=0) + 2

    def lines(label: str, text: str, limit: int | None) -> list[str]:
        head = f"{label:<{width}}" if label else ""
        return textwrap.wrap(
            " ".join(text.split()),
            _WIDTH,
            initial_indent=head,
            subsequent_indent=" " * (width if label else 2),
            break_long_words=False,
            break_on_hyphens=False,
            max_lines=limit,
            placeholder=" …",
        )

    parts = [lines(label, text, None) for label, text in shown]
    while sum(map(len, parts)) > _MOST_LINES:
        longest = max(range(len(parts)), key=lambda row: (shown[row][0] in _EXPLAIN, len(parts[row])))
        if len(parts[longest]) == 1:
            break
        parts[longest] = lines(*shown[longest], len(parts[longest]) - 1)
    return "\n".join(line for part in parts for line in part)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _ranged(estimate: Estimate, term: str, factor: float = 1.0) -> dict[str, float] | None:
    value, ends = getattr(estimate, term), getattr(estimate, f"{term}_range")
    if value is None or ends is None:
        return None
    return {"value": _rounded(value * factor), "low": _rounded(ends[0] * factor), "high": _rounded(ends[1] * factor)}


def _units(counted: str) -> tuple[str, str]:
    return f"{counted}_per_second", f"usd_per_million_{counted}"


def figures(model: Model, estimate: Estimate, least: float, gpus: int = 0) -> dict[str, Any]:
    """Return the figures of a plan with their 95 % intervals, units in the names."""
    per_second, per_million = _units(unit(model))
    values = {
        "fits": fits(estimate, least),
        "fit_probability": min(0.999, round(estimate.fit_probability, 3)),
        "needed_gib_per_gpu": round(estimate.needed_gib, 1),
        "usable_gib_per_gpu": round(estimate.usable_gpu_memory_gib, 1),
        "headroom_gib_per_gpu": round(estimate.headroom_gib, 1),
        "host_gib_per_node": round(estimate.host_memory_gib_per_node, 1) or None,
        "global_batch_size": estimate.global_batch_size,
        "tokens_per_step": estimate.tokens_per_step if model.reads_tokens else None,
        "step_seconds": _ranged(estimate, "step_seconds"),
        per_second: _ranged(estimate, per_second),
        "mfu": _ranged(estimate, "mfu"),
        "usd_per_hour": None if estimate.usd_per_hour is None else round(estimate.usd_per_hour, 2),
        per_million: _ranged(estimate, "usd_per_million_tokens", 1 / amount(model, 1)),
        "days": _ranged(estimate, "days"),
        "gpu_hours": _ranged(estimate, "days", 24 * gpus) if gpus else None,
        "checkpoint_gib": _rounded(estimate.effective.checkpoint_gib),
        "usd_total": _ranged(estimate, "usd_total"),
    }
    return {name: value for name, value in values.items() if value is not None}


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan that differ from their defaults; `estimate` takes them by these names."""
    defaults = plan_defaults(type(plan))
    return {name: getattr(plan, name) for name in defaults if getattr(plan, name) != defaults[name]} | {
        "library": plan.library
    }


def plan_words(plan: Plan) -> str:
    """Return a plan in a phrase: ``SMP v2: tensor_parallel_degree=2, batch_size=1``."""
    settings = ", ".join(f"{name}={value}" for name, value in settings_of(plan).items() if name != "library")
    return f"{get_library(plan.library).title}{': ' if settings else ''}{settings}"


def memory_words(value: Estimate, least: float | None = None) -> str:
    """``28.1 of 39.4 GiB per GPU (over 99.9 % likely)``; with the host memory of a node if it is too small."""
    share = probability(value.fit_probability)
    host = f", and {gib(value.host_memory_gib_per_node)} of host memory per node: too much"
    required = "" if least is None else f", {percent(least)} required"
    gpu = f"{value.needed_gib:,.1f} of {value.usable_gpu_memory_gib:.1f} GiB per GPU ({share} likely{required})"
    return gpu if value.host_memory_fits else gpu + host


def memory_table(estimate: Estimate) -> dict[str, float]:
    """GiB of each category on the stage with the highest peak."""
    peak = estimate.memory.peak
    return {name: round(value, 2) for name in CATEGORIES if (value := getattr(peak, name)) >= 0.005}


def speed_words(model: Model, estimate: Estimate) -> str:
    """Step time, throughput and utilization with their intervals."""
    return f"{step_time(estimate)} per step, {rate(model, estimate)}, MFU {utilization(estimate)}"


def cost_words(model: Model, estimate: Estimate) -> str:
    """Return the price of the cluster, and cost per million tokens or samples."""
    price = estimate.usd_per_hour
    hour = "" if price is None else f"{price:,.2f} USD per hour"
    return ", ".join(filter(None, (hour, cost_per_million(model, estimate)))) or "no on-demand price known"


def unknown_failure() -> Answer:
    """Return the answer for a log that shows no failure."""
    text = (
        "Nothing in this text shows a failure: pass the logs of all ranks, from the first error on, or FailureReason."
    )
    return Answer(text=text, data={"answer": text, "found": False}, full=dict, status=NO)


def failed(failure: Failure, advice: Advice | None) -> Answer:
    """Return the answer for a failure, with the next plan of an advice if another plan avoids it."""
    change = without_python(failure.change)
    rows = [
        ("Cause", failure.cause),
        ("Change", change),
        ("Line", f"{failure.line:,}: {failure.evidence}"),
        ("Then", ", ".join(failure.consequences)),
        ("Source", failure.source),
    ]
    data: dict[str, Any] = {"answer": f"{failure.cause} {change}", "found": True, "kind": failure.kind}
    data |= {name: getattr(failure, name) for name in ("line", "rank", "phase", "evidence", "source")}
    data |= {"consequences": list(failure.consequences)}
    data |= {"memory_gib": {name: round(gib, 2) for name, gib in failure.memory_gib.items()}}
    if advice is not None:
        value, least = advice.estimate, advice.min_fit_probability
        rows[2:2] = [("Next plan", f"{plan_words(advice.plan)}: {memory_words(value)}, {step_time(value)} per step")]
        data["next_plan"] = {"plan": settings_of(advice.plan), **figures(advice.model, value, least)}
    return Answer(text=folded(rows), data=data, full=lambda: data)


def advised(advice: Advice) -> Answer:
    """Return the answer for a recommendation."""
    value, model, least = advice.estimate, advice.model, advice.min_fit_probability
    job_settings = advice.job.training_settings()
    guessed = guesses(model, advice.cluster, advice.job, advice.plan)
    where = f"{advice.cluster.nodes} x {advice.cluster.instance.name}"
    library = advice.library_because or f"{get_library(advice.plan.library).title}, as requested."
    sure = certainty(advice.decision).removeprefix("Certainty: ") if advice.objective in {"throughput", "cost"} else ""
    warnings = [*advice.warnings, *(pitfall.text for pitfall in advice.pitfalls if pitfall.severity != "info")]
    alternatives = _alternatives(advice, 2)
    because = library[:1].upper() + library[1:]
    clusters = "" if advice.sizes is None else " ".join(advice.sizes.lines())
    # The short answer, as few tokens as a decision needs.
    rows = [
        ("", f"{model.name} on {where} ({advice.cluster.gpus:,} GPUs) {fit(value, least)}: {memory_words(value)}."),
        ("Plan", ", ".join([plan_words(advice.plan), *(f"{name}={of}" for name, of in job_settings.items())])),
        ("Batch", global_batch(model, value)),
        ("Speed", speed_words(model, value)),
        ("Cost", cost_words(model, value)),
        ("Run", clusters or ", ".join(filter(None, (run_time(value), run_cost(value))))),
        ("Library", because),
        ("Needed", needed(advice)),
        ("Certainty", sure),
        ("Instead", "; ".join(f"{row['plan']}: {row['why']}" for row in alternatives)),
        ("Assumed", "; ".join(advice.defaults)),
        *(("Guessed", guess) for guess in guessed),
        *(("Heed", text) for text in warnings[:2]),
        ("More", "--full: the report; --json: data; --output FILE: to keep, show and export it"),
    ]
    # The same as data, in the names that the other tools take.
    data = {
        "answer": f"{model.name} on {where} {fit(value, least)}.",
        "model": model.name,
        "instance": advice.cluster.instance.name,
        "count": advice.cluster.nodes,
        "gpus": advice.cluster.gpus,
        **figures(model, value, least, advice.cluster.gpus),
        "plan": settings_of(advice.plan) | job_settings,  # as `estimate` takes it
        "parameters": advice.plan.parameters,
        "hyperparameters": advice.plan.hyperparameters,
        "library_because": library,
        "needed": needed(advice),
        "guesses": list(guessed),
        "certainty": sure,
        "clusters": clusters,
        "requested": "; ".join(advice.requested),
        "assumed": "; ".join(advice.defaults),
        "warnings": warnings[:3],
    }
    # Computed only if requested.
    details: dict[str, Callable[[], Any]] = {
        "ladder": lambda: str(advice.ladder()).splitlines(),
        "alternatives": lambda: _alternatives(advice, 8),
        "memory": lambda: memory_table(value),
        "reasons": lambda: [f"{s.title}: {s.decision}. {s.because}" for s in advice.steps],
        "requirements": lambda: [pitfall.text for pitfall in advice.pitfalls],
        "assumptions": lambda: list(assumed(advice.model, advice.cluster, advice.job, value)),
    }
    if (sizes := advice.sizes) is not None:
        details["clusters_compared"] = lambda: sizes_data(sizes)
    return Answer(
        text=folded(rows),
        data={name: entry for name, entry in data.items() if entry not in ("", [], {}, None)},
        full=lambda: json.loads(advice.as_json()),
        details=details,
    )


def needed(advice: Advice) -> str:
    """Techniques without which the plan does not fit."""
    names = [
        step.title if step.title[:2].isupper() else step.title[:1].lower() + step.title[1:]
        for step in advice.steps
        if step.decision == "used"
        and step.outcome is not None
        and step.outcome.global_batch_size <= advice.estimate.global_batch_size
        and not fits(step.outcome, advice.min_fit_probability)
    ]
    return f"It fits only with {', '.join(names)}." if names else ""


def _alternatives(advice: Advice, most: int) -> list[dict[str, Any]]:
    """Alternatives of the plan with the reason against each, best first."""
    frame = advice.alternatives.iloc[1 : most + 1]
    names = [name for name in get_library(advice.plan.library).alternatives if name in frame]
    return [
        {
            "plan": ", ".join(f"{name}={row[name]}" for name in names if row[name] not in (None, False, 1, "none")),
            "needed_gib_per_gpu": round(row["needed_gib"], 1),
            "why": row["why"].rstrip("."),
        }
        for row in frame.to_dict("records")
    ]


def sizes_data(sizes: ClusterSizes) -> list[dict[str, Any]]:
    """Compared clusters: those that no other one beats, the cheapest first, then the others by price per hour."""
    first = [sizes.chosen, sizes.smallest, *reversed(sizes.pareto)]
    by_price = sorted(sizes.sizes, key=lambda size: (not size.fits, hourly(size.cluster)))
    rows = []
    for size in {id(size): size for size in (*first, *by_price) if size is not None}.values():
        row = {
            "cluster": size.name,
            "model": sizes.model.name,
            "library": size.library,
            "fits": size.fits,
            "chosen": size is sizes.chosen,
        }
        row |= _short(sizes.model, size)
        rows.append(row)
    return rows


def _short(model: Model, size: ClusterSize) -> dict[str, Any]:
    """Return the figures of a cluster's best plan in a row."""
    if size.estimate is None:
        return {} if size.nearest_gib is None else {"needed_gib_per_gpu": round(size.nearest_gib, 1)}
    names = ("needed_gib_per_gpu", *_units(unit(model)), "usd_per_hour", "days", "usd_total")
    values = figures(model, size.estimate, 0.0)
    return {name: values[name] for name in names if name in values}


def refused(sentence: str, ways: WaysOut | None) -> Answer:
    """Return the answer where nothing fits, with the changes after which something does."""
    data: dict[str, Any] = {"answer": sentence, "fits": False, "changes_that_fit": []}
    if ways is not None:
        data["changes_that_fit"] = [
            {"change": way.change, "what": way.words, "library": way.size.library}
            | _short(ways.request.model, way.size)
            for way in ways.ways
        ]
    if ways is not None and ways.nearest_gib is not None:
        usable = ways.request.cluster.instance.usable_gpu_memory_gib
        data |= {"needed_gib_per_gpu": round(ways.nearest_gib, 1), "usable_gib_per_gpu": round(usable, 1)}
        data["missing_gib_per_gpu"] = round(max(0.0, ways.nearest_gib - usable), 1)
    return Answer(text=sentence, data=data, full=lambda: data, status=NO)


def fitting(advice: Advice, changes: str) -> Answer:
    """Return the answer to whether a model fits on a cluster, in five lines."""
    value, least = advice.estimate, advice.min_fit_probability
    where = f"{advice.cluster.nodes} x {advice.cluster.instance.name}"
    spare = f"{gib(value.headroom_gib)} to spare: {memory_words(value, least)}"
    length = f"sequence length {advice.job.sequence_length:,}; " if advice.model.reads_tokens else ""
    rows = [
        ("Yes", f"{advice.model.name} fits on {where} with {spare}."),
        ("Best plan", plan_words(advice.plan)),
        ("Speed", f"{rate(advice.model, value)}; {cost_words(advice.model, value)}"),
        ("Change", changes),
        ("Assumed", f"{length}{advice.job.precision}; {advice.job.optimizer}."),
    ]
    answer = advised(advice)
    data = {**answer.data, "answer": f"Yes: {rows[0][1]}", "what_would_change_it": changes}
    return replace(answer, text=_five(rows), data=data)


def _five(rows: Iterable[tuple[str, str]]) -> str:
    """Return one line per row, of any length: a terminal folds it."""
    return "\n".join(f"{label + ':':<11}{text}" for label, text in rows if text)


def not_fitting(sentence: str, ways: WaysOut | None) -> Answer:
    """Return the answer where nothing fits, in five lines."""
    answer = refused(sentence, ways)
    usable, missing, nearest = (answer.data.get(f"{name}_gib_per_gpu") for name in ("usable", "missing", "needed"))
    changes = [] if ways is None else [(way, way.size.estimate, ways.request.model) for way in ways.ways]
    rows = [
        ("No", f"{sentence.partition('; changes that fit')[0].rstrip('.')}."),
        ("By", f"{missing:,.1f} GiB too much per GPU ({nearest:,.1f} needed, {usable:,.1f} usable)" if missing else ""),
        ("Fits with", "; ".join(f"{way.words} ({gib(value.needed_gib)})" for way, value, _ in changes if value)),
        ("Costs", "; ".join(f"{way.words}: {cost_words(model, value)}" for way, value, model in changes[:2] if value)),
    ]
    return replace(answer, text=_five(rows))


def estimated(model: Model, cluster: Cluster, job: Job, value: Estimate, least: float) -> Answer:
    """Return the answer for one plan."""
    from smp_advisor.session.storage import plain

    where, assumptions = f"{cluster.nodes} x {cluster.instance.name}", assumed(model, cluster, job, value)
    rows = [
        ("", f"{model.name} on {where} {fit(value, least)}: {memory_words(value)}."),
        ("Plan", plan_words(value.plan)),
        ("Batch", global_batch(model, value)),
        ("Speed", speed_words(model, value)),
        ("Cost", cost_words(model, value)),
        ("Run", ", ".join(filter(None, (run_time(value), run_cost(value))))),
        ("Assumed", " ".join(assumptions)),
    ]
    data: dict[str, Any] = {"answer": f"{model.name} on {where} {fit(value, least)}.", "model": model.name}
    data |= {**figures(model, value, least), "plan": settings_of(value.plan), "assumed": list(assumptions)}
    return Answer(
        text=folded(rows),
        data=data,
        full=lambda: plain(value),
        details={"memory": lambda: memory_table(value)},
        status=YES if fits(value, least) else NO,
    )


def checked(reports: Sequence[Report], **more: Any) -> Answer:
    """Return the answer of a check: findings, the most severe first."""
    order = {"error": 0, "warning": 1, "info": 2}
    findings = [
        {
            "at": f"{finding.path}:{finding.line}",
            "severity": finding.severity,
            "id": finding.id,
            "message": finding.message,
            "remedy": finding.remedy,
            "source": finding.source_url,
        }
        for finding in sorted((f for report in reports for f in report), key=lambda f: order[f.severity])
    ]
    texts = [line for report in reports for line in (*report.introduction, *report.outcome)]
    sentences = []
    for report in reports:  # nothing is wrong, or nothing is there
        coverage = report.coverage
        concerns = coverage is None or coverage.libraries or any(part.places for part in coverage.parts)
        nothing = "no findings" if concerns else "nothing that a check applies to"
        sentences.append(f"{report.path}: {report.totals or nothing}")
    data: dict[str, Any] = {
        "answer": "; ".join(sentences),
        **more,
        "findings": findings,
        "configuration": texts,
        "not_followed": [f"{n.path}:{n.line}: {n.what}" for report in reports for n in report.unresolved][:5],
        "seen": [line for report in reports if report.coverage is not None for line in report.coverage.lines],
    }
    return Answer(
        text="\n\n".join([*map(str, reports), *([more["gain"]] if "gain" in more else [])]),
        data={name: value for name, value in data.items() if value},
        full=lambda: [json.loads(report.to_json()) for report in reports],
        details={"diff": lambda: "\n".join(report.diff for report in reports if report.diff)},
        status=NO if any(report.of("error") for report in reports) else YES,
    )


def compared(rows: list[dict[str, Any]], sentence: str = "") -> Answer:
    """Return the answer of a comparison: one row per plan, library or cluster."""
    fitting_rows = [row for row in rows if row["fits"]]
    counted = "samples" if any("samples_per_second" in row for row in rows) else "tokens"
    speed, price = _units(counted)
    best = max(fitting_rows, key=lambda row: row[speed]["value"], default=None)
    if not sentence:
        name = "" if best is None else best["plan"]
        sentence = f"{len(fitting_rows)} of {len(rows)} fit" + (f"; the fastest is {name}." if name else ".")
    data = {"answer": sentence, "fits": bool(fitting_rows), "rows": rows}
    titles = ("", "fits", "GiB per GPU", f"{counted}/s (95 %)", f"USD per million {counted}", "days", "USD")
    names = ("needed_gib_per_gpu", speed, price, "days", "usd_total")
    lines: list[tuple[str, ...]] = []
    for row in rows:
        label = row.get("cluster") or row["plan"]
        figures_of = (row.get(name) for name in names)
        cells = (
            f"{number(value['value'])} ({between((value['low'], value['high']))})"
            if isinstance(value, dict)
            else ""
            if value is None
            else f"{value:,.1f}"
            for value in figures_of
        )
        lines.append((f"{label} {row.get('library', '')}".strip(), "yes" if row["fits"] else "no", *cells))
    used = [column for column in range(len(titles)) if any(line[column] for line in lines)]
    shown = [[line[column] for column in used] for line in lines[: _MOST_LINES - 5]]
    table = Table(columns=[titles[column] for column in used], rows=shown).lines()
    left = [f"{len(rows) + 5 - _MOST_LINES} more rows: --json=full."] * (len(rows) > _MOST_LINES - 5)
    return Answer(
        text="\n".join([*table, *left, *textwrap.wrap(sentence, _WIDTH, max_lines=3, placeholder=" …")]),
        data=data,
        full=lambda: data,
        status=YES if fitting_rows else NO,
    )


def exported(
    text: str, code: str, advice: Advice, what: str, file: str | None, beside: Mapping[str, str] | None = None
) -> Answer:
    """The answer with code. Code that is too long for the compact form has its first lines there, which is marked."""
    lines, where = code.splitlines(), f"{advice.cluster.nodes} x {advice.cluster.instance.name}"
    short = len(code.encode()) < MOST_CODE
    shown = code if short else "\n".join([*lines[:_FIRST], f"# … and {len(lines) - _FIRST} more lines: details, code"])
    data = {
        "answer": f"{what} for {advice.model.name} on {where}: {len(lines)} lines.",
        "fits": fits(advice.estimate, advice.min_fit_probability),
        **({"file": file} if file else {"code": shown}),
        **({"files_beside_it": list(beside)} if beside else {}),
    }
    full = {**data, "plan": settings_of(advice.plan), "code": code, "files": dict(beside or {})}
    details: Details = {"code": lambda: code, **({"files": lambda: dict(beside)} if beside else {})}
    return Answer(text=text, data=data, full=lambda: full, details=details)


def remedied(report: EstimatorReport) -> dict[str, Any]:
    """For a job that does not fit: the plan that does, with what it gains; or why there is none."""
    estimate = None if report.main is None else report.main.estimate
    if estimate is None or fits(estimate, 0.95):
        return {}
    try:
        advice = report.recommended()
        return {"recommended": settings_of(advice.plan), "gain": advice.compare(estimate.plan).summary}
    except AdvisorError as error:
        return {"remedy": str(error)}
