"""The generated script trains: every kind of plan and model, two steps on a CPU with a stand-in for the library."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import estimator_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload.job import Job
from tests.export.examples import GPT2, P4D, TASK_CASES, Case, make_model, training_script
from tests.export.reading import estimator_arguments
from tests.forked import run_forked

pytestmark = [pytest.mark.slow, pytest.mark.torch]

TWO_NODES = Cluster(P4D, 2)
JOB = Job(sequence_length=32)
FP16 = {"fp16": True, "activation_checkpointing": "each"}

PLANS = {
    "fp32": Plan(batch_size=4),
    "fp16": Plan(**FP16, batch_size=4),
    "pipeline": Plan(**FP16, pipeline_parallel_degree=2, microbatches=4, batch_size=8),
    "tensor": Plan(**FP16, tensor_parallel_degree=4, batch_size=4),
    "prescaled": Plan(
        **FP16, tensor_parallel_degree=4, prescaled_batch=True, shard_optimizer_state=True, microbatches=2, batch_size=8
    ),
    "bf16 sharded": Plan(
        bf16=True, sharded_data_parallel_degree=16, delayed_parameter_initialization=True, batch_size=4
    ),
}


def make_runs(folder):
    """Every run by name, as the estimator's cell would start it."""
    runs = {}

    def add(name, case, *, rank=0, **changes):
        script = folder / f"{name}.py"
        script.write_text(training_script(*case.parts))
        arguments = estimator_arguments(estimator_cell(*case.parts))
        hyperparameters = {**arguments["hyperparameters"], "max_steps": 2, **changes.pop("hyperparameters", {})}
        runs[name] = {
            "script": str(script),
            "world": case.cluster.gpus,
            "rank": rank,
            "parameters": arguments["distribution"]["smdistributed"]["modelparallel"]["parameters"],
            "hyperparameters": hyperparameters,
            **changes,
        }

    for name, plan in PLANS.items():
        add(name, Case(make_model(), TWO_NODES, JOB, plan))
    for name in ("tensor", "prescaled"):
        for rank in (1, 4):
            add(f"{name}, rank {rank}", Case(make_model(), TWO_NODES, JOB, PLANS[name]), rank=rank)
    add("pipeline, rank 1", Case(make_model(), TWO_NODES, JOB, PLANS["pipeline"]), rank=1)
    for name, case in TASK_CASES.items():
        add(name, case)
    add("sgd", Case(make_model(), TWO_NODES, replace(JOB, optimizer="sgd"), PLANS["fp16"]))

    data = folder / "data"
    data.mkdir()
    # 8 whole windows of 32 tokens and a rest for each of 16 ranks' batches of 4 twice over, and a rest.
    np.save(data / "b.npy", np.arange(32 * 100 + 7, dtype=np.uint16) % 128)
    (np.arange(32 * 50, dtype=np.uint16) % 128).tofile(data / "a.bin")
    files = {"SM_CHANNEL_TRAIN": str(data), "SM_CHANNEL_VALIDATION": str(data)}
    fp16 = Case(make_model(), TWO_NODES, JOB, PLANS["fp16"])
    add("files", fp16, environment=files, hyperparameters={"max_steps": 5})
    too_large = folder / "too large"
    too_large.mkdir()
    np.save(too_large / "x.npy", np.full(32 * 200, 128, dtype=np.uint16))
    add("token outside of the vocabulary", fp16, environment={"SM_CHANNEL_TRAIN": str(too_large)})
    add("too few samples", fp16, environment={"SM_CHANNEL_TRAIN": str(data)}, hyperparameters={"sequence_length": 2000})
    checkpoint = {"checkpoint_every": 1, "checkpoint_directory": str(folder / "checkpoints")}
    # Each run is one rank, whose node is the only one: a second node would have a list of its own parts.
    node = Case(make_model(), Cluster(P4D), JOB, PLANS["fp16"])
    add("checkpoints", node, hyperparameters=checkpoint, kept=str(folder / "exported"))
    # The tested runs are in this order: the second one resumes from the checkpoint before the damaged one.
    add("resumed", node, hyperparameters={**checkpoint, "checkpoint_every": 10, "max_steps": 3})
    damaged = str(folder / "checkpoints" / "step-3_partial" / "optimizer_0.pt")
    add("part missing", node, hyperparameters={**checkpoint, "max_steps": 4}, removed=[damaged])
    lost = folder / "lost" / "step-5_partial"
    lost.mkdir(parents=True)
    add("all parts missing", node, hyperparameters={**checkpoint, "checkpoint_directory": str(lost.parent)})
    add("uninterrupted", node, hyperparameters={"max_steps": 4})
    weights = {"SM_CHANNEL_MODEL": str(folder / "exported")}
    add("pretrained", fp16, environment=weights)
    larger = Case(make_model(config=GPT2 | {"n_embd": 64}), TWO_NODES, JOB, PLANS["fp16"])
    add("other weights", larger, environment=weights)
    add("other precision", fp16, hyperparameters={"precision": "bf16"})
    add("other parameters", fp16, parameters={**PLANS["fp16"].parameters, "fp16": False})
    add("batch that microbatches do not divide", fp16, parameters={**PLANS["fp16"].parameters, "microbatches": 3})
    return runs


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    runs, answer = folder / "runs.json", folder / "results.json"
    runs.write_text(json.dumps(make_runs(folder)))
    program = Path(__file__).with_name("run_scripts.py")
    # SMP_ADVISOR_CONTAINER_PYTHON: an interpreter with the container's releases (PyTorch 1.13.1, transformers 4.21.0).
    if python := os.environ.get("SMP_ADVISOR_CONTAINER_PYTHON"):
        subprocess.run([python, program, runs, answer], check=True)
    else:
        run_forked(program, runs, answer)
    return json.loads(answer.read_text())


