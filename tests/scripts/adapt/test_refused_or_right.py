"""Adaptations that look right and are wrong are not proven, whoever wrote them; proven ones have the plan."""

from __future__ import annotations

import pytest

from smp_advisor import Plan
from smp_advisor.proving import prove
from smp_advisor.scripts.adapt import adapt_script

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SCRIPT = """import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for arg, mask in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(arg), mask)
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
"""
STARTED = (
    SCRIPT.replace(
        "import torch\n",
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.utils.data.distributed import DistributedSampler\n"
        'dist.init_process_group("gloo")\n',
        1,
    )
    .replace("loader = ", "sampler = DistributedSampler(data)\nloader = ")
    .replace("shuffle=True)", "sampler=sampler, drop_last=True)")
    .replace("    for arg", "    sampler.set_epoch(epoch)\n    for arg")
)
DDP = (
    STARTED.replace("optimizer = ", "model = DDP(model)\noptimizer = ", 1)
    .replace("torch.save(model.", "if dist.get_rank() == 0:\n    torch.save(model.module.")
    .replace("model.load_", "dist.barrier()\nmodel.module.load_")
)
WRONG = {
    "ddp_around_shards": (
        "fsdp",
        {"model = DDP(model)": "fully_shard(model)\nraw_model = model\nmodel = DDP(model)"},
        "",
    ),
    "a_save_of_shards": (
        "fsdp",
        {"model = DDP(model)": "fully_shard(model)", "model.module.": "model."},
        "only the first process's part of /blocks.0.inner.weight",
    ),
    "the_model_inside": ("ddp", {"cross_entropy(model(": "cross_entropy(model.module("}, "are not averaged"),
    "a_collective_on_one_rank": (
        "ddp",
        {"    torch.save(": "    dist.all_reduce(torch.ones(1))\n    torch.save("},
        "waits for a process that has ended or that waits for it (line",
    ),
    "no_barrier_before_loading": ("ddp", {"dist.barrier()\n": ""}, ""),
    "a_head_replaced_after_wrapping": (
        "ddp",
        {"model = DDP(model)": "model = DDP(model)\ntorch.manual_seed(0)\nmodel.module.head = nn.Linear(8, 4)"},
        "",
    ),
    "a_wrapped_average": (
        "ddp",
        {"model = DDP(model)": "ema = DDP(copy.deepcopy(model))\nmodel = DDP(model)"},
        "no optimizer updates",
    ),
    "no_set_epoch": ("ddp", {"    sampler.set_epoch(epoch)\n": ""}, "set_epoch"),
    "no_sampler": (
        "ddp",
        {"    sampler.set_epoch(epoch)\n": "", "sampler=sampler, drop_last=True": "shuffle=True"},
        "reads the same batches",
    ),
    "a_line_that_never_ran": (
        "ddp",
        {"dist.barrier()": "dist.barrier()\nif epoch > 99:\n    dist.nowhere()"},
        "never ran",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.usefixtures("fast_clocks")
def test_a_wrong_adaptation_is_not_proven(name):
    library, changes, reason = WRONG[name]
    text = DDP
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    proof = prove(SCRIPT, text, library=library, seconds=1e9)
    assert not proof.proven
    assert reason in str(proof), str(proof)


def test_a_right_one_by_a_person_is_proven():
    proof = prove(SCRIPT, DDP, library="ddp")
    assert proof.proven, str(proof)


def test_the_plan_is_applied_and_proven():
    plan = Plan(library="fsdp", batch_size=4, gradient_accumulation_steps=4, activation_checkpointing="each")
    adapted = adapt_script(SCRIPT.partition("torch.save")[0], plan)
    assert adapted.diff, str(adapted)
    for text in ("batch_size=4", "(loss / 4).backward()", "param_dtype=torch.bfloat16", "for batch_index, (arg, mask)"):
        assert text in adapted.source
    assert any("settings of the plan" in text for text in adapted.proof.compared)
    other = Plan(library="fsdp", batch_size=2, gradient_accumulation_steps=4, activation_checkpointing="each")
    proof = prove(SCRIPT.partition("torch.save")[0], adapted.source, other)
    assert "batch_size=2, and the script has 4" in str(proof)


def test_a_plan_with_a_smaller_batch_is_proven():
    adapted = adapt_script(SCRIPT.partition("torch.save")[0], Plan(library="ddp", batch_size=2))
    assert adapted.diff, str(adapted)


def test_replicas_agree_where_batches_cannot_be_compared():
    normalized = "nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))"
    script, adapted = (text.replace("nn.Linear(8, 8)", normalized) for text in (SCRIPT, DDP))
    proof = prove(script, adapted.replace("cross_entropy(model(", "cross_entropy(model.module("), library="ddp")
    assert "are not averaged" in str(proof)
