"""What the checks of DDP state, measured with two processes: gradients that are not reduced, calls that hang."""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from smp_advisor.sandbox.deadlock import answer_in, ends_of
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.torch]

HEAD = """\
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
batch = torch.full((4, 2), float(rank + 1))


def differs(values):
    both = [torch.zeros_like(values) for _ in range(2)]
    dist.all_gather(both, values)
    return not torch.equal(*both)


"""


def rank(number: int, port: int, program: str, folder: Path) -> int:
    """Process of a rank that runs the program, with its output in files."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        answer_in(folder / f"{number}.stack")
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / f"{number}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
            setattr(sys, name, open(stream, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 (to the end)
        os.environ |= {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # A program without collectives may end on one rank before the other one has connected to it.
        os.environ |= {"TORCH_DIST_INIT_BARRIER": "1", "GLOO_SOCKET_IFNAME": "lo"}
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001 (of any program)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def outcome(folder: Path, text: str) -> str:
    """The line that rank 0 of a program prints; "hangs" if it waits for the other one in vain."""
    program, port = HEAD + textwrap.dedent(text), free_port()
    pids = [rank(number, port, program, folder) for number in range(2)]
    ends = ends_of({pid: folder / f"{number}.stack" for number, pid in enumerate(pids)})
    output, errors = ((folder / f"0.{stream}").read_text("utf-8") for stream in (1, 2))
    first = ends[pids[0]]
    assert first.waited or not first.code, errors
    return "hangs" if first.waited else output.strip()


@pytest.mark.parametrize(
    ("trained", "differ"),
    [("replica", "False"), ("model", "True"), ("replica.module", "True")],
    ids=["DDP", "DDP602", "DDP608"],
)
def test_gradients_of_the_model_inside_of_ddp_are_not_reduced(tmp_path, trained, differ):
    text = f"""
        replica = DistributedDataParallel(model)
        {trained}(batch).mean().backward()
        print(differs(model.weight.grad))
    """
    assert outcome(tmp_path, text) == differ


@pytest.mark.parametrize(("condition", "result"), [("True", "done"), ("rank == 0", "hangs")], ids=["all", "DDP606"])
def test_a_collective_of_one_rank_hangs(tmp_path, condition, result):
    text = f"""
        if {condition}:
            dist.barrier()
        dist.all_reduce(batch)
        print("done")
    """
    assert outcome(tmp_path, text) == result


@pytest.mark.parametrize(
    ("sampler", "differ"),
    [("DistributedSampler(data, shuffle=False)", "True"), ("None", "False")],
    ids=["sampler", "DDP603"],
)
def test_processes_without_a_sampler_read_the_same_batches(tmp_path, sampler, differ):
    text = f"""
        from torch.utils.data import DataLoader, DistributedSampler

        data = torch.arange(8.0)
        first = next(iter(DataLoader(data, batch_size=4, sampler={sampler})))
        print(differs(first))
    """
    assert outcome(tmp_path, text) == differ


def test_a_sampler_without_set_epoch_repeats_its_order(tmp_path):
    text = """
        from torch.utils.data import DistributedSampler

        sampler = DistributedSampler(range(64))
        first, second = list(sampler), list(sampler)
        sampler.set_epoch(1)
        print(first == second, first == list(sampler))
    """
    assert outcome(tmp_path, text) == "True False"


def test_a_reentrant_checkpoint_around_a_unit_gathers_it_once_more(tmp_path):
    text = """
        import functools

        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            CheckpointImpl,
            apply_activation_checkpointing,
            checkpoint_wrapper,
        )
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        count = 0
        gather = dist.all_gather


        def counted(*args, **options):
            global count
            count += 1
            return gather(*args, **options)


        class Block(torch.nn.Linear):
            pass


        def shard(model):
            return FullyShardedDataParallel(
                model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu")
            )


        def checkpoint(model):
            wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)
            apply_activation_checkpointing(
                model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: isinstance(module, Block)
            )
            return model


        def gathers(first, second):
            global count
            count = 0
            model = torch.nn.Sequential(*[Block(2, 2) for _ in range(4)])
            second(first(model))(batch.requires_grad_()).mean().backward()
            return count


        dist.all_gather = counted
        print(gathers(shard, checkpoint), gathers(checkpoint, shard))
    """
    assert outcome(tmp_path, text) == "8 12"
