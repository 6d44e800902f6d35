"""The command line of the regression comparison."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from .compare import Comparison, compare
from .kinds import KINDS
from .record import read, write

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
    for name, kind in KINDS.items():
        began = time.perf_counter()
        requests = kind.requests()
        results = _answers(share(requests, options.only), kind.result, options.processes)
        seconds = time.perf_counter() - began
        if options.record:
            write(kind.record, requests, results)
            print(f"{name}: {len(results):,} recorded in {seconds:.0f} s")
            continue
        comparison = compare(read(kind.record, requests), results, name)
        failed = _report(comparison, name, seconds) or failed
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
        print(f"  {name}: listed in intended.toml, but equal to the record")
    for name, differing in list(comparison.different.items())[:_SHOWN]:
        print(f"  {name}")
        for line in differing:
            print(f"    {line}")
    return bool(comparison.different or comparison.unused)