def names(result):
    return [name for name, _ in result["events"]]


def details(result, event):
    return [record for name, record in result["events"] if name == event]


TRAINED = [*PLANS, *TASK_CASES, "sgd", "files"]
DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}


def checksums(result):
    return [record["checksum"] for record in details(result, "step")]


def tags(result, *, partial):
    saved = [record for record in details(result, "save_checkpoint") if record["partial"] is partial]
    return [record["tag"] for record in saved]


@pytest.mark.parametrize("run", TRAINED)
def test_script_trains_to_the_last_step(results, run):
    """With the calls in the order that the library needs; 150 windows over 16 ranks leave a partial batch, dropped."""
    result = results[run]
    assert result["error"] is None
    steps = 5 if run == "files" else 2
    training = [record for record in details(result, "step") if record["function"] == "training_step"]
    assert len(training) == len(details(result, "optimizer.step")) == steps
    assert len({record["batch"] for record in training}) == 1
    assert result["summary"]["steps"] == steps
    assert np.isfinite(result["summary"]["loss"])
    assert re.search(r"^step 1/\d+ loss ", result["printed"], re.MULTILINE)
    records = names(result)
    order = ["init", "set_device", "manual_seed", "model_creation", "DistributedModel", "DistributedOptimizer", "step"]
    places = [records.index(name) for name in order]
    assert places == sorted(places)
    assert records[0] == "init"
    checkpointed = [place for place, name in enumerate(records) if name == "set_activation_checkpointing"]
    assert all(records.index("DistributedModel") < place < records.index("step") for place in checkpointed)


@pytest.mark.parametrize("run", TRAINED)
def test_the_model_is_exported_for_transformers(results, run):
    """The library's full save, loaded with from_pretrained, has the trained weights; sharded ones are gathered."""
    exported = results[run]["exported"]
    assert exported["same"]
    assert {"config.json", "summary.json"} <= set(exported["files"])
    assert "full.pt" not in exported["files"]


@pytest.mark.parametrize("run", PLANS)
def test_the_plan_reaches_the_model(results, run):
    """Precision, tensor parallelism, scaled losses, and microbatches that go backward through the model."""
    plan, result = PLANS[run], results[run]
    created = details(result, "model_creation")[0]
    assert created["dtype"] == DTYPES[plan.precision]
    assert created["tensor_parallelism"] is (plan.tensor_parallel_degree > 1)
    assert details(result, "DistributedOptimizer")[0]["dynamic_loss_scale"] is plan.fp16
    assert ("clip_master_grads" in names(result)) is plan.fp16
    assert len(details(result, "backward")) == 2 * plan.microbatches
    assert {record["batch"] for record in details(result, "step")} == {plan.batch_size}
    checkpointed = len(details(result, "set_activation_checkpointing"))
    assert checkpointed == (2 if plan.activation_checkpointing else 0)


