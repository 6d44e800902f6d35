"""The scores as a page of the documentation, and as a section of the README."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.constants import constants

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["page", "step_time_lines", "with_accuracy"]

_TABLES = {
    "memory_allocated": "Peak memory, allocated",
    "memory_total": "Peak memory, reserved and total",
    "memory_of_timed": "Peak memory, publications of step times only",
    "step_time_a100_h100": "Step time, A100 and H100, network known",
    "step_time_other": "Step time, other GPUs",
}
_DECISIONS = {
    "false_oom": "Ran, predicted not to fit",
    "missed_oom": "Ran out of memory, predicted to fit",
    "false_oom_at_search_margin": "Ran, less than 95 % sure to fit",
    "missed_oom_at_search_margin": "Ran out of memory, 95 % sure to fit",
}
_BREAKDOWNS = {
    "by_mapping": "Mapping",
    "by_gpu": "GPU",
    "by_parallelism": "Parallelism",
    "by_precision": "Precision",
}
_PARTS = {
    "everything": "every step",
    "host": "a step that the host takes: launches, its work around the passes",
    "across_nodes": "a step of exposed communication across nodes",
    "in_node": "a step of exposed communication inside nodes",
    "offloaded": "a plan that copies activations to the host",
    "extrapolated": "a step that hosts of SMP v1 coordinate, for e times more or fewer blocks than measured (assumed)",
    "unmeasured": "a GPU without a published run (assumed)",
}
_TEXTS = Path(__file__).parent / "data" / "accuracy_page.toml"
_BEGIN, _END = "<!-- accuracy, written by benchmarks/accuracy.py -->", "<!-- end of accuracy -->"


def _texts() -> dict[str, str]:
    return {name: str(text) for name, text in tomllib.loads(_TEXTS.read_text("utf-8")).items()}


def page(result: dict[str, Any]) -> str:
    """Markdown of the scores."""
    return "\n".join(_lines(result)).rstrip() + "\n"


def with_accuracy(readme: str, result: dict[str, Any]) -> str:
    """The README with the figures between its two comments replaced.

    Raises
    ------
    ValueError
        The README has no such comments.
    """
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the README has no lines {_BEGIN} and {_END}")
    return before + begin + "\n" + "\n".join(_brief(result)) + "\n" + end + after


def _brief(result: dict[str, Any]) -> Iterator[str]:
    """The table for readers who decide whether to trust the product: no residual of the fit, and the failures."""
    left, users, fit = result["headlines"]["left_out"], result["headlines"]["users"], result["fit"]
    yield "| compared with published runs | cases | median error | p90 |"
    yield "|---|---:|---:|---:|"
    if left:
        yield f"| Step time, publications left out of the fit | {_brief_cells(left['all'])} |"
        yield f"| The same, each publication counted once | {_brief_cells(left['each_source_once'])} |"
    if users:
        name = "Step time, users' code on AWS, not in the fit, but in view when assumed constants were set"
        yield f"| {name} | {_brief_cells(users['all'])} |"
    for name in ("memory_allocated", "memory_total"):
        yield f"| {_TABLES[name]} | {_brief_cells(result[name])} |"
    for key in ("false_oom", "missed_oom", "missed_oom_at_search_margin"):
        yield f"| {_DECISIONS[key]} | {fit[key]['cases']} | {_share(fit[key])} of cases | |"


def _summary(result: dict[str, Any]) -> Iterator[str]:
    """Sources left out, users' code on AWS, residual of the fit, memory."""
    left, users = result["headlines"]["left_out"], result["headlines"]["users"]
    yield "| | rows | median | p90 | bias |"
    yield "|---|---:|---:|---:|---:|"
    if left:
        yield f"| Step time, source left out of the fit, public settings | {_cells(left['public'])} |"
        yield f"| Step time, source left out of the fit, all rows | {_cells(left['all'])} |"
    if users:
        yield f"| Step time, users' code on AWS, public settings | {_cells(users['public'])} |"
        yield f"| Step time, users' code on AWS, all rows | {_cells(users['all'])} |"
    for name in ("step_time_a100_h100", "step_time_other"):
        yield f"| {_TABLES[name]}: residual of the fit | {_cells(result[name])} |"
    for name in ("memory_allocated", "memory_total"):
        yield f"| {_TABLES[name]} | {_cells(result[name])} |"


def _decision_lines(result: dict[str, Any]) -> Iterator[str]:
    fit = result["fit"]
    yield "| | cases | share |"
    yield "|---|---:|---:|"
    for key, title in _DECISIONS.items():
        yield f"| {title} | {fit[key]['cases']} | {_share(fit[key])} |"


