"""DDP and FSDP: the loop stays as it is, and only the model, the data, the processes and the saves change."""

from __future__ import annotations

import pytest

from smp_advisor.libraries import Plan
from smp_advisor.scripts.adapt import propose
from tests.scripts.adapt.conftest import LOOPS

KINDS = ("ddp", "fsdp")
SCRIPT = """import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from corpus import Corpus


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def configure_optimizers(self, lr):
        return torch.optim.AdamW(self.parameters(), lr=lr)

    def encode(self, x):
        return self.blocks[0](x)


def main():
    model = Net().to("cuda:0")
    state = torch.load("old.pt")
    model.load_state_dict(state["net"])
    optimizer = model.configure_optimizers(0.1)
    optimizer.load_state_dict(state["opt"])
    loader = DataLoader(Corpus(), batch_size=4, shuffle=True)
    held = DataLoader(Corpus(), batch_size=4)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        for x, y in held:
            print(model.{method}(x))
        torch.save({{"net": model.state_dict(), "opt": optimizer.state_dict(), "epoch": epoch}}, "new.pt")


main()
"""


def adapted(kind, *, method="eval", **changes):
    text = SCRIPT.format(method=method)
    for old, new in changes.items():
        text = text.replace(old, new)
    result = propose(text, library=kind)
    compile(result.source, "train.py", "exec")
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.stem)
def test_every_loop_compiles_and_is_left_as_it_is_the_second_time(loop, kind):
    result = propose(loop, library=kind)
    compile(result.source, loop.name, "exec")
    if result.diff:
        again = propose(result.source, library=kind)
        assert again.diff == ""
        assert "already" in again.todo[0]


HELD = "held = DataLoader(Corpus(), batch_size=4)"  # evaluation data is not divided
WRITTEN = {  # kind and changes of the script: texts in the order of the lines, and others
    ("ddp",): (
        ['model.load_state_dict(state["net"])', "model = DDP(model)", "model.module.configure_optimizers(0.1)",
         "loader.sampler.set_epoch(epoch)", "        if dist.get_rank() == 0:\n            torch.save("],
        ['"net": model.module.state_dict()', HELD],
    ),
    ("fsdp",): (
        ['model.load_state_dict(state["net"])',  # before the model is sharded
         "    for module in (*layers, model):\n        fully_shard(module)\n", "set_optimizer_state_dict(",
         "loader.sampler.set_epoch(epoch)", "model_state = get_model_state_dict(",
         "if dist.get_rank() == 0:\n            torch.save("],
        ['{"net": model_state, "opt": optimizer_state, "epoch": epoch}', HELD,
         "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
    ),
    # Between forward and backward pass, the parameters of an FSDP2 model are the gathered ones.
    ("fsdp", "optimizer.zero_grad()", "model.zero_grad()"): (["optimizer.zero_grad()"], []),
    ("ddp", "model.eval(x)", "model.encode(x)"): (["model.module.encode(x)"], []),
    ("fsdp", "model.eval(x)", "model.encode(x)"): (['register_fsdp_forward_method(model, "encode")'], []),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN, ids=" ".join)
def test_the_model_the_data_and_the_saves_are_written_for_processes(case):
    kind, *changed = case
    source = adapted(kind, **dict([changed] if changed else [])).source
    ordered, others = WRITTEN[case]
    places = [source.index(text) for text in ordered]
    assert places == sorted(places)
    assert all(text in source for text in others)
    assert source.count("DistributedSampler(") == 1
    assert "model.zero_grad()" not in source


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("import deepspeed\n", "ddp", "deepspeed"),
        ("import torch.distributed as dist\ndist.init_process_group()\n", "smp-v1", "library='fsdp'"),
        ("import torch\nmodel = torch.nn.Linear(1, 1)\nloss = model(x)\nloss.backward()\n", "ddp", "optimizer"),
    ],
)
def test_a_refusal_names_the_reason_and_the_nearest_thing_that_works(text, kind, reason):
    refused = propose(text, library=kind)
    assert refused.diff == ""
    assert reason in refused.todo[0]


def test_lbfgs_works_with_replicas_only():
    lbfgs = {"torch.optim.AdamW": "torch.optim.LBFGS"}
    assert adapted("ddp", **lbfgs).diff
    assert "library='ddp'" in adapted("fsdp", **lbfgs).todo[0]


def test_names_that_the_steps_write_are_imported():
    text = THROUGH_FUNCTIONS.replace("import torch\n", "from torch import optim, save as write\n", 1)
    text = text.replace("torch.optim", "optim").replace("torch.save", "write")
    for kind in KINDS:
        assert "\nimport torch\n" in propose(text, library=kind).source


