"""Operators for SMP v1 with PyTorch: pages "Modify a PyTorch Training Script" (P) and "Tips and Pitfalls" (T)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import PIPELINE, TENSOR, Script, keyword_of, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

P = "model-parallel-customize-training-script-pt"
T = "model-parallel-customize-tips-pitfalls"


@operator("torch", "import and initialize the library with smp.init", P, PIPELINE)
def no_init(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        yield script.without(script.statement(call))


@operator("torch", "restrict each process to its own device by set_device(smp.local_rank())", P, PIPELINE)
def no_set_device(script: Script) -> Iterator[str]:
    for call in script.calls("cuda.set_device"):
        if "smp.local_rank" in ast.unparse(call):
            yield script.without(script.statement(call))


@operator("torch", "restrict each process to its own device by set_device(smp.local_rank())", P, PIPELINE)
def set_device_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("cuda.set_device"):
        if "smp.local_rank" in ast.unparse(call):
            yield script.swap((call, script.source(call).replace("smp.local_rank", "smp.rank")))


@operator("torch", "wrap the model with smp.DistributedModel", P, PIPELINE)
def model_not_wrapped(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        if call.args:
            yield script.swap((call, script.source(call.args[0])))


@operator("torch", "one DistributedModel a script", "smd_model_parallel_pytorch", PIPELINE)
def model_wrapped_twice(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        yield script.swap((call, f"smp.DistributedModel({script.source(call)})"))


@operator("torch", "wrap the optimizer with smp.DistributedOptimizer", P, PIPELINE)
def optimizer_not_wrapped(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        if call.args:
            yield script.swap((call, script.source(call.args[0])))


@operator("torch", "the optimizer is created after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def optimizer_before_wrapping(script: Script) -> Iterator[str]:
    for wrap in script.calls("smp.DistributedModel"):
        statement = script.statement(wrap)
        block = script.block(statement)
        if not isinstance(statement, ast.Assign) or statement not in block or not isinstance(wrap.args[0], ast.Name):
            continue
        model = ast.unparse(statement.targets[0])
        for later in block[block.index(statement) + 1 :]:
            value = later.value if isinstance(later, ast.Assign) else None
            if isinstance(value, ast.Call) and f"{model}.parameters()" in ast.unparse(value):
                yield script.swap((statement, "pass"), (later, f"{script.source(later)}\n{script.source(statement)}"))
                break


@operator("torch", "put the forward and backward logic in a step function", P, PIPELINE)
def no_step_decorator(script: Script) -> Iterator[str]:
    for function in script.steps():
        if "backward(" in ast.unparse(function):
            yield _undecorated(script, function)


@operator("torch", "an evaluation step is a step function too", P, PIPELINE)
def no_step_decorator_for_evaluation(script: Script) -> Iterator[str]:
    for function in script.steps():
        if "backward(" not in ast.unparse(function):
            yield _undecorated(script, function)


def _undecorated(script: Script, function: ast.FunctionDef) -> str:
    decorator = next(d for d in function.decorator_list if "smp.step" in ast.unparse(d))
    start, end = script.span(decorator)
    return script.swap(((start - 1, end), "# no step"))


@operator("torch", "replace torch.Tensor.backward with DistributedModel.backward", P, PIPELINE)
def loss_backward(script: Script) -> Iterator[str]:
    for call in script.calls("backward"):
        if len(call.args) == 1 and any(call in ast.walk(step) for step in script.steps()):
            yield script.swap((call, f"({script.source(call.args[0])}).backward()"))


@operator("torch", "replace torch.autograd.backward with DistributedModel.backward", P, PIPELINE)
def autograd_backward(script: Script) -> Iterator[str]:
    for call in script.calls("backward"):
        if len(call.args) == 1 and any(call in ast.walk(step) for step in script.steps()):
            yield script.swap((call, f"torch.autograd.backward({script.source(call.args[0])})"))


@operator("torch", "post-process what the step returns by reduce_mean and its like", P, PIPELINE)
def no_reduction(script: Script) -> Iterator[str]:
    for call in script.calls("reduce_mean"):
        assert isinstance(call.func, ast.Attribute)
        statement = script.statement(call)
        name = (
            statement.targets[0].id
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            else ""
        )
        used_as_tensor = any(f"{name}.item(" in line or f"float({name}" in line for line in script.text.splitlines())
        if (name and used_as_tensor) or isinstance(script.parent(call), ast.Attribute):
            yield script.swap((call, script.source(call.func.value)))


@operator("torch", "the weight update happens outside of smp.step", P, PIPELINE)
def update_inside_the_step(script: Script) -> Iterator[str]:
    for call in script.calls("backward"):
        step = next((s for s in script.steps() if call in ast.walk(s)), None)
        if step is None:
            continue
        names = {a.arg for a in step.args.args} | {
            t.id for s in script.tree.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
        }
        if "optimizer" in names:
            statement = script.statement(call)
            yield script.swap((statement, script.source(statement) + "\noptimizer.step()"))


@operator("torch", "set drop_last=True in DataLoader", P, PIPELINE)
def no_drop_last(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "drop_last")
        if given is not None and ast.unparse(given.value) == "True":
            yield script.without_argument(call, given)


@operator("torch", "set drop_last=True in DataLoader", P, PIPELINE)
def drop_last_off(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "drop_last")
        if given is not None and ast.unparse(given.value) == "True":
            yield script.swap((given.value, "False"))


@operator("torch", "the batch size is divisible by the number of microbatches", T, PIPELINE)
def indivisible_batch(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "batch_size")
        if given is not None and isinstance(given.value, ast.Constant):
            yield script.swap((given.value, str(given.value.value + 1)))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        given = keyword_of(call, "rank")
        if given is not None and "dp_rank()" in ast.unparse(given.value):
            yield script.swap((given.value, "smp.rank()"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_local_rank(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        given = keyword_of(call, "rank")
        if given is not None and "dp_rank()" in ast.unparse(given.value):
            yield script.swap((given.value, "smp.local_rank()"))


@operator("torch", "shards are counted by the data-parallel size", T, PIPELINE)
def shards_of_the_world(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        given = keyword_of(call, "num_replicas")
        if given is not None and "dp_size()" in ast.unparse(given.value):
            yield script.swap((given.value, "smp.size()"))


@operator("torch", "a sampler without ranks shards over all processes", T, PIPELINE)
def shard_by_default(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        kept = [script.source(a) for a in call.args]
        kept += [f"{k.arg}={script.source(k.value)}" for k in call.keywords if k.arg not in ("rank", "num_replicas")]
        if len(kept) < len(call.args) + len(call.keywords):
            yield script.swap((call, f"{script.source(call.func)}({', '.join(kept)})"))


@operator("torch", "random operations of the data pipeline are seeded by smp.dp_rank()", T, PIPELINE)
def seed_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("manual_seed", "random.seed"):
        if "dp_rank()" in ast.unparse(call):
            yield script.swap(
                (
                    call,
                    script.source(call).replace("smp.rdp_rank()", "smp.rank()").replace("smp.dp_rank()", "smp.rank()"),
                )
            )


@operator("torch", "with tensor parallelism the seed is based on smp.dp_rank()", T, TENSOR, needs="tensor_parallel")
def one_seed(script: Script) -> Iterator[str]:
    for call in script.calls("torch.manual_seed"):
        if "dp_rank()" in ast.unparse(call):
            yield script.swap((call, "torch.manual_seed(1234)"))


@operator("torch", "a tensor without batch dimension is named in non_split_inputs", T, PIPELINE)
def split_what_has_no_batch(script: Script) -> Iterator[str]:
    for function in script.steps():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and keyword_of(decorator, "non_split_inputs") is not None:
                yield script.swap((decorator, "smp.step"))


@operator(
    "torch",
    "modules that share a parameter are placed together",
    T,
    {**PIPELINE, "auto_partition": False, "default_partition": 0},
)
def tie_across_partitions(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.With) and "smp.partition(" in ast.unparse(node.items[0]):
            for tie in node.body:
                if isinstance(tie, ast.Assign) and ast.unparse(tie.targets[0]).endswith(".weight"):
                    target = ast.unparse(tie.targets[0])[: -len(".weight")]
                    made = next(
                        (s for s in node.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == target),
                        None,
                    )
                    if made is not None:
                        other = 0 if "partition(1)" in ast.unparse(node.items[0]) else 1
                        moved = f"with smp.partition({other}):\n    {script.source(made)}\n    {script.source(tie)}"
                        # Out of its block: the statement after the block's last.
                        text = script.swap((made, "pass"), (tie, "pass"), (node.body[-1], script.source(node.body[-1])))
                        again = Script(text)
                        block = next(
                            n for n in ast.walk(again.tree) if isinstance(n, ast.With) and n.lineno == node.lineno
                        )
                        yield again.swap((block, again.source(block) + "\n" + moved))


@operator(
    "torch",
    "PyTorch's native checkpointing is not compatible",
    "model-parallel-extended-features-pytorch-activation-checkpointing",
    PIPELINE,
)
def native_checkpointing(script: Script) -> Iterator[str]:
    name = "smdistributed.modelparallel.torch.patches.checkpoint"
    if name in script.text:
        yield script.text.replace(name, "torch.utils.checkpoint")
    for step in script.steps():
        for call in ast.walk(step):
            if (
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == step.args.args[0].arg
                and call.args
                and not call.keywords
            ):
                arguments = ", ".join(script.source(a) for a in [call.func, *call.args])
                yield script.swap((call, f"torch.utils.checkpoint.checkpoint({arguments})")).replace(
                    "import torch\n", "import torch\nimport torch.utils.checkpoint\n", 1
                )
                break


@operator(
    "torch",
    "activation checkpointing comes after DistributedModel",
    "model-parallel-extended-features-pytorch-activation-checkpointing",
    PIPELINE,
)
def checkpointing_before_wrapping(script: Script) -> Iterator[str]:
    for wrap in script.calls("smp.DistributedModel"):
        statement = script.statement(wrap)
        block = script.block(statement)
        for later in block[block.index(statement) + 1 :] if statement in block else []:
            if isinstance(later, ast.Expr) and "smp.set_activation_checkpointing(" in ast.unparse(later):
                text = script.source(later).replace(".module", "")
                yield script.swap((later, "pass"), (statement, f"{text}\n{script.source(statement)}"))
                break
