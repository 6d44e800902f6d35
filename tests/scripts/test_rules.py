"""Rules in what real scripts put around them: chained calls, several contexts of one function, releases of packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smp_advisor.core.files import data_file
from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.scripts import check_script
from smp_advisor.review.scripts.releases import accepts, default_of, release

if TYPE_CHECKING:
    from pathlib import Path

BASES = data_file("review.findings", "bases")
DDP, TRAINER, ACCELERATE = BASES["ddp"], BASES["trainer"], BASES["accelerate"]
WHOLE = (
    *(
        "",
        ".map(f)",
        ".with_format('torch')",
        ".shuffle(seed=1).select(range(10))",
        ".train_test_split(0.1, seed=0)['train']",
    ),
    *(".map(f, batched=True).filter(g).rename_column('a', 'b')", ".remove_columns(['a'])"),
)
LOADER = "loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
FACTORY = """\
def make(train):
    sampler = DistributedSampler(dataset) if train else None
    return DataLoader(dataset, batch_size=4, sampler=sampler), sampler


loader, sampler = make(True)
valid, _ = make(False)
for batch in valid:
    print(batch)
"""
SPAWNED = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def run(rank, size):
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(4, 4).cuda()
    if size > 1:
        dist.init_process_group("nccl", rank=rank, world_size=size)
        model = DistributedDataParallel(model)
    dataset = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(dataset, shuffle=False) if size > 1 else None
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch.cuda()).sum().backward()
        optimizer.step()


if torch.cuda.device_count() > 1:
    mp.spawn(run, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
else:
    run(0, 1)
"""
QUANTIZED = ACCELERATE.replace("import Accelerator", "import Accelerator, DeepSpeedPlugin").replace(
    'mixed_precision="bf16"', "deepspeed_plugin=DeepSpeedPlugin(zero_stage=2)"
)
QUANTIZED += "from transformers import BitsAndBytesConfig\n\nBitsAndBytesConfig(load_in_4bit=True)\n"
CLIPPED = ACCELERATE.replace("import Accelerator", "import Accelerator, FullyShardedDataParallelPlugin").replace(
    'mixed_precision="bf16"', 'mixed_precision="bf16", fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)'
)
CLIPPED = CLIPPED.replace(
    "        optimizer.step()",
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()",
)


def found(path_or_text: Path | str, **more: object) -> set[str]:
    return {finding.id for finding in check_script(path_or_text, **more)}  # type: ignore[arg-type]


def test_a_data_set_stays_whole_through_methods_that_do_not_divide_it() -> None:
    for chain in WHOLE:
        data = f"dataset = load_dataset('json', data_files='x', split='train'){chain}\n"
        data = f"from datasets import load_dataset\n\n{data}"
        text = DDP.replace(LOADER, f"{data}loader = DataLoader(dataset, batch_size=4)\n")
        assert found(text) == {"DDP603"}, chain
        divided = text.replace("loader = D", "dataset = dataset.shard(dist.get_world_size(), rank)\nloader = D")
        assert not found(divided), chain


@pytest.mark.parametrize(
    "text", [DDP.replace(LOADER, FACTORY), SPAWNED, QUANTIZED, CLIPPED], ids=["factory", "spawned", "ZeRO", "FSDP2"]
)
def test_facts_of_other_calls_and_other_libraries_are_not_joined(text: str) -> None:
    assert not found(text)


def test_the_release_decides_what_an_argument_means(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER.replace("bf16=True", 'bf16=True, evaluation_strategy="steps"'))
    for pin, expected in (
        ("", "warning"), ("transformers==4.40.2", None), ("transformers>=4.36,<4.45", None),
        ("transformers==4.56.2", "error"), ("transformers>=5", "error"), ("transformers>=4.36", "warning"),
    ):  # fmt: skip
        (tmp_path / "requirements.txt").write_text(f"{pin}\n")
        severities = [finding.severity for finding in check_script(script) if finding.id == "TRN720"]
        assert severities == ([expected] if expected else []), pin