@pytest.mark.parametrize("run", TASK_CASES)
def test_script_builds_the_model_that_was_advised_on(results, run):
    model = TASK_CASES[run].model
    assert len(details(results[run], "set_activation_checkpointing")) == model.layer_count
    if run != "gpt2 classifier":  # described by hand, without its counts
        assert details(results[run], "DistributedModel")[0]["parameters"] == model.parameter_count


def test_ranks_have_the_seed_and_the_rows_of_their_data_parallel_rank(results):
    """A tensor-parallel group has the same rows with a prescaled batch only, the stages of a pipeline always."""
    runs = ("tensor", "tensor, rank 1", "tensor, rank 4", "pipeline", "pipeline, rank 1")
    seeds = {run: details(results[run], "manual_seed")[0]["seed"] for run in runs}
    # Stages of one pipeline: tensor degree 1, so rank 1 is the second stage of the first replica.
    assert seeds == dict(zip(runs, (42, 43, 46, 42, 42), strict=True))
    rows = {run: checksums(results[run]) for run in (*runs, "prescaled", "prescaled, rank 1", "prescaled, rank 4")}
    assert rows["prescaled"] == rows["prescaled, rank 1"] != rows["prescaled, rank 4"]
    assert rows["tensor"] not in (rows["tensor, rank 1"], rows["tensor, rank 4"])
    assert rows["pipeline"] == rows["pipeline, rank 1"]


def test_validation_runs_without_gradients(results):
    held_out = [record for record in details(results["files"], "step") if record["function"] == "evaluation_step"]
    assert [record["gradients"] for record in held_out] == [False, False]
    assert np.isfinite(results["files"]["summary"]["validation_loss"])


def test_checkpoints_are_partial_and_resumed(results):
    """With the next samples; without a checkpoint that lacks a part."""
    through, resumed, again = checksums(results["uninterrupted"]), results["resumed"], results["part missing"]
    assert tags(results["checkpoints"], partial=True) == ["step-1", "step-2"]
    assert {record["kept"] for record in details(results["checkpoints"], "save_checkpoint")} == {2, None}
    assert details(resumed, "resume_from_checkpoint") == details(again, "resume_from_checkpoint") == [{"step": 2}]
    assert checksums(resumed) == through[2:3]
    # The last step is kept whether or not it is one of every ten.
    assert tags(resumed, partial=True) == ["step-3"]
    assert resumed["summary"]["steps"] == 3
    assert tags(again, partial=True) == ["step-3", "step-4"]
    assert checksums(again) == through[2:]
    lost = results["all parts missing"]
    assert "No checkpoint is complete on all nodes: training starts at step 1." in lost["printed"]
    assert lost["summary"]["steps"] == 2


def test_training_starts_from_the_weights_of_the_channel(results):
    assert details(results["pretrained"], "resume_from_checkpoint") == [{"step": 0}]
    first, last = (
        float(re.search(rf"^step {step}/\d+ loss (\S+)", results[run]["printed"], re.MULTILINE)[1])
        for run, step in (("pretrained", 1), ("checkpoints", 2))
    )
    assert abs(first - last) < 0.1


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("token outside of the vocabulary", "x.npy contains the token id 128"),
        ("too few samples", "has 1 samples; one step requires 64"),
        ("other precision", "argument --precision: invalid choice: 'bf16'"),
        ("other parameters", "other parameters than the estimator sends (fp16)"),
        ("other weights", "n_embd 32, the plan's 64"),
        ("batch that microbatches do not divide", "must be a multiple of microbatches (3)"),
    ],
)
def test_script_says_what_is_wrong(results, run, sentence):
    """Before the library starts, if the parameters are others."""
    assert sentence in results[run]["error"]
    assert run != "other parameters" or names(results[run]) == []
