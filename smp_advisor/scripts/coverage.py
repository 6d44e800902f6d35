"""The coverage statement of a script: models, optimizers, loops and savers that the checker saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.findings.coverage import Coverage, Part
from smp_advisor.reading.values import Constant, Result
from smp_advisor.scripts.back_ends import BACK_ENDS
from smp_advisor.scripts.checks.replicas import ACCELERATORS, REPLICATING
from smp_advisor.scripts.checks.sharding import FSDP
from smp_advisor.scripts.names import is_optimizer
from smp_advisor.scripts.queries import is_plain_model, origins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.trace import Call
    from smp_advisor.scripts.context import Context

__all__ = ["coverage"]

_WRAPPERS = ("smp.DistributedModel", "tsm.transform", "tsm.transform.transform", *FSDP, *REPLICATING)
_SAVES = (
    "torch.save",
    "smp.save",
    "smp.save_checkpoint",
    "xm.save",
    "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.save_state_dict",
    "torch.distributed.checkpoint.async_save",
)
_SAVING = ("save_pretrained", "save_model", "save_checkpoint", "save_state", "save_weights")
_TITLES = {"smp_torch": "SMP v1 (PyTorch)", "smp_tensorflow": "SMP v1 (TensorFlow)", "smp_v2": "SMP v2"}


def coverage(context: Context) -> Coverage:
    """Parts of the script that the check saw, and its assumptions."""
    libraries = context.libraries
    names = [
        _TITLES.get(name, back_end.title) + (" (only in its own branches)" if name in libraries.optional else "")
        for name, back_end in BACK_ENDS.items()
        if getattr(libraries, name)
    ]
    names += ["FSDP"] if libraries.fsdp or _reached(context.trace.named(*FSDP)) else []
    names += ["DDP"] if _reached(context.trace.named(*REPLICATING)) else []
    names += ["Accelerate"] if _reached(context.trace.named(*ACCELERATORS)) else []
    names += ["Hugging Face Trainer"] if context.trainer else []
    by_trainer = ("that of Trainer",) if context.trainer else ()
    parts = (
        Part(role="models", places=_places(_models(context))),
        Part(role="optimizers", places=_places(_optimizers(context)) or by_trainer),
        Part(role="training loops", places=_loops(context)),
        Part(role="savers", places=_places(_savers(context))),
    )
    return Coverage(libraries=tuple(dict.fromkeys(names)), parts=parts, assumed=tuple(_assumed(context)))


def _reached(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.reached]


def _models(context: Context) -> Iterator[Call]:
    wrappers = context.trace.named(*_WRAPPERS)
    for call in context.trace.methods("prepare", "setup", "setup_module"):
        owners = [origin.call.name for origin in origins(call.receiver) if isinstance(origin, Result)]
        wrappers += [call] if any(name.endswith(("Accelerator", "Fabric")) for name in owners) else []
    wrappers += [call for call in context.trace.calls if call.name.endswith("Trainer")]
    wrappers += [
        instance.call
        for instance in context.trace.instances
        if any(path.endswith((".DistributedModel", "keras.Model")) for path in instance.cls.ancestors())
    ]
    yield from _reached(wrappers) or wrappers
    if not wrappers:
        for call in context.trace.methods("parameters"):
            for origin in origins(call.receiver) if is_plain_model(call.receiver or Constant(None)) else ():
                maker = getattr(origin, "call", None)
                if maker is not None:
                    yield maker


def _optimizers(context: Context) -> Iterator[Call]:
    calls = [
        call
        for call in context.trace.calls
        if is_optimizer(call.name)
        or call.name == "smp.DistributedOptimizer"
        or call.name.startswith(("tensorflow.keras.optimizers.", "tensorflow.optimizers.", "keras.optimizers."))
    ]
    yield from _reached(calls) or calls


def _savers(context: Context) -> Iterator[Call]:
    yield from [*context.trace.named(*_SAVES), *context.trace.methods(*_SAVING)]


def _loops(context: Context) -> tuple[str, ...]:
    places = {}
    for call in context.trace.methods("backward", "apply_gradients"):
        if call.loops:
            line = getattr(call.loops[-1], "lineno", call.node.lineno)
            places[call.loops[-1]] = f"loop ({_place(call.module, line)})"
    for call in context.trace.methods("train", "fit"):
        owners = [origin.call.name for origin in origins(call.receiver) if isinstance(origin, Result)]
        if call.method == "fit" or any(name.endswith("Trainer") for name in owners):
            places[call.node] = f"{call.module.text(call.node.func)}() ({_place(call.module, call.node.lineno)})"
    return tuple(dict.fromkeys(places.values()))


def _places(calls: Iterable[Call]) -> tuple[str, ...]:
    texts = (f"{call.module.text(call.node.func)} ({_place(call.module, call.node.lineno)})" for call in calls)
    return tuple(dict.fromkeys(texts))


def _place(module: Module, line: int) -> str:
    path, number = module.source.locate(line)
    return f"{Path(path).name}:{number}"


def _assumed(context: Context) -> Iterator[str]:
    entries = list(dict.fromkeys(f"{function.name}()" for function in context.trace.assumed_entries))
    if entries:
        names = f"{', '.join(entries[:_MOST])}{', ...' if entries[_MOST:] else ''}"
        yield f"Another file calls {names}: no line of this file does."
    options = sorted(set(context.trace.options) - set(context.settings.hyperparameters))
    if options and not context.settings.hyperparameters:
        yield f"Options of the script have their defaults ({len(options):,} options)."
    for name in sorted(context.libraries.optional):
        title = BACK_ENDS[name].title
        yield f"{title} may be absent: code outside of its branches is judged without it. Pass library= to require it."
    if any(call.name.endswith(".SelectedOptimizer") for call in context.trace.calls):
        yield "An optimizer that is chosen by name is one of torch.optim."


_MOST = 6
"""Functions in one sentence."""
