"""Adaptation follows the documented steps, loses nothing, guesses nothing, and lists the rest as to-dos."""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import pytest

from smp_advisor.errors import AdvisorError
from smp_advisor.proving import prove
from smp_advisor.scripts import check_script
from smp_advisor.scripts.adapt import propose
from tests.scripts.adapt.conftest import LOOPS, PLANS, REFUSED
from tests.steps import Steps

SMP_V2 = ("data", "smp-v2")
OTHERS = (SMP_V2, ("sharded", None), SMP_V2, ("pipeline", None), SMP_V2, ("data", None))
CASES = [
    pytest.param(loop, name, library, id=f"{loop.stem}-{library or name}")
    for place, loop in enumerate(LOOPS)
    for name, library in (("tensor_fp16", None), OTHERS[place % len(OTHERS)])
    if library or (loop.stem, name) not in REFUSED
]
"""Each loop with the plan that has most to adapt, and with one of the other plans and libraries."""


def loop_text(name):
    return (Path(__file__).parent / "loops" / f"{name}.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "name", "library"), CASES)
def test_an_adapted_script_is_clean_explained_and_left_as_it_is(loop, name, library):
    adapted, text = propose(loop, PLANS[name], library=library), loop.read_text()
    compile(adapted.source, loop.name, "exec")
    report = check_script(adapted.source, PLANS[name] if library is None else None, library=library)
    listed = "\n".join(adapted.todo)
    for finding in report.findings:
        if finding.severity == "error" or (finding.severity == "warning" and not listed):
            assert f"Line {finding.line} of the adapted script: {finding.message}" in listed
    again = propose(adapted.source, PLANS[name], library=library)
    assert (again.source, again.diff, again.hunks, len(again.todo)) == (adapted.source, "", (), 1)

    # The hunks add up to the script; comments and what has nothing to do with the change stay.
    patched_text = text
    for hunk in adapted.hunks:
        assert hunk.title
        assert hunk.explanation.endswith(".")
        assert hunk.url.startswith("https://docs.aws.amazon.com/")
        patched_text = patched(patched_text, hunk.diff)
    assert patched_text == patched(text, adapted.diff) == adapted.source
    gone = set(text.splitlines()) - set(adapted.source.splitlines())
    assert len(gone) < len(text.splitlines()) / 2
    assert comments(text) <= comments(adapted.source)


def comments(text):
    return {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    }


def patched(text, diff):
    """Apply a unified diff exactly."""
    lines, result, position = text.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        header = re.match(r"@@ -(\d+)(?:,(\d+))? ", line)
        if header:
            start = int(header[1]) - (header[2] != "0")
            result += lines[position:start]
            position = start
        elif line.startswith("+"):
            result.append(line[1:])
        elif line.startswith("\\"):
            continue
        else:
            assert lines[position] == line[1:]
            position += 1
            if line.startswith(" "):
                result.append(line[1:])
    return "".join(result + lines[position:])


WRITTEN = {  # loop and plan: texts of the adapted script, texts that it does not have, and words of the to-dos
    ("trainer_class", "pipeline"): (
        ["train_step(self, tokens, targets).reduce_mean()", "(trainer, tokens, targets):", "trainer.model.backward("],
        [], [],
    ),
    ("classification", "pipeline"): (['@smp.step(non_split_inputs=["class_weights"])'], [], []),
    ("accumulation", "pipeline"): ([], [], ["backward_passes_per_step=ACCUMULATION_STEPS"]),
    ("schedule_and_clip", "tensor_fp16"): (
        [
            "LambdaLR(opt.optimizer, ", "opt.clip_master_grads(0.5)", "dynamic_loss_scale=True",
            "with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):",
        ],
        [], [],
    ),
    ("grad_scaler", "tensor_fp16"): ([], ["smp."], ["remove `autocast("]),
    # Norms over the partitions: nothing in the library does it, so a person has to.
    ("grad_scaler", "pipeline"): (
        ["smp.amp.GradScaler(", "autocast(", "model.backward(scaler.scale(loss))"], [], ["clip_grad_norm_"],
    ),
    ("flat", "pipeline"): (["rank=smp.dp_rank(),"], ["torch.manual_seed(7 + smp.dp_rank())"], []),
    ("flat", "tensor_fp16"): (["rank=smp.rdp_rank(),", "torch.manual_seed(7 + smp.dp_rank())"], [], []),
    ("evaluation_loop", "pipeline"): ([], [], ["save with smp.save_checkpoint"]),
    ("branches", "pipeline"): (
        [
            "        model = Wide()\n", "    model = smp.DistributedModel(model)\n",
            '**{**train_kwargs, "shuffle": False, "drop_last": True}', 'shuffle=train_kwargs.get("shuffle", False)',
        ],
        ["DataParallel(", "model.to(device)"], [],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN, ids=" ".join)
def test_a_loop_is_written_as_its_plan_requires(case):
    adapted = propose(loop_text(case[0]), PLANS[case[1]])
    present, absent, todo = WRITTEN[case]
    places = [adapted.source.index(text) for text in present]
    assert min(places, default=0) >= 0
    assert not [text for text in absent if text in adapted.source]
    assert all(any(words in sentence for sentence in adapted.todo) for words in todo)


@pytest.mark.slow
def test_pretrained_weights_are_named_where_tensor_parallelism_drops_them():
    text = loop_text("transformers_lm").replace("GPT2LMHeadModel(config)", 'GPT2LMHeadModel.from_pretrained("gpt2")')
    for name, dropped in (("tensor_fp16", True), ("pipeline", False)):
        assert any("loads weights" in sentence for sentence in propose(text, PLANS[name]).todo) == dropped


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", ["accumulation", "loader_in_helper"])
def test_nothing_differs_in_a_loop_that_is_adapted_to_a_plan(name):
    text = loop_text(name)
    proof = prove(text, propose(text, PLANS["tensor_fp16"]).source, library="smp-v1")
    assert not proof.failure
    # Neither model has a ModuleList, whose layers the plan checkpoints.
    assert all("never ran" in difference.what for difference in proof.differences), str(proof)


def test_two_models_are_a_sentence_not_a_guess():
    text = (
        "import torch\n"
        "generator, judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)\n"
        "first = torch.optim.Adam(generator.parameters())\n"
        "second = torch.optim.Adam(judge.parameters())\n"
        "for x in torch.randn(4, 3, 2):\n"
        "    loss = judge(generator(x)).mean()\n"
        "    loss.backward()\n"
        "    first.step()\n"
        "    second.step()\n"
    )
    adapted = propose(text, PLANS["pipeline"])
    assert adapted.source == text
    assert adapted.hunks == ()
    (sentence,) = adapted.todo
    assert "trains 2 models (generator, judge)" in sentence


@pytest.mark.parametrize("text", ["import numpy as np\nprint(np.zeros(3))\n", ""])
def test_without_a_loop_nothing_changes(text):
    adapted = propose(text, PLANS["pipeline"])
    assert adapted.source == text
    assert "No PyTorch training loop was found" in adapted.todo[0]


@pytest.mark.parametrize("text", ["print 'two'\n", "def broken(:\n    pass\n", "x = (\n"])
def test_what_is_not_python_3_is_one_sentence(text):
    with pytest.raises(AdvisorError, match="is not Python 3 source") as caught:
        propose(text, PLANS["pipeline"])
    assert str(caught.value).count(".") <= 2
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_library_are_one_sentence(tmp_path):
    with pytest.raises(AdvisorError, match="cannot be read"):
        propose(tmp_path / "nothing.py", PLANS["pipeline"])
    with pytest.raises(AdvisorError, match="fsdp, not to 'horovod'"):
        propose(loop_text("flat"), PLANS["pipeline"], library="horovod")


def test_v2_leaves_to_do_what_was_right_for_replicas_only():
    text = loop_text("ddp")
    (backward,) = re.findall(r"^( +)loss\.backward\(\)\n", text, re.MULTILINE)
    accumulating = text.replace(
        f"{backward}loss.backward()\n", f"{backward}with model.no_sync():\n{backward}    loss.backward()\n"
    )
    before, after = (propose(script, PLANS["data"], library="smp-v2").todo for script in (text, accumulating))
    (sentence,) = set(after) - set(before)
    assert sentence.startswith("Line ")
    assert "no_sync" in sentence


def test_v2_builds_the_optimizer_after_fsdp_and_saves_from_one_rank():
    source = propose(loop_text("evaluation_loop"), PLANS["data"], library="smp-v2").source
    for texts in (("= FSDP(", "torch.optim.AdamW("), ("init_process_group", "tsm.init()", "    main()")):
        places = [source.index(text) for text in texts]
        assert places == sorted(places)
    assert "auto_wrap_policy=ModuleWrapPolicy(layer_classes)" in source
    assert "if dist.get_rank() == 0:\n                torch.save(checkpoint" in source
    assert "smp." not in source


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
    source = propose(MAPPED, library="ddp").source
    assert 'dataset = Corpus("a")' in source
    assert "shuffle=True,\n" in source.partition("DistributedSampler(")[2]
    loader = source.partition("loader = DataLoader(")[2].partition("held")[0]
    assert '**{**options, "drop_last": True}' in loader
    assert "shuffle" not in loader
    assert 'held = DataLoader(Corpus("b"), batch_size=4, shuffle=True, **options)' in source


def test_a_notebook_becomes_a_script(tmp_path):
    cells = [{"cell_type": "code", "source": "!pip install corpus\n"}, {"cell_type": "code", "source": MAPPED}]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    source = propose(path, library="fsdp").source
    assert "fully_shard(module)" in source
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
    source = propose(GUARDED, library="fsdp").source
    assert "    if step % 3 == 0:\n" in source
    assert "        if dist.get_rank() == 0:\n            torch.save(" in source
    assert source.index("fully_shard(module)") > source.index("else:\n    model = ")
    assert 'if master_process:\n    os.makedirs("out", exist_ok=True)' in source


STATEFUL = """import torch
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
rank = 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = StatefulDataLoader(TensorDataset(torch.randn(16, 8), torch.randn(16, 1)), batch_size=4)
for x, y in loader:
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
if rank > 0:
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize("library", ["ddp", "fsdp", "smp-v1"])
def test_the_rank_of_a_matrix_is_none_of_a_process_and_every_loader_is_divided(library):
    source = propose(STATEFUL, library=library).source
    place = source.index("if rank > 0:")
    save = "smp.save_checkpoint(" if library == "smp-v1" else "    if dist.get_rank() == 0:\n        torch.save("
    assert save in source[place:]
    assert not re.search(r"^\S", source[place:].partition("\n")[2], re.MULTILINE), "all of it depends on the condition"
    assert re.search(r"StatefulDataLoader\([^#]*drop_last=True", source)


def test_a_model_made_in_another_file_is_refused():
    text = (
        GUARDED.partition("if os.environ")[0]
        + "def train(model):\n    optimizer = torch.optim.SGD(model.parameters())\n"
    )
    text += "    loss = model(torch.ones(1, 2)).sum()\n    loss.backward()\n    optimizer.step()\n"
    refused = propose(text, library="fsdp")
    assert refused.diff == ""
    assert "in another file" in refused.todo[0]


def test_a_copy_of_a_saved_file_is_made_by_the_rank_that_saves():
    save = "def save(state, best, path):\n    torch.save(state, path)\n"
    save += "    if best:\n        shutil.copyfile(path, 'b.pt')\n"
    text = (
        "import shutil\nimport torch\n" + save + MAPPED.partition("import torch\n")[2] + "save({}, True, 'last.pt')\n"
    )
    for kind in ("ddp", "fsdp"):
        source = propose(text, library=kind).source
        assert "    if dist.get_rank() == 0:\n        torch.save(state, path)\n        if best:\n" in source


def test_the_library_starts_before_a_function_of_another_module_creates_the_model():
    text = (
        "import torch\nfrom models import get_network\nargs = None\nnet = get_network(args)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for x, y in []:\n    optimizer.zero_grad()\n    loss = torch.nn.functional.mse_loss(net(x), y)\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    source = propose(text, library="smp-v1").source
    assert source.index("smp.init()") < source.index("get_network(args)") < source.index("smp.DistributedModel")


def test_a_script_of_100_000_lines_is_refused_before_it_is_parsed():
    with Steps() as work, pytest.raises(AdvisorError, match="more than 20,000 lines"):
        propose("x=1\n" * 100_000, library="fsdp")
    assert work.count < 200_000
