"""What ranks call together: which conditions depend on the rank, through which ways of writing them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.core.files import data_file
from smp_advisor.review.scripts import check_script

if TYPE_CHECKING:
    from pathlib import Path

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
OPTIONED = TRAINER.replace('fsdp="full_shard auto_wrap"', "fsdp=args.fsdp").replace(
    "arguments = ",
    "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--fsdp', default='full_shard auto_wrap')\nargs = parser.parse_args()\narguments = ",
)
DEEPSPEED = (
    "import deepspeed\nimport torch.distributed as dist\n\n"
    "engine, optimizer, loader, _ = deepspeed.initialize(model=net, training_data=rows, config='ds.json')\n"
    "for batch in loader:\n    engine.backward(engine(batch).mean())\n    engine.step()\n"
)
_REPLICATED = re.sub(r', fsdp="[^"]*"', "", TRAINER)
ROWS = [
    ("DDP606", DDP + "from common import is_main\nif is_main():\n" + BARRIER),
    ("DDP606", DDP + SAVE),
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
