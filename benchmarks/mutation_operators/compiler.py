"""Operators for Training Compiler: pages "Best Practices and Considerations" (C) and "PyTorch" (CT)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import Script, keyword_of, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

C = "training-compiler-tips-pitfalls"
CT = "training-compiler-pytorch-models"


@operator("compiler", "padding='max_length', a static shape", C)
def pad_to_the_longest(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.keyword) and node.arg == "padding" and ast.unparse(node.value) == "'max_length'":
            yield script.swap((node.value, '"longest"'))
            yield script.swap((node.value, "True"))


@operator("compiler", "avoid explicit evaluations such as item()", C)
def item_every_step(script: Script) -> Iterator[str]:
    for call in _updates(script):
        statement = script.statement(call)
        yield script.swap((statement, f"{script.source(statement)}\ntotal = loss.item()"))


@operator("compiler", "avoid logging tensors", C)
def print_every_step(script: Script) -> Iterator[str]:
    for call in _updates(script):
        statement = script.statement(call)
        yield script.swap((statement, f"{script.source(statement)}\nprint(loss)"))


def _updates(script: Script) -> list[ast.Call]:
    """Where the loop updates the model, so that what follows runs every step."""
    return [
        call
        for call in script.calls("optimizer_step", "optimizer.step", "mark_step")
        if any(
            isinstance(above, ast.For) and "loss.backward(" in ast.unparse(above) for above in script.ancestors(call)
        )
    ][:1]


@operator("compiler", "XLA devices instead of CUDA", C)
def cuda_device(script: Script) -> Iterator[str]:
    for call in script.calls("xm.xla_device"):
        yield script.swap((call, 'torch.device("cuda")'))


@operator("compiler", "XLA devices instead of CUDA", C)
def cuda_tensors(script: Script) -> Iterator[str]:
    for call in script.calls("to"):
        if len(call.args) == 1 and ast.unparse(call.args[0]) == "device" and isinstance(call.func, ast.Attribute):
            yield script.swap((call, f"{script.source(call.func.value)}.cuda()"))


@operator("compiler", "mark_step after each model update", "training-compiler-troubleshooting")
def no_mark_step(script: Script) -> Iterator[str]:
    for call in script.calls("xm.mark_step"):
        yield script.without(script.statement(call))


@operator("compiler", "MpDeviceLoader marks the steps", CT)
def plain_loader(script: Script) -> Iterator[str]:
    for call in script.calls("MpDeviceLoader"):
        if "mark_step" not in script.text and "barrier=True" not in script.text:
            yield script.swap((call, script.source(call.args[0])))


@operator("compiler", "save by xm.save", C)
def torch_save(script: Script) -> Iterator[str]:
    for call in script.calls("xm.save"):
        yield script.swap((call.func, "torch.save"))


@operator("compiler", "gradients are gathered from all workers", "training-compiler-troubleshooting")
def update_without_gathering(script: Script) -> Iterator[str]:
    for call in script.calls("xm.optimizer_step"):
        if "_mp_fn" in script.text:
            yield script.swap((call, f"{script.source(call.args[0])}.step()"))
    for call in script.calls("xm.all_reduce", "xm.reduce_gradients"):
        if "_mp_fn" in script.text and isinstance(script.statement(call), ast.Expr):
            yield script.without(script.statement(call))


@operator("compiler", "with AMP gradients are gathered before unscaling", "training-compiler-troubleshooting")
def gather_after_unscaling(script: Script) -> Iterator[str]:
    for unscale in script.calls("unscale_"):
        second = script.statement(unscale)
        block = script.block(second)
        for first in block[: block.index(second)]:
            if "all_reduce" in ast.unparse(first) or "reduce_gradients" in ast.unparse(first):
                yield script.swap((first, script.source(second)), (second, script.source(first)))


@operator("compiler", "distributed training needs _mp_fn(index)", CT)
def no_entry_function(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "_mp_fn":
            yield script.swap((node, "def start(index):\n    main()"))


@operator("compiler", "drop the last partial batch, a second shape", "training-compiler-troubleshooting")
def no_drop_last(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader"):
        given = keyword_of(call, "drop_last")
        if given is not None and ast.unparse(given.value) == "True":
            yield script.without_argument(call, given)


@operator("compiler", "tune the workers that preprocess the data", C)
def preprocess_alone(script: Script) -> Iterator[str]:
    for call in script.calls("map"):
        given = keyword_of(call, "num_proc")
        if given is not None:
            yield script.without_argument(call, given)


@operator("compiler", "not together with smdistributed", "training-compiler-enable-pytorch")
def with_smdistributed(script: Script) -> Iterator[str]:
    yield script.on_top("import smdistributed.modelparallel.torch as smp")


@operator("compiler", "padding='max_length', a static shape", C)
def pad_by_a_condition(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.keyword) and node.arg == "padding" and ast.unparse(node.value) == "'max_length'":
            yield script.on_top('PADDING = "longest"', (node.value, "PADDING"))
            yield script.swap((node.value, '"max_length" if len([]) else "longest"'))


@operator("compiler", "avoid explicit evaluations such as item()", C)
def other_evaluations_every_step(script: Script) -> Iterator[str]:
    for call in _updates(script):
        statement = script.statement(call)
        for line in ("total = float(loss)", "value = loss.detach().cpu().numpy()", "history = [loss.tolist()]"):
            yield script.swap((statement, f"{script.source(statement)}\n{line}"))


@operator("compiler", "avoid logging tensors", C)
def log_every_step(script: Script) -> Iterator[str]:
    for call in _updates(script):
        statement = script.statement(call)
        logged = f'{script.source(statement)}\nlogging.info(f"loss {{loss}}")'
        yield script.on_top("import logging", (statement, logged))
        yield script.swap((statement, f'{script.source(statement)}\nprint(f"loss {{loss}}")'))


@operator("compiler", "XLA devices instead of CUDA", C)
def cuda_in_other_words(script: Script) -> Iterator[str]:
    for call in script.calls("xm.xla_device"):
        yield script.swap((call, '"cuda"'))
        yield script.swap((call, 'torch.device("cuda:0" if True else "cpu")'))


@operator("compiler", "save by xm.save", C)
def torch_save_by_an_alias(script: Script) -> Iterator[str]:
    for call in script.calls("xm.save"):
        yield script.on_top("from torch import save", (call.func, "save"))


@operator("compiler", "a checkpoint once in a while", C)
def save_every_step(script: Script) -> Iterator[str]:
    for call in _updates(script):
        statement = script.statement(call)
        yield script.swap((statement, f'{script.source(statement)}\nxm.save(model.state_dict(), "last.pt")'))
    for node in ast.walk(script.tree):
        if isinstance(node, ast.keyword) and node.arg in ("logging_steps", "save_steps"):
            yield script.swap((node.value, "1"))


@operator("compiler", "gradients are gathered from all workers", "training-compiler-troubleshooting")
def update_by_a_helper(script: Script) -> Iterator[str]:
    for call in script.calls("xm.optimizer_step"):
        if "_mp_fn" in script.text and call.args:
            helper = "\ndef update(optimizer):\n    optimizer.step()\n"
            yield script.on_top(helper, (call, f"update({script.source(call.args[0])})"))


@operator("compiler", "drop the last partial batch, a second shape", "training-compiler-troubleshooting")
def last_batch_kept(script: Script) -> Iterator[str]:
    for call in script.calls("DataLoader", "TrainingArguments"):
        for name in ("drop_last", "dataloader_drop_last"):
            given = keyword_of(call, name)
            if given is not None and ast.unparse(given.value) == "True":
                yield script.swap((given.value, "False"))


@operator("compiler", "tune the workers that preprocess the data", C)
def one_worker(script: Script) -> Iterator[str]:
    for call in script.calls("map"):
        given = keyword_of(call, "num_proc")
        if given is not None:
            yield script.swap((given.value, "None"))
