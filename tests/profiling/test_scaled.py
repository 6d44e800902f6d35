"""Scaled copies: what is reduced, and what their real steps show."""

import dataclasses
import json
import subprocess
import sys

import pytest

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.parts import restored
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.profiling.scaled import ScaledRun, run
from smp_advisor.sandbox import Limits
from tests.deferred import Deferred
from tests.profiling.shared import net, profiled

pytestmark = pytest.mark.torch

transformers = Deferred("transformers")
scaled_copy = Deferred("smp_advisor.profiling.scaled.copies", "scaled_copy")
torch = Deferred("torch")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")

GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 3000}
GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96}


@pytest.mark.release  # `test_without_proc` profiles from a process without forks, `test_imports` knows what is imported
def test_a_described_model_is_trained_without_torch_in_this_process():
    values = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    code = f"""import sys
import smp_advisor
profile = smp_advisor.profile({values}, sequence_length=32, precision="fp32")
print(profile.scaled.ok, profile.failures, "torch" in sys.modules)"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True () False\n"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (GPT3, {"transformer.h": (96, 2), "hidden size": (12288, 768), "heads": (96, 6), "vocabulary": (50257, 2048)}),
        (
            {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
            {"model.layers": (32, 2), "vocabulary": (32_000, 2048)},
        ),
        ({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}, {"transformer.h": (32, 2)}),
        ({"model_type": "gemma3_text"}, {"model.layers": (26, 8)}),  # one layer of six attends to everything
        ({"model_type": "qwen3_moe"}, {"experts": (128, 16)}),  # eight for each token
        ({"model_type": "deepseek_v3"}, {"experts": (256, 16)}),  # in eight groups of two
        ({"model_type": "resnet"}, {"resnet.encoder.stages.2.layers": (6, 3)}),
    ],
)
def test_a_configuration_is_reduced_to_a_consistent_copy(values, expected):
    with scaled_copy(read_model(values), None, sequence=512, memory_bytes=2**32) as copy:
        pass
    reductions = {part.name: (part.full, part.copy) for part in copy.reductions}
    assert {name: reductions.get(name) for name in expected} == expected
    assert sum(p.numel() for p in copy.model.parameters()) <= 25_000_000


def test_a_decoder_has_no_more_tokens_than_target_positions():
    with torch.device("meta"):
        assert example_inputs(read_model({"model_type": "whisper"}).build()).longest == 448


def test_a_copy_trains_as_predicted():
    lines, shares = [], []
    report = {"on_line": lines.append, "on_progress": lambda *progress: shares.append(progress)}
    done = run(read_model(GPT2), sequence=512, name="GPT-2", **report)
    assert done.ok, str(done)
    assert len(done.losses) == 2
    assert done.tied == (("transformer.wte.weight", "lm_head.weight"),)
    assert done.without_gradient == ()
    assert [line for line in lines if line.startswith("step 2 loss")]
    assert shares[-1][0] == shares[-1][1] - 1
    comparisons = {comparison.figure: comparison for comparison in done.comparisons}
    assert set(comparisons) == {"saved bytes", "forward FLOPs", "backward FLOPs"}
    assert all(comparison.ratio == pytest.approx(1, rel=1e-4) for comparison in comparisons.values()), str(done)
    assert restored(ScaledRun, json.loads(json.dumps(dataclasses.asdict(done)))) == done
    assert "transformer.h 6 → 2" in str(done)


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 99},
        {
            "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
        },
    ],
)  # fmt: skip
def test_the_trace_of_a_copy_equals_its_real_step(values):
    done = run(read_model(values), sequence=512, name="")
    assert all(row.ratio == pytest.approx(1, abs=1e-4) for row in done.comparisons), str(done)
    assert len(done.comparisons) == 3
    assert done.finite


def test_a_module_is_cut_in_depth_and_left_whole_and_names_parameters_without_gradient():
    nn = torch.nn

    def forward(self, tokens, labels=None):
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)) for _ in range(5))
    ends = {"table": nn.Embedding(50, 16), "head": nn.Linear(16, 50), "unused": nn.Linear(16, 16)}
    module = net(forward, **ends, blocks=layers)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    done = run(read_model(module), sequence=512, name="Net")
    assert [str(reduction) for reduction in done.reductions] == ["blocks 5 → 2"]
    assert len(module.blocks) == 5
    assert all((module.state_dict()[name] == value).all() for name, value in state.items())
    assert done.without_gradient == done.unused == ("unused.weight", "unused.bias")
    assert done.ok  # their layer does not run, so it misses nothing
    assert "unused.weight, unused.bias; the layers of these do not run" in str(done)
    assert not dataclasses.replace(done, unused=()).ok


def test_random_weights_of_a_narrower_copy_are_the_same_in_every_process():
    with torch.device("meta"):
        module = PlainGPT(width=128)
    weights = []
    for seed in (1, 2):  # PyTorch draws one in each process
        torch.manual_seed(seed)
        with scaled_copy(read_model(module), None, sequence=512, memory_bytes=10 * 2**20) as copy:
            pass
        assert "hidden size" in {part.name for part in copy.reductions}
        weights.append(torch.cat([value.flatten() for value in copy.model.parameters()]))
    assert torch.equal(*weights)


def test_a_model_without_a_loss_is_said_to_have_none():
    from torch import nn

    done = run(read_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))), sequence=512, name="n")
    assert not done.returns_loss
    assert "it returns no loss" in done.summary
    assert done.reductions == ()


def test_a_module_that_checks_values_is_narrowed_or_refused_with_the_remedy():
    def forward(self, sound):
        assert torch.isfinite(sound).all()
        if (sound.abs() < 0).any():
            raise ValueError(sound.shape)
        return self.layer(sound)

    checked = net(forward, layer=torch.nn.Conv1d(2, 64, 9))
    sounds = (torch.zeros(2, 2, 100_003),)
    done = run(read_model(checked), sequence=512, name="checked", inputs=sounds)
    assert "could not be traced" in " ".join(done.notes)
    longer = net(forward, layer=torch.nn.Conv1d(2, 7, 9_999))
    with pytest.raises(ProfileError, match="pass smaller inputs for the stage 'copy'"):
        run(read_model(longer), sequence=512, name="longer", inputs=sounds)


def test_a_module_whose_shapes_depend_on_values_is_profiled_by_real_steps():
    nn, width, experts, layers, vocabulary = torch.nn, 64, 6, 4, 500

    def routed(self, x):
        rows = x.flatten(0, 1)
        weights, chosen = self.gate(rows).softmax(-1).topk(2)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out.index_add_(0, row, expert(rows[row]) * weights[row, place, None])
        return x + out.view_as(x)

    def forward(self, tokens, labels):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    def block():
        listed = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        return net(routed, gate=nn.Linear(width, experts, bias=False), experts=listed)

    with torch.device("meta"):
        blocks = nn.ModuleList(block() for _ in range(layers))
        module = net(forward, table=nn.Embedding(vocabulary, width), blocks=blocks, head=nn.Linear(width, vocabulary))
    ids = lambda batch, sequence: tuple(torch.ones(2, batch, sequence, dtype=torch.long))  # noqa: E731
    profile = profiled(module, precision="fp32", sequence=512, inputs=ids)
    products = layers * (width * experts + 2 * width**2) + width * vocabulary
    assert profile.forward_flops(2, 512) == 2 * 1024 * products
    assert len(profile.blocks) == layers
    sources = {source.figure: source for source in profile.provenance}
    assert sources["saved bytes"].method == "real steps"


def test_counts_and_lists_with_one_entry_per_block_follow_the_blocks():
    def block(self, x, scale):
        return x + scale * self.inner(x).relu()

    def forward(self, x):
        for number in range(self.depth):
            x = self.tail[self.order[number]](x, self.scales[number])
        return x.mean()

    tail = torch.nn.ModuleList(net(block, inner=torch.nn.Linear(16, 16)) for _ in range(5))
    module = net(forward, tail=tail, order=tuple(range(5)), scales=[1, 2, 3, 4, 5], depth=5)
    with scaled_copy(read_model(module), None, sequence=512, memory_bytes=2**30) as copy:
        assert list(map(str, copy.reductions)) == ["tail 5 → 2"]
        assert (module.order, module.scales, module.depth) == ((0, 1), [1, 2], 2)
    assert (module.order, module.scales, module.depth) == ((0, 1, 2, 3, 4), [1, 2, 3, 4, 5], 5)
    assert len(module.tail) == 5


def test_tables_of_embeddings_are_no_blocks_and_are_cut_in_their_rows():
    from torch import nn

    tables = net(
        lambda self, ids: self.top(torch.cat([table(ids[:, [i]]) for i, table in enumerate(self.tables)], 1)),
        tables=nn.ModuleList(nn.EmbeddingBag(40_000, 16, mode="sum") for _ in range(6)),
        top=nn.Linear(96, 1),
    )
    inputs = (torch.full((8, 6), 39_999),)
    done = run(read_model(tables), sequence=512, name="Tables", inputs=inputs, limits=Limits(memory_bytes=2**27))
    assert [str(part) for part in done.reductions] == ["vocabulary 40,000 → 2,048"]
    assert done.finite
