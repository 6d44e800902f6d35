"""What ranks call together: which conditions depend on the rank, through which ways of writing them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from smp_advisor.core.files import data_file
from smp_advisor.review.scripts import check_script

if TYPE_CHECKING:
    from pathlib import Path

EVALUATES = """
import operator
if accelerator.is_main_process:
    with torch.no_grad():
        for row in valid_loader:
            {}(row)
accelerator.wait_for_everyone()
"""

_BASES = data_file("review.findings", "bases")
DDP, FSDP2, TRAINER, ACCELERATE, FABRIC = (_BASES[name] for name in ("ddp", "fsdp2", "trainer", "accelerate", "fabric"))
BARRIER = "    dist.barrier()\n"
MAIN = (
    "import torch.distributed as dist\n\n\n"
    "def is_main():\n    return not dist.is_initialized() or dist.get_rank() == 0\n"
)
SAVE = (
    "def save():\n    if rank != 0:\n        return\n"
    "    torch.save(model.state_dict(), 'x')\n    dist.barrier()\n\n\nsave()\n"
)
OWNER = (
    "class Saver:\n    def __init__(self):\n        self.rank = int(os.environ.get('RANK', 0))\n"
    "        self.main = self.rank == 0\n\n    def save(self):\n        if self.main:\n            dist.barrier()\n\n\n"
    "Saver().save()\n"
)
GATHERED = (
    "    from torch.distributed.checkpoint.state_dict import get_model_state_dict\n    get_model_state_dict(model)\n"
)
LIGHTNING = _BASES["lightning"].replace(
    "    def configure",
    "    @rank_zero_only\n    def on_train_end(self):\n        self.trainer.save_checkpoint('x')\n\n    def configure",
)
DEEPSPEED = (
    "import deepspeed\nimport torch.distributed as dist\n\n"
    "engine, optimizer, loader, _ = deepspeed.initialize(model=net, training_data=rows, config='ds.json')\n"
    "for batch in loader:\n    engine.backward(engine(batch).mean())\n    engine.step()\n"
)
STARTED = (
    "import torch.distributed as dist\nfrom torch.multiprocessing import Process\n\n\n"
    "def work(rank, size):\n    dist.init_process_group('nccl', rank=rank, world_size=size)\n"
    "    if rank == 0:\n        dist.barrier()\n\n\n"
    "for number in range(4):\n    Process(target=work, args=(number, 4)).start()\n"
)
_REPLICATED = re.sub(r', fsdp="[^"]*"', "", TRAINER)
ROWS = [
    ("DDP606", DDP + "from common import is_main\nif is_main():\n" + BARRIER),
    ("DDP606", DDP + SAVE),
    ("DDP606", STARTED),
    ("DDP606", DDP + OWNER),
    ("DDP606", DDP + "args = parser.parse_args()\nargs.main = rank == 0\nif args.main:\n" + BARRIER),
    ("DDP606", DDP + "if os.environ['LOCAL_RANK'] == '0':\n" + BARRIER),
    ("DDP606", DDP + "import sys\nif rank != 0:\n    sys.exit(0)\ndist.barrier()\n"),
    ("DDP606", DDP + "if rank < 2:\n    dist.new_group([0, 1])\n"),
    ("DDP606", DDP + "if rank == 0:\n    model(batch).mean().backward()\n"),
    ("DDP606", FSDP2 + "if rank == 0:\n" + GATHERED),
    ("DDP606", FSDP2 + "if rank == 0:\n    model.generate(batch)\n"),
    ("DDP606", TRAINER + "if trainer.is_world_process_zero():\n    trainer.evaluate()\n"),
    ("DDP606", TRAINER + "if arguments.local_rank == 0:\n    trainer.save_model('/opt/ml/model')\n"),
    (
        "DDP606",
        ACCELERATE + "\n@accelerator.on_main_process\ndef end():\n    accelerator.wait_for_everyone()\n\n\nend()\n",
    ),
    ("DDP606", FABRIC + "if fabric.global_rank == 0:\n    print(model(batch))\n"),
    ("DDP606", "from lightning.pytorch.utilities import rank_zero_only\n" + LIGHTNING),
    (
        "DDP611",
        ACCELERATE + "if accelerator.is_main_process:\n    for row in rows:\n"
        "        reference.generate(row)\naccelerator.wait_for_everyone()\n",
    ),
    ("DDP612", DDP + "    if loss.item() < 0.1:\n        break\n"),
    (
        "DDP612",
        DDP.replace("        loss.back", "        if torch.isnan(loss):\n            continue\n        loss.back"),
    ),
    (
        "",
        DDP.replace(
            "        loss.back", "        if torch.isnan(loss):\n            raise ValueError\n        loss.back"
        ),
    ),
    ("", DDP + "if rank == 0:\n    torch.save(model.module.state_dict(), 'x')\ndist.barrier()\n"),
    ("", DDP + "if rank != 0:\n    dist.barrier()\nprepare()\nif rank == 0:\n    dist.barrier()\n"),
    ("", DDP + "    dist.all_reduce(loss)\n    if loss.item() < 0.1:\n        break\n"),
    ("", DDP + "if rank == 0:\n    with torch.no_grad():\n        model.module(batch)\n"),
    ("", FSDP2 + "with torch.no_grad():\n    output = model(batch)\nif rank == 0:\n    print(output)\n"),
    ("", ACCELERATE + "if accelerator.is_main_process:\n    accelerator.unwrap_model(model).state_dict()\n"),
    ("DDP611", ACCELERATE + EVALUATES.format("reference")),
    ("", ACCELERATE + EVALUATES.format("operator.itemgetter(0)")),
    ("", _REPLICATED.replace("trainer.save", "if trainer.is_world_process_zero():\n    trainer.save")),
]


def test_the_order_of_collectives_on_two_ranks(tmp_path: Path) -> None:
    """Every way to select a rank, every call that waits, and what only looks like one of them."""
    (tmp_path / "common.py").write_text(MAIN)
    wrong = []
    for expected, text in ROWS:
        (tmp_path / "train.py").write_text(text)
        found = {finding.id for finding in check_script(tmp_path / "train.py")}
        if found != ({expected} if expected else set()):
            wrong.append((expected, found, text[-160:]))
    assert not wrong


TEACHER = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
student = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
teacher = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
for parameter in teacher.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD(student.parameters(), 0.1)
sampler = DistributedSampler(rows)
for epoch in range(3):
    sampler.set_epoch(epoch)
    best, waited = 1e9, 0
    for batch in DataLoader(rows, batch_size=4, sampler=sampler):
        with torch.no_grad():
            target = teacher(batch.cuda())
        loss = (student(batch.cuda()) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PATIENCE = """
        if loss.item() < best:
            best, waited = loss.item(), 0
        else:
            waited += 1
            if waited > 2:
                break
