"""Comparison of records: figures within rounding, durations left out, keys by path."""

from __future__ import annotations

from smp_advisor.proving.comparison import Record, compare_losses, compare_prints, compare_saves, is_sum_over_batch


def record(*, losses=(), printed=(), saves=()):
    return Record(
        losses=[(value, 1) for value in losses], modes=[], saves=list(saves), notes=[], printed=list(printed), error=""
    )


def test_the_mean_over_processes_is_the_loss_of_the_batch():
    original = record(losses=[1.0, 0.5])
    assert compare_losses(original, [record(losses=[0.8, 0.4]), record(losses=[1.2, 0.6])]) is None
    assert "Loss 2" in str(compare_losses(original, [record(losses=[0.8, 0.4]), record(losses=[1.2, 0.9])]))
    assert "backward passes" in str(compare_losses(original, [record(losses=[1.0])]))


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
