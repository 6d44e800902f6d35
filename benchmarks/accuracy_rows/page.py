"""The scores as a page of the documentation."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.constants import constants

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["page"]

_TABLES = {
    "memory_allocated": ("Peak memory, allocated", "5 % / 12 % (quality A), 6 % / 15 % (A and B)"),
    "memory_total": ("Peak memory, reserved and total", "8 % / 20 %"),
    "step_time_a100_h100": ("Step time, A100 and H100, network known", "8 % / 20 %"),
    "step_time_other": ("Step time, other GPUs", "15 % / -"),
}
_BREAKDOWNS = {"by_gpu": "GPU", "by_parallelism": "Parallelism", "by_quality": "Quality", "by_precision": "Precision"}

_HEAD = """\
# How far the numbers can be trusted

Written by `python benchmarks/accuracy.py CSV... --page docs/accuracy.md` from published measurements of others; no
figure on this page is typed by hand.

An error is the natural logarithm of predicted over measured: 10 % is a factor of 1.1. "Median" and "p90" are of its
absolute value; the bias, its median with the sign, is above zero where predictions are too large.
"""

_METHOD = """\
## Method

- **Rows.** Training runs that others measured and published: step times, peak memory, configurations that ran or ran
  out of memory, largest batches. A row counts if somebody verified it at its source, if it is complete but for one
  small inference at most (quality A or B) and if all pipeline stages share a plan. The mapping reads the typed columns
  of a row (shape, degrees, classes of sharding, recomputation, attention, precision and network, the optimizer for its
  bytes); a model's name only where its shape is not given or its experts have no column; the training library's name
  for documented habits of four of them that no column tells, how the loss is computed and what stays whole
  (`benchmarks/accuracy_rows/data/frameworks.toml`); never its source, a note or what was measured. What is skipped is
  counted above with its reason.
- **Constants.** Few, each with a physical meaning, a source and a prior; see the table below. Those of the step time
  are fitted together by `benchmarks/calibrate.py`: Gauss-Newton steps on their logarithms towards the least weighted
  absolute error of all rows, held near their priors. Rows of one publication on one GPU weigh together by the square
  root of their number. Memory's constants are set from published differences (allocator, context, losses of a
  library). Nothing is fitted per row, model or source.
- **Intervals.** Half widths of the step time's 95 % intervals are 95 % quantiles of the errors of rows that were left
  out of the fit (ten folds, to first order about the fit to all rows), by kind of plan; kinds with fewer than 19 rows
  take those of all. What users are shown is wider: errors of runs whose whole training library was left out of the fit,
  as their own script is. Memory's error is a sum of independent errors of state, of what follows the batch, of the
  allocator's reserve and of context, scaled together until 95 % of the rows lie within their intervals; what is held of
  rows left out of that scaling (ten folds) stands beside it.

## What is not covered

- Nothing here ran on SageMaker. No step time of SMP v1 or v2 was published with a complete configuration, so their
  schedule, hand-overs and sharding are modelled from their documentation with the constants of other libraries.
- Networks are taken at the rate that is stated; noise of shared clusters is in the errors (one configuration was
  published with step times 6 % apart).
- Runs on one GPU with small batches depend on the host: there predictions are too fast by up to a factor of four.
- ZeRO-3 of 2021 on 384 and more GPUs took up to 3.7 times as long as predicted; later fully sharded runs did not.
- What an adapter is fitted to, and fine-tuning recipes that a row does not restate (batches, optimizers), are taken at
  their library's defaults: up to a factor of two in memory.
- Which part of the blocks a "selective" recomputation of FSDP recomputes is not told from its rows.
- Few runs that went out of memory were published: the rate of missed ones has a wide interval.
"""


def page(result: dict[str, Any]) -> str:
    """Markdown of the scores."""
    return "\n".join(_lines(result)).rstrip() + "\n"


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield _HEAD
    yield "| | rows | median | p90 | bias | aim (median / p90) | skipped |"
    yield "|---|---:|---:|---:|---:|---|---:|"
    for name, (title, aim) in _TABLES.items():
        entry = result[name]
        yield f"| {title} | {_cells(entry)} | {aim} | {entry['skipped']} |"
    fit, ranking, batch = result["fit"], result["ranking"], result["max_batch"]
    yield ""
    yield "| | cases | found | aim |"
    yield "|---|---:|---:|---|"
    for key, title, aim in (
        ("false_oom", "Ran, predicted not to fit", "at most 2 %"),
        ("missed_oom", "Ran out of memory, predicted to fit", "at most 10 %"),
        ("false_oom_at_search_margin", "Ran, less than 95 % sure to fit", "-"),
        ("missed_oom_at_search_margin", "Ran out of memory, 95 % sure to fit", "-"),
    ):
        yield f"| {title} | {fit[key]['cases']} | {_share(fit[key])} | {aim} |"
    tau, regret = ranking["kendall_tau_median"], ranking["regret_median"]
    yield f"| Ranking within sweeps, median Kendall's tau | {ranking['sweeps']} | {_number(tau)} | at least 0.7 |"
    yield f"| Regret of the predicted best, median | {ranking['sweeps']} | {_percent(regret)} | at most 5 % |"
    yield f"| Largest batch, median factor | {batch['rows']} | {_number(batch['median_factor'])} | at most 1.25 |"
    for name, entry in result["intervals"].items():
        words = f"{_share(entry)}, half width {_percent(entry['median_half_width'])}"
        if "left_out" in entry:
            words += f"; {_percent(entry['left_out']['share'])} of rows left out"
        title = f"Within the 95 % interval: {name.replace('_', ' ')}"
        yield f"| {title} | {entry['cases']} | {words} | 90 to 98 % |"
    yield ""
    for name, (title, _) in _TABLES.items():
        yield from _breakdown(title, result[name])
        if unread := result["extra"].get(f"{name}_framework_unread"):
            found = f"median {_percent(unread['median'])}, p90 {_percent(unread['p90'])}"
            yield f"With the training library's name left unread: {found}."
            yield ""
    yield from _step_intervals()
    yield _METHOD
    yield from _constants()


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
    yield "## Step time by kind of plan, rows left out of the fit"
    yield ""
    yield "Left out by tens, and all rows of a training library together. Users see the second: their script is in no"
    yield "publication."
    yield ""
    yield "| kind | rows | median | half width of 95 % | held | median, library left out | half width of 95 % |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for kind, entry in tomllib.loads(text).items():
        if isinstance(entry, dict):
            names = ("median_error", "half_width", "held", "median_error_elsewhere", "half_width_elsewhere")
            figures = [entry[name] for name in names]
            yield f"| {kind} | {entry['rows']} | {' | '.join(_percent(value) for value in figures)} |"
    yield ""


def _constants() -> Iterator[str]:
    yield "## Constants that are fitted"
    yield ""
    yield "| constant | prior | fitted | meaning |"
    yield "|---|---:|---:|---|"
    for name, one in constants().items():
        # A GPU without a measured run has a value that is assumed.
        if one.prior is not None and not one.assumed:
            yield f"| `{name}` | {one.prior:g} | {one.value:g} | {one.source} |"


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
