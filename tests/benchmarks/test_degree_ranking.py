"""The predicted order of sharding groups, next to what published runs report."""

from __future__ import annotations

import pytest

from benchmarks.degree_rows.ranking import Comparison, Verdict, comparisons, every_pair, verdict_of


@pytest.mark.parametrize("entry", comparisons(), ids=lambda entry: entry.id)
def test_published_orders_are_predicted_or_not_distinguishable(entry: Comparison) -> None:
    verdict = verdict_of(entry)
    assert verdict.word != "contradicts"
    # Without the help of the interval: no prediction is far on the other side.
    assert verdict.factor > 0.9
    if entry.at_most is not None:
        assert verdict.factor < entry.at_most * verdict.interval
    assert set(entry.assumed) <= set(Comparison.__dataclass_fields__)
    assert entry.claim.endswith(".")
    assert entry.locator


def test_the_gain_of_small_groups_grows_with_the_cluster_as_published() -> None:
    """InternEvo, optimizer state over 8 GPUs or over all of 64 to 1,024: 1.07 to 1.60 times as fast."""
    entries = [entry for entry in comparisons() if entry.id.startswith("internevo")]
    factors = [verdict_of(entry).factor for entry in entries]
    assert len(entries) == 5
    assert factors == sorted(factors)
    for entry, factor in zip(entries, factors, strict=True):
        assert factor == pytest.approx(entry.factor, rel=0.2)


@pytest.mark.parametrize("mics", [False, True])
@pytest.mark.parametrize("instance", ["ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"])
def test_no_larger_group_is_predicted_to_be_faster_beyond_the_interval(instance: str, mics: bool) -> None:
    pairs = [pair for entries in every_pair(instance, mics=mics).values() for pair in entries]
    assert len(pairs) > 50
    assert not [pair for pair in pairs if pair[2].word == "contradicts"]
    assert min(verdict.factor for _, _, verdict in pairs) > 0.8


@pytest.mark.parametrize("instance", ["ml.p3dn.24xlarge", "ml.p4d.24xlarge"])
def test_smaller_groups_of_mics_are_faster_on_the_networks_that_it_was_made_for(instance: str) -> None:
    pairs = [pair for entries in every_pair(instance, mics=True).values() for pair in entries]
    assert sum(verdict.factor >= 1 for _, _, verdict in pairs) > 0.9 * len(pairs)


def test_sharding_over_all_nodes_is_slower_than_within_them_where_compute_hides_little() -> None:
    for instance, least in (("ml.p3dn.24xlarge", 1.05), ("ml.p4d.24xlarge", 1.15), ("ml.p5.48xlarge", 1.05)):
        factors = {(a, b): v.factor for a, b, v in every_pair(instance)["7B, batch 2 x 1"]}
        assert factors[8, 512] > least


def test_a_ratio_within_the_interval_is_no_evidence() -> None:
    assert Verdict(factor=1.2, interval=1.3).word == "not distinguishable, same order"
    assert Verdict(factor=0.8, interval=1.3).word == "not distinguishable, opposite order"
    assert Verdict(factor=1.4, interval=1.3).word == "agrees"
    assert Verdict(factor=0.7, interval=1.3).word == "contradicts"
