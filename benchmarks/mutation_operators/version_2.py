"""Operators for SMP v2: pages on the library's second version (V2), its release notes, and PyTorch's on FSDP."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import Script, keyword_of, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

V2 = "model-parallel-use-api-v2"
NO_SYNC = "torch.distributed.fsdp.FullyShardedDataParallel.no_sync"
TENSOR = {"tensor_parallel_degree": 2, "hybrid_shard_degree": 4}


def wrapped(call: ast.Call) -> ast.expr:
    """The module that a wrapper is given."""
    return call.args[0] if call.args else next(keyword.value for keyword in call.keywords if keyword.arg == "module")


@operator("v2", "tsm.init() comes before the library's other calls", V2, {"hybrid_shard_degree": 4})
def no_init(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.init"):
        yield script.without(script.statement(call))


@operator("v2", "tensor parallelism needs tsm.transform", V2, TENSOR, needs="transform(")
def no_transform(script: Script) -> Iterator[str]:
    for call in script.calls("transform"):
        if (call.args and "tsm" in ast.unparse(call.func)) or ast.unparse(call.func) == "transform":
            yield script.swap((call, script.source(wrapped(call))))


@operator("v2", "the model is transformed before FSDP", V2, TENSOR, needs="transform(")
def transform_after_sharding(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.transform"):
        statement = script.statement(call)
        block = script.block(statement)
        for later in block[block.index(statement) + 1 :] if statement in block else []:
            if (
                isinstance(later, ast.Assign)
                and isinstance(later.value, ast.Call)
                and ast.unparse(later.value.func)
                in (
                    "FSDP",
                    "FullyShardedDataParallel",
                )
            ):
                yield script.swap((statement, "pass"), (later, f"{script.source(later)}\n{script.source(statement)}"))


@operator("v2", "the model is wrapped by FSDP", V2, {"hybrid_shard_degree": 4})
def not_sharded(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        yield script.swap((call, script.source(wrapped(call))))


@operator("v2", "the optimizer is built after FSDP", V2, {"hybrid_shard_degree": 4})
def optimizer_before_sharding(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        statement = script.statement(call)
        block = script.block(statement)
        for later in block[block.index(statement) + 1 :] if statement in block else []:
            value = later.value if isinstance(later, ast.Assign) else None
            if isinstance(value, ast.Call) and ".parameters()" in ast.unparse(value):
                yield script.swap((later, "pass"), (statement, f"{script.source(later)}\n{script.source(statement)}"))


@operator("v2", "the names of version 1 do not exist in version 2", V2, {"hybrid_shard_degree": 4})
def names_of_version_1(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        made = f"smp.DistributedModel({script.source(wrapped(call))})"
        yield script.on_top("import smdistributed.modelparallel.torch as smp", (call, made))


@operator(
    "v2",
    "offloading needs offload_wrapper",
    "model-parallel-core-features-v2-pytorch-activation-offloading",
    {"sm_activation_offloading": True},
    needs="offload_wrapper(",
)
def no_offload_wrapper(script: Script) -> Iterator[str]:
    for call in script.calls("offload_wrapper"):
        yield script.swap((call, script.source(wrapped(call))))


@operator(
    "v2",
    "tensor parallelism with hybrid shard degree 1 needs nccl",
    "model-parallel-release-notes",
    {"tensor_parallel_degree": 2, "hybrid_shard_degree": 1},
    needs="transform(",
)
def collectives_of_smddp(script: Script) -> Iterator[str]:
    for call in script.calls("init_process_group"):
        if call.args and isinstance(call.args[0], ast.Constant):
            yield script.swap((call.args[0], '"smddp"'))


@operator(
    "v2",
    "the job passes --mp_parameters to the script",
    "distributed-model-parallel-v2-reference",
    {"hybrid_shard_degree": 4},
)
def strict_arguments(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        statement = script.statement(call)
        strict = f"{script.source(call.func.value)}.parse_args()"
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            yield script.swap((statement, f"{script.source(statement.targets[0].elts[0])} = {strict}"))
        elif isinstance(script.parent(call), ast.Subscript):
            yield script.swap((script.parent(call), strict))
        else:
            yield script.swap((call, strict))


@operator("v2", "tsm.init() comes before the library's other calls", V2, {"hybrid_shard_degree": 4})
def init_too_late(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.init"):
        statement = script.statement(call)
        source = script.source(statement)
        for wrap in script.calls("FSDP", "FullyShardedDataParallel", "tsm.transform"):
            later = script.statement(wrap)
            if script.block(later) is script.block(statement):
                yield script.swap((statement, "pass"), (later, f"{script.source(later)}\n{source}"))
                break


@operator("v2", "tensor parallelism needs tsm.transform", V2, TENSOR, needs="transform(")
def transformed_and_thrown_away(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.transform"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(wrapped(call), ast.Name):
            yield script.swap((statement, f"transformed = {script.source(call)}"))


@operator("v2", "the model is wrapped by FSDP", V2, {"hybrid_shard_degree": 4})
def wrapped_and_thrown_away(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(wrapped(call), ast.Name):
            yield script.swap((statement, f"sharded = {script.source(call)}"))


@operator("v2", "the optimizer is built after FSDP", V2, {"hybrid_shard_degree": 4})
def optimizer_of_the_plain_model(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign):
            inner = script.source(wrapped(call))
            made = f"early = torch.optim.AdamW({inner}.parameters(), lr=1e-4)"
            text = script.swap((statement, f"{made}\n{script.source(statement)}"))
            again = Script(text)
            for later in again.calls("AdamW", "Adam", "SGD"):
                if again.source(later).startswith("torch.optim") and "early" not in again.source(
                    again.statement(later)
                ):
                    yield again.swap((later, "early"))
                    break


@operator("v2", "DistributedDataParallel does not shard", V2, {"hybrid_shard_degree": 4})
def replicated_instead(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        if wrapped(call) is not None:
            yield script.swap((call, f"torch.nn.parallel.DistributedDataParallel({script.source(wrapped(call))})"))


@operator("v2", "the names of version 1 do not exist in version 2", V2, {"hybrid_shard_degree": 4})
def step_of_version_1(script: Script) -> Iterator[str]:
    yield script.on_top("from smdistributed.modelparallel import torch as smp")


@operator("v2", "parameters of version 1 are unknown to version 2", V2, {"hybrid_shard_degree": 4})
def microbatches(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.init"):
        if not call.args:
            yield script.swap((call, 'tsm.init({"microbatches": 4, "hybrid_shard_degree": 4})'))
            yield script.swap((call, 'tsm.init({"pipeline_parallel_degree": 2})'))


@operator("v2", "DeepSpeed is not part of version 2", "model-parallel-release-notes", {"hybrid_shard_degree": 4})
def deepspeed(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign):
            line = f"model, optimizer, _, _ = deepspeed.initialize(model={script.source(wrapped(call))})"
            text = script.swap((statement, line))
            yield text.replace("import torch\n", "import deepspeed\nimport torch\n", 1)


@operator(
    "v2",
    "offloading needs activation checkpointing",
    "model-parallel-core-features-v2-pytorch-activation-offloading",
    {"sm_activation_offloading": True},
    needs="offload_wrapper(",
)
def no_checkpointing(script: Script) -> Iterator[str]:
    for call in script.calls("apply_activation_checkpointing"):
        yield script.without(script.statement(call)).replace("checkpoint_wrapper", "offload_wrapper")


def backward_passes(script: Script) -> Iterator[tuple[ast.stmt, str]]:
    """Statements with a backward pass, and the name of the model that runs in the same block."""
    for call in script.calls("backward"):
        statement = script.statement(call)
        inside = [part for near in script.block(statement) for part in ast.walk(near) if isinstance(part, ast.Call)]
        named = [part.func.id for part in inside if isinstance(part.func, ast.Name) and "model" in part.func.id]
        if named:
            yield statement, named[0]


@operator("v2", "FSDP keeps unsharded gradients within no_sync", NO_SYNC, {"hybrid_shard_degree": 4})
def not_reduced(script: Script) -> Iterator[str]:
    for statement, model in backward_passes(script):
        yield script.swap((statement, f"with {model}.no_sync():\n    {script.source(statement)}"))


@operator("v2", "FSDP keeps unsharded gradients within no_sync", NO_SYNC, {"hybrid_shard_degree": 4})
def not_reduced_by_another_name(script: Script) -> Iterator[str]:
    for statement, model in backward_passes(script):
        yield script.swap((statement, f"waiting = {model}.no_sync\nwith waiting():\n    {script.source(statement)}"))


@operator(
    "v2",
    "frozen parameters are wrapped apart from trained ones",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    {"hybrid_shard_degree": 4},
    needs="use_orig_params=True",
)
def adapters_within_blocks(script: Script) -> Iterator[str]:
    for call in script.calls("FSDP", "FullyShardedDataParallel"):
        statement, model = script.statement(call), wrapped(call)
        if isinstance(model, ast.Name) and keyword_of(call, "auto_wrap_policy") and keyword_of(call, "use_orig_params"):
            made = f"{model.id} = get_peft_model({model.id}, LoraConfig(r=8))"
            change = (statement, f"{made}\n{script.source(statement)}")
            yield script.on_top("from peft import LoraConfig, get_peft_model", change)
