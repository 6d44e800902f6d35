"""The comparison with HyperPod recipes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.accuracy_rows.table import read_table
from benchmarks.degree_rows.ranking import Comparison, Verdict, comparisons, every_pair, verdict_of
from benchmarks.published_plans import Judgment, judge, read_plan
from benchmarks.recipes import compare, main, read_recipes
from smp_advisor.libraries import violations

RECIPE = (Path(__file__).parent / "data" / "recipe.yaml").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hf_llama3_8b_seq8k_gpu_p5x2_pretrain.yaml").write_text(RECIPE)
    (tmp_path / "lora.yaml").write_text(RECIPE.replace("peft_type: null", "peft_type: lora"))
    (tmp_path / "nemo.yaml").write_text(RECIPE.replace("use_smp_model: True", "use_smp_model: False"))
    return tmp_path


def test_recipes_that_train_all_parameters_with_smp_are_compared(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (recipe,) = read_recipes(folder)
    assert recipe.name == "llama3_8b_seq8k_p5x2_pretrain"
    assert recipe.cluster.gpus == 16
    assert recipe.plan.hybrid_shard_degree == 16
    result = compare(recipe, "fixed")
    assert result.chosen.global_batch_size == result.aws.global_batch_size == 16
    assert result.share >= 0.98
    assert main(str(folder)) == 0
    assert "1 recipes, 2 comparisons, 0 with a condition that does not hold" in capsys.readouterr().out


def test_a_folder_without_recipes_fails(tmp_path: Path) -> None:
    assert main(str(tmp_path)) == 1


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


TABLE = Path(__file__).parent / "data" / "published_smp_configurations.csv"
ROWS = read_table(TABLE).rows


@cache
def judged() -> list[Judgment]:
    return judge(TABLE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.text("id"))
def test_every_row_reads_into_a_plan_of_its_version(row):
    plan = read_plan(row)
    assert plan.library == f"smp-v{row.text('smp_version')}"
    assert list(violations(plan.parameters, version=plan.version, library=plan.library)) == []


def test_nothing_is_refused_and_what_cannot_be_judged_has_a_reason():
    outcomes = Counter(one.outcome for one in judged())
    assert outcomes["refused"] == 0
    unjudged = [one for one in judged() if one.outcome == "not judged"]
    assert len(unjudged) <= 3
    assert all(one.reason for one in unjudged)


def test_what_is_published_as_working_is_judged_to_fit():
    decided = {one.row: one.outcome for one in judged() if one.outcome in {"fits", "does not fit"}}
    assert len(decided) >= 37
    assert [row for row, outcome in decided.items() if outcome == "does not fit"] == []


@pytest.mark.slow
@pytest.mark.tools
@pytest.mark.torch
def test_every_question_is_answered(monkeypatch, capsys):
    from benchmarks.tool_tasks import main, tasks

    monkeypatch.setattr("sys.argv", ["tool_tasks.py", "--once"])
    status = main()
    output = capsys.readouterr().out
    assert status == 0, output
    assert output.count("  right  ") == len(tasks()) == 30
