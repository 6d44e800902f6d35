"""Questions that several checks ask of a script's values and calls."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.values import (
    Argument,
    Choice,
    Collection,
    Constant,
    External,
    Instance,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    StepOutput,
    Unknown,
    Value,
    options,
)
from smp_advisor.scripts.names import is_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.reading.trace import Call, Guard, Trace

__all__ = [
    "SAME_OBJECT",
    "constant",
    "derived_from",
    "guarded_by",
    "is_known",
    "is_optimizer_call",
    "is_plain_model",
    "is_torch_module",
    "is_wrapped_model",
    "is_wrapped_optimizer",
    "mentions",
    "origins",
    "rank_conditions",
    "ranks",
    "updates",
    "without_library",
]

SAME_OBJECT = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "half",
        "bfloat16",
        "double",
        "requires_grad_",
        "apply",
        "contiguous",
        "detach",
        "clone",
    ]
)
"""Methods that return what they are called on, or a copy that stands for it."""

_MODEL_MAKERS = ("from_config", "from_pretrained")
_RANKS = frozenset(
    [
        "smp.rank",
        "smp.local_rank",
        "smp.mp_rank",
        "smp.pp_rank",
        "smp.tp_rank",
        "smp.dp_rank",
        "smp.rdp_rank",
        "smptf.rank",
        "smptf.local_rank",
        "smptf.mp_rank",
        "smptf.pp_rank",
        "smptf.dp_rank",
        "torch.distributed.get_rank",
        "horovod.tensorflow.rank",
        "horovod.torch.rank",
        "xm.get_ordinal",
        "xm.get_local_ordinal",
    ]
)

_VARIABLES = {
    "RANK": "RANK",
    "OMPI_COMM_WORLD_RANK": "RANK",
    "PMI_RANK": "RANK",
    "LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
}
"""Environment variables in which launchers leave a process's rank."""


def origins(value: Value | None) -> list[Value]:
    """What `value` may be, with methods that return their own object taken away."""
    found: list[Value] = []
    pending = list(options(value))
    while pending and len(found) < 20:
        one = pending.pop()
        if isinstance(one, Result) and one.call.method in SAME_OBJECT and one.call.receiver is not None:
            pending += options(one.call.receiver)
        elif isinstance(one, Choice):
            pending += one.alternatives
        else:
            found.append(one)
    return found


def constant(value: Value | None) -> Any:
    """The literal that `value` is; None where it is not one."""
    return value.value if isinstance(value, Constant) else None


def is_known(value: Value, depth: int = 0) -> bool:
    """Whether nothing in `value` is hidden from a reader of the script."""
    if depth > 8:
        return False
    if isinstance(value, (Constant, External)):
        return True
    if isinstance(value, Argument):
        return "rank" not in value.name  # the launcher may set it, each process its own
    if isinstance(value, Operation):
        return all(is_known(operand, depth + 1) for operand in value.operands)
    if isinstance(value, Collection):
        return all(is_known(item, depth + 1) for item in value.items)
    if isinstance(value, Choice):
        return all(is_known(option, depth + 1) for option in value.alternatives)
    if isinstance(value, Result):
        if value.call.name in _RANKS:
            return True
        plain = value.call.name in ("int", "str", "float", "abs", "hash", "len")
        return plain and all(is_known(argument, depth + 1) for argument in value.call.arguments)
    return False


def ranks(value: Value | None, depth: int = 0) -> set[str]:
    """Names of the rank functions whose results are in `value`."""
    if value is None or depth > 8:
        return set()
    if isinstance(value, Result) and value.call.name in _RANKS:
        return {value.call.name}
    variable = _variable(value)
    if variable:
        return {f"os.environ.{variable}"}
    return {name for part in _computed_from(value) for name in ranks(part, depth + 1)}


def _computed_from(value: Value) -> Iterable[Value]:
    """The values that a number is computed from."""
    if isinstance(value, Operation):
        return value.operands
    if isinstance(value, Collection):
        return value.items
    if isinstance(value, Choice):
        return value.alternatives
    if isinstance(value, Item):
        return (value.key,) if value.key is not None else ()
    if isinstance(value, Result):
        computes = value.call.name in ("int", "str", "float", "hash", "abs", "divmod", "max", "min")
        return value.call.arguments if computes or value.call.method == "format" else ()
    return ()


def _variable(value: Value) -> str:
    """The rank that is read from the environment: ``os.environ["RANK"]``, ``os.getenv("LOCAL_RANK")``."""
    key: Value | None = None
    if isinstance(value, Item) and isinstance(value.owner, External) and value.owner.path == "os.environ":
        key = value.key
    elif isinstance(value, Result) and value.call.name in ("os.environ.get", "os.getenv") and value.call.arguments:
        key = value.call.arguments[0]
    return _VARIABLES.get(str(constant(key)), "")


def is_wrapped_model(value: Value) -> bool:
    """Whether `value` may be what ``smp.DistributedModel`` returned."""
    return any(isinstance(one, Result) and one.call.name == "smp.DistributedModel" for one in origins(value))


