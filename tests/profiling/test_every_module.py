"""Every module that can be traced gets advice: repeated blocks are one case of its parts."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smp_advisor
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.world import stages
from smp_advisor.errors import ProfileError
from smp_advisor.libraries import Plan
from smp_advisor.search.rank import NEAR_BEST, batch_policy
from smp_advisor.search.search import search
from smp_advisor.workload import Job, Model
from tests.deferred import Deferred
from tests.profiling.shared import net

pytestmark = pytest.mark.torch

torch = Deferred("torch")
GPT2Config = Deferred("transformers", "GPT2Config")
Profile = Deferred("smp_advisor.profiling.result", "Profile")
JOB = Job(precision="bf16", attention="fused")


def _unet():
    nn = torch.nn

    def forward(self, x):
        skips = [self.first(x)]
        for layer in self.down:
            skips.append(layer(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return x

    parts = {
        "first": nn.Conv2d(3, 16, 3, padding=1),
        "down": nn.ModuleList(nn.Conv2d(16 << k, 32 << k, 3, padding=1) for k in range(3)),
        "up": nn.ModuleList(nn.ConvTranspose2d(32 << k, 16 << k, 2, 2) for k in (2, 1, 0)),
        "join": nn.ModuleList(nn.Conv2d(32 << k, 16 << k, 3, padding=1) for k in (2, 1, 0)),
    }
    return net(forward, **parts), (torch.zeros(2, 3, 64, 64),)


def _tagger():
    nn = torch.nn
    parts = {"words": nn.Embedding(500, 32), "cells": nn.LSTM(32, 64, batch_first=True), "tags": nn.Linear(64, 9)}
    module = net(lambda self, words: self.tags(self.cells(self.words(words))[0]), **parts)
    return module, lambda batch, sequence: (torch.zeros(batch, sequence, dtype=torch.long),)


def _bags():
    nn = torch.nn
    module = net(
        lambda self, rows: self.top(torch.cat([table(rows[:, [i]]) for i, table in enumerate(self.tables)], 1)),
        tables=nn.ModuleList(nn.EmbeddingBag(1000, 16) for _ in range(6)),
        top=nn.Linear(96, 1),
    )
    return module, lambda batch, _: (torch.zeros(batch, 6, dtype=torch.long),)


def _policy():
    nn = torch.nn
    layers = nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)
    return nn.Sequential(*layers), (torch.zeros(4, 17),)


def _waves():
    nn = torch.nn

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.last(x)

    layers = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**k, padding=2**k) for k in range(6))
    module = net(forward, first=nn.Conv1d(1, 32, 1), layers=layers, last=nn.Conv1d(32, 256, 1))
    return module, lambda batch, _: (torch.zeros(batch, 1, 1000),)


def _loop():
    nn = torch.nn

    def forward(self, x):
        for _ in range(40):
            x = x + self.step(x) / 40
        return x

    module = net(forward, step=nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)))
    return module, lambda batch, _: (torch.zeros(batch, 32),)


MODULES = {
    "U-Net": _unet, "LSTM tagger": _tagger, "embedding bags": _bags, "policy": _policy,
    "waves": _waves, "loop": _loop,
}  # fmt: skip


@cache
def profile_of(name):
    module, inputs = MODULES[name]()
    return smp_advisor.profile(module, inputs=inputs, stages=("trace",))


@pytest.fixture(scope="module", params=MODULES)
def profile(request):
    return profile_of(request.param)


def test_every_module_is_a_model_of_all_that_was_traced(profile):
    model = Model.from_profile(profile)
    assert model.parameter_count == profile.parameter_count
    sequence = model.sequence_length(profile.sequence)
    flops = sum(sum(m.flops_per_token for m in block.matmuls) for block in model.blocks) * sequence
    assert flops == pytest.approx(profile.forward_flops(1, profile.sequence), rel=0.02, abs=1)
    assert all(block.kind not in {"Embedding", "EmbeddingBag"} for block in model.blocks)


def test_every_module_gets_a_plain_answer_in_its_own_unit(profile):
    advice = smp_advisor.advise(profile, "ml.p4d.24xlarge", instance_count=2)
    report = " ".join(str(advice).split())
    assert advice.plan.library == "ddp"
    assert "One ml.g5.2xlarge is enough" in report
    assert "GPT" not in report
    assert "ViT" not in report
    fixed = not profile.scales
    reason = "Each GPU processes the supplied inputs once per step" if fixed else "No published batch is known for this"
    assert (reason in report) or "MLPerf's DLRM used 65,536 samples" in report
    assert advice.estimate.global_batch_size == 16 if fixed else 16 < advice.estimate.global_batch_size <= 65_536


def test_a_batch_without_a_publication_is_at_the_knee_of_the_speed(profile):
    model = Model.from_profile(profile)
    for instance, nodes in (("ml.g5.2xlarge", 1), ("ml.g5.12xlarge", 1), ("ml.p4d.24xlarge", 2)):
        found = search(model, Cluster(instance, nodes), Job(), library="ddp")
        scores, policy = found.scores, batch_policy(model, Job(), nodes * Cluster(instance).instance.gpus)
        if not policy.example.startswith("no published batch"):
            continue
        loss = 1 - policy.doubling_gain
        chosen, speed = scores.tokens_per_step[0], scores.tokens_per_second[0]
        larger = scores.tokens_per_step > chosen
        doublings = np.log2(scores.tokens_per_step[larger] / max(chosen, policy.target_tokens)).clip(0)
        assert (scores.tokens_per_second[larger] * NEAR_BEST * loss**doublings <= speed * 1.0001).all()
        # The same law for the fastest batch that the policy allows.
        most = max(np.log2(policy.cap_tokens / max(chosen, policy.target_tokens)), 0)
        assert speed >= NEAR_BEST * loss**most * scores.tokens_per_second.max()


@pytest.mark.parametrize("library", ["ddp", "fsdp", "smp-v1", "smp-v2"])
@pytest.mark.parametrize("name", ["U-Net", "embedding bags"])
def test_every_library_plans_a_module(name, library):
    advice = smp_advisor.advise(profile_of(name), "ml.p4d.24xlarge", library=library)
    assert advice.estimate.fits
    assert getattr(advice.plan, "tensor_parallel_degree", 1) == 1


def test_a_pipeline_of_parts_is_cut_where_their_costs_balance():
    model = Model.from_profile(profile_of("U-Net"))
    two = stages(model, 2)
    sizes = [
        sum(group.block.parameters * count for group, count in zip(model.groups, stage.block_counts, strict=True))
        for stage in two
    ]
    assert sum(stage.layers for stage in two) == model.layer_count
    assert max(sizes) < 0.85 * model.parameter_count
    assert all(stage.layers for stage in stages(model, model.layer_count))


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 64), nodes=st.sampled_from([1, 2, 4]), name=st.sampled_from(["policy", "waves"]))
def test_sharding_a_replica_that_fits_saves_no_more_than_the_traffic_of_its_gradients(batch, nodes, name):
    model, cluster = Model.from_profile(profile_of(name)), Cluster("ml.p4d.24xlarge", nodes)
    whole = estimate(model, cluster, JOB, Plan(library="ddp", batch_size=batch))
    sharded = estimate(model, cluster, JOB, Plan(library="fsdp", batch_size=batch))
    divided = whole.time.data_parallel_seconds + whole.time.optimizer_seconds
    assert sharded.step_seconds >= 0.98 * (whole.step_seconds - divided)
    more = estimate(model, Cluster("ml.p4d.24xlarge", 2 * nodes), JOB, Plan(library="ddp", batch_size=batch))
    exchanged = more.time.data_parallel_seconds - whole.time.data_parallel_seconds
    assert more.step_seconds <= 1.02 * (whole.step_seconds + max(exchanged, 0.0))


def test_a_layer_that_is_called_in_a_loop_casts_its_weights_and_updates_them_once():
    model, cluster = Model.from_profile(profile_of("loop")), Cluster("ml.p4d.24xlarge", 2)
    whole, sharded = (estimate(model, cluster, JOB, Plan(library=name, batch_size=64)) for name in ("ddp", "fsdp"))
    assert whole.step_seconds < 1.3 * sharded.step_seconds
    assert whole.time.optimizer_seconds < 1.5 * sharded.time.optimizer_seconds


def test_a_small_language_model_is_not_divided():
    shape = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 32000, "tied": True}
    for family in ("llama", "gpt2"):
        advice = smp_advisor.advise(Model.from_shape(**shape, family=family), "ml.p4d.24xlarge", instance_count=2)
        assert advice.plan.library == "ddp"


def _norms(blocks):
    """Norms and activation functions save most: alone, or as repeated blocks."""
    nn = torch.nn
    if blocks:
        parts = [{"norm": nn.GroupNorm(8, 64), "conv": nn.Conv2d(64, 64, 3, padding=1)} for _ in range(6)]
        block = lambda self, x: x + self.conv(nn.functional.silu(self.norm(x)))  # noqa: E731
        return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *(net(block, **part) for part in parts))
    layers = [
        layer for k in range(3) for layer in (nn.GroupNorm(8, 64 << k), nn.SiLU(), nn.Conv2d(64 << k, 128 << k, 3))
    ]
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *layers)


@pytest.mark.parametrize("blocks", [False, True])
def test_activations_under_autocast_do_not_depend_on_the_precision_of_the_profile(blocks):
    saved = {}
    for traced in ("fsdp", "ddp"):
        profile = smp_advisor.profile(
            _norms(blocks), inputs=lambda batch: (torch.zeros(batch, 3, 32, 32),), stages=["trace"], library=traced
        )
        assert profile.precision == {"fsdp": "mixed", "ddp": "amp"}[traced]
        for library in ("fsdp", "ddp"):
            plan = Plan(library=library, precision="bf16", batch_size=64)
            memory = estimate(Model.from_profile(profile), Cluster("ml.p5.4xlarge"), JOB, plan).memory.peak
            saved[traced, library] = memory.activations_gib
    assert saved["fsdp", "ddp"] == pytest.approx(saved["ddp", "ddp"], rel=0.03)
    assert saved["fsdp", "ddp"] > 1.4 * saved["fsdp", "fsdp"]


@pytest.mark.parametrize(
    ("forward", "scales"),
    [
        (lambda conv, x, steps: conv(x).sum((1, 2, 3)) + steps, True),
        (lambda conv, x, steps: conv(x.reshape(3, 8, 8)) * steps, False),
        (lambda conv, x, steps: conv(x[0]) * steps[0], False),
    ],
)
def test_supplied_tensors_of_one_sample_are_a_batch_of_one_unless_the_module_takes_no_other(forward, scales):
    conv = torch.nn.Conv2d(3, 3, 3, padding=1)
    module = net(lambda self, image, steps: forward(self.conv, image, steps), conv=conv)
    inputs = (torch.zeros(1, 3, 8, 8), torch.zeros(1))
    assert smp_advisor.profile(module, inputs=inputs, stages=["trace"]).scales == scales


def test_memory_of_a_contrastive_loss_grows_with_the_square_of_the_microbatch_and_routers_are_no_blocks():
    def forward(self, user, item):
        user, item = self.tower(user), self.tower(item)
        return torch.nn.functional.cross_entropy(user @ item.T, torch.arange(len(user)))

    routers = torch.nn.ModuleList(torch.nn.Linear(64, 2) for _ in range(3))
    towers = net(forward, routers=routers, tower=torch.nn.Linear(64, 512))
    inputs = lambda batch: (torch.zeros(batch, 64), torch.zeros(batch, 64))  # noqa: E731
    profile = smp_advisor.profile(towers, inputs=inputs, stages=["trace"])
    assert not profile.blocks
    assert "Samples of a batch are compared" in " ".join(profile.warnings)
    model = Model.from_profile(profile)
    for samples in (1024, 16_384, 65_536, 200_000):
        plan = Plan(library="fsdp", precision="bf16", batch_size=samples)
        activations = estimate(model, Cluster("ml.p4d.24xlarge"), JOB, plan).memory.peak.activations_gib
        assert 0.95 <= activations * 2**30 / profile.saved_bytes(samples) <= 1.2


def test_a_function_of_inputs_keeps_its_own_defaults_and_is_named_where_it_fails():
    linear = torch.nn.Linear(8, 8)
    make = {"linear": lambda batch: (torch.zeros(batch, 8),)}
    profile = smp_advisor.profile(linear, inputs=lambda batch, of=make["linear"]: of(batch), stages=["trace"])
    assert profile.parameter_count == 72
    with pytest.raises(
        ProfileError, match=r"Your function of inputs fails: KeyError: 'wide'. It is called with the batch"
    ):
        smp_advisor.profile(linear, inputs=lambda batch: (torch.zeros(make["wide"], batch),), stages=["trace"])


def test_tokens_of_a_recurrent_layer_wait_for_each_other():
    job = Job(precision="bf16", attention="fused", optimizer_step="fused")
    step = {}
    for length in (128, 512):
        shape = {"words": length}
        inputs = lambda batch, of=shape: (torch.zeros(batch, of["words"]).long(),)  # noqa: E731
        model = Model.from_profile(smp_advisor.profile(_tagger()[0], inputs=inputs, stages=["trace"]))
        for batch in (1, 8):
            plan = Plan(library="ddp", precision="bf16", batch_size=batch)
            step[length, batch] = estimate(model, Cluster("ml.p5.4xlarge"), job, plan).step_seconds
    assert step[512, 1] > 2.5 * step[128, 1]
    assert step[512, 8] < 1.1 * step[512, 1]


def test_the_tree_of_modules_adds_up_and_has_what_a_cut_sends():
    nn = torch.nn

    def forward(self, x):
        down = self.down(x)
        return self.out(torch.cat([down, self.up(self.inner(down))], 1))

    convolutions = {"down": nn.Conv2d(3, 16, 3, padding=1), "inner": nn.Conv2d(16, 32, 3, 2, 1)}
    rest = {"up": nn.ConvTranspose2d(32, 16, 2, 2), "out": nn.Conv2d(32, 1, 1), "idle": nn.Linear(100, 100)}
    module = net(forward, **convolutions, **rest)
    inputs = lambda batch: torch.zeros(batch, 3, 64, 64)  # noqa: E731
    profile = smp_advisor.profile(module, inputs=inputs, stages=("trace",), precision="fp32")
    tree = profile.tree
    assert list(tree) == ["down", "inner", "up", "", "out"]
    assert profile.unreached == (("idle", 10_100),)
    assert sum(module.parameters for module in tree.values()) + 10_100 == profile.parameter_count
    for figure in ("saved_bytes", "forward_flops", "backward_flops"):
        assert sum(getattr(module, figure)(2) for module in tree.values()) == getattr(profile, figure)(2)
    skip = 2 * 16 * 64 * 64 * 4
    assert tree["down"].crossing_bytes(2) == skip
    assert tree["inner"].crossing_bytes(2) == skip + 2 * 32 * 32 * 32 * 4
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))).tree == tree


def test_every_repeat_of_a_block_is_in_the_tree():
    config = GPT2Config(n_layer=5, n_embd=64, n_head=2, vocab_size=100)
    profile = smp_advisor.profile(config, stages=("trace",), sequence_length=64)
    paths = [path for path in profile.tree if path.endswith("c_fc")]
    assert paths == [f"transformer.h.{i}.mlp.c_fc" for i in range(5)]
    assert sum(module.parameters for module in profile.tree.values()) == profile.parameter_count
    assert sum(module.saved_bytes(1, 64) for module in profile.tree.values()) == profile.saved_bytes(1, 64)
