"""The parts of a loop that do not fit each other: loaders, samplers, gradients, process groups, monitored values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.values import (
    Argument,
    Choice,
    Class,
    Constant,
    External,
    Instance,
    Mapping,
    Result,
    options,
    parts_of,
)
from smp_advisor.review.scripts.checks.parallel import REPLICATING, parallel_wraps, without_gradients
from smp_advisor.review.scripts.checks.sharding import inside, same
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import KNOWN_PACKAGES, constant, derivation, makers, updates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value


def updated_models(context: Context) -> list[Value]:
    """Return the models whose parameters an optimizer of the script has."""
    groups = [maker for _, optimizer in updates(context.trace) for maker in makers(optimizer)]
    owners = [owner for group in groups for owner in makers(group.argument("params", 0))]
    return [model for owner in owners if owner.method == "parameters" for model in inside(owner.receiver)]


@check("DDP635")
def _gradients_of_the_forward_pass(context: Context) -> Iterator[Hit]:
    models = updated_models(context)
    for back in context.trace.methods("backward") if models else ():
        calls = [part.call for part in derivation(back.receiver) if isinstance(part, Result)]
        passes = [call for call in calls if any(same(a, b) for a in inside(call.receiver) for b in models)]
        passes = [call for call in passes if not call.method and _is_passive(call)]
        switched = re.search(_SWITCHES, context.text)
        certain = back.reached and not back.arguments and not switched
        if certain and passes and back.receiver is not None and _has_no_gradient(back.receiver):
            yield Hit(passes[0].module, passes[0].node, {"call": passes[0].module.text(passes[0].node)[:60]})


_SWITCHES = r"set_grad_enabled|enable_grad|requires_grad"
_ARITHMETIC = frozenset(["mean", "sum", "float", "cuda", "to", "view", "reshape", "squeeze", "size", "log", "exp"])


def _has_no_gradient(value: Value, depth: int = 0) -> bool:
    """Return whether a loss is certainly made of what was computed without gradients or read from a loader."""
    parts = options(value) if isinstance(value, Choice) else parts_of(value)
    if isinstance(value, Result):
        call = value.call
        if _is_passive(call) or call.name.startswith("torch.utils.data."):
            return True
        parts = (*call.arguments, *call.keywords.values(), *options(call.receiver)) if _keeps(call) else ()
    is_plain = parts or isinstance(value, (Constant, Argument, External))
    return bool(is_plain) and depth < _DEEPEST and all(_has_no_gradient(part, depth + 1) for part in parts)


_DEEPEST = 10


def _keeps(call: Call) -> bool:
    """Return whether the result has a gradient only if an argument has one: a loss, or arithmetic."""
    of_loss = not call.method and any(map(_is_loss, makers(call.receiver)))
    return call.name.startswith("torch.nn.functional.") or _is_loss(call) or of_loss or call.method in _ARITHMETIC


def _is_loss(call: Call) -> bool:
    return call.name.startswith("torch.nn.") and call.name.endswith("Loss") and "WithLoss" not in call.name


def _is_switch(call: Call) -> bool:
    return call.called in ("no_grad", "inference_mode") and not (call.arguments or call.keywords)


def _is_passive(call: Call) -> bool:
    """Return whether a call is certainly in a block without gradients."""
    calls = [[getattr(option, "call", None) for option in options(value)] for value in call.contexts]
    certain = any(all(entered and _is_switch(entered) for entered in block) for block in calls)
    return without_gradients(call) and (certain or not calls)


@check("DDP636")
def _process_group_of_the_model(context: Context) -> Iterator[Hit]:
    text = context.text
    wraps = [wrap for wrap in parallel_wraps(context) if wrap.name in REPLICATING]
    libraries = context.libraries.smp_v2 or context.libraries.xla or context.is_part
    entered = bool(context.trace.assumed_entries or context.unresolved or libraries)
    # Another module may make it when it is imported.
    packages = {name.partition(".")[0] for _, _, name in context.trace.imports} - KNOWN_PACKAGES
    trains = bool(context.trace.methods("backward"))
    if wraps and trains and not packages and not entered and not _STARTS.search(text):
        yield Hit(wraps[0].module, wraps[0].node)


_STARTS = re.compile(
    r"init_?process|PartialState|is_initialized|init_?dist|dist(?:ributed)?_init|setup|launch|spawn|DeviceMesh|device_mesh|\binit\(",
    re.IGNORECASE,
)


@check("TRN744")
def _monitored_and_logged(context: Context) -> Iterator[Hit]:
    """Yield the names that a callback of Lightning looks up in what the module logs."""
    logs = [call for call in context.trace.methods("log", "log_dict") if call.receiver is not None]
    names = set[str]()
    for call in logs:
        value = call.argument("name", 0) or call.argument("dictionary", 0)
        entries = list(value.entries) if isinstance(value, Mapping) and value.complete else [constant(value)]
        if not all(isinstance(entry, str) for entry in entries):
            return
        names |= {str(entry) for entry in entries}
    modules = [cls for cls in context.trace.classes if any(p.endswith(".LightningModule") for p in cls.ancestors())]
    bases = [base for cls in modules for part in cls.lineage for base in part.bases if not isinstance(base, Class)]
    own = all(isinstance(base, External) and base.path.startswith(_LIGHTNING) for base in bases)
    fitted = [model for fit in context.trace.methods("fit") for model in options(fit.argument("model", 0))]
    own = own and all(isinstance(model, Instance) for model in fitted)
    own = own and "callback_metrics" not in context.text
    for call in context.trace.calls if names and modules and own and not context.unresolved else ():
        at = {"ModelCheckpoint": 2, "EarlyStopping": 0}.get(call.called) if call.name.startswith(_LIGHTNING) else None
        name = constant(call.argument("monitor", at)) if at is not None and call.reached else None
        stem = re.sub(r"(?:_epoch|_step)?(?:/dataloader_idx_\d+)?$", "", name) if isinstance(name, str) else ""
        if stem and not names & {name, stem} and name not in ("epoch", "step"):
            yield Hit(call.module, call.node, {"metric": name, "call": call.called})


_LIGHTNING = ("lightning.", "pytorch_lightning.")
