"""Queries on the names, values and calls of a script, shared by several checks."""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.review.reading.outside import LIBRARIES
from smp_advisor.review.reading.values import (
    Argument,
    Choice,
    Collection,
    Constant,
    External,
    Instance,
    Item,
    Member,
    Operation,
    Result,
    StepOutput,
    Value,
    options,
    parts_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.review.reading.trace import Call, Guard, Trace


_OPTIMIZER_CLASS = re.compile(
    r"[A-Za-z]*?(?:Adam|ADAM|SGD|Lamb|LAMB|Lars|LARS|Lion|Adagrad|Adadelta|Adafactor|Adamax|Adan|NovoGrad|RMS[Pp]rop"
    r"|Rprop|Muon|Sophia[GH]?|Shampoo|LBFGS)(?:W|X|_?8bit|_?32bit|ScheduleFree)*"
)
"""``FusedAdam``, ``AdamW8bit``, ``PagedLion``; but neither ``Lambda`` nor ``Million``."""


def is_optimizer(path: str) -> bool:
    """Return whether the dotted name is an optimizer's class."""
    head, _, last = path.rpartition(".")
    if not last[:1].isupper() or head.startswith(("tensorflow", "keras")):
        return False
    if last in ("LocalSGD", "PostLocalSGDOptimizer"):
        return False
    if head == "torch.optim":
        return last != "Optimizer"
    return _OPTIMIZER_CLASS.fullmatch(last) is not None


def is_scheduler(path: str) -> bool:
    """Return whether the dotted name makes a learning-rate scheduler of a PyTorch optimizer."""
    if path.startswith("torch.optim.lr_scheduler."):
        return True
    last = path.rpartition(".")[2]
    return path.startswith("transformers.") and last.startswith("get_") and last.endswith(("_schedule", "_warmup"))


def known_names(group: str) -> tuple[str, ...]:
    """Return the names of a group in ``data/names.toml``."""
    return tuple(table("smp_advisor.review.scripts", "data/names.toml")[group])


KNOWN_PACKAGES = frozenset([*sys.stdlib_module_names, *LIBRARIES, *known_names("other_packages")])
"""Packages that the rules know, or that have no part in training."""

SAME_OBJECT = frozenset(known_names("same_object"))
"""Methods that return their object, or an equivalent copy."""

_MODEL_MAKERS = ("from_config", "from_pretrained")
_RANKS = frozenset(known_names("ranks"))

_VARIABLES: dict[str, str] = table("smp_advisor.review.scripts", "data/names.toml")["rank_variables"]
"""Environment variables with the rank of a process, set by launchers."""


def origins(value: Value | None) -> list[Value]:
    """Possible values of `value`, without calls of methods that return their object."""
    sources: list[Value] = []
    pending = list(options(value))
    while pending and len(sources) < 20:
        candidate = pending.pop()
        if (
            isinstance(candidate, Result)
            and candidate.call.method in SAME_OBJECT
            and candidate.call.receiver is not None
        ):
            pending += options(candidate.call.receiver)
        elif isinstance(candidate, Choice):
            pending += candidate.alternatives
        else:
            sources.append(candidate)
    return sources


def makers(value: Value | None) -> list[Call]:
    """Return the calls whose results `value` may be."""
    return [origin.call for origin in origins(value) if isinstance(origin, Result)]


def constant(value: Value | None) -> Any:
    """Return the literal in `value`; None if it is not a literal."""
    return value.value if isinstance(value, Constant) else None


def is_cuda(value: Value) -> bool:
    """Return whether `value` is certainly a GPU: ``"cuda:0"``, ``torch.device("cuda")``, or a text that starts so."""
    if isinstance(value, Result) and value.call.name == "torch.device" and value.call.arguments:
        return any(map(is_cuda, options(value.call.arguments[0])))
    first = value.operands[0] if isinstance(value, Operation) and value.operator == "format" else value
    text = constant(first)
    return isinstance(text, str) and (text == "cuda" or text.startswith("cuda:"))


def is_known(value: Value, depth: int = 0) -> bool:
    """Return whether all parts of `value` are visible in the script."""
    if depth > 8:
        return False
    if isinstance(value, (Constant, External)):
        return True
    if isinstance(value, Argument):
        return "rank" not in value.name  # the launcher may set a different rank for each process
    if isinstance(value, (Operation, Collection, Choice)):
        return all(is_known(part, depth + 1) for part in _computed_from(value))
    if isinstance(value, Result):
        if value.call.name in _RANKS:
            return True
        plain = value.call.name in ("int", "str", "float", "abs", "hash", "len")
        return plain and all(is_known(argument, depth + 1) for argument in value.call.arguments)
    return False


def ranks(value: Value | None, depth: int = 0) -> set[str]:
    """Return the names of the rank functions whose results are in `value`."""
    if value is None or depth > 8:
        return set()
    if isinstance(value, Result) and value.call.name in _RANKS:
        return {value.call.name}
    variable = _variable(value)
    if variable:
        return {f"os.environ.{variable}"}
    if isinstance(value, Item) and constant(value.key) == 0 and isinstance(value.owner, Result):
        return {"torch.distributed.get_rank"} if value.owner.call.called == "get_dist_info" else set()
    return {name for part in _computed_from(value) for name in ranks(part, depth + 1)}


def _computed_from(value: Value) -> Iterable[Value]:
    """Operands of a computed number."""
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
    """Return the rank read from the environment: ``os.environ["RANK"]``, ``os.getenv("LOCAL_RANK")``."""
    if isinstance(value, Argument) and value.name == "local_rank":  # torch.distributed.launch sets this option
        return "LOCAL_RANK"
    return _VARIABLES.get(environment_variable(value), "")


def environment_variable(value: Value) -> str:
    """Return the variable of the environment that is read; empty for other values."""
    key: Value | None = None
    if isinstance(value, Item) and isinstance(value.owner, External) and value.owner.path == "os.environ":
        key = value.key
    elif isinstance(value, Result) and value.call.name in ("os.environ.get", "os.getenv") and value.call.arguments:
        key = value.call.arguments[0]
    return str(constant(key) or "")


def is_wrapped_model(value: Value) -> bool:
    """Return whether `value` may be a result of ``smp.DistributedModel``."""
    return any(call.name == "smp.DistributedModel" for call in makers(value))


def is_wrapped_optimizer(value: Value) -> bool:
    """Return whether `value` may be a result of ``smp.DistributedOptimizer``."""
    return any(call.name == "smp.DistributedOptimizer" for call in makers(value))


def is_plain_model(value: Value) -> bool:
    """Return whether `value` is certainly a model without a wrapper."""
    sources = origins(value)
    return bool(sources) and all(_is_plain(source) for source in sources)


def _is_plain(value: Value) -> bool:
    if isinstance(value, Instance):
        paths = value.cls.ancestors()
        return any(path.startswith("torch.nn.") or path.endswith(("Model", "Module")) for path in paths)
    if not isinstance(value, Result):
        return False
    call = value.call
    if call.name.startswith(("transformers.", "torchvision.models.", "timm.")):
        return call.method in _MODEL_MAKERS or call.name.rpartition(".")[2][:1].isupper() or "models." in call.name
    return call.name.startswith("torch.nn.") and call.name.count(".") == 2 and call.name[9:10].isupper()


def is_optimizer_call(value: Value) -> bool:
    """Return whether `value` is an optimizer without a wrapper."""
    sources = origins(value)
    return bool(sources) and all(isinstance(source, Result) and is_optimizer(source.call.name) for source in sources)


def updates(trace: Trace) -> list[tuple[Call, Value]]:
    """Calls that apply gradients, each with its optimizer: ``optimizer.step()``, ``scaler.step(optimizer)``."""
    steps: list[tuple[Call, Value]] = []
    for call in trace.methods("step"):
        if call.receiver is None:
            continue
        scales = any(maker.name.endswith("GradScaler") for maker in makers(call.receiver))
        steps.append((call, call.arguments[0] if scales and call.arguments else call.receiver))
    return steps


def scales(value: Value | None) -> bool:
    """Return whether an object may be a ``GradScaler``, and certainly scales where it is: its switch is not set."""
    scalers = [maker for maker in makers(value) if maker.name.endswith("GradScaler")]
    return bool(scalers) and not any(
        maker.unpacks or len(maker.arguments) > 4 or constant(maker.argument("enabled") or _ON) is not True
        for maker in scalers
    )


_ON = Constant(value=True)


def mentions(node: ast.AST, *words: str | re.Pattern[str]) -> bool:
    """Return whether a name, attribute or text in `node` contains one of `words`."""
    for part in ast.walk(node):
        text = getattr(part, "id", None) or getattr(part, "attr", None) or getattr(part, "value", None)
        if not isinstance(text, str):
            continue
        text = text.lower()
        if any(word in text if isinstance(word, str) else word.search(text) for word in words):
            return True
    return False


def guarded_by(call: Call, *words: str) -> list[Guard]:
    """Return the conditions around `call` that contain one of `words`."""
    return [guard for guard in call.guards if mentions(guard.test, *words)]


def rank_conditions(call: Call) -> set[str]:
    """Rank functions that must be 0 for `call` to run: ``if smp.dp_rank() == 0``."""
    return {name for guard in call.guards for name in _zero(guard.value, holds=guard.holds)}


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
        left, right = value.operands
        if constant(right) == 0 and constant(right) is not False:
            return ranks(left)
        if constant(left) == 0 and constant(left) is not False:
            return ranks(right)
    return set()


def derivation(value: Value | None) -> Iterator[Value]:
    """Yield the values that `value` comes from, itself first: elements, owners, operands, arguments of calls."""
    reached, level = set[int](), [] if value is None else [value]
    for _ in range(12):
        inner = list[Value]()
        for source in level:
            if id(source) in reached:
                continue
            reached.add(id(source))
            yield source
            inner += parts_of(source)
            if isinstance(source, Member):
                inner.append(source.owner)
            elif isinstance(source, Choice):
                inner += source.alternatives
            elif isinstance(source, StepOutput):
                inner.append(source.of)
            elif isinstance(source, Result):
                inner += [source.call.receiver] if source.call.receiver is not None else []
                inner += source.call.arguments
        level = inner


def argument_node(call: Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the expression of an argument, by its keyword or its position."""
    nodes = [keyword.value for keyword in call.node.keywords if keyword.arg == name]
    if position is not None:
        nodes += call.node.args[position : position + 1]
    return nodes[0] if nodes else None
