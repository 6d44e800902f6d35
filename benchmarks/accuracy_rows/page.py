"""The scores as a page of the documentation, and as a table of the README."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["page", "with_accuracy"]

_TEXTS = Path(__file__).parent / "data" / "accuracy_page.toml"
_BEGIN, _END = "<!-- accuracy, written by benchmarks/accuracy.py -->", "<!-- end of accuracy -->"
_DECISIONS = {
    "false_oom": "Ran, predicted not to fit",
    "false_oom_at_search_margin": "Ran, less than 95 % sure to fit",
    "missed_oom": "Ran out of memory, predicted to fit",
    "missed_oom_at_search_margin": "Ran out of memory, 95 % sure to fit",
}
_PARTS = {
    "everything": "every step",
    "source": "a source that nobody has seen: your script and cluster",
    "host": "a step that the host takes: launches, its work around the passes",
    "across_nodes": "a step of exposed communication across nodes",
    "in_node": "a step of exposed communication inside nodes",
    "kernel": "a step of attention whose kernel is not named",
    "code": 'code that is not named (`stack="auto"`)',
    "fp8": "a step of products in fp8",
    "adapter": "an adapter",
    "experts": "a mixture of experts",
    "offloaded": "a plan that copies activations to the host",
    "extrapolated": "a step that hosts of SMP v1 coordinate, for e times more or fewer blocks than measured",
    "unmeasured": "a GPU without a published run",
}


def page(result: dict[str, Any]) -> str:
    """Markdown of the scores."""
    texts = {name: str(text) for name, text in tomllib.loads(_TEXTS.read_text("utf-8")).items()}
    lines = [texts["head"], *_brief(result), "", texts["use"], *_first(result), texts["second"], *_sources(result)]
    lines += [*_decisions(result), *_parts(), texts["method"]]
    return "\n".join(lines).rstrip() + "\n"


def with_accuracy(readme: str, result: dict[str, Any]) -> str:
    """The README with the table between its two comments replaced.

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
    """Lines for a new user: first scores of runs that nobody had seen, one run of their own, and the fit."""
    yield "| what you will meet | rows | median error | p90 | inside the stated 95 % interval |"
    yield "|---|---:|---:|---:|---:|"
    for figure, title in (
        ("step time", "Step time of code that nobody had seen"),
        ("memory, reserved and total", "Its peak memory, reserved and total"),
    ):
        first = [row for row in result["first"] if row["figure"] == figure]
        rows = [int(row["rows"]) for row in first]

        def mean(name: str, first: list[dict[str, str]] = first, rows: list[int] = rows) -> str:
            weighted = sum(count * float(row[name]) for row, count in zip(first, rows, strict=True))
            return f"{100 * weighted / sum(rows):.0f} %" if rows else "-"

        yield f"| {title} | {sum(rows)} | {mean('median')} | {mean('p90')} | {mean('inside')} |"
    own, figures = result["own_runs"], "- | - | - | -"
    if own:
        figures = f"{own['pairs']} | {' | '.join(_percent(own[name]) for name in ('median', 'p90', 'inside'))}"
    yield f"| Step time after one measured run of the same code | {figures} |"
    fit = result["fit"]
    ran, out, sure = (fit[name] for name in ("false_oom", "missed_oom", "missed_oom_at_search_margin"))
    yield ""
    yield (
        f"Of {ran['cases']} runs that ran, {_percent(ran['share'])} were predicted not to fit. "
        f"Of {out['cases']} that ran out of memory, {_percent(out['share'])} were predicted to fit, and "
        f"{_percent(sure['share'])} with the required probability of 95 %."
    )


def _first(result: dict[str, Any]) -> Iterator[str]:
    yield "| table | added | figure | rows | median | p90 | bias | inside | width |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    for row in result["first"]:
        errors = " | ".join(f"{100 * float(row[name]):.1f} %" for name in ("median", "p90", "bias", "inside"))
        yield f"| `{row['table']}` | {row['added']} | {row['figure']} | {row['rows']} | {errors} | {row['width']} |"
    yield ""


_LISTED = 5
"""Rows of a publication from which it has a line of its own."""


def _sources(result: dict[str, Any]) -> Iterator[str]:
    for figure in ("step time", "memory, allocated", "memory, reserved and total"):
        entry = result[figure]
        yield f"### {figure[0].upper()}{figure[1:]}"
        yield ""
        yield "| | added | rows | median | p90 | bias | inside | width |"
        yield "|---|---|---:|---:|---:|---:|---:|---:|"
        for title, of in (
            ("All rows", entry["all"]),
            ("Rows that fields of `Job`, `Plan` and `Cluster` describe", entry["public"]),
            ("Users' code on AWS, in no fit", entry["users"]),
        ):
            if of:
                yield f"| {title} | | {_cells(of)} |"
        for name, of in entry["by_source"].items():
            if of["rows"] >= _LISTED:  # `--residuals` has every row
                yield f"| `{name}` | {of['added']} | {_cells(of)} |"
        median, inside = entry["sources_once"]
        yield ""
        once = f"median {_percent(median)}, inside {_percent(inside)}"
        yield f"Each source once, also those of fewer than {_LISTED} rows: {once}."
        yield ""


def _decisions(result: dict[str, Any]) -> Iterator[str]:
    fit, ranking, batch = result["fit"], result["ranking"], result["max_batch"]
    yield "### Fit, ranking, batches"
    yield ""
    yield "| | cases | |"
    yield "|---|---:|---:|"
    for key, title in _DECISIONS.items():
        entry = fit[key]
        if entry["share"] is not None:
            bounds = f"{_percent(entry['low'])} to {_percent(entry['high'])}"
            yield f"| {title} | {entry['cases']} | {_percent(entry['share'])} ({bounds}) |"
    if ranking["regret_median"] is not None:
        regret = f"{_percent(ranking['regret_median'])} / {_percent(ranking['regret_mean'])}"
        yield f"| Ranking in sweeps, median Kendall's tau | {ranking['sweeps']} | {ranking['kendall_tau_median']:.2f} |"
        yield f"| Regret of the predicted best, median / mean | {ranking['sweeps']} | {regret} |"
    if batch["median_factor"] is not None:
        yield f"| Largest batch, median factor | {batch['rows']} | {batch['median_factor']:.2f} |"
    yield ""


def _parts() -> Iterator[str]:
    composed = data_file("costs", "intervals")["composition"]
    yield "## What an interval consists of"
    yield ""
    yield "The squares of these errors add up, each with its share of the step. The interval is 1.96 times the root of"
    yield "their sum on either side, in logarithms. Name your code and its kernel, and their parts go."
    yield ""
    yield "| error of | one standard deviation |"
    yield "|---|---:|"
    for name, words in _PARTS.items():
        yield f"| {words} | {_percent(composed[name])} |"
    yield ""


def _cells(of: dict[str, Any]) -> str:
    errors = " | ".join(_percent(of[name]) for name in ("median", "p90"))
    return f"{of['rows']} | {errors} | {100 * of['bias']:+.1f} % | {_percent(of['inside'])} | {of['width']:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
