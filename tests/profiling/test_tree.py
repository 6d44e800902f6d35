"""The tree of modules of a profile: figures of each module alone, in the order of execution."""

import json

import pytest

import smp_advisor
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

torch = Deferred("torch")
GPT2Config = Deferred("transformers", "GPT2Config")
Profile = Deferred("smp_advisor.profiling.result", "Profile")


def with_skip():
    """Two levels of a U-Net, and a layer that nothing calls."""
    nn = torch.nn

    class WithSkip(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.inner = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
            self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 1, 1)
            self.idle = nn.Linear(100, 100)

        def forward(self, x):
            down = self.down(x)
            return self.out(torch.cat([down, self.up(self.inner(down))], 1))

    return WithSkip()


def test_the_tree_of_modules_adds_up_and_has_what_a_cut_sends():
    inputs = lambda batch: torch.zeros(batch, 3, 64, 64)  # noqa: E731
    profile = smp_advisor.profile(with_skip(), inputs=inputs, stages=("trace",), precision="fp32")
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