def _lines(result: dict[str, Any]) -> Iterator[str]:
    texts = _texts()
    yield texts["head"]
    yield from _brief(result)
    yield ""
    yield texts["kinds"]
    yield from _summary(result)
    yield ""
    yield texts["mappings"]
    yield from _targets(result)
    memory = {name: result["users_code"][name] for name in ("memory_allocated", "memory_total")}
    yield from step_time_lines(result["headlines"], memory)
    yield "## Fit decisions, ranking and batches"
    yield ""
    yield from _decision_lines(result)
    ranking, batch = result["ranking"], result["max_batch"]
    yield ""
    yield "| | cases | value |"
    yield "|---|---:|---:|"
    tau = _number(ranking["kendall_tau_median"])
    yield f"| Ranking in sweeps, median Kendall's tau | {ranking['sweeps']} | {tau} |"
    regret = f"{_percent(ranking['regret_median'])} / {_percent(ranking['regret_mean'])}"
    yield f"| Regret of the predicted best, median / mean | {ranking['sweeps']} | {regret} |"
    yield f"| Largest batch, median factor | {batch['rows']} | {_number(batch['median_factor'])} |"
    for name, entry in result["intervals"].items():
        words = f"{_share(entry)}, half width {_percent(entry['median_half_width'])}"
        if "left_out" in entry:
            words += f"; {_percent(entry['left_out']['share'])} of rows left out"
        yield f"| Within the 95 % interval: {name.replace('_', ' ')} | {entry['cases']} | {words} |"
    yield ""
    for name, title in _TABLES.items():
        yield from _breakdown(title, result[name])
        if unread := result["extra"].get(f"{name}_framework_unread"):
            figures = f"median {_percent(unread['median'])}, p90 {_percent(unread['p90'])}"
            yield f"Without the name of the training library: {figures}."
            yield ""
    yield from _step_intervals()
    yield texts["method"]
    shown = {target["title"]: f"{target['achieved']}, target {target['aim']}" for target in result["targets"]}
    limits = texts["limits"].replace("MEASURED_LEFT_OUT", shown.get("Within the 95 % interval, source left out", "-"))
    yield limits.replace("MEASURED_USERS", shown.get("Within the 95 % interval, users' code on AWS", "-"))
    yield from _causes(result["headlines"].get("causes", {}))
    yield from _constants(result["headlines"]["left_out"].get("moved_by", {}))


def _targets(result: dict[str, Any]) -> Iterator[str]:
    yield "## Targets"
    yield ""
    yield "| | target | measured | met |"
    yield "|---|---:|---:|---|"
    for target in result["targets"]:
        yield f"| {target['title']} | {target['aim']} | {target['achieved']} | {'yes' if target['met'] else 'no'} |"
    yield ""


def step_time_lines(entries: dict[str, Any], users_memory: dict[str, Any]) -> Iterator[str]:
    """Lines on sources that were left out of the fit, and on users' code on AWS."""
    yield from _left_out(entries["left_out"])
    yield from _users(entries["users"], users_memory)


def _left_out(entry: dict[str, Any]) -> Iterator[str]:
    if not entry:
        return
    yield "## Step time, source left out of the fit"
    yield ""
    yield f"Every one of {entry['sources']} publications was left out of the fit in turn, with all of its rows."
    yield ""
    yield "| | rows | median | p90 | bias |"
    yield "|---|---:|---:|---:|---:|"
    for key, title in (
        ("public", "Rows that public settings describe"),
        ("private", "Rows that need the private mapping"),
        ("all", "All rows"),
        ("each_source_once", "Median of every source, each counted once"),
        ("after_one_run", "After one measured run of the same source and GPU, every other run"),
    ):
        yield f"| {title} | {_cells(entry[key])} |"
    yield ""
    yield f"Within the 95 % interval from the other sources: {_share(entry['within'])}. The median width of the"
    yield f"logarithm is {_number(entry['width'])}. The mean interval score, the width plus 40 times the distance of a"
    yield f"run outside of it, is {_number(entry['score'])}."
    yield ""
    yield "| | | rows | median | p90 | bias | scatter | within | width |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for key, title in (("by_stack", "Code"), ("by_kind", "Plan"), ("by_source", "Source")):
        for name, errors in entry[key].items():
            rest = f"{_percent(errors['scatter'])} | {_percent(errors['within'])} | {_number(errors['width'])}"
            yield f"| {title} | `{name}` | {_cells(errors)} | {rest} |"
    yield ""


