"""Operators for PyTorch's own data parallelism, Accelerate and Lightning: PyTorch's documentation and theirs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import Script, keyword_of, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

DDP = "torch.nn.parallel.DistributedDataParallel"
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
SAMPLER = "torch.utils.data.distributed.DistributedSampler"
ACCELERATE = "accelerate: adding Accelerate to your code"


def _statements(script: Script, *endings: str) -> Iterator[ast.stmt]:
    for call in script.calls(*endings):
        yield script.statement(call)


@operator("ddp", "each process sets its device", DDP)
def no_set_device(script: Script) -> Iterator[str]:
    for statement in _statements(script, "set_device"):
        yield script.without(statement)


@operator("ddp", "the wrapped model is trained", DDP)
def wrapped_and_thrown_away(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedDataParallel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(call.args[0], ast.Name):
            yield script.swap((statement, f"replica = {script.source(call)}"))
            yield script.swap((statement, script.source(call)))


@operator("ddp", "each process reads its own part", SAMPLER)
def no_sampler(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        keyword = keyword_of(call, "sampler")
        if keyword is not None:
            yield script.without_argument(call, keyword)
            yield script.swap((keyword, "shuffle=True"))
            yield script.swap((keyword.value, "None"))


@operator("ddp", "an epoch has its own order", SAMPLER)
def no_set_epoch(script: Script) -> Iterator[str]:
    for statement in _statements(script, "set_epoch"):
        yield script.without(statement)


@operator("ddp", "gradients are reset", "torch.optim.Optimizer.zero_grad")
def no_zero_grad(script: Script) -> Iterator[str]:
    for statement in _statements(script, "zero_grad"):
        yield script.without(statement)


@operator("ddp", "every rank calls a collective", "torch.distributed: collective functions")
def barrier_on_one_rank(script: Script) -> Iterator[str]:
    for statement in _statements(script, "barrier"):
        for condition in ("dist.get_rank() == 0", "not dist.get_rank()", 'int(os.environ["RANK"]) == 0'):
            yield script.swap((statement, f"if {condition}:\n    {script.source(statement)}"))


@operator("ddp", "every rank calls a collective", "torch.distributed: collective functions")
def reduction_on_one_rank(script: Script) -> Iterator[str]:
    for statement in _statements(script, "all_reduce"):
        yield script.swap((statement, f"if dist.get_rank() == 0:\n    {script.source(statement)}"))


@operator("ddp", "one rank saves", "Getting Started with Distributed Data Parallel")
def every_rank_saves(script: Script) -> Iterator[str]:
    for statement in _statements(script, "torch.save"):
        guard = script.parent(statement)
        if isinstance(guard, ast.If) and "rank" in ast.unparse(guard.test):
            yield script.swap((guard.test, "True"))
            yield script.swap((guard, script.source(statement)))


@operator("ddp", "the wrapped model is called", DDP)
def inner_model(script: Script) -> Iterator[str]:
    for call in script.calls("model"):
        in_loop = any(isinstance(above, ast.For) for above in script.ancestors(call))
        if in_loop and not any(isinstance(above, ast.With) for above in script.ancestors(call)):
            yield script.swap((call.func, "model.module"))


@operator("fsdp", "the optimizer is created after wrapping", FSDP)
def optimizer_before_wrapping(script: Script) -> Iterator[str]:
    for call in script.calls("AdamW", "SGD"):
        statement = script.statement(call)
        block = script.block(statement)
        for wrap in script.calls("FSDP", "FullyShardedDataParallel"):
            earlier = script.statement(wrap)
            if earlier in block and statement in block:
                yield script.swap(
                    (statement, "pass"), (earlier, f"{script.source(statement)}\n{script.source(earlier)}")
                )


@operator("fsdp", "the norm of all shards", "FullyShardedDataParallel.clip_grad_norm_")
def local_norm(script: Script) -> Iterator[str]:
    for call in script.calls("clip_grad_norm_"):
        owner = script.source(call.func.value)
        if owner.endswith("model"):
            norm = script.source(call.args[0])
            yield script.swap((call, f"torch.nn.utils.clip_grad_norm_({owner}.parameters(), {norm})"))


@operator("fsdp", "each block is one unit", "Getting Started with Fully Sharded Data Parallel")
def one_unit(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        keyword = keyword_of(call, "auto_wrap_policy")
        if keyword is not None:
            yield script.without_argument(call, keyword)
            yield script.swap((keyword.value, "None"))


@operator("fsdp", "float16 needs a scaler of all shards", FSDP)
def half_precision_without_scaler(script: Script) -> Iterator[str]:
    for call in script.calls("MixedPrecision"):
        dtype = keyword_of(call, "param_dtype")
        if dtype is not None:
            yield script.swap((dtype.value, "torch.float16"))


@operator("fsdp", "every rank takes part in state_dict", FSDP)
def state_on_one_rank(script: Script) -> Iterator[str]:
    for statement in _statements(script, "model.state_dict"):
        if isinstance(statement, ast.Assign):
            yield script.swap((statement, f"state = {{}}\nif dist.get_rank() == 0:\n    {script.source(statement)}"))


@operator("fsdp", "gradients are reset", "torch.optim.Optimizer.zero_grad")
def gradients_not_reset(script: Script) -> Iterator[str]:
    for statement in _statements(script, "zero_grad"):
        yield script.without(statement)


@operator("accelerate", "accelerator.backward", ACCELERATE)
def own_backward(script: Script) -> Iterator[str]:
    for call in script.calls("accelerator.backward"):
        yield script.swap((call, f"{script.source(call.args[0])}.backward()"))


@operator("accelerate", "every object is prepared", ACCELERATE)
def not_prepared(script: Script) -> Iterator[str]:
    for call in script.calls("accelerator.prepare"):
        statement = script.statement(call)
        names = [script.source(argument) for argument in call.args]
        for name in names:
            kept = ", ".join(other for other in names if other != name)
            if name != "model" and isinstance(statement, ast.Assign):
                yield script.swap((statement, f"{kept} = accelerator.prepare({kept})"))


@operator("accelerate", "clipping by Accelerate", ACCELERATE)
def own_clipping(script: Script) -> Iterator[str]:
    for call in script.calls("accelerator.clip_grad_norm_"):
        yield script.swap((call.func, "torch.nn.utils.clip_grad_norm_"))


@operator("accelerate", "every process waits", ACCELERATE)
def wait_on_one_process(script: Script) -> Iterator[str]:
    for statement in _statements(script, "accelerator.wait_for_everyone"):
        yield script.swap((statement, f"if accelerator.is_main_process:\n    {script.source(statement)}"))
