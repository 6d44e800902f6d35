"""What the checks of DDP state, measured with two processes."""

import textwrap

import pytest

from smp_advisor.rehearsal import rehearse

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.usefixtures("first_stage")]

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


def outcome(text: str) -> str:
    """The line that rank 0 of a program prints."""
    done = rehearse(HEAD + textwrap.dedent(text))
    assert done.outcome == "ran to the end", done
    return [line for line in done.log if not line.startswith("[")][-1]


@pytest.mark.parametrize(
    ("trained", "differ"),
    [("replica", "False"), ("model", "True"), ("replica.module", "True")],
    ids=["DDP", "DDP602", "DDP608"],
)
def test_gradients_of_the_model_inside_of_ddp_are_not_reduced(trained, differ):
    text = f"""
        replica = DistributedDataParallel(model)
        {trained}(batch).mean().backward()
        print(differs(model.weight.grad))
    """
    assert outcome(text) == differ


def test_a_reentrant_checkpoint_around_a_unit_gathers_it_once_more():
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
    assert outcome(text) == "8 12"
