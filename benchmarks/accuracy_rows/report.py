"""The scores as text tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["lines"]

_TITLES = {
    "memory_allocated": "Memory, peak allocated",
    "memory_total": "Memory, reserved and total",
    "step_time_a100_h100": "Step time, A100 and H100, network known",
    "step_time_other": "Step time, other GPUs",
}
_BREAKDOWNS = ("by_mapping", "by_gpu", "by_parallelism", "by_quality", "by_network_known", "by_precision")


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Lines of the report."""
    yield from _headlines(result["headlines"])
    for name, title in _TITLES.items():
        yield from _errors(title, result[name])
    for name, entry in result["extra"].items():
        yield from _errors(f"Extra: {name.replace('_', ' ')}", entry)
    yield from _intervals(result["intervals"])
    yield from _fit(result["fit"])
    yield from _ranking(result["ranking"])
    yield from _max_batch(result["max_batch"])
    yield ""
    yield "Targets"
    for target in result["targets"]:
        word = "met" if target["met"] else "not met"
        yield f"  {target['title']:64} {target['aim']:>18} {target['achieved']:>18}  {word}"


def _headlines(entry: dict[str, Any]) -> Iterator[str]:
    for key, title in (
        ("left_out", "Step time, source left out of the fit"),
        ("users", "Step time, users' code on AWS"),
        ("residual", "Step time, residual of the fit"),
    ):
        if not entry[key]:
            continue
        yield ""
        yield title
        yield f"  {'':32}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}"
        for name in ("all", "public", "private", "each_source_once", "after_one_run"):
            if name in entry[key]:
                yield _line(name.replace("_", " "), entry[key][name])


def _errors(title: str, entry: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield title
    yield f"  {'':32}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}"
    yield _line("all", entry)
    for breakdown in _BREAKDOWNS:
        yield f"  {breakdown.replace('_', ' ')}"
        for name, errors in entry[breakdown].items():
            yield _line(f"  {name}", errors)
    yield from _skipped(entry)


def _line(name: str, errors: dict[str, Any]) -> str:
    return (
        f"  {name:32}{errors['rows']:>6}{_percent(errors['median']):>9}{_percent(errors['p90']):>9}"
        f"{_percent(errors['bias'], signed=True):>9}"
    )


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _skipped(entry: dict[str, Any]) -> Iterator[str]:
    if entry["skipped"]:
        share = entry["skipped"] / (entry["skipped"] + entry.get("rows", 0))
        yield f"  skipped {entry['skipped']} ({100 * share:.1f} % of the scorable rows)"
        for reason, count in entry["skipped_by_reason"].items():
            yield f"    {count:>4}  {reason}"


def _intervals(intervals: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "Intervals of nominally 95 %"
    for name, entry in intervals.items():
        if entry["cases"]:
            yield (
                f"  {name.replace('_', ' '):12} {_percent(entry['share'])} of {entry['cases']} rows within, "
                f"(95 % interval {_percent(entry['low'])} to {_percent(entry['high'])}), "
                f"median half width {_percent(entry['median_half_width'])}"
            )


def _fit(fit: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "Fit decisions"
    for name, words in (
        ("false_oom", "ran, predicted not to fit"),
        ("missed_oom", "ran out of memory, predicted to fit"),
        ("false_oom_at_search_margin", "ran, less than 95 % sure to fit"),
        ("missed_oom_at_search_margin", "ran out of memory, 95 % sure to fit"),
    ):
        entry = fit[name]
        interval = (
            "" if entry["share"] is None else f" (95 % interval {_percent(entry['low'])} to {_percent(entry['high'])})"
        )
        yield f"  {words:40}{_percent(entry['share']):>9} of {entry['cases']}{interval}"
    if fit["skipped"]:
        yield f"  skipped {fit['skipped']}"
        for reason, count in fit["skipped_by_reason"].items():
            yield f"    {count:>4}  {reason}"


def _ranking(ranking: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"Ranking within {ranking['sweeps']} sweeps"
    tau = ranking["kendall_tau_median"]
    middle = "-" if tau is None else f"{tau:.2f}"
    yield f"  median Kendall's tau {middle}, median regret {_percent(ranking['regret_median'])}"
    for sweep in ranking["each"]:
        fixed = sweep["fixed"]
        tau = "   -" if sweep["kendall_tau"] is None else f"{sweep['kendall_tau']:+.2f}"
        work = f"{fixed['layers']} x {fixed['hidden']}, {fixed['seq']} tokens, batch {fixed['global_batch']}"
        yield f"  tau {tau}  regret {_percent(sweep['regret']):>7}  {sweep['plans']:>3} plans  {work}, {_where(fixed)}"


def _where(fixed: dict[str, str]) -> str:
    return f"{fixed['gpus']} {fixed['gpu']}, {fixed['framework']}"


def _max_batch(entry: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "Largest batch"
    factor = "-" if entry["median_factor"] is None else f"{entry['median_factor']:.2f}"
    yield f"  {entry['rows']} rows, median factor {factor}, bias {_percent(entry['bias'], signed=True)}"
    for breakdown in ("by_gpu", "by_model"):
        for name, errors in entry[breakdown].items():
            yield _line(f"  {name[:30]}", errors)
    yield from _skipped(entry)
