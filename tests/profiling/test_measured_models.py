"""Models made of profiles: what was measured is what the cost model counts."""

from functools import cache

import pytest

import smp_advisor
from smp_advisor.cluster import Cluster
from smp_advisor.costs.activations import activation_bytes, block_bytes
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.world import World, stages
from smp_advisor.errors import ModelError
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of
from smp_advisor.workload import Adapter, Job, Model
from tests.deferred import Deferred, deferred
from tests.profiling.shared import net, profiled
from tests.rows import rows

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")
PlainGPT, ResNet = deferred("tests.profiling.plain_models", "PlainGPT", "ResNet")

SEQUENCE = 256
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8}
MODELS = {
    "a known family": lambda: transformers.GPT2Config(n_layer=2),
    "grouped queries": lambda: transformers.LlamaConfig(**SMALL, intermediate_size=256, num_key_value_heads=2),
    "a family without formulas": lambda: transformers.Qwen3MoeConfig(
        **SMALL, intermediate_size=256, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2
    ),
    "an encoder": lambda: transformers.BertConfig(num_hidden_layers=4),
    "images": lambda: transformers.ViTConfig(num_hidden_layers=4),
    "a plain module": lambda: PlainGPT(vocab=1024),
    "a plain convolutional network": lambda: ResNet((3, 4, 6, 3)),
    "a convolutional network with short stages": lambda: transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[3, 4, 2, 3]
    ),
    "images through windows": lambda: transformers.SwinConfig(embed_dim=48, depths=[2, 2, 6, 2]),
    "a decoder that reads an encoder": lambda: transformers.BartConfig(
        d_model=128, encoder_layers=3, decoder_layers=3, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=512, decoder_ffn_dim=512, architectures=["BartForConditionalGeneration"],
    ),
}  # fmt: skip


@cache
def profile_of(name, attention):
    """Profile of a model of `MODELS`; some tests use the same one."""
    return profiled(MODELS[name](), attention=attention, precision="fp16", sequence=SEQUENCE)


EAGER = ("grouped queries", "images through windows", "a decoder that reads an encoder")
"""Models whose attention keeps scores of another size each."""


CASES = [*((name, "fused") for name in MODELS), *((name, "eager") for name in EAGER)]
# Experts, a network without tokens, and scores of grouped queries stand for the others.
IN_SUITE = {
    *(("a family without formulas", "fused"), ("a plain convolutional network", "fused")),
    ("grouped queries", "eager"),
}


@pytest.mark.parametrize(("name", "attention"), rows(CASES, *{*CASES} - IN_SUITE))
def test_the_cost_model_counts_what_was_measured(name, attention):
    profile = profile_of(name, attention)
    model = Model.from_profile(profile)
    assert model.origin == "measured"
    ratios = [agreement.ratio for agreement in profile.agreements]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-4)
    assert model.parameter_count == profile.parameter_count
    job = Job(sequence_length=SEQUENCE, precision="fp16", attention=attention)
    layout = layout_of([Plan(batch_size=2, microbatches=1)], job)
    world = World.of(model, Cluster("ml.p4d.24xlarge", 1), job, layout)
    blocks = block_bytes(model, layout, world, job)
    counted = sum(group.count * float(saved[0]) for group, saved in zip(model.groups, blocks.saved, strict=True))
    measured = sum(block.saved_bytes(2, SEQUENCE) for block in profile.blocks)
    # Tables kept once a microbatch are counted for each sample: never less than measured. Parts that do not repeat are
    # blocks of the cost model, too.
    limit = measured if model.head.kind == "language-model" else profile.saved_bytes(2, SEQUENCE)
    assert measured * (1 - 1e-6) <= counted <= limit * 1.03
    # Blocks or not: all that is kept and computed is somewhere.
    stage = stages(model, 1)[0]
    everything = float(activation_bytes(model, layout, world, stage, blocks)["activations"][0])
    if model.head.kind == "language-model":
        everything += 2 * SEQUENCE * model.head.outputs * (4 if model.head.loss_in_fp32 else 2)
    # What any model is taken to keep around its blocks and logits is much in one this small.
    assert 0.97 <= everything / profile.saved_bytes(2, SEQUENCE) <= 1.1
    flops = model_flops_per_sample(model, model.sequence_length(SEQUENCE)) / 3
    assert flops == pytest.approx(profile.forward_flops(2, SEQUENCE) / 2, rel=0.03)


