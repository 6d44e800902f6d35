"""Plans on local processes against one process."""

from __future__ import annotations

import json

import pytest

from smp_advisor import Job, Plan
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.profiling.rehearsal.result import Rehearsal, degrees_of
from tests.deferred import Deferred
from tests.profiling.shared import net

pytestmark = pytest.mark.torch

run = Deferred("smp_advisor.profiling.rehearsal.run", "run")

JOB = Job(sequence_length=512)
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 6, "n_head": 4, "vocab_size": 300}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 300,
}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 32, "d_ff": 64, "num_layers": 3, "num_heads": 2, "d_kv": 16, "vocab_size": 200}

PLANS = {
    "tensor and pipeline and optimizer": (
        GPT2,
        Plan(
            tensor_parallel_degree=4, pipeline_parallel_degree=8, microbatches=16, batch_size=32, fp16=True,
            shard_optimizer_state=True,
        ),
        16,
    ),
    "a deep pipeline": (GPT2, Plan(pipeline_parallel_degree=8, microbatches=16, batch_size=16, fp16=True), 1),
    "all forward passes first": (
        LLAMA,
        Plan(pipeline_parallel_degree=2, microbatches=4, batch_size=4, pipeline="simple", fp16=True),
        1,
    ),
    "divided products": (LLAMA, Plan(tensor_parallel_degree=2, batch_size=2, fp16=True), 1),
    "sharded parameters": (LLAMA, Plan(sharded_data_parallel_degree=8, batch_size=2, fp16=True), 8),
}  # fmt: skip


@pytest.fixture(scope="module")
def rehearsals():
    return {
        name: run(read_model(config), JOB, plan, data_parallel_degree=data)
        for name, (config, plan, data) in PLANS.items()
    }


@pytest.mark.parametrize("name", PLANS)
def test_loss_and_gradients_are_those_of_one_process(rehearsals, name):
    done = rehearsals[name]
    assert done.same_loss, str(done)
    assert done.same_gradients, str(done)
    assert done.gradient_difference < 1e-4
    assert done.parameters_compared > 10


def test_degrees_are_the_plans_in_small(rehearsals):
    done = rehearsals["tensor and pipeline and optimizer"]
    degrees = done.degrees
    assert (degrees.tensor, degrees.pipeline, degrees.data, degrees.microbatches) == (2, 2, 2, 4)
    assert len(done.parameter_elements) == degrees.world == 8
    assert done.planned == "tensor 4 × pipeline 8 × data 16, 16 microbatches"


def test_sharding_divides_what_ranks_hold(rehearsals):
    full = rehearsals["sharded parameters"]
    assert set(full.parameter_elements) == {full.parameter_elements[0]}
    tensor = rehearsals["divided products"]
    assert full.parameter_elements[0] < tensor.parameter_elements[0]
    optimizer = rehearsals["tensor and pipeline and optimizer"]
    assert max(optimizer.optimizer_elements) < max(optimizer.parameter_elements)
    assert "products by columns" in tensor.divided


def test_what_cannot_be_rehearsed_is_named(rehearsals):
    sentences = " ".join(rehearsals["tensor and pipeline and optimizer"].not_rehearsed)
    assert "fused layers" in sentences
    assert "partition" in sentences
    t5 = run(
        read_model(T5), JOB, Plan(pipeline_parallel_degree=2, microbatches=2, batch_size=2), data_parallel_degree=2
    )
    assert t5.degrees.pipeline == 1
    assert "Pipeline parallelism: " in " ".join(t5.not_rehearsed)
    assert t5.same_gradients


def test_accumulated_gradients_are_microbatches_too_and_bounds_that_pytorch_has_not_are_named():
    plan = Plan(pipeline_parallel_degree=4, microbatches=8, active_microbatches=2, batch_size=8)
    assert any("active_microbatches=2" in sentence for sentence in degrees_of(plan, 1)[1])
    degrees, _ = degrees_of(Plan(library="fsdp", batch_size=4, gradient_accumulation_steps=3), 8)
    assert (degrees.microbatches, degrees.data, degrees.sharding) == (3, 2, "full")
    degrees, _ = degrees_of(Plan(library="ddp", batch_size=4), 8)
    assert (degrees.data, degrees.sharding) == (2, "none")


def test_a_rehearsal_goes_through_json_unchanged(rehearsals):
    done = rehearsals["a deep pipeline"]
    assert Rehearsal.from_dict(json.loads(json.dumps(done.as_dict()))) == done
    assert "stages of " in done.as_html()


def test_a_failing_rank_ends_all_of_them_and_says_why():
    import torch
    from torch import distributed, nn

    def forward(self, x):
        if distributed.is_initialized():
            raise ValueError("not on several processes")
        return self.last(self.first(x))

    module = net(forward, first=nn.Linear(4, 4), last=nn.Linear(4, 4))
    rows = lambda batch: torch.zeros(batch, 4)  # noqa: E731
    rehearsal = run(read_model(module), JOB, Plan(batch_size=2), data_parallel_degree=2, inputs=rows)
    (problem,) = rehearsal.problems
    assert problem.kind == "failed rank"
    assert "failed first: ValueError: not on several processes" in problem.text
    assert "raise ValueError" in problem.line
    assert not rehearsal.ok
    assert not rehearsal.completed
    assert "did not complete a step" in rehearsal.as_html()
    assert Rehearsal.from_dict(json.loads(json.dumps(rehearsal.as_dict()))) == rehearsal
