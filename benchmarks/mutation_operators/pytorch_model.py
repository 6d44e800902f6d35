"""Operators for SMP v1 with PyTorch: what concerns the model, its precision, its parallelism and its checkpoints."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import FP16, PIPELINE, SHARDED, TENSOR, Script, keyword_of, operator
from mutation_operators.pytorch import P, T

if TYPE_CHECKING:
    from collections.abc import Iterator


@operator("torch", "DistributedDataParallel is not supported", P, PIPELINE)
def torch_ddp(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        inner = script.source(call.args[0])
        yield script.swap((call.args[0], f"torch.nn.parallel.DistributedDataParallel({inner})"))


@operator("torch", "torch.jit.ScriptModules are not supported", P, PIPELINE)
def scripted_model(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        yield script.swap((call.args[0], f"torch.jit.script({script.source(call.args[0])})"))


@operator("torch", "apex.amp is not supported", P, PIPELINE)
def apex_amp(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            started = f"model, {name} = apex.amp.initialize(model, {name})"
            yield script.swap((statement, f"{script.source(statement)}\nimport apex.amp\n{started}"))


@operator("torch", "smp.amp.GradScaler instead of torch's", P, PIPELINE)
def torch_grad_scaler(script: Script) -> Iterator[str]:
    for call in script.calls("smp.amp.GradScaler"):
        yield script.swap((call.func, "torch.cuda.amp.GradScaler"))


@operator(
    "torch", "super().forward is not supported inside forward", "distributed-troubleshooting-model-parallel", PIPELINE
)
def super_forward(script: Script) -> Iterator[str]:
    if "super()._orig_forward" in script.text:
        yield script.text.replace("super()._orig_forward", "super().forward")


@operator("torch", "the job passes --mp_parameters to the script", "model-parallel-sm-sdk", PIPELINE)
def strict_arguments(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        assert isinstance(call.func, ast.Attribute)
        strict = f"{script.source(call.func.value)}.parse_args({', '.join(script.source(a) for a in call.args)})"
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            yield script.swap((statement, f"{script.source(statement.targets[0].elts[0])} = {strict}"))
        elif isinstance(script.parent(call), ast.Subscript):
            yield script.swap((script.parent(call), strict))
        else:
            yield script.swap((call, strict))


@operator("torch", "download on a single process per instance", P, PIPELINE)
def download_everywhere(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.If)
            and "smp.local_rank()" in ast.unparse(node.test)
            and "download=True" in ast.unparse(node)
        ):
            yield script.swap((node.test, "True"))


@operator(
    "torch",
    "fp16 models are created by smp.model_creation(dtype=torch.float16)",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="dtype=",
)
def no_half_creation(script: Script) -> Iterator[str]:
    for call in script.calls("smp.model_creation"):
        given = keyword_of(call, "dtype")
        if given is not None and "bfloat16" not in script.source(given.value):
            yield script.without_argument(call, given)


@operator(
    "torch",
    "fp16 training sets up loss scaling",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def no_loss_scaling(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        if call.keywords:
            yield script.swap((call, f"smp.DistributedOptimizer({script.source(call.args[0])})"))


@operator(
    "torch",
    "in fp16 a schedule gets optimizer.optimizer",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def schedule_of_the_wrapper(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "optimizer"
            and isinstance(node.value, ast.Name)
            and node.value.id.startswith("opt")
        ) and isinstance(script.parent(node), ast.Call):
            yield script.swap((node, node.value.id))


@operator(
    "torch",
    "in fp16 gradients are clipped by clip_master_grads",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def clip_half_gradients(script: Script) -> Iterator[str]:
    for call in script.calls("clip_master_grads"):
        yield script.swap((call, f"torch.nn.utils.clip_grad_norm_(model.parameters(), {script.source(call.args[0])})"))


@operator(
    "torch",
    "tensor parallelism is enabled where the model is created",
    "model-parallel-extended-features-pytorch-tensor-parallelism-examples",
    TENSOR,
    needs="tensor_parallel",
)
def no_tensor_parallelism(script: Script) -> Iterator[str]:
    for call in script.calls("smp.model_creation", "smp.tensor_parallelism"):
        item = script.parent(call)
        if isinstance(item, ast.withitem):
            yield script.swap((call, "contextlib.nullcontext()")).replace(
                "import torch\n", "import contextlib\nimport torch\n", 1
            )


@operator("torch", "weights are loaded after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def weights_before_wrapping(script: Script) -> Iterator[str]:
    for wrap in script.calls("smp.DistributedModel"):
        statement = script.statement(wrap)
        if isinstance(wrap.args[0], ast.Name):
            load = f'{wrap.args[0].id}.load_state_dict(torch.load("weights.pt"))'
            yield script.swap((statement, f"{load}\n{script.source(statement)}"))


@operator("torch", "with tensor parallelism checkpoints are saved at rdp_rank 0", T, TENSOR, needs="tensor_parallel")
def save_at_dp_rank(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.If)
            and "smp.rdp_rank() == 0" in ast.unparse(node.test)
            and "state_dict" in ast.unparse(node) + "smp.save"
        ):
            yield script.swap((node.test, ast.unparse(node.test).replace("rdp_rank", "dp_rank")))


@operator(
    "torch",
    "all ranks with rdp_rank 0 call state_dict",
    "distributed-troubleshooting-model-parallel",
    TENSOR,
    needs="tensor_parallel",
)
def save_at_rank_zero(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.If)
            and "smp.rdp_rank() == 0" in ast.unparse(node.test)
            and "state_dict(" in ast.unparse(node)
        ):
            yield script.swap((node.test, ast.unparse(node.test).replace("rdp_rank", "rank")))


@operator(
    "torch", "optimizer states are checkpointed partially with tensor parallelism", T, TENSOR, needs="tensor_parallel"
)
def full_optimizer_state(script: Script) -> Iterator[str]:
    for call in script.calls("local_state_dict"):
        assert isinstance(call.func, ast.Attribute)
        if "opt" in ast.unparse(call.func.value):
            yield script.swap((call, f"{script.source(call.func.value)}.state_dict()"))


@operator(
    "torch",
    "parameters handed to the optimizer are unique",
    "model-parallel-extended-features-pytorch-saving-loading-checkpoints",
    TENSOR,
    needs="save",
)
def duplicated_parameters(script: Script) -> Iterator[str]:
    for call in script.calls("parameters"):
        outer = script.parent(call)
        if (
            isinstance(outer, ast.Call)
            and "smp" not in ast.unparse(outer.func)
            and outer.args
            and outer.args[0] is call
            and "tensor_parallel" in script.text
        ):
            model = script.source(call.func.value)
            yield script.swap((call, f"[p for m in {model}.modules() for p in m.parameters()]"))


@operator("torch", "mp_rank is not the pipeline rank with tensor parallelism", T, TENSOR, needs="tensor_parallel")
def model_group_for_pipeline_group(script: Script) -> Iterator[str]:
    for call in script.calls("smp.pp_rank", "smp.pp_size"):
        if any(isinstance(above, ast.JoinedStr | ast.Assert) for above in script.ancestors(call)):
            continue  # a message, or a statement that fails at once
        yield script.swap((call.func, script.source(call.func).replace("pp_", "mp_")))


@operator(
    "torch",
    "sharded data parallelism clips gradients by itself",
    "model-parallel-extended-features-pytorch-sharded-data-parallelism",
    SHARDED,
)
def clip_twice(script: Script) -> Iterator[str]:
    for call in script.calls("optimizer.step"):
        statement = script.statement(call)
        if "sharded" in script.text and "clip" not in script.text:
            yield script.swap(
                (statement, f"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n{script.source(statement)}")
            )


@operator("torch", "accumulated gradients need backward_passes_per_step", "smd_model_parallel_pytorch", SHARDED)
def no_backward_passes(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        given = keyword_of(call, "backward_passes_per_step")
        if given is not None:
            yield script.without_argument(call, given)
