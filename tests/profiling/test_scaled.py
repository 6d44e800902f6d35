"""Scaled copies: what is reduced, and what their real steps show."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import Job, Plan
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.profiling.scaled import ScaledRun, run
from smp_advisor.profiling.scaled.extrapolated import at_full_size
from smp_advisor.profiling.scaled.reduction import reduced, reductions_between
from smp_advisor.profiling.scaled.variants import Axis
from smp_advisor.profiling.summary import comparisons
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

transformers = Deferred("transformers")
profile_with_fallbacks = Deferred("smp_advisor.profiling.fallback", "profile_with_fallbacks")
affordable_inputs = Deferred("smp_advisor.profiling.scaled.copy_inputs", "affordable_inputs")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
Settings = Deferred("smp_advisor.profiling.traced_steps", "Settings")
Measuring = Deferred("smp_advisor.profiling.scaled.extrapolated", "Measuring")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
at_full_size_of = Deferred("smp_advisor.profiling.scaled.extrapolated", "at_full_size_of")

JOB = Job(sequence_length=512)
PLAN = Plan(microbatches=4, batch_size=16, fp16=True, activation_checkpointing="each")
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 3000}
GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96}


def torch_dtype():
    import torch

    return torch.bfloat16


def test_a_described_model_is_trained_without_torch_in_this_process():
    values = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    code = f"""import sys
import smp_advisor
profile = smp_advisor.profile({values}, sequence_length=32, precision="fp32")
print(profile.scaled.ok, profile.failures, "torch" in sys.modules)"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True () False\n"


def small(**values):
    config = transformers.AutoConfig.for_model(**values)
    first = next(reduced(config, 2))
    return config, first, {part.name: (part.full, part.copy) for part in reductions_between(config, first)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (GPT3, {"n_layer": (96, 2), "n_embd": (12288, 768), "n_head": (96, 6)}),
        (
            {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
            {"hidden_size": (4096, 1024), "num_attention_heads": (32, 8), "num_key_value_heads": (8, 2)},
        ),
        ({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}, {"num_attention_heads": (71, 2)}),
        ({"model_type": "gemma3_text"}, {"num_hidden_layers": (26, 6)}),  # one layer of six attends to everything
        ({"model_type": "qwen3_moe"}, {"num_local_experts": (128, 4), "num_experts_per_tok": (8, 4)}),
        ({"model_type": "deepseek_v3"}, {"n_routed_experts": (256, 16)}),  # in 8 groups of at least two
    ],
)
def test_reductions_keep_the_architecture(values, expected):
    _, config, reductions = small(**values)
    assert {name: reductions[name] for name in expected} == expected
    heads = config.num_attention_heads
    assert config.hidden_size % heads == 0


def test_heads_of_a_state_space_model_remain_a_multiple_of_their_groups():
    _, config, reductions = small(model_type="mamba2", hidden_size=2560, num_heads=80, head_dim=64, n_groups=8)
    assert reductions["num_heads"] == (80, 8)
    assert config.hidden_size * config.expand == config.num_heads * config.head_dim


def test_a_decoder_has_no_more_tokens_than_target_positions():
    import torch

    profiled = read_model({"model_type": "whisper"})
    with torch.device("meta"):
        assert example_inputs(profiled.build(), config=profiled.config).longest == 448


def test_stages_of_a_convolutional_network_are_cut_in_depth():
    _, config, reductions = small(model_type="resnet")
    assert config.depths == [2, 2, 2, 2]
    assert reductions == {"depths in total": (16, 8)}


def test_tokens_stay_within_the_smaller_vocabulary():
    _, config, _ = small(**GPT3)
    assert config.vocab_size == 2048
    assert max(config.bos_token_id, config.eos_token_id) < 2048


@pytest.fixture(scope="module")
def gpt2():
    profiled = read_model(GPT2)
    lines, shares = [], []
    done = run(
        profiled,
        JOB,
        PLAN,
        extrapolates=True,
        on_line=lines.append,
        on_progress=lambda *progress: shares.append(progress),
    )
    return done, lines, shares


