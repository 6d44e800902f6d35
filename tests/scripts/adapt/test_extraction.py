"""Names, state and checkpoints keep their meaning when a loop moves into step functions, or the script is refused."""

from __future__ import annotations

import pytest

from smp_advisor.scripts.adapt import propose

HEAD = """import data
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

model = nn.Linear(3, 2)
loader = DataLoader(data.load(), batch_size=4)
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
STEP = "    optimizer.zero_grad()\n    {}\n    loss.backward()\n    optimizer.step()\n"


def adapted(body, *, head=HEAD + SGD):
    result = propose(head + body, library="smp-v1")
    assert result.diff, result.todo
    compile(result.source, "train.py", "exec")
    return result


def indented(text):
    return "".join("    " + line + "\n" for line in text.splitlines())


@pytest.mark.parametrize("names", ["input, target", "data, iter"])
@pytest.mark.parametrize("in_function", [True, False])
def test_a_batch_may_have_the_name_of_a_builtin_or_an_import(names, in_function):
    x, y = names.split(", ")
    loop = f"for i, ({names}) in enumerate(loader):\n" + STEP.format(f"loss = F.cross_entropy(model({x}), {y})")
    if in_function:
        loop = "def main():\n" + indented(loop) + "main()\n"
    source = adapted(loop).source
    assert f"def train_step(model, {names}):" in source
    assert f"train_step(model, {names})" in source.partition("for i,")[2]


def test_variables_of_inner_loops_and_comprehensions_stay_inside():
    loss = "losses = []\n    for k in range(2):\n        losses.append(model(x[k]))\n    loss = sum(v for v in losses)"
    source = adapted("for x in loader:\n" + STEP.format(loss)).source
    assert "def train_step(model, x):" in source
    assert "        losses.append(model(x[k]))" in source


def test_a_value_of_the_last_batch_that_the_next_one_reads_is_returned():
    loss = "output = model(x)\n    loss = F.mse_loss(output, y)"
    body = "output = None\nfor x, y in loader:\n    if output is not None:\n        print(output.shape)\n"
    assert "output = output_mb.concat()" in adapted(body + STEP.format(loss)).source


def test_train_mode_survives_the_removal_of_a_move():
    loop = "model.to('cuda').train()\nfor x, y in loader:\n" + STEP.format("loss = F.mse_loss(model(x), y)")
    source = adapted(loop).source
    assert "model.train()\n" in source
    assert ".to('cuda')" not in source


def test_code_that_reads_the_old_checkpoint_is_listed():
    load = 'state = torch.load("m.pt")\nmodel.load_state_dict(state["net"])\noptimizer.load_state_dict(state["opt"])\n'
    todo = adapted(load + "for x, y in loader:\n" + STEP.format("loss = F.mse_loss(model(x), y)")).todo
    for call in ('model.load_state_dict(state["net"])', 'optimizer.load_state_dict(state["opt"])'):
        assert any(call in sentence and "resume_from_checkpoint" in sentence for sentence in todo)


def test_evaluation_data_is_not_divided_because_its_counts_are_not_reduced():
    train = "for x, y in loader:\n" + STEP.format("loss = F.mse_loss(model(x), y)")
    evaluation = (
        "held = DataLoader(data.test(), batch_size=8)\nright = 0\nwith torch.no_grad():\n    for x, y in held:\n"
    )
    evaluation += "        right += (model(x) == y).sum().item()\nprint(right / len(held.dataset))\n"
    source = adapted(train + evaluation).source
    assert "held = DataLoader(data.test(), batch_size=8)" in source
    assert source.count("DistributedSampler(") == 1


def test_a_dataset_is_created_once():
    loop = "for x, y in DataLoader(data.load(), batch_size=4):\n" + STEP.format("loss = F.mse_loss(model(x), y)")
    assert (
        adapted(loop, head=HEAD.replace("loader = DataLoader(data.load(), batch_size=4)\n", "") + SGD).source.count(
            "data.load()"
        )
        == 1
    )


CLOSURE = """for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
TWO = """for x, y in loader:
    first = F.mse_loss(model(x), y)
    first.backward()
    loss = F.mse_loss(model(x + 1), y)
    loss.backward()
    optimizer.step()
"""
ATTRIBUTE = """class Loop:
    def run(self):
        for x, y in loader:
            self.loss = F.mse_loss(model(x), y)
            self.loss.backward()
            optimizer.step()
Loop().run()
"""


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (
            "h = 0\nfor x, y in loader:\n" + STEP.format("o, h = model(x, h)\n    loss = F.mse_loss(o, y)"),
            "`h` is carried",
        ),
        (
            "for x, y in loader:\n"
            + STEP.format("loss = F.mse_loss(model(x), y)\n    print(loss.item())\n    loss = loss / 4"),
            "reads `loss` before a later statement",
        ),
        (CLOSURE, "is a closure"),
        (TWO, "second backward pass"),
        (ATTRIBUTE, "`self.loss` is changed"),
        (
            "for x in loader:\n    loss = model(x)\n    loss.backward(retain_graph=True)\n    optimizer.step()\n",
            "arguments",
        ),
    ],
)
def test_a_loop_that_would_change_its_meaning_is_refused_with_the_reason(loop, reason):
    result = propose(HEAD + SGD + loop, library="smp-v1")
    assert result.diff == "" or "train_step" not in result.source
    assert reason in result.todo[0]
    assert "library=" in result.todo[0]
