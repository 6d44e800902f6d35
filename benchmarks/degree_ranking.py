"""Compare the predicted order of sharding groups of 8 to 512 GPUs with published runs.

Run it with ``python benchmarks/degree_ranking.py``. Published runs of MiCS, SMP and IBM's FSDP agree that smaller
groups are at least as fast, as long as the model fits. Two predictions whose ratio is within the interval of the
difference of two runs of one source are reported as not distinguishable, with the direction of their order. It fails if
a prediction contradicts beyond that interval. The sources print few ratios and not all settings of their runs: what is
assumed is listed, so an agreement in order is weak evidence.
"""

from __future__ import annotations

import sys
from collections import Counter

from degree_rows.ranking import comparisons, every_pair, verdict_of

INSTANCES = ("ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge")


def main() -> int:
    """Print published comparisons and all pairs of degrees; 1 if a prediction contradicts."""
    words: Counter[str] = Counter()
    print("published comparisons: throughput of the smaller sharding group over that of the larger")
    for entry in comparisons():
        verdict = verdict_of(entry)
        words[verdict.word] += 1
        printed = (
            f"{entry.factor:.2f}" if entry.factor else f"up to {entry.at_most:.2f}" if entry.at_most else "above 1"
        )
        print(
            f"  {entry.id:18s} {entry.smaller:4d} and {entry.larger:4d} GPUs: published {printed:>10},"
            f" predicted {verdict.factor:.2f} (interval of the ratio {verdict.interval:.2f}): {verdict.word}"
        )
        fitted = " (the constants are fitted to these runs too)" if entry.in_fit else ""
        print(f"    {entry.source}, {entry.locator}; assumed: {', '.join(entry.assumed)}{fitted}")
    print("all pairs of degrees that fit, on 512 GPUs: the smaller group is predicted")
    for instance in INSTANCES:
        both = [(kind, every_pair(instance, mics=kind == "MiCS")) for kind in ("MiCS", "FSDP")]
        for name, pairs in ((f"{kind}, {name}", pairs) for kind, entries in both for name, pairs in entries.items()):
            counts = Counter(verdict.word for _, _, verdict in pairs)
            words.update(counts)
            if not pairs:
                print(f"  {instance:18s} {name:24s} no two sizes fit")
                continue
            least, most = (choose(verdict.factor for _, _, verdict in pairs) for choose in (min, max))
            listed = ", ".join(f"{word} {count}" for word, count in sorted(counts.items()))
            print(f"  {instance:18s} {name:24s} {least:.2f} to {most:.2f} times as fast: {listed}")
    print(", ".join(f"{word}: {count}" for word, count in sorted(words.items())))
    return int(bool(words["contradicts"]))


if __name__ == "__main__":
    sys.exit(main())