def test_a_copy_trains_as_planned(gpt2):
    done, lines, shares = gpt2
    assert done.ok, str(done)
    assert done.finite
    assert len(done.losses) == 2
    assert done.microbatches == (2, 2, 2, 2)
    assert done.checkpointed == 2
    assert done.recomputed
    assert done.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert done.without_gradient == ()
    assert [line for line in lines if line.startswith("step 2 loss")]
    assert shares[-1][0] == shares[-1][1] - 1


def test_what_was_predicted_for_the_copy_is_what_it_took(gpt2):
    done, *_ = gpt2
    comparisons = {comparison.figure: comparison for comparison in done.comparisons}
    assert set(comparisons) == {"parameters", "saved bytes", "forward FLOPs", "backward FLOPs"}
    assert all(comparison.ratio == pytest.approx(1, rel=1e-4) for comparison in comparisons.values()), str(done)


def test_copies_of_several_widths_and_depths_give_the_traced_figures_of_the_full_model(gpt2):
    done, *_ = gpt2
    settings = Settings(precision=training_precision(JOB.precision).precision, attention="fused", sequence=512)
    traced = profile_with_fallbacks(read_model(GPT2), settings)
    rows = {row.figure: row for row in comparisons(dataclasses.replace(traced, scaled=done))}
    assert set(rows) == {"parameters", "saved bytes", "forward FLOPs", "backward FLOPs"}
    assert all(row.ratio == pytest.approx(1, rel=1e-4) for row in rows.values()), str(done.full_size)
    assert rows["parameters"].measured == traced.parameter_count
    assert "copies: n_layer 1 and 2 → 6; vocabulary 512 and 1,024 → 3,000" in done.full_size.basis
    other = dataclasses.replace(traced, attention="eager", scaled=done)
    assert comparisons(other) == ()


def test_figures_of_a_module_are_extrapolated_in_depth(net):
    done = run(read_model(net), JOB, precision="fp32", extrapolates=True)
    traced = profile_with_fallbacks(read_model(net), Settings(precision="fp32", attention="fused", sequence=512))
    rows = comparisons(dataclasses.replace(traced, scaled=done))
    assert [row.ratio for row in rows] == pytest.approx([1] * 4)
    assert done.full_size.basis == "real steps of 2 copies: blocks 1 and 2 → 5"


