"""Model code that the library does not support."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.reading.edits import Edit, replace
from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import External, Result
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_UNSUPPORTED = {
    "torch.nn.parallel.DistributedDataParallel": "PyTorch DistributedDataParallel",
    "torch.nn.DataParallel": "PyTorch DataParallel",
    "apex.parallel.DistributedDataParallel": "Apex DistributedDataParallel",
    "apex.amp.initialize": "apex.amp",
    "apex.amp.scale_loss": "apex.amp",
    "apex.optimizers.FusedAdam": "Apex FusedAdam",
    "apex.optimizers.FusedLAMB": "Apex FusedLAMB",
    "apex.optimizers.FusedNovoGrad": "Apex FusedNovoGrad",
    "torch.jit.script": "TorchScript (torch.jit)",
    "torch.jit.trace": "TorchScript (torch.jit)",
    "torch.compile": "torch.compile",
    "torch.cuda.amp.GradScaler": "PyTorch GradScaler",
    "torch.amp.GradScaler": "PyTorch GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "PyTorch GradScaler",
}
_DISTRIBUTED_FAMILIES = ("GPT2", "Bert", "Roberta", "GPTJ", "GPTNeo")
_FROM_CONFIG = ("from_config", "_from_config")
_HUGGING_FACE_CLASS = re.compile(r"(?P<family>[A-Z]\w*?)(?:For[A-Z]\w*|LMHeadModel|Model)")


@check("SMP129", "smp_torch")
def _original_forward(context: Context) -> Iterator[Hit]:
    for module in context.trace.modules:
        for cls in module.all(ast.ClassDef):
            for method in cls.body:
                if not isinstance(method, ast.FunctionDef) or method.name != "forward":
                    continue
                bases = {ast.unparse(base) for base in cls.bases}
                for node in ast.walk(method):
                    owner = _super_of_forward(node)
                    if isinstance(node, ast.Call) and owner is not None:
                        yield Hit(module, node, {}, [replace(module, node.func, f"{module.text(owner)}._orig_forward")])
                    elif isinstance(node, ast.Call) and _base_forward(node, bases):
                        yield Hit(module, node)


def _base_forward(node: ast.Call, bases: set[str]) -> bool:
    """``Base.forward(self, x)`` in a class that derives from ``Base``."""
    function = node.func
    of_base = (
        isinstance(function, ast.Attribute) and function.attr == "forward" and ast.unparse(function.value) in bases
    )
    return of_base and bool(node.args) and getattr(node.args[0], "id", "") == "self"


def _super_of_forward(node: ast.AST) -> ast.expr | None:
    """``super()`` in ``super().forward(...)``."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != "forward":
        return None
    owner = function.value
    called = owner.func if isinstance(owner, ast.Call) else None
    return owner if isinstance(called, ast.Name) and called.id == "super" else None


@check("SMP132", "smp_torch")
def _unsupported(context: Context) -> Iterator[Hit]:
    wrappings, scalers = context.wrappings, context.trace.named("smp.amp.GradScaler")
    for call in context.trace.named(*_UNSUPPORTED):
        feature = _UNSUPPORTED[call.name]
        excluded = bool(wrappings) and all(exclusive(call, mine) for mine in wrappings)
        excluded = excluded or ("GradScaler" in feature and any(exclusive(call, mine) for mine in scalers))
        if call.name.startswith("torch.jit.") and not _of_model(context, call):
            continue
        if not excluded:
            yield Hit(
                call.module, call.node, {"feature": feature}, _own_scaler(call) if "GradScaler" in feature else []
            )


def _of_model(context: Context, call: Call) -> bool:
    """Whether the compiled module is wrapped later. Compiled helper functions are not reported."""
    return any(
        wrapping.order > call.order
        and any(argument is not None for argument in wrapping.arguments)
        and any(getattr(argument, "call", None) is call for argument in wrapping.arguments)
        for wrapping in context.wrappings
    )


def _own_scaler(call: Call) -> list[Edit]:
    smp = call.module.scope.find("smp")
    usable = isinstance(smp, External) and smp.path == "smp" and not call.arguments
    return [replace(call.module, call.node.func, "smp.amp.GradScaler")] if usable else []


@check("SMP135", "smp_torch", needs="tensor_parallel")
def _supported_family(context: Context) -> Iterator[Hit]:
    registered = context.trace.named("smp.tp_register_with_module", "smp.tp_register")
    if registered or any(call.name.startswith("smp.nn.Distributed") for call in context.trace.calls):
        return
    for call in context.trace.calls:
        parts = call.name.split(".")
        if parts[0] != "transformers" or len(parts) < 2:
            continue
        name = parts[-2] if parts[-1] in (*_FROM_CONFIG, "from_pretrained") and len(parts) > 2 else parts[-1]
        if name.startswith("Auto") and call.method in _FROM_CONFIG:
            name = _class_of_config(call)
        match = _HUGGING_FACE_CLASS.fullmatch(name)
        if match and match["family"] not in _DISTRIBUTED_FAMILIES and not name.startswith(("Auto", "PreTrained")):
            yield Hit(call.module, call.node, {"family": match["family"]})


def _class_of_config(call: Call) -> str:
    """The class that ``AutoModel.from_config(LlamaConfig(...))`` creates: ``LlamaModel``; empty if not visible."""
    names = {
        origin.call.name.removesuffix(".from_dict").rpartition(".")[2]
        for origin in origins(call.argument("config", 0))
        if isinstance(origin, Result) and origin.call.name.startswith("transformers.")
    }
    name = names.pop() if len(names) == 1 else ""
    return f"{name.removesuffix('Config')}Model" if name.endswith("Config") else ""
