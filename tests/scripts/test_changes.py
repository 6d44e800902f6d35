"""The list of changes for a plan: what it names, where, and what it leaves to the reader."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from smp_advisor import Plan, script_changes
from smp_advisor.core.files import data_file
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from pathlib import Path

BASES = data_file("review.findings", "bases")
PLAIN = """\
import torch
from torch.utils.data import DataLoader
from net import Net
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(rows, batch_size=4, shuffle=True)
for epoch in range(3):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "/opt/ml/model/model.pt")
"""
NET = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x.sum()

    def score(self, x):
        return x.mean()
"""
DDP = Plan(library="ddp", batch_size=4, precision="bf16", gradient_accumulation_steps=2)
FSDP = Plan(
    library="fsdp", sharding_strategy="full_shard", batch_size=1, precision="bf16", activation_checkpointing="each"
)


def listed(folder: Path, text: str, plan: Plan) -> dict[str, int]:
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(text)
    return {change.code: change.line for change in script_changes(folder / "train.py", plan)}


def test_a_plain_loop_gets_start_wrapping_data_precision_saving_and_end(tmp_path: Path) -> None:
    changes = listed(tmp_path, PLAIN, DDP)
    for words, line in (
        ("init_process_group", 3), ("DistributedDataParallel(model.cuda(local_rank)", 5),
        ("DistributedSampler(rows", 6),
        ("set_epoch", 7), ("glob.glob", 7), ("batch.cuda", 8), ("autocast", 10), ("(loss / 2).backward()", 10),
        ("model.module.state_dict()", 12), ("destroy_process_group", 12),
    ):  # fmt: skip
        assert [at for code, at in changes.items() if words in code] == [line], words
    wrapper = "model = torch.distributed.fsdp.FullyShardedDataParallel(model)"
    wrapped = PLAIN.replace("loader =", f"{wrapper}\nloader =").replace("torch\n", "torch.distributed.fsdp\n", 1)
    line = wrapped.split("\n").index(wrapper) + 1
    of_wrapper = listed(tmp_path, wrapped, FSDP)
    assert {at for code, at in of_wrapper.items() if code.startswith(("mixed_precision=", "apply_act"))} == {line}
    assert not any("mp_policy" in code for code in of_wrapper)  # of FSDP 2 alone
    sharded = listed(tmp_path, PLAIN, FSDP)
    for words in ("fully_shard(block, mp_policy=policy)", "apply_activation_checkpointing", "get_model_state_dict"):
        assert any(words in code for code in sharded), words
    assert not any("autocast" in code for code in sharded)


def test_libraries_of_sagemaker_get_their_code(tmp_path: Path) -> None:
    """Each change of SMP v1, v2 and Training Compiler has code that parses, at a line of the script."""
    for plan, words in (
        (Plan(library="smp-v1", pipeline_parallel_degree=2, microbatches=4, batch_size=4),
         ("smp.init()", "smp.DistributedModel(model)", "smp.DistributedOptimizer(optimizer)", "@smp.step",
          "rank=smp.dp_rank()", "smp.save_checkpoint", "smp.resume_from_checkpoint")),
        (Plan(library="smp-v2", hybrid_shard_degree=8, batch_size=1),
         ("tsm.init()", "tsm.transform(model)", "device_id=local_rank", "get_model_state_dict")),
        (Plan(library="training-compiler", batch_size=8),
         ("xm.xla_device()", "pl.MpDeviceLoader", "xm.optimizer_step(optimizer)", "xm.save(", "def _mp_fn(index)")),
    ):  # fmt: skip
        changes = listed(tmp_path, PLAIN, plan)
        for word in words:
            assert [line for code, line in changes.items() if word in code], (plan.library, word)
        for code in changes:
            ast.parse(code if not code.startswith("with ") else f"{code}\n    pass")


def test_a_model_that_is_run_by_another_method_is_named(tmp_path: Path) -> None:
    listed(tmp_path, PLAIN.replace("model(batch)", "model.score(batch)"), DDP)
    assert any("model.score()" in sentence for sentence in script_changes(tmp_path / "train.py", DDP).open)


def test_a_script_of_a_framework_gets_its_arguments() -> None:
    assert "gradient_accumulation_steps=2" in str(script_changes(BASES["trainer"], DDP))
    assert "fsdp_plugin=FullyShardedDataParallelPlugin" in str(script_changes(BASES["accelerate"], FSDP))
    done = script_changes(BASES["ddp"], Plan(library="ddp", batch_size=4, precision="fp32"))
    assert not any("init_process_group" in change.code or "Sampler" in change.code for change in done)


def test_what_is_not_followed_is_said() -> None:
    nothing = script_changes("x = 1\n", DDP)
    assert not nothing
    assert "No backward pass was followed" in str(nothing)
    with pytest.raises(AdvisorError, match="requires for plan a Plan"):
        script_changes("x = 1\n", {"library": "ddp"})  # type: ignore[arg-type]