def test_grouped_heads_experts_and_a_bias_of_attention_are_extrapolated():
    values = {"model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
    values |= {"num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 1024, "num_experts": 32}
    config = read_model(values | {"num_experts_per_tok": 2, "vocab_size": 5000})
    precision = {"precision": "bf16", "attention": "fused"}
    measuring = Measuring(dtype=torch_dtype(), sequence=1024, inputs=None, **precision)
    full_size = at_full_size_of(config, (), measuring)
    traced = profile_with_fallbacks(config, Settings(sequence=1024, checkpointing=False, **precision))
    assert full_size.figures["parameters"] == traced.parameter_count
    assert full_size.saved_bytes == pytest.approx(traced.saved_bytes(2, 1024), rel=1e-3)
    assert full_size.forward_flops == pytest.approx(traced.forward_flops(2, 1024), rel=1e-3)
    assert "hidden_size 32, 64 and 96 → 512" in full_size.basis
    assert "experts 4 and 8 → 32" in full_size.basis


def test_copies_with_too_much_work_are_not_extrapolated(net):
    measuring = Measuring(
        precision="fp32", attention="fused", dtype=torch_dtype(), sequence=512, inputs=None, most_work=10**8
    )
    with pytest.raises(ProfileError, match=r"steps of copies need \d+ GFLOPs, over the limit of 0"):
        at_full_size_of(read_model(net), (), measuring)


@given(
    st.lists(st.integers(-9, 9), min_size=9, max_size=9),
    st.tuples(st.integers(4, 40), st.integers(3, 60), st.integers(10, 900)),
)
def test_polynomials_through_copies_are_exact(factors, full):
    def figure(width, depth, vocabulary):
        a, b, c, d, e, f, g, h, i = factors
        return a + b * width + c * width**2 + (d + e * width + f * width**2) * depth + (g + h * width) * vocabulary + i

    width, depth, vocabulary = full
    axes = {"depth": Axis("depth", 1, 2, depth), "vocabulary": Axis("vocabulary", 4, 8, vocabulary)}
    values = {
        (node, frozenset(raised)): Fraction(figure(node, 1 + ("depth" in raised), 8 if "vocabulary" in raised else 4))
        for node in (1, 2, 3)
        for raised in ((), ("depth",), ("vocabulary",))
        if node < 3 or "vocabulary" not in raised
    }
    shares = {name: axis.share for name, axis in axes.items()}
    assert at_full_size(values, shares, width) == figure(width, depth, vocabulary)


def test_a_run_goes_through_json_unchanged(gpt2):
    done, *_ = gpt2
    assert ScaledRun.from_dict(json.loads(json.dumps(done.as_dict()))) == done
    assert "n_layer 6 → 2" in done.as_html()


@pytest.fixture
def net():
    """A module not from transformers, whose blocks are cut."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 16)
            self.blocks = nn.ModuleList(Block() for _ in range(5))
            self.unused = nn.Linear(16, 16)
            self.head = nn.Linear(16, 50)

        def forward(self, tokens, labels=None):
            x = self.table(tokens)
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    return Net()


def test_an_arbitrary_module_is_cut_in_depth_and_left_whole(net):
    state = {name: value.clone() for name, value in net.state_dict().items()}
    done = run(read_model(net), JOB, precision="fp32")
    assert [str(reduction) for reduction in done.reductions] == ["blocks 5 → 2"]
    assert len(net.blocks) == 5
    assert all((net.state_dict()[name] == value).all() for name, value in state.items())
    assert done.finite


def test_a_parameter_without_gradient_is_named(net):
    done = run(read_model(net), JOB, precision="fp32")
    assert done.without_gradient == done.unused == ("unused.weight", "unused.bias")
    assert done.ok  # their layer does not run, so it misses nothing
    assert "unused.weight, unused.bias; the layers of these do not run" in str(done)
    assert not dataclasses.replace(done, unused=()).ok


def test_a_model_without_a_loss_is_said_to_have_none():
    from torch import nn

    done = run(read_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))), JOB, precision="fp32")
    assert not done.returns_loss
    assert "it returns no loss" in done.summary
    assert done.how == "full model, with its own weights"


def test_images_are_reduced_if_a_step_would_exceed_the_memory():
    import torch
    from torch import nn

    class Images(nn.Sequential):
        image_size = 256

    net = Images(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))
    size = {"samples": 2, "sequence": 1, "vocab": 2, "dtype": torch.float32, "options": {}, "most_work": 10**11}
    full, small = (affordable_inputs(net, example_inputs(net), memory_bytes=m << 20, **size) for m in (512, 24))
    assert full.example.make(2, 1)["input"].shape == (2, 3, 256, 256)
    assert (full.note, small.note) == (
        "", "inputs reduced from 3 x 256 x 256 to 3 x 128 x 128 for the memory and the FLOPs of a copy."
    )  # fmt: skip
    assert small.traced.peak_bytes < 12 << 20 < full.traced.peak_bytes


def test_a_copy_that_does_not_fit_says_what_would_do(net):
    with pytest.raises(ProfileError, match="available memory"):
        run(read_model(net), JOB, memory_bytes=2**11)


def _routed(kind):
    """A module of two blocks with experts of one of three styles, of 12 experts and two per token."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Listed(nn.Module):
        def __init__(self, width, experts):
            super().__init__()
            self.num_experts, self.top_k = experts, 2
            self.gate = nn.Linear(width, experts, bias=False)
            self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

        def forward(self, x):
            rows = x.flatten(0, 1)
            weights, chosen = self.gate(rows).softmax(-1).topk(self.top_k)
            out = torch.zeros_like(rows)
            for number in range(self.num_experts):
                row, place = torch.where(chosen == number)
                out.index_add_(0, row, self.experts[number](rows[row]) * weights[row, place, None])
            return out.view_as(x)

    class Fused(nn.Module):
        def __init__(self, width, experts):
            super().__init__()
            self.expert_count, self.k = experts, 2
            self.router = nn.Parameter(torch.randn(width, experts))
            self.up = nn.Parameter(torch.randn(experts, width, 2 * width))
            self.down = nn.Parameter(torch.randn(experts, 2 * width, width))

        def forward(self, x):
            rows = x.flatten(0, 1)
            weights = (rows @ self.router).softmax(-1)
            kept = torch.zeros_like(weights).scatter(-1, weights.topk(self.k).indices, 1.0) * weights
            hidden = torch.bmm(rows.expand(self.expert_count, -1, -1), self.up).relu()
            return torch.einsum("etd,te->td", torch.bmm(hidden, self.down), kept).view_as(x)

    class Net(nn.Module):
        def __init__(self, width=256, experts=12):
            super().__init__()
            self.table = nn.Embedding(2000, width)
            layer = Listed if kind == "list" else Fused
            self.blocks = nn.ModuleList(
                nn.ModuleDict({"norm": nn.LayerNorm(width), "moe": layer(width, experts)}) for _ in range(4)
            )
            self.head = nn.Linear(width, 2000)

        def forward(self, tokens, labels):
            x = self.table(tokens)
            for block in self.blocks:
                x = x + block["moe"](block["norm"](x))
            return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    with torch.device("meta"):
        return Net()


def test_experts_of_a_module_are_reduced_and_extrapolated():
    module = _routed("fused")
    done = run(read_model(module), JOB, precision="fp32", memory_bytes=2**26, extrapolates=True)
    reductions = {part.name: (part.full, part.copy) for part in done.reductions}
    assert reductions["experts"] == (12, 4)
    assert done.finite
    assert done.full_size.parameters == sum(p.numel() for p in module.parameters())
    assert "experts 4 and 8 → 12" in done.full_size.basis
    traced = profile_with_fallbacks(read_model(module), Settings(precision="fp32", attention="fused", sequence=512))
    rows = comparisons(dataclasses.replace(traced, scaled=done))
    assert [row.ratio for row in rows] == pytest.approx([1] * 4, rel=1e-4)


def test_a_module_whose_shapes_depend_on_values_is_profiled_by_copies():
    module = _routed("list")
    profile = profile_with_fallbacks(read_model(module), Settings(precision="fp32", attention="fused", sequence=512))
    width, tokens, experts, per_token, layers, vocabulary = 256, 1024, 12, 2, 4, 2000
    products = layers * (width * experts + per_token * width**2) + width * vocabulary
    assert profile.forward_flops(2, 512) == 2 * tokens * products
    assert len(profile.blocks) == layers
    sources = {source.figure: source for source in profile.provenance}
    assert sources["saved bytes"].method == "real steps"
    assert "experts 4 and 8 → 12" in sources["saved bytes"].note


def test_numbered_attributes_and_counted_loops_are_cut_in_depth():
    from torch import nn

    from smp_advisor.profiling.scaled.build import removable

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x, scale):
            return x + scale * self.inner(x).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer1, self.layer2, self.layer3, self.layer4 = (Block() for _ in range(4))
            self.tail = nn.ModuleList(Block() for _ in range(5))

        def forward(self, x):
            x = self.layer4(self.layer3(self.layer2(self.layer1(x, 1), scale=2), 1), 1)
            for number in range(5):
                x = self.tail[number](x, 1)
            return x.mean()

    module = Net()
    cut = removable(module, None)
    assert sorted(row.label for row in cut) == ["layer", "tail"]
    precision = {"precision": "fp32", "attention": "fused"}
    measuring = Measuring(dtype=next(module.parameters()).dtype, sequence=64, inputs=None, **precision)
    full_size = at_full_size_of(read_model(module), cut, measuring)
    traced = profile_with_fallbacks(read_model(module), Settings(sequence=64, **precision))
    assert "tail 1 and 2 → 5" in full_size.basis
    assert full_size.figures["parameters"] == traced.parameter_count
    assert full_size.saved_bytes == traced.saved_bytes(2, 64)
    assert full_size.forward_flops == traced.forward_flops(2, 64)


def test_features_of_a_text_keep_their_width_when_images_become_smaller():
    import torch

    from smp_advisor.profiling.inputs import ExampleInputs
    from smp_advisor.profiling.scaled.copy_inputs import _divided

    def make(batch, _):
        shapes = {"latents": (batch, 16, 128, 128), "text": (batch, 77, 4096), "mask": (batch, 128, 128)}
        return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}

    example = ExampleInputs(make=make, has_sequence=False, longest=0, description="latents (inferred)")
    shapes = {name: tuple(value.shape) for name, value in _divided(example, 4).make(2, 1).items()}
    assert shapes["latents"] == (2, 16, 32, 32)
    assert shapes["text"] == (2, 77, 4096)
