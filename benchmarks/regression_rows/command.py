"""The command line of the regression comparison."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from .compare import Comparison, compare
from .record import ADVICES, PLANS, read, write
from .requests import advice_requests, plan_requests
from .results import advice_result, plan_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main", "share"]

_SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare with the record; 1 where a difference is not listed."""
    parser = argparse.ArgumentParser(description="Compare results with the committed record.")
    parser.add_argument("--record", action="store_true", help="write the record instead of comparing with it")
    parser.add_argument("--only", default="", metavar="TEXT", help="only requests whose name contains the text")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="processes at a time")
    options = parser.parse_args(arguments)
    failed = False
    for kind, path, requests, answer in (
        ("advice", ADVICES, advice_requests(), advice_result),
        ("plan", PLANS, plan_requests(), plan_result),
    ):
        began = time.perf_counter()
        results = _answers(share(requests, options.only), answer, options.processes)
        seconds = time.perf_counter() - began
        if options.record:
            write(path, requests, results)
            print(f"{kind}: {len(results):,} recorded in {seconds:.0f} s")
            continue
        comparison = compare(read(path, requests), results, kind)
        failed = _report(comparison, kind, seconds) or failed
    return int(failed)


def share(requests: dict[str, dict[str, Any]], text: str = "", every: int = 1) -> dict[str, dict[str, Any]]:
    """The requests whose name contains a text; of these, every so many."""
    names = [name for name in requests if text in name][::every]
    return {name: requests[name] for name in names}


def _answers(
    requests: dict[str, dict[str, Any]], answer: Callable[[dict[str, Any]], dict[str, Any]], processes: int
) -> dict[str, dict[str, Any]]:
    with ProcessPoolExecutor(processes) as pool:
        return dict(zip(requests, pool.map(answer, requests.values(), chunksize=4), strict=True))


def _report(comparison: Comparison, kind: str, seconds: float) -> bool:
    """Print the counts and the first differences; whether any is not listed, or is listed and gone."""
    print(
        f"{kind}: {comparison.same:,} same, {len(comparison.intended)} different as intended,"
        f" {len(comparison.different)} different ({seconds:.0f} s)"
    )
    reasons = list(comparison.intended.values())
    for reason in dict.fromkeys(reasons):
        print(f"  intended, {reasons.count(reason)}: {reason}")
    for name in comparison.unused:
        print(f"  {name}: listed in intended.toml, and the same as recorded")
    for name, differing in list(comparison.different.items())[:_SHOWN]:
        print(f"  {name}")
        for line in differing:
            print(f"    {line}")
    return bool(comparison.different or comparison.unused)
