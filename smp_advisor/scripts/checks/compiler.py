"""Training Compiler: the training loop and its data, and how a notebook or script launches the job."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.cluster.table import instances
from smp_advisor.files import table
from smp_advisor.libraries.version import instance_family
from smp_advisor.reading.data import reason
from smp_advisor.reading.module import add_keyword, after_statement, replace
from smp_advisor.reading.trace import exclusive
from smp_advisor.reading.values import (
    Choice,
    Constant,
    External,
    Mapping,
    Operation,
    Result,
    Unknown,
    Value,
    is_none,
    options,
)
from smp_advisor.scripts.checks.data import loaders
from smp_advisor.scripts.conditions import BACK_ENDS
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.queries import argument_node, constant, is_optimizer, known_names, mentions, origins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.source import Edit
    from smp_advisor.reading.trace import Call


_LOADERS = ("pl.MpDeviceLoader", "pl.ParallelLoader")
_OF_WORKERS = known_names("xla_workers")
"""Functions that a script for one GPU does not need."""
_SYNCS = ("xm.reduce_gradients", "xm.all_reduce", "xm.optimizer_step")
_SHOWING = ("print", "float", "xm.master_print", "tqdm.tqdm.write")
_LOGGING = ("info", "debug", "warning", "error", "add_scalar", "set_postfix", "set_description", "log")
_OFTEN = 10
"""Steps. Logging or saving less often than this is not reported."""


def _xm(call: Call) -> bool:
    module = call.module.scope.find("xm")
    return isinstance(module, External) and module.path == "xm"


def _elsewhere(context: Context, call: Call) -> bool:
    """Whether the call runs without XLA: its branch excludes XLA, or the other branch uses it."""
    if BACK_ENDS["xla"].excludes(call) or any(mentions(guard.test, "is_available") for guard in call.guards):
        return True
    return any(exclusive(call, xla_call) for xla_call in context.trace.each("xm."))


def _training_loops(context: Context) -> set[ast.AST]:
    """Innermost loops with a backward pass."""
    return {call.loops[-1] for call in context.trace.methods("backward") if call.loops}


def _now_and_then(call: Call) -> bool:
    """Whether a condition with a modulo lets the call run only once per several steps."""
    return any(
        any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(guard.test))
        or mentions(guard.test, "log", "freq", "interval", "every", "verbose", "debug")
        for guard in call.guards
    )


@check("STC401", "xla")
def _static_padding(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        padding = call.argument("padding")
        constants = [constant(option) for option in options(padding)]
        dynamic = next((value for value in constants if value is True or value == "longest"), None)
        if dynamic is not None and _tokenizes(call):
            # Without max_length, every text gets the length of the longest one that the model supports.
            long = not call.gives("max_length")
            changes = len(constants) == 1 and not long
            edits = [add_keyword(call.module, call.node, "padding", '"max_length"')] if changes else []
            why = "the call has no max_length, which you must choose" if long else ""
            yield Hit(call.module, call.node, {"padding": repr(dynamic)}, edits, unfixed=why)


def _tokenizes(call: Call) -> bool:
    """Whether the call pads text: a tokenizer, by its name or its arguments."""
    text = call.module.text(call.node.func).lower()
    return "token" in text or bool({"truncation", "max_length", "return_tensors"} & call.keywords.keys())


@check("STC402", "xla")
def _evaluations(context: Context) -> Iterator[Hit]:
    loops = _training_loops(context)
    losses = [call.receiver for call in context.trace.methods("backward") if call.receiver is not None]
    for call in context.trace.calls:
        if not call.loops or call.loops[-1] not in loops or _now_and_then(call) or _elsewhere(context, call):
            continue
        reads = call.method in ("item", "tolist", "numpy") and not call.name and call.receiver is not None
        shows = (call.name in _SHOWING or call.name.startswith("logging.") or call.method in _LOGGING) and any(
            _holds(argument, loss) for argument in call.arguments for loss in losses
        )
        if reads or shows:
            yield Hit(call.module, call.node, {"text": call.module.text(call.node)})


def _holds(value: Value, loss: Value, depth: int = 0) -> bool:
    if value is loss:
        return True
    if depth > 6:
        return False
    parts: tuple[Value, ...] = ()
    if isinstance(value, Operation):
        parts = value.operands
    elif isinstance(value, Choice):
        parts = value.alternatives
    elif isinstance(value, Result) and value.call.method in ("format", "detach", "cpu", "mean"):
        parts = (*value.call.arguments, *((value.call.receiver,) if value.call.receiver is not None else ()))
    return any(_holds(part, loss, depth + 1) for part in parts)


@check("STC403", "xla")
def _device(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    for call in context.trace.calls:
        if _elsewhere(context, call):
            continue
        moved = call.method == "cuda" and not call.name and call.receiver is not None
        places = [value for value in (*call.arguments[:1], call.keywords.get("device")) if value is not None]
        names_cuda = any(_is_cuda(option) for value in places for option in options(value))
        if moved:
            yield Hit(call.module, call.node, {"text": call.module.text(call.node)})
        elif names_cuda and (call.name == "torch.device" or call.method == "to" or "device" in call.keywords):
            edits = (
                [replace(call.module, call.node, "xm.xla_device()")]
                if call.name == "torch.device" and _xm(call)
                else []
            )
            yield Hit(call.module, call.node, {"text": call.module.text(call.node)}, edits)


def _is_cuda(value: Value) -> bool:
    """``"cuda"``, ``"cuda:0"``, or a string that starts with one of them."""
    if isinstance(value, Operation) and value.operator == "format" and value.operands:
        value = value.operands[0]
    text = constant(value)
    return isinstance(text, str) and (text == "cuda" or text.startswith("cuda:"))


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
    for call in _updates(context):
        batches = (training & set(call.loops)) or set(call.loops[-1:])
        if call.loops and call.reached and not marked & batches:
            statement = call.module.statement(call.node)
            edits = [after_statement(call.module, statement, "xm.mark_step()")] if statement and _xm(call) else []
            yield Hit(call.module, call.node, {}, edits if call.discarded else [])
            return


def _updates(context: Context) -> list[Call]:
    """Calls that apply gradients."""
    steps = [call for call in context.trace.methods("step") if _steps_optimizer(call)]
    return sorted([*context.trace.named("xm.optimizer_step"), *steps], key=lambda call: call.order)


def _steps_optimizer(call: Call) -> bool:
    for origin in origins(call.receiver):
        if isinstance(origin, Result) and (is_optimizer(origin.call.name) or origin.call.name.endswith("GradScaler")):
            return True
    return False


@check("STC405", "xla")
def _saved_by_xla(context: Context) -> Iterator[Hit]:
    if not context.trace.imported("torch_xla"):
        return
    for call in context.trace.named("torch.save"):
        saved = call.node.args[0] if call.node.args else None
        states = saved is not None and any(
            isinstance(part, ast.Attribute) and part.attr == "state_dict" for part in ast.walk(saved)
        )
        is_model = isinstance(saved, ast.Name) and "model" in saved.id.lower()
        if (states or is_model or _is_state(call)) and not _elsewhere(context, call):
            yield Hit(
                call.module, call.node, {}, [replace(call.module, call.node.func, "xm.save")] if _xm(call) else []
            )


def _is_state(call: Call) -> bool:
    return any(
        isinstance(option, Result) and option.call.method == "state_dict"
        for argument in call.arguments[:1]
        for option in options(argument)
    )


def _several_workers(context: Context) -> bool:
    """Whether the script is for several workers: by its entry, its ranks, or data that it divides."""
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
        scaler = any(
            isinstance(origin, Result) and origin.call.name.endswith("GradScaler")
            for origin in origins(call.receiver or Constant(None))
        )
        if not any(sync.loops[-1:] == call.loops[-1:] and not exclusive(sync, call) for sync in syncs):
            edits: list[Edit] = []
            if not scaler and not call.arguments and isinstance(call.node.func, ast.Attribute) and _xm(call):
                text = f"xm.optimizer_step({call.module.text(call.node.func.value)})"
                edits = [replace(call.module, call.node, text)]
            yield Hit(call.module, call.node, {}, edits, variant="not reduced")
    yield from _order_with_scaler(context)


def _order_with_scaler(context: Context) -> Iterator[Hit]:
    """The order under automatic mixed precision: reduce, unscale, clip, step."""
    gathers = context.trace.named("xm.reduce_gradients", "xm.all_reduce")
    clips = context.trace.named("torch.nn.utils.clip_grad_norm_")
    for unscale in context.trace.methods("unscale_"):
        for gather in gathers:
            if _same_loop(gather, unscale) and gather.node.lineno > unscale.node.lineno:
                yield Hit(gather.module, gather.node, variant="unscaled first")
        for clip in clips:
            if _same_loop(clip, unscale) and clip.node.lineno < unscale.node.lineno:
                yield Hit(clip.module, clip.node, variant="clipped first")


def _same_loop(first: Call, second: Call) -> bool:
    return first.module is second.module and first.loops[-1:] == second.loops[-1:]


@check("STC409", "xla")
def _rare_interruptions(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        if call.name.endswith("TrainingArguments") and call.name.startswith("transformers."):
            for name in ("logging_steps", "save_steps", "eval_steps"):
                every = constant(call.keywords.get(name))
                if isinstance(every, int) and 0 < every < _OFTEN:
                    node = argument_node(call, name) or call.node
                    yield Hit(call.module, node, {"name": name, "steps": every}, variant="interval")
    loops = _training_loops(context)
    for call in context.trace.named("xm.save", "torch.save"):
        if call.loops and call.loops[-1] in loops and not _now_and_then(call) and not call.guards:
            yield Hit(call.module, call.node, variant="checkpoint")


@check("STC410", "xla")
def _parallel_preprocessing(context: Context) -> Iterator[Hit]:
    for call in context.trace.methods("map"):
        if (
            call.receiver is not None
            and _is_hub_dataset(call.receiver)
            and (not call.gives("num_proc") or is_none(call.argument("num_proc")))
        ):
            yield Hit(call.module, call.node)


def _is_hub_dataset(value: Value, depth: int = 0) -> bool:
    """Whether `value` comes from the datasets library."""
    if depth > 8:
        return False
    for option in options(value):
        if isinstance(option, Result):
            if option.call.name.startswith("datasets.load"):
                return True
            if option.call.receiver is not None and _is_hub_dataset(option.call.receiver, depth + 1):
                return True
        inner = getattr(option, "owner", None)
        if isinstance(inner, Value) and _is_hub_dataset(inner, depth + 1):
            return True
    return False


@check("STC413", "xla")
def _whole_batches(context: Context) -> Iterator[Hit]:
    if context.libraries.smp_v1 or context.trace.imported("accelerate"):
        return  # Accelerate completes the last batch of the loaders that it prepares
    for call in loaders(context):
        drop_last = call.argument("drop_last", 8)
        sampled = call.argument("batch_sampler", 4) is not None
        if (drop_last is None and not call.unpacks and not sampled) or constant(drop_last) is False:
            yield Hit(call.module, call.node, {}, [add_keyword(call.module, call.node, "drop_last", "True")])
    for call in context.trace.calls:
        option = call.argument("dataloader_drop_last")
        if option is not None and constant(option) is False and call.name.endswith("TrainingArguments"):
            name = "dataloader_drop_last"
            yield Hit(call.module, call.node, {}, [add_keyword(call.module, call.node, name, "True")])


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
