"""Operators for SMP v1 with PyTorch: pages "Modify a PyTorch Training Script" (P) and "Tips and Pitfalls" (T)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import FP16, PIPELINE, SHARDED, TENSOR, Script, keyword_of, operator

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


@operator("torch", "download on a single process an instance", P, PIPELINE)
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
        if given is not None:
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
