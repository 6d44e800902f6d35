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
