"""Scaled copies: what is reduced, and what their real steps show."""

from __future__ import annotations

import json

import pytest

from smp_advisor import Job, Plan
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.profiling.scaled import ScaledRun, run
from smp_advisor.profiling.scaled.reduction import reduced, reductions_between
from smp_advisor.profiling.scaled.run import _partial
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

transformers = Deferred("transformers")

JOB = Job(sequence_length=512)
PLAN = Plan(microbatches=4, batch_size=16, fp16=True, activation_checkpointing="each")
GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96}


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
    ],
)
def test_reductions_keep_the_architecture(values, expected):
    _, config, reductions = small(**values)
    assert {name: reductions[name] for name in expected} == expected
    heads = config.num_attention_heads
    assert config.hidden_size % heads == 0


def test_stages_of_a_convolutional_network_are_cut_in_depth():
    _, config, reductions = small(model_type="resnet")
    assert config.depths == [2, 2, 2, 2]
    assert reductions == {"depths in total": (16, 8)}


@pytest.mark.parametrize(
    ("sizes", "minimum", "expected"),
    [([2, 2, 2, 2], 1, [2, 2, 2, 1]), ([2, 2], 2, [3]), ([4], 1, [3]), ([1], 1, [1]), ([2], 2, [2])],
)
def test_a_partial_batch_lacks_a_sample(sizes, minimum, expected):
    assert _partial(sizes, minimum=minimum) == expected


def test_tokens_stay_within_the_smaller_vocabulary():
    _, config, _ = small(**GPT3)
    assert config.vocab_size == 2048
    assert max(config.bos_token_id, config.eos_token_id) < 2048


@pytest.fixture(scope="module")
def gpt2():
    profiled = read_model({"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 3000})
    lines, shares = [], []
    done = run(profiled, JOB, PLAN, on_line=lines.append, on_progress=lambda *progress: shares.append(progress))
    return done, lines, shares


def test_a_copy_trains_as_planned(gpt2):
    done, lines, shares = gpt2
    assert done.ok, str(done)
    assert done.falling
    assert done.finite
    assert len(done.losses) == 6
    assert done.microbatches == (2, 2, 2, 2)
    assert done.partial_microbatches == (2, 2, 2, 1)
    assert "drop_last=True" in dict(done.findings)["Microbatches"]
    assert done.checkpointed == 2
    assert done.recomputed
    assert done.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert done.without_gradient == ()
    assert [line for line in lines if line.startswith("step 6 loss")]
    assert shares[-1][0] == shares[-1][1] - 1


def test_what_was_predicted_for_the_copy_is_what_it_took(gpt2):
    done, *_ = gpt2
    comparisons = {comparison.figure: comparison for comparison in done.comparisons}
    assert set(comparisons) == {"parameters", "saved bytes", "forward FLOPs", "backward FLOPs"}
    assert all(comparison.ratio == pytest.approx(1, rel=1e-4) for comparison in comparisons.values()), str(done)


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
    assert done.falling


def test_a_parameter_without_gradient_is_named(net):
    done = run(read_model(net), JOB, precision="fp32", steps=2)
    assert done.without_gradient == ("unused.weight", "unused.bias")
    assert not done.ok
    assert "unused.weight" in str(done)


def test_a_model_without_a_loss_is_said_to_have_none():
    from torch import nn

    done = run(read_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))), JOB, precision="fp32")
    assert any("returned no loss" in note for note in done.notes)
    assert done.how == "full model, with its own weights"


def test_a_copy_that_does_not_fit_says_what_would_do(net):
    with pytest.raises(ProfileError, match="available memory"):
        run(read_model(net), JOB, memory_bytes=2**11)