def test_inputs_of_reentrant_checkpoints_have_gradients_since_transformers_5(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = catalog()["TRN745"].examples[0].bad
    finds = text.replace("gradient_checkpointing=True", "gradient_checkpointing=True, ddp_find_unused_parameters=True")
    for pin, expected in (("", ["info"]), ("transformers==4.45.2", ["error"]), ("transformers==5.23.0", [])):
        (tmp_path / "requirements.txt").write_text(f"{pin}\n")
        for lines, count in (
            (text, 1),
            (text.replace('{"use_reentrant": True}', "chosen"), 0),
            (finds.replace(', gradient_checkpointing_kwargs={"use_reentrant": True}', ""), 2),
        ):
            script.write_text(lines)
            assert [finding.severity for finding in check_script(script)] == expected * count, pin


def test_a_number_of_accumulated_batches_that_may_be_one_is_no_error() -> None:
    example = next(e for e in catalog()["DDP621"].examples if e.variant == "offloaded").bad
    for test, expected in (("number % 4 == 3", ["error"]), ("number % args.parts == 0", ["warning"])):
        text = example.replace("number % 4 == 3", test)
        assert [finding.severity for finding in check_script(text)] == expected


BODY = "        loss = model(batch.cuda()).mean()\n        loss.backward()\n"
PATIENCE = """\
    total = 0.0
    for (batch,) in loader:
        with torch.no_grad():
            total += model(batch.cuda()).mean().item()
    if total < best:
        best, waited = total, 0
    else:
        waited += 1
    if waited >= 3:
        break
"""
FREEZE = """\
def freeze(part):
    for parameter in part.parameters():
        parameter.requires_grad_(False)


freeze(model.module[0])
"""
HANDLER = """\
import signal

stop = False


def handler(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, handler)
"""
IN_HELPERS = {
    "DDP614": DDP.replace(BODY, "        with model.no_sync():\n            print(os.path.join('a', 'b'))\n"
                                "            loss = model(batch.cuda()).mean()\n            loss.backward()\n"),
    "DDP608": DDP.replace("model(batch.cuda()).mean()", "unwrapped(model)(batch.cuda()).mean()").replace(
        "dataset = T", "def unwrapped(m):\n    return m.module if hasattr(m, 'module') else m\n\n\ndataset = T"),
    "DDP615": DDP.replace("optimizer = ", FREEZE + "optimizer = "),
    "DDP612": DDP.replace("for epoch in range(3):", "best, waited = 1e9, 0\nfor epoch in range(3):") + PATIENCE,
    "DDP618": DDP.replace('int(os.environ["LOCAL_RANK"])', "dist.get_rank()"),
    "SMP006": DDP.replace("for epoch", HANDLER + "for epoch") + (
        "    if stop and rank == 0:\n        torch.save(model.module.state_dict(), 'last.pt')\n"),
}  # fmt: skip


NONE = {
    "a module that is saved by its name": DDP + (
        "model.module.load_state_dict(torch.load('last.pt', map_location='cpu'))\n"
        "state = (model.module if hasattr(model, 'module') else model).state_dict()\n"
        "if rank == 0:\n    torch.save(state, 'last.pt')\n"),
    "a continue for a file": DDP.replace("        optimizer.zero", (
        "        if os.path.isfile('done'):\n            continue\n        if epoch > 2:\n            break\n"
        "        optimizer.zero"), 1),
    "a precision by its option": DDP.replace("        loss = model(batch.cuda()).mean()", (
        "        with {'fp16': torch.autocast('cuda', torch.float16), 'no': nullcontext()}[kind]:\n"
        "            loss = model(batch.cuda()).mean()")),
    "a stream that is divided before": DDP.replace(LOADER, (
        "class Rows(torch.utils.data.IterableDataset):\n    def __init__(self, rows):\n        self.rows = rows\n"
        "    def __iter__(self):\n        worker = torch.utils.data.get_worker_info()\n"
        "        return iter(self.rows)\n"
        "rows = split_dataset_by_node(load_dataset('c4', streaming=True), rank, dist.get_world_size())\n"
        "loader = DataLoader(Rows(rows), batch_size=4)\n")).replace(
            "import torch\n", "import torch\nfrom datasets import load_dataset\n"
            "from datasets.distributed import split_dataset_by_node\n", 1),
    "a model in the scope of one branch": (
        "import tensorflow as tf\n\ndef make():\n    model = tf.keras.Sequential()\n    model.compile()\n"
        "    return model\n\nif several:\n    with tf.distribute.MirroredStrategy().scope():\n        model = make()\n"
        "else:\n    model = make()\nmodel.fit(rows)\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", NONE)
def test_what_looks_like_a_defect_and_is_none(form: str) -> None:
    assert not found(NONE[form])


@pytest.mark.parametrize("rule", IN_HELPERS)
def test_a_defect_is_named_in_what_scripts_put_around_it(rule: str) -> None:
    assert found(IN_HELPERS[rule]) == {rule}


def test_what_no_rule_follows_is_named() -> None:
    text = "from mylib.models import build\nfrom mylib.trainer import OwnTrainer\n\nOwnTrainer(build()).train()\n"
    shown = str(check_script(text))
    assert "mylib.models.build" in shown
    assert "mylib.trainer.OwnTrainer" in shown
    assert "Hugging Face Trainer" not in shown


def test_the_table_of_arguments_has_names_defaults_and_bounds() -> None:
    assert accepts("transformers.Trainer", "tokenizer", release("4.57"))
    assert not accepts("transformers.Trainer", "tokenizer", release("5.0"))
    assert default_of("trl.SFTConfig", "gradient_checkpointing", release("1.16")) is True
    assert default_of("trl.SFTConfig", "gradient_checkpointing", release("0.20")) is ...


def test_an_option_of_the_job_is_received_as_it_is_spelled() -> None:
    text = (
        "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch-size', type=int)\n"
        "parser.add_argument('--packed', type=bool)\nargs, _ = parser.parse_known_args()\n"
    )
    messages = [finding.message for finding in check_script(text, hyperparameters={"batch_size": 4, "packed": False})]
    assert any("ignores the hyperparameter batch_size" in message and "--batch-size" in message for message in messages)
    assert any('packed=False, and type=bool reads the text "False" as True' in message for message in messages)
    assert not check_script(text, hyperparameters={"batch-size": 4, "packed": True})
    text = (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, TrainingArguments\n\n\n"
        "@dataclass\nclass Names:\n    model_name_or_path: str\n\n\n"
        "HfArgumentParser((Names, TrainingArguments)).parse_args_into_dataclasses()\n"
    )
    job = {"epochs": 1, "model_name": "m", "sharded_ddp": "x", "no_cuda": True}  # a name may be shortened
    assert [finding.id for finding in check_script(text, hyperparameters=job)] == ["SMP004"]


def test_arguments_are_read_wherever_they_are_written() -> None:
    for text, said in (
        ("import transformers\n\ntransformers.TrainingArguments('o', no_cuda=True)\n", "Write use_cpu"),
        ("from transformers import TrainingArguments as T\n\nk = dict(evaluation_strategy='no')\nT(**k)\n",
         "Write eval_strategy"),
        ("import pytorch_lightning as pl\n\npl.Trainer(gpus=8)\n", "Write devices"),
        ("from peft import LoraConfig\n\nLoraConfig(lora_aplha=16)\n", "Write lora_alpha"),
        ("from trl import DPOTrainer\n\nDPOTrainer(model=m, beta=0.1)\n", "Write it as beta of DPOConfig"),
    ):  # fmt: skip
        remedies = [finding.remedy for finding in check_script(text) if finding.id == "TRN720"]
        assert [said in remedy for remedy in remedies] == [True], (text, remedies)
