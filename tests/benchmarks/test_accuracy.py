"""The accuracy benchmark: its arithmetic, its reading of rows, and what it leaves out."""

import csv
import json

import pytest

from benchmarks.accuracy_rows import predict
from benchmarks.accuracy_rows.command import main
from benchmarks.accuracy_rows.figures import first_scores
from benchmarks.accuracy_rows.known_good import known_good_run
from benchmarks.accuracy_rows.models import model_of
from benchmarks.accuracy_rows.plans import run_of
from benchmarks.accuracy_rows.table import Row, SkippedError, TableError, read_table
from smp_advisor import estimate
from tests.benchmarks.rows import GPT, MEASURED, TIMED, row, score, table

# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_file_s_kind_follows_from_its_columns_and_another_file_is_refused(tmp_path, capsys):
    assert read_table(table(tmp_path, "a", [TIMED])).kind == "throughput"
    assert read_table(table(tmp_path, "b", [MEASURED])).kind == "memory"
    path = table(tmp_path, "c.csv", [{"a": 1}])
    with pytest.raises(TableError, match="is not a table of measured runs"):
        read_table(path)
    assert main([str(path)]) == 2
    assert "c.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        (MEASURED | {"verified": "no"}, []),
        (MEASURED | {"quality": "C"}, []),
        (MEASURED | {"plan_kind": "incomplete"}, []),
        (MEASURED | {"mem_class": "unknown"}, []),
        (MEASURED | {"memory_gib_per_gpu": "0"}, []),
        (MEASURED | {"mem_class": "allocated"}, ["memory_allocated"]),
        (MEASURED | {"mem_class": "reserved", "quality": "B"}, ["memory_total"]),
        (MEASURED | {"plan_kind": "per-stage"}, ["per_stage_memory_total"]),
        (TIMED, ["step_time_a100_h100"]),
        (TIMED | {"step_time_s": "0"}, []),
        (TIMED | {"gpu": "H100-80GB"}, ["step_time_a100_h100"]),
        (TIMED | {"network_known": "assumed"}, ["assumed"]),
        (TIMED | {"gpu": "V100-32GB", "network_known": "assumed"}, ["step_time_other"]),
        (TIMED | {"gpu": "B200-180GB"}, ["step_time_other"]),
    ],
)
def test_which_rows_are_scored_and_for_which_figure(tmp_path, changes, figures):
    judged = score(tmp_path, [changes])
    assert [name for name, rows in judged.scored.items() if rows] == figures
    assert not any(judged.skipped.values())


def timed(folder, **changes):
    """The scored row of `TIMED` with changes."""
    (one,) = score(folder, [TIMED | changes]).scored["step_time_a100_h100"]
    return one


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "abacus"}, "unknown GPU"),
        ({"seq": ""}, "sequence length"),
        ({"tp": "3"}, "parallel degrees"),
        ({"recompute_class": "selective-other"}, "recomputation"),
        ({"layers": "", "hidden": ""}, "number of parameters"),
        ({"layers": "1"}, "more pipeline stages"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_counted_under_its_reason(tmp_path, changes, reason):
    judged = score(tmp_path, [TIMED | changes])
    (reasons,) = judged.skipped.values()
    ((found, count),) = reasons.items()
    assert reason in found
    assert count == 1


def test_neither_a_measurement_nor_what_explains_a_row_changes_its_prediction(tmp_path):
    said = {
        "id": "x", "source": "y", "locator": "z", "note": "micro batch 7", "other": "FSDP 8, CP 4",
        "interconnect": "slow", "framework": "Megatron without documented habits", "how_measured": "v",
        "step_time_s": "100000", "mfu": "100000", "memory_gib_per_gpu": "100000",
    }  # fmt: skip
    one, other = timed(tmp_path), timed(tmp_path, **said)
    assert one.run.identity == other.run.identity
    assert one.predicted == other.predicted


# --- mapping ----------------------------------------------------------------------------------------------------------


def test_degrees_sharding_and_hardware():
    layout = run_of(row(vpp=3, tp=4, dp=2, shard_degree=2)).layout
    found = {name: getattr(layout, name)[0] for name in ("tensor_parallel_degree", "virtual_stages", "shard_level")}
    assert found == {"tensor_parallel_degree": 4, "virtual_stages": 3, "shard_level": 1}
    assert layout.shard_degree[0] == 0  # the whole group
    assert run_of(row(shard_degree=2)).layout.shard_degree[0] == 2
    # Missing degrees follow from the others.
    empty = dict.fromkeys(("tp", "pp", "micro_batch", "num_microbatches"), "")
    layout = run_of(row(gpus=2160, gpus_per_node=8, nodes=270, dp=15, global_batch=2430, layers=90, **empty)).layout
    assert (layout.tensor_parallel_degree[0], layout.pipeline_parallel_degree[0]) == (8, 18)
    assert (layout.microbatches[0], layout.batch_samples[0]) == (162, 162)
    machine = run_of(row(gpu="L4-24GB", intra_node="pcie", inter_node_gbps=100)).cluster
    assert (machine.nodes, machine.gpus_per_node, machine.instance.nvlink) == (2, 8, False)
    assert machine.instance.inter_node_gbps == 100


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({"optimizer": "Adam, fp16 grad accumulation"}, 20),
        ({"optimizer": "AdamW fp32 grad accumulation", "precision_class": "bf16-mixed"}, 18),
        ({"optimizer": "Adam (20 B/param: fp16 p+g, fp32 master, fp32 main grad, m, v)", "shard_class": "none"}, 22),
        ({"precision_class": "bf16-pure", "optimizer": "AdamW (bf16 states)"}, 8),
        ({"precision_class": "bf16-pure", "optimizer": "Adam8bit"}, 6 + 2 * 4 / 256),
        ({"precision_class": "fp32", "optimizer": "AdamW"}, 16),
        ({"precision_class": "bf16-mixed", "shard_class": "zero3", "tp": "1", "pp": "1", "dp": "16"}, 16),
    ],
)
def test_bytes_a_parameter(changes, total):
    assert run_of(row(**changes)).layout.state_bytes.total_bytes == total


