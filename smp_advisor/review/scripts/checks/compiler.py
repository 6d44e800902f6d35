"""Training Compiler: the training loop and its data, and how a notebook or script launches the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instances
from smp_advisor.core.files import table
from smp_advisor.libraries.version import instance_family
from smp_advisor.review.reading.data import reason
from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import Constant, Mapping, Unknown, options
from smp_advisor.review.scripts.conditions import BACK_ENDS
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import constant, is_cuda, is_optimizer, known_names, makers, mentions

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_LOADERS = ("pl.MpDeviceLoader", "pl.ParallelLoader")
_OF_WORKERS = known_names("xla_workers")
"""Functions that a script for one GPU does not need."""
_SYNCS = ("xm.reduce_gradients", "xm.all_reduce", "xm.optimizer_step")


def _elsewhere(context: Context, call: Call) -> bool:
    """Return whether the call runs without XLA: its branch excludes XLA, or the other branch uses it."""
    if BACK_ENDS["xla"].excludes(call) or any(mentions(guard.test, "is_available") for guard in call.guards):
        return True
    return any(exclusive(call, xla_call) for xla_call in context.trace.each("xm."))


def _training_loops(context: Context) -> set[ast.AST]:
    """Innermost loops with a backward pass."""
    return {call.loops[-1] for call in context.trace.methods("backward") if call.loops}


@check("STC403", "xla")
def _device(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    for call in context.trace.calls:
        if _elsewhere(context, call):
            continue
        moved = call.method == "cuda" and not call.name and call.receiver is not None
        places = [value for value in (*call.arguments[:1], call.keywords.get("device")) if value is not None]
        names_cuda = any(is_cuda(option) for value in places for option in options(value))
        elsewhere = call.name == "torch.device" or call.method == "to" or "device" in call.keywords
        if moved or (names_cuda and elsewhere):
            yield Hit(call.module, call.node, {"text": call.module.text(call.node)})


@check("STC404", "xla")
def _marked_steps(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    marks = context.trace.named("xm.mark_step")
    barriers = [
        call for call in context.trace.named("xm.optimizer_step") if constant(call.argument("barrier", 1)) is True
    ]
    if barriers or context.trace.named(*_LOADERS) or any(not mark.reached for mark in marks):
        return
    marked = {loop for mark in marks for loop in mark.loops}
    training = _training_loops(context)
    updates = [*context.trace.named("xm.optimizer_step"), *filter(_steps_optimizer, context.trace.methods("step"))]
    for call in sorted(updates, key=lambda call: call.order):
        batches = (training & set(call.loops)) or set(call.loops[-1:])
        if call.loops and call.reached and not marked & batches:
            yield Hit(call.module, call.node)
            return


def _steps_optimizer(call: Call) -> bool:
    return any(is_optimizer(maker.name) or maker.name.endswith("GradScaler") for maker in makers(call.receiver))


def _several_workers(context: Context) -> bool:
    """Return whether the script is for several workers: by its entry, its ranks, or data that it divides."""
    functions = [function.node for function in context.trace.functions]
    if any(getattr(node, "name", "") == "_mp_fn" for node in functions) or context.trace.named(*_OF_WORKERS):
        return True
    starts = context.trace.named("torch.distributed.init_process_group")
    by_xla = any(constant(option) == "xla" for start in starts for option in options(start.argument("backend", 0)))
    divides = context.trace.named("torch.utils.data.DistributedSampler", *_LOADERS)
    return by_xla or {call.name for call in divides} > {"torch.utils.data.DistributedSampler"}


@check("STC406", "xla")
def _gathered_gradients(context: Context) -> Iterator[Hit]:
    if not _several_workers(context) or context.trace.imported("torch_xla.distributed.spmd"):
        return  # the compiler of SPMD reduces them
    syncs = context.trace.named(*_SYNCS)
    for call in context.trace.methods("step"):
        if not _steps_optimizer(call) or _elsewhere(context, call):
            continue
        if not any(sync.loops[-1:] == call.loops[-1:] and not exclusive(sync, call) for sync in syncs):
            yield Hit(call.module, call.node, variant="not reduced")


_FAMILIES = frozenset(table("smp_advisor.libraries.training_compiler", "versions.toml")["instances"]["families"])
"""The families that the SageMaker Python SDK accepts."""
_READ = ("instance_type", "instance_count", "distribution", "hyperparameters")


def _estimators(context: Context) -> list[tuple[Call, Call]]:
    """Estimators with the compiler: the call of each, and that of its ``TrainingCompilerConfig``."""
    return [
        (call, maker)
        for call in context.trace.calls
        for maker in makers(call.argument("compiler_config"))
        if maker.name.endswith("TrainingCompilerConfig")
    ]


@check("STC407")
def _launched_on_several(context: Context) -> Iterator[Hit]:
    compiled = [call for call, _ in _estimators(context)]
    for call in (call for call in context.trace.calls if call.argument("compiler_config") is not None):
        values = {name: call.argument(name) for name in (_READ if call in compiled else ("compiler_config",))}
        values |= {"arguments": Unknown(call.passed.open)} if call.unpacks else {}
        for name, value in values.items():
            readable = isinstance(value, (Constant, type(None))) or (isinstance(value, Mapping) and value.complete)
            if value is not None and not readable:
                what = f"{name} of {call.called}(...) cannot be read: {reason(value)}. Checks that need it are skipped."
                context.leave_open(call.module, call.node, what)
    for call in compiled:
        kind, count = constant(call.argument("instance_type")), constant(call.argument("instance_count"))
        gpus = next((instance.gpus for instance in instances() if instance.name == kind), None)
        if gpus is None or not isinstance(count, int) or gpus * count == 1:
            continue
        distribution, settings = call.argument("distribution"), call.argument("hyperparameters")
        # An older image starts the workers with its own script, the hyperparameter training_script.
        plain = isinstance(settings, Mapping) and settings.complete and "training_script" not in settings.entries
        tensorflow = "tensorflow" in call.name.lower() or call.argument("tensorflow_version") is not None
        if distribution is None and not call.unpacks and plain and not tensorflow:
            yield Hit(call.module, call.node, {"gpus": gpus * count}, variant="no distribution")
        launchers = distribution.entries.keys() if isinstance(distribution, Mapping) and distribution.complete else ()
        if launchers and "torch" in call.name.lower() and not {"pytorchxla", "smdistributed"} & set(launchers):
            yield Hit(call.module, call.node, {"launchers": ", ".join(launchers)}, variant="other launcher")
    yield from _without_worker_function(context)


def _without_worker_function(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    names = {getattr(function.node, "name", "") for function in context.trace.functions}
    if "_mp_fn" in names or context.trace.named("xmp.spawn"):
        return
    for call in context.trace.named("torch.utils.data.DistributedSampler"):
        by_worker = any(maker.name == "xm.get_ordinal" for maker in makers(call.argument("rank", 2)))
        if by_worker and call.reached and not call.guards:
            yield Hit(call.module, call.node, variant="no worker function")


@check("STC411")
def _compatible(context: Context) -> Iterator[Hit]:
    for call, _ in _estimators(context):
        for option in options(call.argument("distribution")):
            if isinstance(option, Mapping) and "smdistributed" in option.entries:
                yield Hit(call.module, call.node, variant="distribution")
        kind = constant(call.argument("instance_type"))
        if isinstance(kind, str) and kind.startswith("ml.") and instance_family(kind) not in _FAMILIES:
            yield Hit(call.module, call.node, {"instance": kind}, variant="instance")
    if not context.trace.requires("smdistributed"):
        return
    both = context.trace.requires("torch_xla")
    for module, node, _ in context.trace.imported("smdistributed")[:1] if both or context.libraries.xla else ():
        yield Hit(module, node, variant="both imports" if both else "import")
