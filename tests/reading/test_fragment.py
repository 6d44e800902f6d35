"""Parts of scripts: names that nothing binds, methods without a class, and how people copy text."""

from smp_advisor import check_script

STEP = "def training_step(self, batch, index):\n    if self.trainer.is_global_zero:\n        dist.barrier()\n"
PARTS = (
    STEP,
    "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()",
    "    if rank == 0:\n        dist.barrier()\n    go(...)",
    "if rank == 0:\n        dist.barrier()\n    go(a, ...)",
)


def test_a_part_of_a_script_is_read_with_customary_names() -> None:
    assert [[finding.id for finding in check_script(text)] for text in PARTS] == [["DDP606"]] * len(PARTS)
    assert not check_script("rank = 3\nif rank == 0:\n    dist.barrier()")
    report = str(check_script(STEP))
    assert "dist is torch.distributed" in report
    assert "Methods without a class are those of a pytorch_lightning.LightningModule." in report
