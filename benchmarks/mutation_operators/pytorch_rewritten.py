"""The rules of "Modify a PyTorch Training Script" and "Tips and Pitfalls", broken in other words.

People do not delete an argument: they write the same mistake through a variable, a helper, a dictionary or an alias.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import PIPELINE, Script, keyword_of, operator
from mutation_operators.pytorch import P, T

if TYPE_CHECKING:
    from collections.abc import Iterator


def before(script: Script, node: ast.AST, line: str, *changes: tuple[ast.AST, str]) -> str:
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
        yield before(script, rank, "reader = smp.rank()", (rank, "reader"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_a_helper(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield script.on_top("\ndef process_number():\n    return smp.local_rank()\n", (rank, "process_number()"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_arithmetic(script: Script) -> Iterator[str]:
    for rank in _reading_ranks(script):
        yield before(script, rank, "number, count = smp.rank(), smp.size()", (rank, "number % count"))


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
            yield before(script, call, "replicas = smp.size()", (given.value, "replicas"))


@operator("torch", "a shard of the data is indexed by smp.dp_rank()", T, PIPELINE)
def shard_by_slices(script: Script) -> Iterator[str]:
    for call in script.calls("DistributedSampler"):
        if call.args and keyword_of(call, "rank") is not None:
            data = script.source(call.args[0])
            line = f"first = smp.rank()\nindices = list(range(first, len({data}), smp.size()))"
            yield before(script, call, line, (call.args[0], f"torch.utils.data.Subset({data}, indices)"))
            yield before(
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
            yield before(script, call, "number = smp.rank()", (call.args[0], changed))


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
                yield before(script, call, f"extra = {name}({inputs})")


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
