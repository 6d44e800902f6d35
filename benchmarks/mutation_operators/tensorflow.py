"""Operators for SMP v1 with TensorFlow: page "Modify a TensorFlow Training Script" (F)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import PIPELINE, Script, keyword_of, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

F = "model-parallel-customize-training-script-tf"


@operator("tensorflow", "import and initialize the library with smp.init", F, PIPELINE)
def no_init(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        yield script.without(script.statement(call))


@operator("tensorflow", "set drop_remainder=True in Dataset.batch", F, PIPELINE)
def no_drop_remainder(script: Script) -> Iterator[str]:
    for call in script.calls("batch"):
        given = keyword_of(call, "drop_remainder")
        if given is not None:
            yield script.swap((call.args[0], script.source(call.args[0])), (_argument(script, call, given), ""))


def _argument(script: Script, call: ast.Call, given: ast.keyword) -> tuple[int, int]:
    start = script.span(call.args[-1])[1]
    return start, script.span(given)[1]


@operator("tensorflow", "seed random operations of the data pipeline with smp.dp_rank()", F, PIPELINE)
def seed_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("shuffle"):
        given = keyword_of(call, "seed")
        if given is not None and "dp_rank" in ast.unparse(given):
            yield script.swap((given.value, "smp.rank()"))


@operator("tensorflow", "seed random operations of the data pipeline with smp.dp_rank()", F, PIPELINE)
def unseeded_shuffle(script: Script) -> Iterator[str]:
    for call in script.calls("shuffle"):
        given = keyword_of(call, "seed")
        if given is not None and "dp_rank" in ast.unparse(given) and call.args:
            yield script.swap((_argument(script, call, given), ""))


@operator("tensorflow", "a shard is indexed by smp.dp_rank()", "model-parallel-customize-tips-pitfalls", PIPELINE)
def shard_by_global_rank(script: Script) -> Iterator[str]:
    for call in script.calls("shard"):
        if len(call.args) == 2 and "dp_rank" in ast.unparse(call.args[1]):
            yield script.swap((call.args[0], "smp.size()"), (call.args[1], "smp.rank()"))


@operator(
    "tensorflow",
    "input files are ordered the same way on all ranks",
    "distributed-troubleshooting-model-parallel",
    PIPELINE,
)
def unsorted_files(script: Script) -> Iterator[str]:
    for call in script.calls("sorted"):
        inner = ast.unparse(call.args[0])
        if "glob" in inner or "listdir" in inner:
            yield script.swap((call, f"list({script.source(call.args[0])})"))


@operator("tensorflow", "put the forward and backward logic in a step function", F, PIPELINE)
def no_step_decorator(script: Script) -> Iterator[str]:
    for function in script.steps():
        decorator = next(d for d in function.decorator_list if "smp.step" in ast.unparse(d))
        start, end = script.span(decorator)
        yield script.swap(((start - 1, end), "# no step"))


@operator("tensorflow", "post-process what the step returns", F, PIPELINE)
def no_reduction(script: Script) -> Iterator[str]:
    for call in script.calls("reduce_mean", "accumulate", "merge"):
        if isinstance(call.func, ast.Attribute) and not call.args and not _goes_nowhere(script, call):
            yield script.swap((call, script.source(call.func.value)))


def _goes_nowhere(script: Script, call: ast.Call) -> bool:
    """Whether it is returned by a function whose result no caller takes: then it does no harm."""
    statement = script.statement(call)
    function = next((above for above in script.ancestors(call) if isinstance(above, ast.FunctionDef)), None)
    if not isinstance(statement, ast.Return) or function is None:
        return False
    return all(isinstance(script.parent(other), ast.Expr) for other in script.calls(function.name))


@operator("tensorflow", "inherit from smp.DistributedModel", F, PIPELINE)
def keras_model(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if ast.unparse(base) == "smp.DistributedModel":
                    yield script.swap((base, "tf.keras.Model"))


@operator(
    "tensorflow",
    "an argument without batch dimension is named in non_split_inputs",
    "model-parallel-customize-tips-pitfalls",
    PIPELINE,
)
def split_what_has_no_batch(script: Script) -> Iterator[str]:
    for function in script.steps():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and keyword_of(decorator, "non_split_inputs") is not None:
                yield script.swap((decorator, "smp.step"))


@operator("tensorflow", "set drop_remainder=True in Dataset.batch", F, PIPELINE)
def remainder_kept_by_a_name(script: Script) -> Iterator[str]:
    for call in script.calls("batch"):
        given = keyword_of(call, "drop_remainder")
        if given is not None:
            yield script.swap((given.value, "False"))
            yield script.on_top("KEEP_ALL = True", (given.value, "not KEEP_ALL"))


@operator("tensorflow", "the batch size is divisible by the number of microbatches", F, PIPELINE)
def indivisible_batch(script: Script) -> Iterator[str]:
    for call in script.calls("batch"):
        if keyword_of(call, "drop_remainder") is not None and isinstance(call.args[0], ast.Constant):
            yield script.swap((call.args[0], "33"))
            yield script.on_top("BATCH = 33", (call.args[0], "BATCH"))


@operator("tensorflow", "a shard is indexed by smp.dp_rank()", "model-parallel-customize-tips-pitfalls", PIPELINE)
def shard_in_other_words(script: Script) -> Iterator[str]:
    for call in script.calls("shard"):
        if len(call.args) == 2 and "dp_rank" in ast.unparse(call.args[1]):
            yield script.swap((call.args[1], "smp.mp_rank()"))
            yield script.swap((call.args[1], "smp.local_rank()"))
            yield script.on_top("\ndef number():\n    return smp.rank()\n", (call.args[1], "number()"))


@operator("tensorflow", "seed random operations of the data pipeline with smp.dp_rank()", F, PIPELINE)
def one_seed_for_all(script: Script) -> Iterator[str]:
    for call in script.calls("shuffle"):
        given = keyword_of(call, "seed")
        if given is not None and "dp_rank" in ast.unparse(given) and "shard(" not in script.text:
            yield script.swap((given.value, "1234"))


@operator("tensorflow", "update the weights outside of the step function", F, PIPELINE)
def update_inside_the_step(script: Script) -> Iterator[str]:
    for function in script.steps():
        for returned in ast.walk(function):
            if isinstance(returned, ast.Return) and "optimizer" in script.text:
                name = "self.optimizer" if "self.optimizer" in script.text else "optimizer"
                line = f"{name}.apply_gradients(zip(grads, []))"
                yield script.swap((returned, f"grads = []\n{line}\n{script.source(returned)}"))


@operator("tensorflow", "post-process what the step returns", F, PIPELINE)
def step_output_as_a_number(script: Script) -> Iterator[str]:
    for call in script.calls("reduce_mean"):
        if isinstance(call.func, ast.Attribute) and not call.args and isinstance(script.parent(call), ast.Return):
            yield script.swap((call, f"float({script.source(call.func.value)})"))
            yield script.swap((call, f"tf.reduce_mean({script.source(call.func.value)})"))


@operator("tensorflow", "import and initialize the library with smp.init", F, PIPELINE)
def init_too_late(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        statement = script.statement(call)
        yield script.swap((statement, f"print(smp.rank())\n{script.source(statement)}"))


@operator("tensorflow", "the job passes --mp_parameters to the script", F, PIPELINE)
def strict_arguments(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        statement = script.statement(call)
        strict = f"{script.source(call.func.value)}.parse_args()"
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            yield script.swap((statement, f"{script.source(statement.targets[0].elts[0])} = {strict}"))


@operator("tensorflow", "return only the tensors that are needed", F, PIPELINE)
def unused_outputs(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any("DistributedModel" in ast.unparse(base) for base in node.bases):
            for method in node.body:
                returns = [part for part in ast.walk(method) if isinstance(part, ast.Return)]
                if isinstance(method, ast.FunctionDef) and method.name == "call" and len(returns) == 1:
                    for call in script.calls("model"):
                        statement = script.statement(call)
                        if isinstance(statement, ast.Assign) and statement.value is call:
                            value = returns[0].value
                            target = script.source(statement.targets[0])
                            yield script.swap(
                                (value, f"{script.source(value)}, {method.args.args[1].arg}"),
                                (call, f"{script.source(call)}[0]"),
                            )
                            yield script.swap(
                                (value, f"{script.source(value)}, {method.args.args[1].arg}"),
                                (statement.targets[0], f"{target}, _"),
                            )


@operator("tensorflow", "seed random operations of the data pipeline with smp.dp_rank()", F, PIPELINE)
def global_seed_by_rank(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        statement = script.statement(call)
        yield script.swap((statement, f"{script.source(statement)}\ntf.random.set_seed(7 + smp.rank())"))
