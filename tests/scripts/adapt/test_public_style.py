"""Styles of public scripts: options in mappings, optimizers of models, spawned processes, notebooks."""

from __future__ import annotations

import json

from smp_advisor.scripts.adapt import adapt_script

MAPPED = """import torch
from torch.utils.data import DataLoader
from corpus import Corpus
options = {"num_workers": 1}
loader = DataLoader(Corpus("a"), batch_size=4, shuffle=True, **options)
held = DataLoader(Corpus("b"), batch_size=4, shuffle=True, **options)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    for x in held:
        print(model(x))
"""


def test_options_in_a_mapping_are_not_passed_twice():
    source = adapt_script(MAPPED, library="ddp").source
    assert 'dataset = Corpus("a")' in source
    assert "shuffle=True,\n" in source.partition("DistributedSampler(")[2]
    loader = source.partition("loader = DataLoader(")[2].partition("held")[0]
    assert '**{**options, "drop_last": True}' in loader
    assert loader.count("shuffle") == 1
    assert 'held = DataLoader(Corpus("b"), batch_size=4, shuffle=True, **options)' in source


def test_a_notebook_becomes_a_script(tmp_path):
    cells = [{"cell_type": "code", "source": "!pip install corpus\n"}, {"cell_type": "code", "source": MAPPED}]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    source = adapt_script(path, library="fsdp2").source
    assert "fully_shard(model)" in source
    compile(source, "train.py", "exec")


GUARDED = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
master_process = int(os.environ["RANK"]) == 0
if master_process:
    os.makedirs("out", exist_ok=True)
if os.environ.get("BIG"):
    model = torch.nn.Linear(2, 2)
else:
    model = torch.nn.Linear(2, 2)
model = DDP(model)
raw_model = model.module
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    if step % 3 == 0 and master_process:
        with torch.no_grad():
            print(model(torch.ones(1, 2)))
        torch.save({"model": raw_model.state_dict()}, "out/ckpt.pt")
    loss = model(torch.ones(4, 2)).sum()
    loss.backward()
    optimizer.step()
"""


def test_all_ranks_take_part_in_forward_passes_and_saves_of_shards():
    source = adapt_script(GUARDED, library="fsdp2").source
    assert "    if step % 3 == 0:\n" in source
    assert "        if dist.get_rank() == 0:\n            torch.save(" in source
    assert source.index("fully_shard(model)") > source.index("else:\n    model = ")
    assert 'if master_process:\n    os.makedirs("out", exist_ok=True)' in source


def test_a_model_made_in_another_file_is_refused():
    text = (
        GUARDED.partition("if os.environ")[0]
        + "def train(model):\n    optimizer = torch.optim.SGD(model.parameters())\n"
    )
    text += "    loss = model(torch.ones(1, 2)).sum()\n    loss.backward()\n    optimizer.step()\n"
    refused = adapt_script(text, library="fsdp2")
    assert refused.diff == ""
    assert "in another file" in refused.todo[0]


def test_a_copy_of_a_saved_file_is_made_by_the_rank_that_saves():
    save = "def save(state, best, path):\n    torch.save(state, path)\n"
    save += "    if best:\n        shutil.copyfile(path, 'b.pt')\n"
    text = (
        "import shutil\nimport torch\n" + save + MAPPED.partition("import torch\n")[2] + "save({}, True, 'last.pt')\n"
    )
    for kind in ("ddp", "fsdp2"):
        source = adapt_script(text, library=kind).source
        assert "    if dist.get_rank() == 0:\n        torch.save(state, path)\n        if best:\n" in source


def test_the_library_starts_before_a_function_of_another_module_creates_the_model():
    text = (
        "import torch\nfrom models import get_network\nargs = None\nnet = get_network(args)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for x, y in []:\n    optimizer.zero_grad()\n    loss = torch.nn.functional.mse_loss(net(x), y)\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    source = adapt_script(text, library="smp-v1").source
    assert source.index("smp.init()") < source.index("get_network(args)") < source.index("smp.DistributedModel")