def _users(entry: dict[str, Any], memory: dict[str, Any]) -> Iterator[str]:
    if not entry:
        return
    yield "## Step time, users' code on AWS"
    yield ""
    yield f"Within the 95 % interval that the advisor shows: {_share(entry['within'])};"
    yield f"from other sources only: {_share(entry['within_source_left_out'])}. These runs are not in the fit."
    yield "The rate of activation offload and the host time of modules, both assumed, were set with them in view."
    yield ""
    yield "| | rows | median | p90 | bias |"
    yield "|---|---:|---:|---:|---:|"
    for name, errors in (("All", entry["all"]), *entry["by_group"].items()):
        yield f"| {name} | {_cells(errors)} |"
    for name, errors in memory.items():
        if errors["rows"]:
            yield f"| {_TABLES[name]} | {_cells(errors)} |"
    yield ""
    yield "| run | code | model | GPUs | measured | predicted | error | within | settings |"
    yield "|---|---|---|---|---:|---:|---:|---|---|"
    for row in entry["each"]:
        figures = f"{row['measured']:.2f} s | {row['predicted']:.2f} s | {_percent(row['error'], signed=True)}"
        words = f"{'yes' if row['within'] else 'no'} | {'public' if row['public'] else 'private mapping'}"
        yield f"| `{row['source']}` | {row['group']} | `{row['model']}` | {row['gpus']} | {figures} | {words} |"
    yield ""
    for row in entry["each"]:
        if row["cause"]:
            yield f"- `{row['source']}`, `{row['model']}`: the estimate warns: {_quoted(row['cause'])}"
    yield ""


def _breakdown(title: str, entry: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield "| | | rows | median | p90 | bias |"
    yield "|---|---|---:|---:|---:|---:|"
    for key, words in _BREAKDOWNS.items():
        for name, errors in entry[key].items():
            yield f"| {words} | {name} | {_cells(errors)} |"
    for reason, count in entry["skipped_by_reason"].items():
        yield f"| Skipped | {reason} | {count} | | | |"
    yield ""


def _step_intervals() -> Iterator[str]:
    text = resources.files("smp_advisor.costs").joinpath("data/intervals.toml").read_text("utf-8")
    table = tomllib.loads(text)
    composed = table.pop("composition")
    low, high = composed.pop("low"), composed.pop("high")
    yield "## Intervals of the step time that the advisor shows"
    yield ""
    yield "The squares of these errors add up, each with the part's share of the step. The interval is from"
    yield f"{low:.2f} times the root of their sum below the prediction to {high:.2f} times above it, in logarithms."
    yield ""
    yield "| error of | one standard deviation |"
    yield "|---|---:|"
    for name, words in _PARTS.items():
        yield f"| {words} | {_percent(composed[name])} |"
    yield ""
    yield "Standard deviations of the logarithm between sources and between runs of one source, by kind of code and"
    yield "plan. One measured run removes the first."
    yield ""
    yield "| code | plan | rows | sources | between sources | within a source |"
    yield "|---|---|---:|---:|---:|---:|"
    for group, kinds in table.items():
        if not isinstance(kinds, dict):
            continue
        for kind, entry in kinds.items():
            spreads = f"{_percent(entry['source_spread'])} | {_percent(entry['run_spread'])}"
            yield f"| {group} | {kind} | {entry['rows']} | {entry['sources']} | {spreads} |"
    yield ""


_LEAST_MOVE = 0.001


def _causes(causes: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "## What each part of the step time is worth"
    yield ""
    yield "Each part alone is left out, with the other constants as they are. The figures are those of the rows whose"
    yield "step changes by more than 0.5 %, users' code on AWS among them."
    yield ""
    yield "| part | rows | median, p90, bias without it | with it |"
    yield "|---|---:|---|---|"
    for name, errors in causes.items():
        if errors:
            without, shown = (_cells(errors[side]).split(" | ") for side in ("without", "with"))
            yield f"| {name} | {shown[0]} | {', '.join(without[1:])} | {', '.join(shown[1:])} |"
        else:
            yield f"| {name} | 0 | - | - |"
    yield ""


def _constants(moved: dict[str, tuple[str, float]]) -> Iterator[str]:
    yield "## Fitted constants"
    yield ""
    yield "The last column is the value without the publication that moves it most. Constants that no run moves are"
    yield "those of the measurements in their sources."
    yield ""
    yield "| constant | prior | fitted | meaning | moved most by |"
    yield "|---|---:|---:|---|---|"
    for name, constant in constants().items():
        # A GPU without a measured run has a value that is assumed.
        if constant.prior is not None and not constant.assumed:
            by, value = moved.get(name, ("", constant.value))
            moved_by = f"`{by}`: {value:.3g}" if abs(value / constant.value - 1) > _LEAST_MOVE else "no run"
            shown = f"{constant.prior:g} | {constant.value:g} | {_quoted(constant.source)}"
            yield f"| `{name}` | {shown} | {moved_by} |"


def _quoted(text: str) -> str:
    """Text with names of files and units as code."""
    return re.sub(r"\b(README|TFLOPS)\b", r"`\1`", text)


def _brief_cells(errors: dict[str, Any]) -> str:
    return f"{errors['rows']} | {_percent(errors['median'])} | {_percent(errors['p90'])}"


def _cells(errors: dict[str, Any]) -> str:
    return " | ".join(
        (
            str(errors["rows"]),
            _percent(errors["median"]),
            _percent(errors["p90"]),
            _percent(errors["bias"], signed=True),
        )
    )


def _share(rate: dict[str, Any]) -> str:
    if rate["share"] is None:
        return "-"
    return f"{_percent(rate['share'])} ({_percent(rate['low'])} to {_percent(rate['high'])})"


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