def test_models_by_shape_count_and_name():
    assert model_of(row()).parameter_count == pytest.approx(1.316e9, rel=0.01)
    assert model_of(row(family="lora", layers="", hidden="", heads="", params_b=40)).parameter_count == pytest.approx(
        40e9, rel=0.03
    )
    empty = dict.fromkeys(GPT, "")
    assert model_of(Row(empty | {"model": "distilgpt2"})).parameter_count == 81_912_576
    sparse = empty | {"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336"}
    mixtral = model_of(Row(sparse | {"vocab": "32000", "model": "Hugging Face Mixtral 7b"}))
    assert mixtral.parameter_count == 46_702_792_704
    mistral = model_of(Row(sparse | {"vocab": "32000", "family": "llama", "model": "Mistral 7b"}))
    assert mistral.parameter_count == pytest.approx(7.24e9, rel=0.01)


def test_known_good_rows():
    aws = {
        "instance_type": "ml.p4d.24xlarge", "instances": "16", "gpu": "A100-40GB", "smp_version": "1", "params_b": "10",
        "vocab": "50000", "seq": "512", "tensor_parallel_degree": "4", "shard_optimizer_state": "True",
        "prescaled_batch": "True", "activation_checkpointing": "each transformer layer", "microbatches": "1",
        "train_batch_size_per_gpu_or_rdp": "40",
    }  # fmt: skip
    layout = known_good_run(Row(aws)).layout
    assert (layout.batch_samples[0], layout.shard_level[0], layout.checkpoint_layers[0]) == (40, 1, 1)
    unscaled = known_good_run(Row(aws | {"prescaled_batch": "False"})).layout
    assert unscaled.batch_samples[0] == 160
    version_2 = {"smp_version": "2", "shard_optimizer_state": "", "sharded_data_parallel_degree": "32"}
    sharded = known_good_run(Row(aws | version_2 | {"peft": "lora"}))
    assert (sharded.layout.shard_level[0], sharded.job.adapter.rank) == (3, 16)
    with pytest.raises(SkippedError, match="sequence length"):
        known_good_run(Row(aws | {"seq": ""}))


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_sweep_has_three_plans_of_one_training(tmp_path):
    plans = [
        {"tp": "2", "pp": "2", "dp": "4", "step_time_s": "10"},
        {"tp": "1", "pp": "2", "dp": "8", "num_microbatches": "4", "step_time_s": "9"},
        {"tp": "8", "pp": "1", "dp": "2", "num_microbatches": "16", "step_time_s": "12"},
    ]
    rows = [TIMED | plan for plan in plans]
    assert [sweep.plans for sweep in score(tmp_path, rows).sweeps] == [3]
    assert not score(tmp_path, rows[:2]).sweeps
    assert not score(tmp_path, [*rows[:2], rows[2] | {"global_batch": "128"}]).sweeps
    again = rows[0] | {"step_time_s": "11"}  # one plan measured twice is one plan
    assert [sweep.plans for sweep in score(tmp_path, [*rows, again]).sweeps] == [3]


def test_a_configuration_of_two_tables_is_one_fit_decision(tmp_path):
    judged = score(tmp_path, [MEASURED], [TIMED], [MEASURED | {"outcome": "OOM", "micro_batch": "4"}])
    assert (len(judged.ran), len(judged.ran_out)) == (1, 1)