def test_the_gradients_of_a_model_kept_by_a_class_are_cleared_by_its_optimizer():
    text = """import torch

class Trainer:
    def __init__(self, model):
        self.optimizer = None
        self.callback = None
        self.model = model

    def run(self):
        model = self.model
        self.optimizer = model.configure_optimizers()
        loss = model(torch.ones(2, 2)).sum()
        model.zero_grad()
        loss.backward()
        self.optimizer.step()

model = torch.nn.Linear(2, 2)
Trainer(model).run()
"""
    assert "        self.optimizer.zero_grad()" in propose(text, library="fsdp").source


@pytest.mark.parametrize(("kind", "words"), [("ddp", "with torch.autocast("), ("fsdp", "mp_policy=")])
def test_settings_of_the_plan_are_applied(kind, words):
    plan = Plan(library=kind, batch_size=2, gradient_accumulation_steps=8, activation_checkpointing="each")
    source = propose(SCRIPT.format(method="eval"), plan, library=kind).source
    for text in (words, "batch_size=2", "(loss / 8).backward()", "% 8 == 0:", "apply_activation_checkpointing("):
        assert text in source


def test_a_script_that_reads_the_settings_of_the_plan_needs_no_reminder():
    plan = Plan(library="ddp", batch_size=4, gradient_accumulation_steps=8)
    head = "# --batch_size --gradient_accumulation_steps, torch.autocast(dtype=torch.bfloat16)\n"
    assert not any("The plan" in text for text in propose(head + SCRIPT.format(method="eval"), plan).todo)


THROUGH_FUNCTIONS = """import os
import torch
from torch.utils.data import DataLoader
from corpus import Corpus, Net


def load():
    return DataLoader(Corpus(), batch_size=4, shuffle=True)


def save(state, path="a.pt"):
    torch.save(state, path)


class Loop:
    def __init__(self, model, data, optimizer):
        self.model, self.data, self.optimizer = model, data, optimizer

    def update(self, x):
        self.optimizer.zero_grad()
        self.model(x).sum().backward()
        self.optimizer.step()

    def pass_over(self, epoch):
        for x in self.data:
            self.update(x)


rank = int(os.environ["RANK"])
net = Net()
short = net.to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = load()
loop = Loop(net, data, optimizer)
for epoch in range(2):
    loop.pass_over(epoch)
    if not args.single or (args.several and rank == 0):
        save({"net": net.state_dict(), "opt": optimizer.state_dict()})
print(short.generate())
"""


def test_loaders_states_and_second_names_are_followed_through_functions():
    source = propose(THROUGH_FUNCTIONS, library="fsdp").source
    gathered = source.partition("    optimizer_state = get_optimizer_state_dict(")[2]
    assert gathered.index("options=") < gathered.index("    if not args.single") < gathered.index("optimizer_state}")
    assert '{"net": model_state,' in source
    assert "    if dist.get_rank() == 0:\n        torch.save(state, path)\n" in source
    source = propose(THROUGH_FUNCTIONS, library="ddp").source
    assert "range(2):\n    data.sampler.set_epoch(epoch)\n    loop.pass_over(epoch)" in source
    assert "print(short.generate())" in source  # the model inside the wrapper
    assert '"net": net.module.state_dict()' in source


def test_a_file_is_complete_before_all_load_it_and_a_new_model_has_no_wrapper():
    text = SCRIPT.format(method="eval").replace(
        "\n\nmain()\n", '\n    model = Net()\n    model.load_state_dict(torch.load("new.pt"))\n\n\nmain()\n'
    )
    source = propose(text, library="ddp").source
    assert '"new.pt")\n        dist.barrier()' in source
    assert '    model = Net()\n    model.load_state_dict(torch.load("new.pt"))' in source


def test_a_model_that_a_function_returns_with_others_is_wrapped_there():
    text = THROUGH_FUNCTIONS.replace("net = Net()\n", "net, tokenizer = init_model()\nnet = net.train()\n")
    source = propose(text, library="fsdp").source
    assert source.index("net, tokenizer") < source.index("fully_shard(module)") < source.index("torch.optim.SGD")


def test_each_backward_pass_has_an_autocast_of_its_own():
    second = "            loss.backward()\n            other = model(x).sum()\n            other.backward()\n"
    text = SCRIPT.format(method="eval").replace("            loss.backward()\n", second)
    source = propose(text, Plan(library="ddp")).source
    assert source.count("with torch.autocast(") == 2
    assert source.count("mse_loss(") == source.count("model(x).sum()") == 1