def is_wrapped_optimizer(value: Value) -> bool:
    """Whether `value` may be what ``smp.DistributedOptimizer`` returned."""
    return any(isinstance(one, Result) and one.call.name == "smp.DistributedOptimizer" for one in origins(value))


def is_torch_module(value: Value) -> bool:
    """Whether `value` is an object of a class of the script that is a PyTorch module."""
    return isinstance(value, Instance) and any(
        path.startswith("torch.nn.") or path.endswith(("Model", "Module")) for path in value.cls.ancestors()
    )


def is_plain_model(value: Value) -> bool:
    """Whether `value` is surely a model that nothing has wrapped."""
    found = origins(value)
    return bool(found) and all(_is_plain(one) for one in found)


def _is_plain(value: Value) -> bool:
    if is_torch_module(value):
        return True
    if not isinstance(value, Result):
        return False
    call = value.call
    if call.name.startswith(("transformers.", "torchvision.models.", "timm.")):
        return call.method in _MODEL_MAKERS or call.name.rpartition(".")[2][:1].isupper() or "models." in call.name
    return call.name.startswith("torch.nn.") and call.name.count(".") == 2 and call.name[9:10].isupper()


def is_optimizer_call(value: Value) -> bool:
    """Whether `value` is an optimizer as its class made it, wrapped by nothing."""
    found = origins(value)
    return bool(found) and all(isinstance(one, Result) and is_optimizer(one.call.name) for one in found)


def updates(trace: Trace) -> list[tuple[Call, Value]]:
    """Calls that apply gradients, each with its optimizer: ``optimizer.step()``, ``scaler.step(optimizer)``."""
    found: list[tuple[Call, Value]] = []
    for call in trace.methods("step"):
        if call.receiver is None:
            continue
        made = [one.call.name for one in origins(call.receiver) if isinstance(one, Result)]
        scales = any(name.endswith("GradScaler") for name in made)
        found.append((call, call.arguments[0] if scales and call.arguments else call.receiver))
    return found


def mentions(node: ast.AST, *words: str) -> bool:
    """Whether a name, attribute or text in `node` contains one of `words`."""
    for part in ast.walk(node):
        text = ""
        if isinstance(part, ast.Name):
            text = part.id
        elif isinstance(part, ast.Attribute):
            text = part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            text = part.value
        if text and any(word in text.lower() for word in words):
            return True
    return False


def guarded_by(call: Call, *words: str) -> list[Guard]:
    """The conditions around `call` that speak of one of `words`."""
    return [guard for guard in call.guards if mentions(guard.test, *words)]


def without_library(call: Call) -> bool:
    """Whether a condition lets `call` run only where the library is not used: ``else`` of ``if args.smp``."""
    for guard in guarded_by(call, "smp", "model_parallel"):
        test = guard.test
        zero = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and _is_zero(test.comparators[0])
        denied = zero or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        if guard.holds == denied:
            return True
    return False


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def rank_conditions(call: Call) -> set[str]:
    """Rank functions that must be 0 where `call` runs: ``if smp.dp_rank() == 0``."""
    found: set[str] = set()
    for guard in call.guards:
        found |= _zero(guard.value, holds=guard.holds)
    return found


def _zero(value: Value, *, holds: bool) -> set[str]:
    if isinstance(value, Choice):
        return set.intersection(*(_zero(option, holds=holds) for option in value.alternatives))
    if not isinstance(value, Operation):
        return ranks(value) if not holds and isinstance(value, Result) else set()
    if value.operator == "Not":
        return _zero(value.operands[0], holds=not holds)
    if value.operator == ("And" if holds else "Or"):
        return set[str]().union(*(_zero(operand, holds=holds) for operand in value.operands))
    if value.operator == ("Eq" if holds else "NotEq") and len(value.operands) == 2:
        one, other = value.operands
        if constant(other) == 0 and constant(other) is not False:
            return ranks(one)
        if constant(one) == 0 and constant(one) is not False:
            return ranks(other)
    return set()


def derived_from(value: Value, source: Value, depth: int = 0) -> bool:
    """Whether `value` was read out of `source`: an element, attribute, sum or method's result of it."""
    if value is source:
        return True
    if depth > 10:
        return False
    parts: tuple[Value, ...] = ()
    if isinstance(value, (Item, Member)):
        parts = (value.owner,)
    elif isinstance(value, Choice):
        parts = value.alternatives
    elif isinstance(value, Operation):
        parts = value.operands
    elif isinstance(value, Collection):
        parts = tuple(value.items)
    elif isinstance(value, Mapping):
        parts = tuple(value.values().values())
    elif isinstance(value, StepOutput):
        parts = (value.of,)
    elif isinstance(value, Result):
        receiver = (value.call.receiver,) if value.call.receiver is not None else ()
        parts = (*receiver, *value.call.arguments)
    return any(derived_from(part, source, depth + 1) for part in parts if not isinstance(part, Unknown))


def argument_node(call: Call, name: str, position: int | None = None) -> ast.expr | None:
    """The expression of an argument, by its keyword or its position."""
    nodes = [keyword.value for keyword in call.node.keywords if keyword.arg == name]
    if position is not None:
        nodes += call.node.args[position : position + 1]
    return nodes[0] if nodes else None