def test_largest_batches(tmp_path):
    batch = {
        "verified": "yes", "quality": "A", "model": "gpt2", "layers": "12", "hidden": "768", "heads": "12",
        "vocab": "50257", "task": "masked/causal LM on x", "instance_type": "ml.g4dn.2xlarge", "gpu": "T4-16GB",
        "seq": "512", "precision": "float16 AMP", "max_batch_per_gpu_native": "12",
    }  # fmt: skip
    judged = score(tmp_path, [batch, batch | {"max_batch_per_gpu_native": ""}, batch | {"seq": "128"}])
    short, long = judged.scored["max_batch"][1], judged.scored["max_batch"][0]
    assert 3 < long.predicted < short.predicted < 200


def test_the_report_the_json_and_every_row_with_its_stated_interval(tmp_path, capsys):
    paths = [
        str(table(tmp_path, "t.csv", [TIMED, TIMED | {"gpu": "abacus"}])),
        str(table(tmp_path, "m.csv", [MEASURED, MEASURED | {"mem_class": "allocated"}])),
    ]
    assert main(paths) == 0
    assert "### Step time" in capsys.readouterr().out
    assert main([*paths, "--json", "--residuals", str(tmp_path / "rows.csv")]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("step time", "memory, allocated", "memory, reserved and total"):
        assert found[name]["all"]["rows"] == 1
        assert {"median", "p90", "bias", "inside", "width", "points"} <= set(found[name]["all"])
    assert found["skipped"] == {"step_time_other": {"unknown GPU abacus": 1}}
    assert found["fit"]["false_oom"]["cases"] == 1
    assert {"sweeps", "kendall_tau_median", "regret_median"} <= set(found["ranking"])
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert all(float(one["low"]) < float(one["predicted"]) < float(one["high"]) for one in rows)


def test_a_new_table_is_scored_once_and_its_score_stays(tmp_path):
    (tmp_path / "new").mkdir()
    dated = [TIMED | {"source": "A", "added": "2099-01-01"}]
    path, scores = table(tmp_path / "new", "t.csv", dated), tmp_path / "first_scores.csv"
    scores.write_text("table,added,figure,rows,median,p90,bias,inside,width,package\n")
    (first,) = first_scores([read_table(path)], scores)
    table(tmp_path / "new", "t.csv", [dated[0] | {"step_time_s": "20"}])
    assert first_scores([read_table(path)], scores) == [first]
    old = table(tmp_path / "new", "old.csv", [dated[0] | {"added": "2026-11-21"}])
    assert first_scores([read_table(old)], scores) == [first]


SHARDED = {
    "shard_class": "zero3", "shard_degree": "16", "tp": "1", "pp": "1", "dp": "16", "precision_class": "bf16-mixed",
    "attention_class": "flash", "framework": "PyTorch FSDP1, Hugging Face model", "instance_type": "p4d.24xlarge",
}  # fmt: skip


def test_rows_of_public_settings_are_scored_through_a_plan_and_others_are_labeled():
    plain = run_of(row(**SHARDED))
    assert plain.plan is not None
    assert plain.plan.library == "fsdp"
    # What the row is scored with is what a user's estimate shows.
    shown = estimate(plain.model, plain.cluster, plain.job, plain.plan).step_seconds
    assert sum(predict.step_seconds(plain).values()) == pytest.approx(shown)
    divided = SHARDED | {"tp": "2", "dp": "8", "shard_degree": "8", "family": "llama", "ffn": "5504"}
    assert run_of(row(**divided)).plan.library == "smp-v2"
    assert run_of(row(**SHARDED | {"framework": "SageMaker SMP v1"})).plan.library == "smp-v1"
    assert run_of(row(**SHARDED | {"shard_class": "none", "shard_degree": ""})).plan.library == "ddp"
    # Megatron's pipeline, its distributed optimizer and DeepSpeed are none of the libraries.
    for changes in ({}, SHARDED | {"shard_class": "zero1"}, SHARDED | {"framework": "DeepSpeed ZeRO-3"}):
        assert run_of(row(**changes)).plan is None


def test_the_page_starts_with_first_scores_and_the_readme_has_the_same_table(tmp_path):
    paths = []
    for folder, sources in (("dev", ("A", "B")), ("aws", ("C",))):
        (tmp_path / folder).mkdir()
        rows = [
            TIMED | SHARDED | {"source": source, "step_time_s": str(5 + number), "id": f"{source}{number}"}
            for source in sources
            for number in range(3)
        ]
        paths.append(str(table(tmp_path / folder, "t.csv", rows)))
    page, readme = tmp_path / "page.md", tmp_path / "readme.md"
    readme.write_text(
        "before\n<!-- accuracy, written by benchmarks/accuracy.py -->\nold\n<!-- end of accuracy -->\nafter\n"
    )
    assert main([*paths, "--page", str(page), "--readme", str(readme)]) == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("before", "after", 11)
    assert all(line in page.read_text() for line in lines[2:-2])
    assert lines[4].startswith("| Step time of code that nobody had seen | 181 |")
    assert lines[6].startswith("| Step time after one measured run of the same code | ")
