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