"""
OPTIONAL = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin() if config.shards else None)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if accelerator.is_main_process:
    accelerator.save_state("/opt/ml/checkpoints/last")
"""


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (TEACHER, set()),
        (TEACHER.replace("in teacher.parameters()", "in student.module[1].parameters()"), {"DDP615"}),
        (TEACHER + PATIENCE, {"DDP612"}),
        (OPTIONAL, set()),
        (OPTIONAL.replace(" if config.shards else None", ""), {"DDP606"}),
    ],
    ids=["teacher", "part", "patience", "optional", "sharded"],
)
def test_a_fact_counts_where_it_is_certain(text: str, ids: set[str]) -> None:
    assert {finding.id for finding in check_script(text) if finding.severity != "info"} == ids


def test_an_older_name_of_a_package_has_its_pins(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("pytorch_lightning==1.0.2\n")
    (tmp_path / "train.py").write_text("from pytorch_lightning import Trainer\n\nTrainer(gpus=8).fit(model)\n")
    assert not check_script(tmp_path / "train.py").findings
    (tmp_path / "requirements.txt").write_text("torch==2.5.1\n")
    (tmp_path / "train.py").write_text("from torch.utils.data import DataLoader\n\nDataLoader(rows, worker=2)\n")
    assert [finding.id for finding in check_script(tmp_path / "train.py")] == ["TRN720"]