def test_a_convolution_is_a_product_of_its_positions_and_not_of_one_wide_row():
    """A product of few rows is slow: the step of a convolutional network must not pay for rows that are columns."""
    model = Model.from_profile(profile_of("a plain convolutional network", "fused"))
    products = [m for group in model.groups for m in group.block.matmuls]
    assert {m.rows_per_token for m in products} - {1.0}
    assert all(m.inputs * m.outputs <= model.parameter_count for m in products)
    assert model.shape.hidden < 4096


def test_an_adapter_finds_the_projections_of_a_measured_model():
    shape = SMALL | {"hidden_size": 512, "intermediate_size": 1024, "num_key_value_heads": 2, "vocab_size": 1000}
    measured = Model.from_profile(profiled(transformers.Qwen2Config(**shape)))
    twin = Model.from_config(transformers.LlamaConfig(**shape))
    for targets in ("query-value", "attention", "all-linear"):
        adapter = Adapter(rank=4, targets=targets)
        assert adapter.parameter_count(measured) == adapter.parameter_count(twin), targets


def test_advice_on_a_module_says_that_it_is_measured():
    advice = smp_advisor.advise(PlainGPT(layers=2), "ml.p4d.24xlarge", sequence_length=SEQUENCE)
    assert advice.model.note.startswith("measured on your model; ")
    assert "(measured on your model)" in advice.model.summary
    profile = smp_advisor.profile(PlainGPT(layers=2), sequence_length=SEQUENCE, stages=("trace",))
    assert smp_advisor.advise(profile, "ml.p4d.24xlarge", sequence_length=SEQUENCE).model == advice.model
    with pytest.raises(smp_advisor.errors.AdvisorError, match="this model is measured"):
        smp_advisor.advise(profile, "ml.p4d.24xlarge", hidden=64)


def test_a_profile_of_a_count_stays_inferred_and_keeps_its_shape_for_every_library():
    traced = profiled("125M", sequence=SEQUENCE)
    model = Model.from_profile(traced)
    assert model.origin == "inferred"
    assert model.note.startswith("inferred from 125 M")
    for library in ("auto", "fsdp", "smp-v2"):
        advice = smp_advisor.advise(traced, "ml.p4d.24xlarge", library=library, sequence_length=SEQUENCE)
        assert advice.model == model


def test_a_module_of_a_known_family_is_counted_without_a_trace():
    config = transformers.GPT2Config(n_layer=2)
    with torch.device("meta"):
        module = transformers.GPT2LMHeadModel(config)
    model = Model.from_module(module)
    assert model.parameter_count == sum(p.numel() for p in module.parameters())
    module.extra = torch.nn.Linear(8, 8)
    with pytest.raises(ModelError, match="It was changed after construction"):
        Model.from_module(module)
    with pytest.raises(ModelError, match="profile it first"):
        Model.from_module(PlainGPT())


def test_what_is_no_trace_is_refused():
    with pytest.raises(ModelError, match="A profile must be"):
        Model.from_profile({"parameters": 3})


def test_parameters_that_blocks_share_are_counted_once_and_no_small_model_is_divided():
    def forward(self, x):
        for block in self.blocks:
            x = x + block["out"](block["shared"](x))
        return x

    shared = torch.nn.Linear(32, 64)
    blocks = [torch.nn.ModuleDict({"shared": shared, "out": torch.nn.Linear(64, 32)}) for _ in range(3)]
    module = net(forward, blocks=torch.nn.ModuleList(blocks))
    profile = smp_advisor.profile(module, inputs=torch.zeros(256, 32), stages=["trace"])
    advice = smp_advisor.advise(profile, "ml.g5.12xlarge")
    assert advice.model.parameter_count == sum(p.numel() for p in module.parameters())
    assert advice.plan.library == "ddp"
    assert "share parameters" in str(advice)
