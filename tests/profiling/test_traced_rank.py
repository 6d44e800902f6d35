"""A traced rank: memory as PyTorch's own tracker counts it, next to the formulas."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import smp_advisor as smpa  # noqa: E402
from smp_advisor.errors import ProfileError  # noqa: E402
from smp_advisor.profiling.fake import build_fake, fake_inputs, fake_mode  # noqa: E402
from smp_advisor.profiling.gpu_kernels import gpu_kernels  # noqa: E402
from smp_advisor.profiling.inputs import example_inputs  # noqa: E402
from smp_advisor.profiling.profiled_model import read_model  # noqa: E402
from smp_advisor.profiling.step import call_model, loss_of  # noqa: E402
from smp_advisor.profiling.traced_rank import trace_rank  # noqa: E402
from smp_advisor.profiling.traced_rank.blocks import recomputed, repeated_layers  # noqa: E402
from smp_advisor.profiling.traced_rank.process_group import fake_process_group  # noqa: E402
from smp_advisor.profiling.traced_rank.rank import Rank, rank_of  # noqa: E402
from smp_advisor.profiling.traced_rank.step import RankStep  # noqa: E402
from tests.profiling.plain_models import PlainGPT  # noqa: E402

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 1024,
}  # fmt: skip
CLUSTER = smpa.Cluster("ml.p4d.24xlarge", 2)
JOB = smpa.Job(precision="bf16", attention="fused", sequence_length=512)


@pytest.fixture(scope="module")
def model() -> smpa.Model:
    return smpa.Model.from_config(CONFIG)


def step_of(model: smpa.Model, rank: Rank) -> RankStep:
    profiled, mode = read_model(model), fake_mode()
    built = build_fake(lambda: profiled.build(attention="fused"), mode, torch.float32).train()
    example = example_inputs(built, config=profiled.config)
    inputs = fake_inputs(example.make(rank.samples, rank.sequence), mode, torch.float32)
    return RankStep(model=built, rank=rank, mode=mode, inputs=inputs)


def peak_by_torch(step: RankStep) -> int:
    """Peak bytes of the same step by PyTorch's own tracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    paths = repeated_layers(step.model)
    step._divide(paths)
    parameters = list(step.model.parameters())
    with step.mode, gpu_kernels("fused", lambda *_: None), recomputed(step.model, paths, step.rank.checkpoint):
        optimizer = step._optimizer(parameters)
        tracker = FSDPMemTracker(step.model, optimizer)
        tracker.track_inputs(tuple(step.inputs.values()))
        tracker.track_external(*[value for state in optimizer.state.values() for value in state.values()])
        with tracker:
            loss = loss_of(call_model(step.model, step.inputs))
            loss.backward()
            del loss
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])


@pytest.mark.parametrize(
    "settings",
    [{"activation_checkpointing": "each"}, {"sharding_strategy": "_hybrid_shard_zero2"}],
    ids=lambda settings: next(iter(settings)),
)
def test_sharded_steps_have_the_peak_of_pytorchs_own_tracker(model: smpa.Model, settings: dict[str, Any]) -> None:
    plan = smpa.Plan(library="fsdp", batch_size=2, **settings)
    rank, _ = rank_of(model, CLUSTER, JOB, plan, 0)
    with fake_process_group(rank.world, 0):
        traced = step_of(model, rank).run()
        assert traced.total == peak_by_torch(step_of(model, rank))
    share = 16 if settings.get("sharding_strategy") is None else 8
    assert traced.by_category["optimizer_state"] == pytest.approx(8 * model.parameter_count / share, rel=0.01)


def test_accumulated_gradients_stay_unsharded_on_request(model: smpa.Model) -> None:
    peaks = []
    for unsharded in (False, True):
        job = smpa.Job(precision="bf16", attention="fused", sequence_length=128, unsharded_accumulation=unsharded)
        plan = smpa.Plan(library="fsdp", gradient_accumulation_steps=8)
        rank, _ = rank_of(model, CLUSTER, job, plan, 0)
        with fake_process_group(rank.world, 0):
            peaks.append(step_of(model, rank).run())
    assert peaks[0].by_category["gradients"] == pytest.approx(4 * model.parameter_count / 16, rel=0.01)
    assert peaks[1].total - peaks[0].total > model.parameter_count


def test_advice_traces_its_plan_and_shows_the_result() -> None:
    advice = smpa.advise(CONFIG, "ml.g5.12xlarge", library="fsdp", sequence_length=256, batch_size=2)
    assert advice.traced() is None
    traced = advice.traced_rank()
    assert advice.traced() is traced
    by_name = {category.name: category for category in traced.categories}
    for name in ("parameters", "optimizer_state"):
        assert by_name[name].traced_gib == pytest.approx(by_name[name].formula_gib, rel=0.01)
    assert abs(traced.difference) < 0.25
    assert traced.summary in advice.report()
    assert "fully_shard (FSDP2) of 4 layers over 4 GPUs" in advice.report(details=True)
    assert "<table>" in traced.as_html()


def test_replicas_of_a_users_module_keep_their_gradients() -> None:
    module = PlainGPT()
    profile = smpa.profile(module, stages=("trace",), sequence_length=32)
    model = smpa.Model.from_profile(profile)
    cluster, plan = smpa.Cluster("ml.g5.12xlarge", 1), smpa.Plan(library="ddp", precision="fp32")
    traced = trace_rank(model, cluster, smpa.Job(sequence_length=32, precision="fp32"), plan, module=module)
    sizes = {category.name: round(category.traced_gib * 2**30) for category in traced.categories}
    state = 4 * sum(parameter.numel() for parameter in module.parameters())
    assert sizes["gradients"] == state
    assert sizes["optimizer_state"] == pytest.approx(2 * state, rel=0.01)
    with pytest.raises(ProfileError, match="pass the module itself"):
        trace_rank(model, cluster, smpa.Job(sequence_length=32, precision="fp32"), plan)


def test_plans_that_pytorch_cannot_express_are_refused_in_one_sentence(model: smpa.Model) -> None:
    plan = smpa.Plan(library="smp-v2", context_parallel_degree=2)
    with pytest.raises(ProfileError, match="A rank with context parallelism cannot be traced"):
        trace_rank(model, CLUSTER, JOB, plan)
