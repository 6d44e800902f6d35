"""Operators for SMP v2: pages on the library's second version (V2) and its release notes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import Script, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

V2 = "model-parallel-use-api-v2"
TENSOR = {"tensor_parallel_degree": 2, "hybrid_shard_degree": 4}


@operator("v2", "tsm.init() comes before the library's other calls", V2, {"hybrid_shard_degree": 4})
def no_init(script: Script) -> Iterator[str]:
    for call in script.calls("tsm.init"):
        yield script.without(script.statement(call))


@operator("v2", "tensor parallelism needs tsm.transform", V2, TENSOR, needs="transform(")
def no_transform(script: Script) -> Iterator[str]:
    for call in script.calls("transform"):
        if (call.args and "tsm" in ast.unparse(call.func)) or ast.unparse(call.func) == "transform":
            yield script.swap((call, script.source(call.args[0])))


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
        yield script.swap((call, script.source(call.args[0])))


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
        text = script.swap((call, f"smp.DistributedModel({script.source(call.args[0])})"))
        yield text.replace("import torch\n", "import torch\nimport smdistributed.modelparallel.torch as smp\n", 1)


@operator(
    "v2",
    "offloading needs offload_wrapper",
    "model-parallel-core-features-v2-pytorch-activation-offloading",
    {"sm_activation_offloading": True},
    needs="offload_wrapper(",
)
def no_offload_wrapper(script: Script) -> Iterator[str]:
    for call in script.calls("offload_wrapper"):
        yield script.swap((call, script.source(call.args[0])))


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
