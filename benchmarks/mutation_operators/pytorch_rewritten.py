"""The rules of "Modify a PyTorch Training Script" and "Tips and Pitfalls", broken in other words.

People do not delete an argument: they write the same mistake through a variable, a helper, a dictionary or an alias.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import FP16, PIPELINE, SHARDED, TENSOR, Script, keyword_of, operator
from mutation_operators.pytorch import P, T

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKPOINTING = "model-parallel-extended-features-pytorch-activation-checkpointing"
SAVING = "model-parallel-extended-features-pytorch-saving-loading-checkpoints"
TENSOR_PAGE = "model-parallel-extended-features-pytorch-tensor-parallelism-examples"


def _before(script: Script, node: ast.AST, line: str, *changes: tuple[ast.AST, str]) -> str:
    """`line` above the statement of `node`, and the changes made."""
    statement = script.statement(node)
    start = script.span(statement)[0]
    return script.swap(((start, start), line + "\n"), *changes)


def _reading_ranks(script: Script) -> list[ast.expr]:
    return [
        given.value
        for call in script.calls("DistributedSampler")
        if (given := keyword_of(call, "rank")) is not None and "dp_rank()" in ast.unparse(given.value)
    ]


@operator("torch", "set drop_last=True in DataLoader", P, PIPELINE)
def drop_last_out_of_a_dictionary(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "drop_last" and ast.unparse(value) == "True":
                    yield script.swap((value, "False"))
                    yield script.swap((key, '"pin_memory"'))


@operator("torch", "set drop_last=True in DataLoader", P, PIPELINE)
def drop_last_by_a_name(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "drop_last")
        if given is not None and ast.unparse(given.value) == "True":
            yield script.on_top("WHOLE_BATCHES = False", (given.value, "WHOLE_BATCHES"))


@operator("torch", "set drop_last=True in DataLoader", P, PIPELINE)
def loader_made_by_partial(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "drop_last")
        if given is not None and call.args and not any(keyword.arg is None for keyword in call.keywords):
            kept = [f"{k.arg}={script.source(k.value)}" for k in call.keywords if k is not given]
            made = f"functools.partial({script.source(call.func)}, {', '.join(kept)})({script.source(call.args[0])})"
            yield script.on_top("import functools", (call, made))


@operator("torch", "the batch size is divisible by the number of microbatches", T, PIPELINE)
def indivisible_batch_by_a_name(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "batch_size")
        if given is not None and isinstance(given.value, ast.Constant):
            yield script.on_top("BATCH = 2 * 16 + 1", (given.value, "BATCH"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_a_variable(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield _before(script, rank, "reader = smp.rank()", (rank, "reader"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_a_helper(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield script.on_top("\ndef process_number():\n    return smp.local_rank()\n", (rank, "process_number()"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_arithmetic(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield _before(script, rank, "number, count = smp.rank(), smp.size()", (rank, "number % count"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_getattr(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield script.swap((rank, 'getattr(smp, "rank")()'))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_torch_distributed(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield script.swap((rank, "torch.distributed.get_rank()"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_the_environment(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield script.on_top("import os", (rank, 'int(os.environ["OMPI_COMM_WORLD_RANK"])'))
        yield script.on_top("import os", (rank, 'int(os.environ.get("LOCAL_RANK", 0))'))


@operator("torch", "shards are counted by the data-parallel size", T, PIPELINE)
def shards_of_the_world_by_torch(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        given = keyword_of(call, "num_replicas")
        if given is not None and "dp_size()" in ast.unparse(given.value):
            yield script.swap((given.value, "torch.distributed.get_world_size()"))
            yield _before(script, call, "replicas = smp.size()", (given.value, "replicas"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_slices(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        if call.args and keyword_of(call, "rank") is not None:
            data = script.source(call.args[0])
            line = f"first = smp.rank()\nindices = list(range(first, len({data}), smp.size()))"
            yield _before(script, call, line, (call.args[0], f"torch.utils.data.Subset({data}, indices)"))
            yield _before(
                script,
                call,
                f"part = [x for i, x in enumerate({data}) if i % smp.size() == smp.rank()]",
                (call.args[0], "part"),
            )


@operator("torch", "random operations of the data pipeline are seeded by smp.dp_rank()", T, PIPELINE)
def seed_by_a_variable(script: Script) -> Iterator[str]:
    for call in script.calls("manual_seed", "random.seed", "set_seed"):
        if "dp_rank()" in ast.unparse(call) and call.args:
            changed = script.source(call.args[0]).replace("smp.rdp_rank()", "number").replace("smp.dp_rank()", "number")
            yield _before(script, call, "number = smp.rank()", (call.args[0], changed))


@operator("torch", "random operations of the data pipeline are seeded by smp.dp_rank()", T, PIPELINE)
def seed_of_numpy_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        statement = script.statement(call)
        source = script.source(statement)
        yield script.on_top("import numpy", (statement, f"{source}\nnumpy.random.seed(7 + smp.rank())"))


@operator("torch", "replace torch.Tensor.backward with DistributedModel.backward", P, PIPELINE)
def loss_backward_in_a_helper(script: Script) -> Iterator[str]:
    for call in script.calls("backward"):
        if len(call.args) == 1 and any(call in ast.walk(step) for step in script.steps()):
            helper = "\ndef propagate(value):\n    value.backward(retain_graph=True)\n"
            yield script.on_top(helper, (call, f"propagate({script.source(call.args[0])})"))


@operator("torch", "put the forward and backward logic in a step function", P, PIPELINE)
def forward_in_the_loop(script: Script) -> Iterator[str]:
    for call in script.calls("optimizer.step"):
        loops = [above for above in script.ancestors(call) if isinstance(above, ast.For)]
        steps = [step for step in script.steps() if "backward(" in ast.unparse(step)]
        if loops and steps and isinstance(loops[0].target, (ast.Tuple, ast.Name)):
            name = next((n.id for n in ast.walk(loops[0]) if isinstance(n, ast.Name) and n.id == "model"), None)
            first = next(iter(ast.walk(loops[0].target)))
            inputs = next((n.id for n in ast.walk(first) if isinstance(n, ast.Name)), None)
            if name and inputs:
                yield _before(script, call, f"extra = {name}({inputs})")


@operator("torch", "post-process what the step returns by reduce_mean and its like", P, PIPELINE)
def step_output_as_a_number(script: Script) -> Iterator[str]:
    for call in script.calls("reduce_mean"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and statement.value is call and isinstance(call.func, ast.Attribute):
            inner = script.source(call.func.value)
            target = script.source(statement.targets[0])
            for use in (f"total = float({target})", f"total = 0.5 * {target}", f'print(f"{{{target}:.3f}}")'):
                yield script.swap((statement, f"{target} = {inner}\n{use}"))


@operator("torch", "a tensor without batch dimension is named in non_split_inputs", T, PIPELINE)
def mask_without_batch(script: Script) -> Iterator[str]:
    for step in script.steps():
        if "backward(" not in ast.unparse(step) or step.args.kwarg or step.args.defaults:
            continue
        calls = [call for call in script.calls(step.name) if not call.keywords or call.args]
        if len(calls) == 1 and step.args.args:
            last = step.args.args[-1]
            for made in ("torch.tril(torch.ones(128, 128))", "torch.tensor(0.5)", "torch.arange(128)"):
                given = f", scale={made})"
                end = script.span(calls[0])[1]
                yield script.swap(((end - 1, end), given), ((script.span(last)[1],) * 2, ", scale"))


@operator("torch", "the weight update happens outside of smp.step", P, PIPELINE)
def scaled_update_inside_the_step(script: Script) -> Iterator[str]:
    for call in script.calls("backward"):
        step = next((s for s in script.steps() if call in ast.walk(s)), None)
        if step is not None and "scaler" in ast.unparse(step.args) and "optimizer" in script.text:
            spec = step.args.args[-1]
            calls = script.calls(step.name)
            if len(calls) == 1 and not step.args.defaults:
                end = script.span(calls[0])[1]
                statement = script.statement(call)
                yield script.swap(
                    ((end - 1, end), ", optimizer=optimizer)"),
                    ((script.span(spec)[1],) * 2, ", optimizer"),
                    (statement, script.source(statement) + "\nscaler.step(optimizer)"),
                )


@operator("torch", "return only the tensors that are needed", T, PIPELINE)
def hidden_states_asked_for(script: Script) -> Iterator[str]:
    for step in script.steps():
        for call in ast.walk(step):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "model" and keyword_of(call, "input_ids"):
                end = script.span(call)[1]
                yield script.swap(((end - 1, end), ", output_hidden_states=True)"))


@operator("torch", "PyTorch's native checkpointing is not compatible", CHECKPOINTING, PIPELINE)
def gradient_checkpointing_of_transformers(script: Script) -> Iterator[str]:
    if "from_config" in script.text or "from_pretrained" in script.text or "LMHeadModel(" in script.text:
        for call in script.calls("smp.DistributedModel"):
            if call.args and isinstance(call.args[0], ast.Name):
                yield _before(script, call, f"{call.args[0].id}.gradient_checkpointing_enable()")


@operator("torch", "PyTorch's native checkpointing is not compatible", CHECKPOINTING, PIPELINE)
def native_checkpointing_by_an_alias(script: Script) -> Iterator[str]:
    for step in script.steps():
        for call in ast.walk(step):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "model" and call.args and not call.keywords:
                arguments = ", ".join(script.source(a) for a in [call.func, *call.args])
                alias = "from torch.utils.checkpoint import checkpoint as remember"
                yield script.on_top(alias, (call, f"remember({arguments}, use_reentrant=False)"))


@operator("torch", "DistributedDataParallel is not supported", P, PIPELINE)
def torch_ddp_around(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        alias = "from torch.nn.parallel import DistributedDataParallel as DDP"
        yield script.on_top(alias, (call, f"DDP({script.source(call)}, device_ids=[smp.local_rank()])"))
        yield script.swap((call, f"torch.nn.DataParallel({script.source(call)})"))


@operator("torch", "torch.jit.ScriptModules are not supported", P, PIPELINE)
def traced_model(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        inner = script.source(call.args[0])
        yield _before(script, call, f"scripted = torch.jit.trace({inner}, torch.zeros(1))", (call.args[0], "scripted"))


@operator("torch", "smp.amp.GradScaler instead of torch's", P, PIPELINE)
def scaler_by_an_alias(script: Script) -> Iterator[str]:
    for call in script.calls("smp.amp.GradScaler"):
        yield script.on_top("from torch.cuda.amp import GradScaler", (call.func, "GradScaler"))
        yield script.swap((call, 'torch.amp.GradScaler("cuda")'))


@operator("torch", "restrict each process to its own device by set_device(smp.local_rank())", P, PIPELINE)
def one_device_for_all(script: Script) -> Iterator[str]:
    for call in script.calls("cuda.set_device"):
        if "smp.local_rank" in ast.unparse(call):
            yield script.swap((call.args[0], "0"))
            yield _before(script, call, "gpu = smp.dp_rank()", (call.args[0], "gpu"))


@operator("torch", "import and initialize the library with smp.init", P, PIPELINE)
def init_too_late(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        yield _before(script, call, 'print("rank", smp.rank())')


@operator("torch", "wrap the model with smp.DistributedModel", P, PIPELINE)
def wrapped_model_not_used(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "model" and call.args:
            yield script.swap((statement, f"wrapped = {script.source(call)}\nmodel = {script.source(call.args[0])}"))


@operator("torch", "one DistributedModel a script", "smd_model_parallel_pytorch", PIPELINE)
def second_model(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign):
            yield script.swap(
                (statement, f"{script.source(statement)}\nteacher = smp.DistributedModel(torch.nn.Linear(8, 8))")
            )


@operator("torch", "wrap the optimizer with smp.DistributedOptimizer", P, PIPELINE)
def wrapped_optimizer_not_used(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        statement = script.statement(call)
        same = bool(call.args) and ast.unparse(call.args[0]) == "optimizer"
        if isinstance(statement, ast.Assign) and same and ast.unparse(statement.targets[0]) == "optimizer":
            yield script.swap((statement, f"distributed = {script.source(call)}"))


@operator("torch", "the optimizer is created after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def optimizer_of_the_plain_model(script: Script) -> Iterator[str]:
    for wrap in script.calls("smp.DistributedModel"):
        statement = script.statement(wrap)
        if isinstance(wrap.args[0], ast.Name) and isinstance(statement, ast.Assign):
            plain, model = wrap.args[0].id, ast.unparse(statement.targets[0])
            for later in script.calls("parameters"):
                if later.lineno > wrap.lineno and ast.unparse(later.func) == f"{model}.parameters":
                    kept = "" if plain != model else f"unwrapped = {plain}\n"
                    source = "unwrapped" if kept else plain
                    if isinstance(script.parent(later), ast.Call):
                        yield script.swap(
                            (statement, kept + script.source(statement)), (later.func, f"{source}.parameters")
                        )


@operator("torch", "weights are loaded after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def pretrained_weights_before_wrapping(script: Script) -> Iterator[str]:
    for call in script.calls("from_config"):
        if call.args and isinstance(call.func, ast.Attribute) and "resume_from_checkpoint" not in script.text:
            yield script.swap((call, f'{script.source(call.func.value)}.from_pretrained("gpt2-xl")'))


@operator(
    "torch", "tensor parallelism is enabled where the model is created", TENSOR_PAGE, TENSOR, needs="tensor_parallel"
)
def tensor_parallelism_off(script: Script) -> Iterator[str]:
    for call in script.calls("smp.model_creation"):
        given = keyword_of(call, "tensor_parallelism")
        if given is not None:
            yield script.swap((given.value, "False"))


@operator("torch", "with tensor parallelism the seed is based on smp.dp_rank()", T, TENSOR, needs="tensor_parallel")
def one_seed_by_a_name(script: Script) -> Iterator[str]:
    for call in script.calls("torch.manual_seed"):
        if "dp_rank()" in ast.unparse(call):
            yield script.on_top("SEED = 1234", (call.args[0], "SEED"))


@operator("torch", "with tensor parallelism checkpoints are saved at rdp_rank 0", T, TENSOR, needs="tensor_parallel")
def save_after_leaving_by_dp_rank(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        saves = isinstance(node, ast.If) and "state_dict" in ast.unparse(node)
        if isinstance(node, ast.If) and saves and ast.unparse(node.test) == "smp.rdp_rank() == 0":
            yield script.swap((node.test, "not smp.dp_rank()"))
            body = "\n".join(script.source(s) for s in node.body)
            if isinstance(script.parent(node), ast.FunctionDef) and len(node.body) == 1:
                yield script.swap((node, f"if smp.dp_rank() != 0:\n    return\n{body}"))


@operator(
    "torch", "optimizer states are checkpointed partially with tensor parallelism", T, TENSOR, needs="tensor_parallel"
)
def full_checkpoint_with_optimizer(script: Script) -> Iterator[str]:
    for call in script.calls("smp.save_checkpoint"):
        given = keyword_of(call, "partial")
        if given is not None and keyword_of(call, "optimizer") is not None:
            yield script.swap((given.value, "False"))


@operator("torch", "parameters handed to the optimizer are unique", SAVING, TENSOR, needs="save")
def parameters_added_twice(script: Script) -> Iterator[str]:
    for call in script.calls("parameters"):
        outer = script.parent(call)
        if isinstance(outer, ast.Call) and outer.args[:1] == [call] and "tensor_parallel" in script.text:
            model = script.source(call.func.value)
            yield script.swap((call, f"list({model}.parameters()) + list({model}.module.parameters())"))


@operator(
    "torch",
    "tensor parallelism covers GPT-2, BERT, RoBERTa, GPT-J and GPT-Neo",
    "model-parallel-extended-features-pytorch-hugging-face",
    TENSOR,
    needs="tensor_parallel",
)
def family_without_support(script: Script) -> Iterator[str]:
    for name in ("GPT2LMHeadModel(", "GPT2LMHeadModel.from_config("):
        if name in script.text:
            yield script.text.replace("GPT2LMHeadModel", "BloomForCausalLM").replace("GPT2Config", "BloomConfig")
            break


@operator(
    "torch",
    "fp16 training sets up loss scaling",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def scheduler_by_a_name(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "optimizer"
            and isinstance(node.value, ast.Name)
            and node.value.id == "optimizer"
            and isinstance(script.parent(node), ast.Call)
        ):
            yield _before(script, node, "scheduled = optimizer", (node, "scheduled"))


@operator(
    "torch",
    "in fp16 gradients are clipped by clip_master_grads",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def clip_by_an_alias(script: Script) -> Iterator[str]:
    for call in script.calls("clip_master_grads"):
        clipped = f"clip(model.parameters(), max_norm={script.source(call.args[0])})"
        yield script.on_top("from torch.nn.utils import clip_grad_norm_ as clip", (call, clipped))


@operator("torch", "accumulated gradients need backward_passes_per_step", "smd_model_parallel_pytorch", SHARDED)
def one_backward_pass(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        given = keyword_of(call, "backward_passes_per_step")
        if given is not None:
            yield script.swap((given.value, "1"))


@operator(
    "torch",
    "sharded data parallelism clips gradients by itself",
    "model-parallel-extended-features-pytorch-sharded-data-parallelism",
    SHARDED,
)
def clip_without_a_condition(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and "sharded" in ast.unparse(node.test) and "clip" in ast.unparse(node.body[0]):
            yield script.swap((node.test, "True"))


@operator("torch", "download on a single process an instance", P, PIPELINE)
def download_without_a_rank(script: Script) -> Iterator[str]:
    for call in script.calls("MNIST", "CIFAR10"):
        given = keyword_of(call, "download")
        if given is not None and ast.unparse(given.value) == "False":
            yield script.swap((given.value, "True"))


@operator("torch", "the job passes --mp_parameters to the script", "model-parallel-sm-sdk", PIPELINE)
def strict_arguments_in_a_helper(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        assert isinstance(call.func, ast.Attribute)
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple) and not call.args:
            helper = "\ndef options_of(reader):\n    return reader.parse_args()\n"
            first = script.source(statement.targets[0].elts[0])
            yield script.on_top(helper, (statement, f"{first} = options_of({script.source(call.func.value)})"))


@operator(
    "torch",
    "activation checkpointing is asked for where the plan has it",
    "model-parallel-best-practices",
    {**PIPELINE, "activation_checkpointing": "each"},
)
def no_checkpointing(script: Script) -> Iterator[str]:
    for call in script.calls("smp.set_activation_checkpointing"):
        if len(script.calls("smp.set_activation_checkpointing")) == 1:
            yield script.without(script.statement(call))


@operator(
    "torch",
    "offloading needs activation checkpointing",
    "model-parallel-best-practices",
    {**PIPELINE, "offload_activations": True},
)
def offloading_without_checkpointing(script: Script) -> Iterator[str]:
    for call in script.calls("smp.set_activation_checkpointing"):
        if len(script.calls("smp.set_activation_checkpointing")) == 1:
            yield script.without(script.statement(call))
