"""Training Compiler: how a notebook or script launches the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instances
from smp_advisor.files import table
from smp_advisor.libraries.version import instance_family
from smp_advisor.reading.data import reason
from smp_advisor.reading.edits import add_keyword
from smp_advisor.reading.values import Constant, Mapping, Result, Unknown, Value, options
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import argument_node, constant, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

_FAMILIES = frozenset(table("smp_advisor.libraries.training_compiler", "versions.toml")["instances"]["families"])
"""The families that the SageMaker Python SDK accepts."""
_BATCHES = ("batch_size", "per_device_train_batch_size", "train_batch_size", "per_gpu_train_batch_size")
_RATES = ("learning_rate", "lr")
_READ = ("instance_type", "instance_count", "distribution", "hyperparameters")
_CLASSES = ("PyTorch", "TensorFlow", "HuggingFace")


def _estimators(context: Context) -> list[tuple[Call, Call]]:
    """Estimators with the compiler: the call of each, and that of its ``TrainingCompilerConfig``."""
    estimators = []
    for call in context.trace.calls:
        configuration = call.argument("compiler_config")
        estimators += [
            (call, origin.call)
            for origin in origins(configuration)
            if isinstance(origin, Result) and origin.call.name.endswith("TrainingCompilerConfig")
        ]
    return estimators


def _gpus(call: Call) -> int | None:
    """GPUs per instance, if the type is a literal in the instance table."""
    kind = constant(call.argument("instance_type"))
    return next((instance.gpus for instance in instances() if instance.name == kind), None)


def _count(call: Call) -> int | None:
    count = constant(call.argument("instance_count"))
    return count if isinstance(count, int) else None


@check("STC407")
def _launched_on_several(context: Context) -> Iterator[Hit]:
    _list_unknown(context)
    for call, _ in _estimators(context):
        gpus, count = _gpus(call), _count(call)
        if gpus is None or count is None or gpus * count == 1:
            continue
        distribution = call.argument("distribution")
        if distribution is None and not call.unpacks and not _launcher_script(call):
            tensorflow = "tensorflow" in call.name.lower() or call.argument("tensorflow_version") is not None
            if not tensorflow:
                yield Hit(call.module, call.node, {"gpus": gpus * count}, variant="no distribution")
        launchers = distribution.entries.keys() if isinstance(distribution, Mapping) and distribution.complete else ()
        if launchers and "torch" in call.name.lower() and not {"pytorchxla", "smdistributed"} & set(launchers):
            yield Hit(call.module, call.node, {"launchers": ", ".join(launchers)}, variant="other launcher")
    yield from _without_worker_function(context)


def _list_unknown(context: Context) -> None:
    """List the arguments of estimators that could not be read."""
    compiled = [call for call, _ in _estimators(context)]
    for call in context.trace.calls:
        unknown: dict[str, Value] = {}
        if call in compiled:
            unknown = {name: value for name in _READ if (value := call.argument(name)) is not None}
            batches = call.argument("hyperparameters")
            if isinstance(batches, Mapping):
                unknown |= {name: value for name in (*_BATCHES, *_RATES) if (value := batches.get(name)) is not None}
        elif call.called in _CLASSES and (value := call.argument("compiler_config")) is not None:
            unknown["compiler_config"] = value
        if call.unpacks and (call in compiled or call.called in _CLASSES):
            unknown["arguments"] = Unknown(call.passed.open)
        for name, value in unknown.items():
            complete = isinstance(value, Mapping) and value.complete
            if not complete and not isinstance(value, Constant):
                what = f"{name} of {call.called}(...) cannot be read: {reason(value)}. Checks that need it are skipped."
                context.leave_open(call.module, call.node, what)


def _launcher_script(call: Call) -> bool:
    """Whether an older image starts the workers with its own script."""
    hyperparameters = call.argument("hyperparameters")
    return (
        hyperparameters is None
        or not isinstance(hyperparameters, Mapping)
        or not hyperparameters.complete
        or "training_script" in hyperparameters.entries
    )


def _without_worker_function(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    names = {getattr(function.node, "name", "") for function in context.trace.functions}
    if "_mp_fn" in names or context.trace.named("xmp.spawn"):
        return
    for call in context.trace.named("torch.utils.data.DistributedSampler"):
        rank = call.argument("rank", 2)
        by_worker = any(
            isinstance(origin, Result) and origin.call.name == "xm.get_ordinal"
            for origin in origins(rank or Constant(None))
        )
        if by_worker and call.reached and not call.guards:
            yield Hit(call.module, call.node, variant="no worker function")


@check("STC408")
def _learning_rate(context: Context) -> Iterator[Hit]:
    with_compiler = _estimators(context)
    compiled = {id(call) for call, _ in with_compiler}
    native = [
        call
        for call in context.trace.calls
        if call.argument("entry_point") is not None
        and call.argument("hyperparameters") is not None
        and id(call) not in compiled
    ]
    for call, _ in with_compiler:
        ours = _hyperparameters(call)
        for uncompiled in native:
            theirs = _hyperparameters(uncompiled)
            for batch in _BATCHES:
                after, before = ours.get(batch), theirs.get(batch)
                for rate in _RATES:
                    same = rate in ours and rate in theirs and ours[rate] == theirs[rate]
                    if isinstance(after, int) and isinstance(before, int) and after > before > 0 and same:
                        yield Hit(
                            call.module, call.node, {"rate": rate, "factor": f"{after / before:.3g}", "batch": batch}
                        )


def _hyperparameters(call: Call) -> dict[str, object]:
    argument = call.argument("hyperparameters")
    settings: dict[str, object] = {}
    for option in options(argument):
        if isinstance(option, Mapping):
            settings |= {key: constant(value) for key, value in option.values().items() if isinstance(value, Constant)}
    return settings


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
    if context.trace.requires("torch_xla"):
        for module, node, _ in context.trace.imported("smdistributed")[:1]:
            yield Hit(module, node, variant="both imports")
    elif context.libraries.xla:
        for module, node, _ in context.trace.imported("smdistributed")[:1]:
            yield Hit(module, node, variant="import")


@check("STC412")
def _debugging(context: Context) -> Iterator[Hit]:
    for _, config in _estimators(context):
        if constant(config.argument("debug", 1)) is True:
            keyword = any(argument.arg == "debug" for argument in config.node.keywords)
            edits = [add_keyword(config.module, config.node, "debug", "False")] if keyword else []
            yield Hit(config.module, config.node, {}, edits)


@check("STC414")
def _one_large_instance(context: Context) -> Iterator[Hit]:
    for call, _ in _estimators(context):
        gpus, count = _gpus(call), _count(call)
        if gpus == 1 and count is not None and count > 1:
            place = argument_node(call, "instance_type") or call.node
            yield Hit(call.module, place, {"count": count, "instance": constant(call.argument("instance_type"))})
