"""Comparison of records: figures within rounding, durations left out, keys by path."""

from __future__ import annotations

import pytest

from smp_advisor.libraries.library import get_library
from smp_advisor.proving.comparison import (
    Record,
    compare_prints,
    compare_processes,
    compare_saves,
    compare_settings,
    compare_updates,
    is_sum_over_batch,
)


def record(*, losses=(), printed=(), saves=(), gradients=((1.0, 0.0),), loads=(), **others):
    updates = [
        {"losses": n + 1, "gradients": list(gradients[min(n, len(gradients) - 1)]), "parameters": [1.0, 0.0], "line": 1}
        for n in range(len(losses))
    ]
    return Record(
        losses=[(value, 1) for value in losses],
        updates=updates,
        saves=list(saves),
        loads=list(loads),
        printed=list(printed),
        **others,
    )


def test_the_mean_over_processes_is_the_loss_of_the_batch():
    original = record(losses=[1.0, 0.5])
    assert compare_updates(original, [record(losses=[0.8, 0.4]), record(losses=[1.2, 0.6])]) == []
    differs = compare_updates(original, [record(losses=[0.8, 0.4]), record(losses=[1.2, 0.9])])
    assert "loss of update 2" in str(differs[0])
    assert "Updates: 1, and 2" in str(compare_updates(original, [record(losses=[1.0])])[0])


def test_shards_add_up_and_replicas_agree():
    original = record(losses=[1.0], gradients=[(2.0, 0.0)])
    shards = [record(losses=[1.0], gradients=[(0.0, part)]) for part in (0.5, 1.5)]
    assert compare_updates(original, shards) == []
    replicas = [record(losses=[1.0], gradients=[(part, 0.0)]) for part in (2.0, 3.0)]
    assert "not averaged" in str(compare_updates(original, replicas)[0])
    wrong = [record(losses=[1.0], gradients=[(4.0, 0.0)])] * 2
    assert "gradients of update 1" in str(compare_updates(original, wrong)[0])


def test_collectives_have_one_order_and_a_file_is_loaded_after_one_that_follows_its_save():
    first, second = record(collectives=["barrier", "broadcast"]), record(collectives=["barrier", "all_reduce"])
    assert "broadcast and all_reduce" in str(compare_processes([first, second])[0])
    save = {"name": "a.pt", "keys": {}, "line": 1, "after": 3}
    for loaded_after, message in ((3, "before another one has saved it"), (4, "")):
        first = record(saves=[save], loads=[{"name": "a.pt", "line": 2, "after": 3}])
        second = record(loads=[{"name": "a.pt", "line": 2, "after": loaded_after}])
        assert message in "".join(map(str, compare_processes([first, second])))
        assert bool(compare_processes([first, second])) == bool(message)


@pytest.mark.parametrize(
    ("library", "structure", "settings", "message"),
    [
        ("fsdp", {"trained": 4, "sharded": 2}, {}, "2 of 4 trained parameters are not sharded"),
        ("fsdp", {"trained": 4, "sharded": 4, "wrappers": 1}, {}, "next to its shards"),
        ("ddp", {"trained": 4, "replicated": 3}, {}, "outside DistributedDataParallel"),
        ("ddp", {"trained": 4, "replicated": 4, "idle": 1}, {}, "no optimizer updates"),
        ("fsdp", {"trained": 4, "sharded": 4}, {"batch_size": 4}, "batch_size=2, and the script has 4"),
        ("fsdp", {"trained": 4, "sharded": 4}, {"batch_size": 2}, ""),
    ],
)
def test_the_settings_of_the_plan_are_those_of_the_script(library, structure, settings, message):
    none = {"trained": 0, "sharded": 0, "replicated": 0, "wrappers": 0, "idle": 0}
    found = compare_settings(
        [record(structure=none | structure, settings=settings)], {"batch_size": 2}, get_library(library)
    )
    assert message in "".join(map(str, found))
    assert bool(found) == bool(message)


def test_a_sum_over_the_batch_is_recognized():
    assert is_sum_over_batch(record(losses=[4.0]), [record(losses=[1.5]), record(losses=[2.5])])
    assert not is_sum_over_batch(record(losses=[4.0]), [record(losses=[4.0]), record(losses=[4.0])])


def test_durations_do_not_count():
    line = "Epoch: [0][4/4] Time  0.025 ( 0.043) Data  0.000 ( 0.001) Loss 5.08 took {} 12 ms"
    first, second = record(printed=[line.format("1.5")]), record(printed=[line.format("2.5").replace("0.025", "0.1")])
    assert compare_prints(first, first, second) == []
    assert compare_prints(first, first, record(printed=[line.format("1.5").replace("5.08", "2.54")]))


def test_keys_are_compared_by_path_and_optimizer_states_as_a_whole():
    state = {"net": {"w": "Tensor"}, "opt": {"state": {}, "param_groups": "list"}, "epoch": "number"}
    other = {"net": {"module.w": "Tensor"}, "opt": {"state": {"w": {}}, "param_groups": "list"}, "epoch": "number"}
    first, second = (record(saves=[{"name": "m.pt", "keys": keys, "line": 3}]) for keys in (state, other))
    assert compare_saves(first, first) == []
    difference = str(compare_saves(first, second)[0])
    assert "lacks /net/w" in difference
    assert "Line 3" in difference
