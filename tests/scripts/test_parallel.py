"""DDP, FSDP, Accelerate, Trainer and Lightning: correct scripts in other words, which must have no finding."""

from textwrap import indent

import pytest

from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.scripts import check_script

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
"""
DEVICE = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
MODEL = "model = torch.nn.Linear(8, 8).cuda()\n"


def found(text: str, plan=None) -> set[str]:
    return {finding.id for finding in check_script(text, plan)}


def good(identifier: str, variant: str = "") -> str:
    return next(example.good for example in catalog()[identifier].examples if example.variant == variant)


@pytest.mark.parametrize(
    "device",
    [
        DEVICE,
        'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n',
        'mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (8,))\n',
        'local_rank = int(os.environ["LOCAL_RANK"])\nbatch = batch.to(local_rank)\n',
    ],
)
def test_other_ways_to_a_device_per_process(device):
    assert "DDP601" in found(HEAD + MODEL + "model = DDP(model)\n")
    assert "DDP601" not in found(HEAD + device + MODEL + "model = DDP(model)\n")


def test_processes_on_the_host_need_no_device():
    assert not found(HEAD.replace("nccl", "gloo") + MODEL + "model = DDP(model)\n")


def test_a_model_that_only_some_jobs_wrap_is_left_alone():
    loop = "for batch in batches:\n    model(batch).mean().backward()\n"
    assert not found(HEAD + DEVICE + MODEL + "if dist.get_world_size() > 1:\n    model = DDP(model)\n" + loop)


def test_the_inner_model_in_an_evaluation_is_left_alone():
    evaluation = "with torch.no_grad():\n    for batch in batches:\n        model.module(batch)\n"
    assert not found(good("DDP608") + evaluation)


@pytest.mark.parametrize(
    "condition",
    ["dist.get_rank() == 0", "is_main_process()", "args.local_rank in (-1, 0)", "gpu_id == 0", "not dist.get_rank()"],
)
def test_one_rank_that_saves(condition):
    save = f'if {condition}:\n    torch.save(model.state_dict(), "model.pt")\n'
    assert not found(HEAD + DEVICE + MODEL + "model = DDP(model)\n" + save)


def test_a_path_for_each_rank():
    text = good("DDP607").replace("if dist.get_rank() == 0:\n    ", "")
    assert "DDP607" in found(text)
    for path in ('f"model_{dist.get_rank()}.pt"', 'os.path.join("out", str(rank))', "path_of(dist.get_rank())"):
        assert "DDP607" not in found(text.replace('"/opt/ml/model/model.pt"', path)), path


def test_work_of_accelerate_under_the_main_process():
    text = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    under = "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()\n"
    assert found(text + under) == {"DDP606"}
    assert not found(text + "accelerator.wait_for_everyone()\nif accelerator.is_main_process:\n    print()\n")


@pytest.mark.parametrize(
    "sampler",
    [
        ", sampler=DistributedSampler(dataset)",
        ", batch_sampler=mine(dataset)",
        ", **options",
        ", sampler=make(dataset)",
    ],
)
def test_loaders_that_may_divide_their_data(sampler):
    text = good("DDP603", "same").replace(", sampler=DistributedSampler(dataset)", sampler)
    assert not found(text.replace("batch_size=8, batch_sampler", "batch_sampler"))


ACCUMULATED = (
    HEAD
    + DEVICE
    + MODEL
    + """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--accum_iter", type=int, default={count})
args, _ = parser.parse_known_args()
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters())
for number in range(9):
    for part in range(args.accum_iter):
        model(torch.ones(2, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


def test_accumulation_without_no_sync_is_conditional_on_the_option_that_turns_it_on():
    (finding,) = check_script(ACCUMULATED.format(count=4))
    assert finding.id == "DDP610"
    (finding,) = check_script(ACCUMULATED.format(count=1))
    assert finding.message.endswith("This code runs only with --accum_iter above 1.")
    assert not found(ACCUMULATED.format(count=1).replace("args.accum_iter", "1").replace('"--accum_iter"', '"--lr"'))


def test_replicas_are_an_error_under_a_plan_that_shards():
    text = HEAD + DEVICE + "from zoo import net\nmodel = DDP(net())\n" + "model(x).mean().backward()\n"
    assert "SMP001" in found(text + "torch.optim.SGD(model.parameters()).step()\n", {"library": "fsdp"})


def test_back_ends_that_the_plan_does_not_use_are_not_judged():
    text = catalog()["STC406"].examples[0].bad.replace("import torch_xla", "if tpu:\n    import torch_xla")
    assert "STC406" not in found(text, {"library": "fsdp"})


@pytest.mark.parametrize(
    ("settings", "severity"),
    [
        ("", "warning"),
        ('mixed_precision="fp16"', "error"),
        ('mixed_precision="bf16"', "warning"),
        ('mixed_precision="bf16", gradient_accumulation_steps=4', "error"),
    ],
)
def test_plain_backward_is_an_error_where_accelerate_scales_the_loss(settings, severity):
    text = catalog()["TRN701"].examples[0].bad.replace('mixed_precision="fp16"', settings)
    assert [finding.severity for finding in check_script(text) if finding.id == "TRN701"] == [severity]


def test_one_gpu_needs_no_reduction_after_a_device_loader():
    text = """\
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader

device = xm.xla_device()
loader = pl.MpDeviceLoader(DataLoader(dataset, batch_size=8, drop_last=True), device)
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""
    assert not found(text)
    assert found(text.replace("device =", "first = xm.is_master_ordinal()\ndevice =", 1)) == {"STC406"}


def test_a_package_that_is_not_followed_may_replicate_the_model():
    text = (
        "import torch\nimport mytasks\n\n"
        "model = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for batch in batches:\n    model(batch).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    assert found(text, {"library": "ddp"}) == {"SMP001"}
    assert not found(text.replace("for batch", "mytasks.prepare_distributed(model)\nfor batch"), {"library": "ddp"})


BLOCKS = "for block in model.encoder.layers:\n    fully_shard(block)\n"
SAVE, ONE_RANK = "torch.save(", "if dist.get_rank() == 0:\n"


@pytest.mark.parametrize(
    ("identifier", "old", "new"),
    [
        ("DDP607", SAVE, f"args.saves = args.logs and is_master(args)\nif args.saves:\n    {SAVE}"),
        ("DDP602", "for batch in", "model = wrapped(model) if replica else model\nfor batch in"),
        ("SMP318", BLOCKS, f"def resize(model):\n{indent(BLOCKS, '    ')}\nresize(model)\n"),
        ("DDP603", "loader = ", "dataset = split_by_rank(dataset, dist.get_rank())\nloader = "),
        ("DDP606", ONE_RANK, f"if dist.get_rank() != 0:\n    dist.barrier()\nload()\n{ONE_RANK}"),
        ("DDP606", "dist.barrier()", "dist.all_gather_object(parts, own, stage_group)"),
        ("DDP606", "dist.barrier()", "dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)"),
        ("DDP608", "for batch in", "for p in model.parameters():\n    dist.all_reduce(p.grad)\nfor batch in"),
    ],
    ids=[
        *("a switch of one rank", "another model", "blocks that replace sharded ones", "a dataset divided before"),
        *("ranks that wait", "a group of ranks", "a broadcast with both sides", "gradients reduced by hand"),
    ],
)
def test_a_line_that_may_prevent_the_defect_of_the_catalog_s_example(identifier, old, new):
    bad = catalog()[identifier].examples[0].bad
    assert old in bad
    assert identifier not in found(bad.replace(old, new))
