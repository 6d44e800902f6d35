"""The parts of a loop that do not fit each other: loaders, samplers, gradients, process groups, monitored values."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from smp_advisor.review.reading.outside import LIBRARIES
from smp_advisor.review.reading.values import Choice, Instance, Mapping, Result, is_none
from smp_advisor.review.scripts.checks.data import loaders
from smp_advisor.review.scripts.checks.parallel import REPLICATING, parallel_wraps, without_gradients
from smp_advisor.review.scripts.checks.sharding import inside, same
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, derivation, is_optimizer, known_names, makers, origins, updates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value


def updated_models(context: Context) -> list[Value]:
    """Models whose parameters an optimizer of the script has."""
    groups = [maker for _, optimizer in updates(context.trace) for maker in makers(optimizer)]
    owners = [owner for group in groups for owner in makers(group.argument("params", 0))]
    return [model for owner in owners if owner.method == "parameters" for model in inside(owner.receiver)]


def _is_given(value: Value | None) -> bool:
    """Whether an argument certainly has a value other than None."""
    return value is not None and not isinstance(value, Choice) and not is_none(value) and bool(makers(value))


@check("DDP634")
def _arguments_of_the_loader(context: Context) -> Iterator[Hit]:
    for call in loaders(context) if not context.libraries.smp_v1 else ():
        sampler, batches = call.argument("sampler", 3), call.argument("batch_sampler", 4)
        shuffles = constant(call.argument("shuffle", 2)) is True
        streams = any(
            isinstance(origin, Instance) and any(path.endswith(".IterableDataset") for path in origin.cls.ancestors())
            for origin in origins(call.argument("dataset", 0))
        )
        two = "sampler and shuffle" if _is_given(sampler) and shuffles else ""
        two = "batch_sampler and shuffle" if _is_given(batches) and shuffles else two
        two = "batch_sampler and batch_size" if _is_given(batches) and call.argument("batch_size", 1) else two
        two = "a stream and sampler" if streams and _is_given(sampler) else two
        two = "a stream and shuffle" if streams and shuffles else two
        workers = call.argument("num_workers", 5)
        alone = workers is None or constant(workers) == 0
        for name in ("prefetch_factor", "persistent_workers"):
            two = f"{name} without workers" if alone and constant(call.argument(name)) and not call.unpacks else two
        if call.reached and two:
            yield Hit(call.module, call.node, {"two": two})


@check("DDP635")
def _gradients_of_the_forward_pass(context: Context) -> Iterator[Hit]:
    models = updated_models(context)
    for back in context.trace.methods("backward") if models else ():
        parts = [part.call for part in derivation(back.receiver) if isinstance(part, Result)]
        passes = [
            call
            for call in parts
            if not call.method and any(same(model, updated) for model in inside(call.receiver) for updated in models)
        ]
        switched = any("set_grad_enabled" in module.source.text for module in context.trace.modules)
        without = passes and not switched and all(map(without_gradients, passes))
        if back.reached and not back.arguments and without:
            yield Hit(passes[0].module, passes[0].node, {"call": passes[0].module.text(passes[0].node)[:60]})


@check("DDP636")
def _process_group_of_the_model(context: Context) -> Iterator[Hit]:
    text = "".join(module.source.text for module in context.trace.modules)
    wraps = [wrap for wrap in parallel_wraps(context) if wrap.name in REPLICATING]
    libraries = context.libraries.smp_v2 or context.libraries.xla
    entered = bool(context.trace.assumed_entries or context.unresolved or libraries)
    # Another module may make it when it is imported.
    packages = {name.partition(".")[0] for _, _, name in context.trace.imports} - _KNOWN
    trains = bool(context.trace.methods("backward"))
    if wraps and trains and not packages and not entered and not _STARTS.search(text):
        yield Hit(wraps[0].module, wraps[0].node)


_KNOWN = frozenset([*sys.stdlib_module_names, *LIBRARIES, *known_names("other_packages")])
_STARTS = re.compile(
    r"init_?process|init_?dist|dist(?:ributed)?_init|setup|launch|spawn|init_device_mesh|\binit\(", re.IGNORECASE
)


@check("TRN744")
def _monitored_and_logged(context: Context) -> Iterator[Hit]:
    """Names that a callback of Lightning looks up in what the module logs."""
    logs = [call for call in context.trace.methods("log", "log_dict") if call.receiver is not None]
    names = set[str]()
    for call in logs:
        value = call.argument("name", 0) or call.argument("dictionary", 0)
        entries = list(value.entries) if isinstance(value, Mapping) and value.complete else [constant(value)]
        if not all(isinstance(entry, str) for entry in entries):
            return
        names |= {str(entry) for entry in entries}
    modules = [cls for cls in context.trace.classes if any(p.endswith(".LightningModule") for p in cls.ancestors())]
    for call in context.trace.calls if names and modules and not context.unresolved else ():
        at = {"ModelCheckpoint": 2, "EarlyStopping": 0}.get(call.called) if call.name.startswith(_LIGHTNING) else None
        name = constant(call.argument("monitor", at)) if at is not None and call.reached else None
        stem = re.sub(r"_(?:epoch|step)$", "", name) if isinstance(name, str) else ""
        if stem and not names & {name, stem, "epoch", "step"}:
            yield Hit(call.module, call.node, {"metric": name, "call": call.called})


_LIGHTNING = ("lightning.", "pytorch_lightning.")


@check("DDP637")
def _scaled_weights(context: Context) -> Iterator[Hit]:
    """A GradScaler refuses gradients in fp16, which weights in fp16 have."""
    scaled = [call for call in context.trace.methods("scale") if call.reached
              and any(maker.name.endswith(".GradScaler") for maker in makers(call.receiver))]  # fmt: skip
    for optimizer in context.trace.calls if scaled else ():
        if not optimizer.reached or not is_optimizer(optimizer.name):
            continue
        owners = makers(optimizer.argument("params", 0))
        wraps = [maker for owner in owners for maker in makers(owner.receiver) if maker.name in REPLICATING]
        models = [owner.receiver for owner in owners] + [wrap.argument("module", 0) for wrap in wraps]
        for call in (call for model in models for call in _chain(model) if call.method == "half"):
            yield Hit(call.module, call.node, {"call": call.module.text(call.node)[:60]})
            return


def _chain(value: Value | None) -> Iterator[Call]:
    """Calls of methods that lead to a value, last first: ``Net().half().cuda()``."""
    while isinstance(value, Result) and value.call.receiver is not None:
        yield value.call
        value = value.call.receiver
