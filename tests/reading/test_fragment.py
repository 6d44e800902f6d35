"""Parts of scripts: names that nothing binds, methods without a class, and how people copy text."""

import pytest

from smp_advisor import check_script

STEP = "def training_step(self, batch, index):\n    if self.trainer.is_global_zero:\n        {}\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(STEP.format("dist.barrier()"), "DDP606", id="method without a class"),
        pytest.param("if accelerator.is_main_process:\n    accelerator.wait_for_everyone()", "DDP606", id="object"),
        pytest.param("    if rank == 0:\n        dist.barrier()\n    go(...)", "DDP606", id="indented"),
        pytest.param("if rank == 0:\n        dist.barrier()\n    go(a, ...)", "DDP606", id="first line not indented"),
        pytest.param("rank = 3\nif rank == 0:\n    dist.barrier()", "", id="a name that the text binds"),
    ],
)
def test_a_part_of_a_script_is_read_with_customary_names(text: str, found: str) -> None:
    report = check_script(text)
    assert {finding.id for finding in report if finding.severity != "info"} == {found} - {""}, str(report)


def test_the_report_says_what_it_assumed() -> None:
    report = str(check_script(STEP.format("dist.barrier()")))
    assert "dist is torch.distributed" in report
    assert "Methods without a class are those of a pytorch_lightning.LightningModule." in report
