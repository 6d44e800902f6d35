"""Scripts that train with PyTorch's own data parallelism: their data, their wrapped models and their loops."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from smp_advisor.review.reading.trace import exclusive
from smp_advisor.review.reading.values import (
    Collection,
    Constant,
    External,
    Item,
    Mapping,
    Member,
    Operation,
    Result,
    Unknown,
    Value,
    is_none,
    options,
)
from smp_advisor.review.scripts.checks.data import is_sharded, iterations_over, loaders, whole_of
from smp_advisor.review.scripts.checks.sharding import FSDP, in_place, inside, same
from smp_advisor.review.scripts.conditions import Conditions, is_one, option_of_batches
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import depends_on_rank, elements_of, framework_runs, in_several_processes
from smp_advisor.review.scripts.queries import (
    KNOWN_PACKAGES,
    constant,
    derivation,
    is_optimizer,
    is_optimizer_call,
    is_plain_model,
    is_wrapped_optimizer,
    known_names,
    makers,
    mentions,
    origins,
    ranks,
    updates,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call, Guard


REPLICATING = ("torch.nn.parallel.DistributedDataParallel",)
ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
_FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "ignite", "composer")
_PASSIVE = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")


def parallel_wraps(context: Context) -> list[Call]:
    """Reached calls of DDP and FSDP, in order; none if a framework trains."""
    if context.libraries.smp_v1 or by_framework(context):
        return []
    return [call for call in context.trace.named(*REPLICATING, *FSDP) if call.reached]


def reached_accelerators(context: Context) -> list[Call]:
    """Accelerators of Accelerate that running the script makes."""
    return [call for call in context.trace.named(*ACCELERATORS) if call.reached]


def by_framework(context: Context) -> bool:
    """Return whether a framework, which wraps models and divides data, may train."""
    accelerates = "Accelerator" in context.text  # not its helpers alone
    names = [path for _, _, path in context.trace.imported(*_FRAMEWORKS)]
    return context.trainer or any(accelerates or not name.startswith("accelerate") for name in names)


def forwards(context: Context) -> Iterator[Call]:
    """Reached calls of objects inside of a training loop, with gradients."""
    innermost = {call.loops[-1] for call in context.trace.methods("backward") if call.reached and call.loops}
    for call in context.trace.calls:
        runs = call.reached and call.loops and call.loops[-1] in innermost
        if runs and not call.method and call.receiver is not None and not without_gradients(call):
            yield call


def without_gradients(call: Call) -> bool:
    """Return whether the call is in a block without gradients."""
    values = [option for context in call.contexts for option in options(context)]
    names = [option.call.name for option in values if isinstance(option, Result)]
    names += [option.path for option in values if isinstance(option, External)]
    decorators = [node for function in call.functions for node in getattr(function.node, "decorator_list", [])]
    decorated = any(mentions(node, "no_grad", "inference_mode") for node in decorators)
    return decorated or any(name in _PASSIVE for name in names)


def wrapped_by(value: Value | None, wraps: list[Call]) -> Call | None:
    """Return the call whose result `value` certainly is, also without the object that holds it."""
    for model in inside(value) if value is not None else ():
        owner = model.owner if isinstance(model, Item) else model
        for wrap in wraps:
            if isinstance(owner, Result) and owner.call is wrap:
                return wrap
            sharded = origins(wrap.argument("module", 0)) if in_place(wrap) else []
            unsure = any(isinstance(origin, (Constant, Mapping, Unknown)) for origin in sharded)
            if not unsure and any(same(owner, origin) for origin in sharded):
                return wrap
    return None


def joins(context: Context) -> bool:
    """Return whether ranks may end with different numbers of batches: ``with model.join():`` or ``Join``."""
    return bool(
        context.trace.named("torch.distributed.algorithms.join.Join", "torch.distributed.algorithms.Join")
    ) or any(wrapped_by(call.receiver, parallel_wraps(context)) is not None for call in context.trace.methods("join"))


_SAMPLER = "torch.utils.data.DistributedSampler"
_DATA = ("torch.", "torchvision.", "torchaudio.", "torchtext.", "datasets.", "s3torchconnector.")


@check("DDP603")
def _each_its_own_part(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    for call in loaders(context) if wraps else ():
        samplers = (call.argument("sampler", 3), call.argument("batch_sampler", 4))
        if call.unpacks or any(value is not None and not is_none(value) for value in samplers):
            continue
        dataset = call.argument("dataset", 0)
        trained = [loop for back in context.trace.methods("backward") if back.reached for loop in back.loops]
        trains = any(iteration.node in trained for iteration in iterations_over(context, call))
        together = any(not exclusive(wrap, call) for wrap in wraps)
        # ``if size > 1: DataLoader(sampler=...) else: DataLoader()``
        peers = [peer for peer in loaders(context) if {*makers(peer.argument("dataset", 0))} & {*makers(dataset)}]
        together &= not any(exclusive(peer, call) and peer.gives("sampler", 3) for peer in peers)
        if not call.reached or not trains or not together or dataset is None or is_sharded(dataset):
            continue
        sources = [maker for origin in origins(dataset) for maker in makers(whole_of(origin))]
        parts = [part.call for part in derivation(dataset) if isinstance(part, Result)]
        sources += [part for part in parts if part.name.partition(".")[0] in _STREAMS]
        makers_outside = [maker.name for maker in sources if not maker.name.startswith(_DATA)]
        if makers_outside or any(map(_divides, sources)):
            for name in sorted({name.partition(".")[0] for name in makers_outside} & _STREAMS):
                context.leave_open(call.module, call.node, f"how {name} divides its rows over the ranks (DDP603)")
            continue  # another package may divide its data sets by itself
        streams = any(constant(loading.argument("streaming")) is True for loading in sources)
        streams = streams or any("Iterable" in loading.name for loading in sources)
        shuffles = any(bool(constant(option)) for option in options(call.argument("shuffle", 2)))
        yield Hit(call.module, call.node, variant="stream" if streams else "shuffled" if shuffles else "same")


_STREAMS = frozenset(["webdataset", "streaming", "energon", "litdata", "torchdata", "mosaicml"])
"""Packages whose data sets divide themselves by variables of the launcher, and not always evenly."""


def _divides(call: Call) -> bool:
    """Return whether a data set of the S3 connector divides its objects by the ranks."""
    return constant(call.argument("enable_sharding")) is True


@check("DDP604")
def _another_order_each_epoch(context: Context) -> Iterator[Hit]:
    calls = context.trace.methods("set_epoch")
    has_name = "set_epoch" in context.text
    once = bool(calls) and all(not call.loops or isinstance(call.argument("epoch", 0), Constant) for call in calls)
    if not parallel_wraps(context) or (has_name and not once):
        return
    conditions = Conditions(context.settings, defaults=True)
    for loader in loaders(context):
        nodes = {iteration.node for iteration in iterations_over(context, loader)}
        outer = [loop for call in context.trace.methods("backward") if call.reached for loop in call.loops[1:]]
        for sampler in makers(loader.argument("sampler", 3)):
            shuffle = sampler.argument("shuffle", 3)
            shuffles = sampler.name == _SAMPLER and sampler.reached and (shuffle is None or constant(shuffle) is True)
            epochs = [
                conditions.known(count.arguments[:2][-1])
                for iteration in context.trace.iterations
                for count in makers(iteration.over)
                if count.name == "range" and (len(count.arguments) == 1 or constant(count.arguments[0]) == 0)
                if any(back.loops[:1] == (iteration.node,) for back in context.trace.methods("backward"))
            ]
            several = not epochs or not all(map(is_one, epochs))
            if shuffles and several and not nodes.isdisjoint(outer) and not handed_on(context, sampler, loader):
                yield Hit(sampler.module, sampler.node)


def unread(context: Context) -> list[Call]:
    """Return the reached calls of packages that are not read and that no rule knows."""
    return [
        call
        for call in context.trace.calls
        if call.reached and not call.function and "." in call.name
        if call.name.partition(".")[0] not in KNOWN_PACKAGES
    ]


def handed_on(context: Context, *parts: Call) -> bool:
    """Return whether code that is not read gets one of the objects."""
    return any(
        isinstance(part, Result) and part.call in parts
        for call in unread(context)
        for value in (*call.arguments, *call.keywords.values())
        for part in derivation(value)
    )


@check("SMP314", "smp_v2", needs="tensor_parallel")
def _one_part_per_group(context: Context) -> Iterator[Hit]:
    for call in context.trace.named(_SAMPLER):
        rank = call.argument("rank", 2)
        # A quotient of the world rank may be the data parallel rank.
        direct = [origin for origin in origins(rank) if not isinstance(origin, Operation)]
        world = rank is None or any(
            ranks(origin) & {"torch.distributed.get_rank", "os.environ.RANK"} for origin in direct
        )
        if call.reached and not call.unpacks and world:
            yield Hit(call.module, call.node)


_SEEDED = ("generator", "seed", "random_state", "rng")


@check("DDP623")
def _divided_alike(context: Context) -> Iterator[Hit]:
    """Yield the rows that every rank sorts into training and validation by its own random numbers."""
    # A seed that counts the rank draws otherwise on each rank.
    seeds = any(
        _runs(call) and call.called in _SEEDS and not call.function and not any(map(depends_on_rank, call.arguments))
        for call in context.trace.calls
    )
    lightning = [call for call in context.trace.calls if call.name.endswith(".Trainer") and "lightning" in call.name]
    together = bool(
        parallel_wraps(context) or reached_accelerators(context) or any(map(in_several_processes, lightning))
    )
    for call in context.trace.calls if together and not seeds else ():
        divides = call.name == "torch.utils.data.random_split" or call.called == "train_test_split"
        unseeded = not any(call.gives(name) for name in _SEEDED) and len(call.arguments) < 3
        divides = divides and _runs(call) and not _of_one_rank(call)
        if divides and unseeded and constant(call.argument("shuffle")) is not False:
            yield Hit(call.module, call.node, {"call": call.called}, variant="split")
    for selection in context.trace.selections if together and not seeds else ():
        part = selection.module.parent(selection.node)
        text = ast.unparse(getattr(selection.module.parent(part), "value", part)) if part is not None else ""
        sent = any(re.search("broadcast|scatter", call.called) for call in context.trace.calls)
        for call in context.trace.named("random.shuffle", "numpy.random.shuffle") if ranks(selection.by) else ():
            here = call.module is selection.module and call.functions[-1:] == selection.functions[-1:]
            before = here and call.node.lineno < selection.node.lineno and not (sent or _of_one_rank(call))
            if call.reached and before and call.node.args and ast.unparse(call.node.args[0]) == text:
                yield Hit(call.module, call.node, {"call": call.called}, variant="slice")


def _runs(call: Call) -> bool:
    """Return whether the script or a framework runs it on every rank: not in prepare_data() of Lightning."""
    return call.reached or (framework_runs(call) and call.functions[-1].name != "prepare_data")


def _of_one_rank(call: Call) -> bool:
    """Return whether a condition on the rank is around a call."""
    return any("rank" in (test := ast.unparse(guard.test)) or "main" in test for guard in call.guards)


_SEEDS = {name.rpartition(".")[2] for name in (*known_names("seeds"), "seed_everything", "set_seed", "seed_all")}
_SETS_DEVICE = known_names("device_setters")


@check("DDP601")
def _device_of_process(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    if not wraps or context.trace.named(*_SETS_DEVICE) or _chooses_devices(context):
        return
    starts = context.trace.named("torch.distributed.init_process_group")
    backends = [constant(option) for start in starts for option in options(start.argument("backend", 0))]
    if not starts or any(start.gives("device_id") for start in starts) or not {*backends} <= {"nccl", "smddp"}:
        return
    for wrap in wraps:
        # The current device of FSDP is GPU 0 unless the script sets it.
        devices = [
            getattr(getattr(option, "call", None), "name", "") for option in options(wrap.argument("device_id", 8))
        ]
        current = set(devices) == {"torch.cuda.current_device"}
        if (wrap.gives("device_id", 8) and not current) or wrap.gives("device_mesh") or wrap.gives("mesh"):
            return
    moves = [
        call
        for call in context.trace.methods("cuda", "to")
        if call.reached
        if (not (call.arguments or call.keywords or call.name) if call.method == "cuda" else _to_current(call))
    ]
    if moves or any(wrap.argument("device_id", 8) is not None for wrap in wraps):
        yield Hit(wraps[0].module, wraps[0].node)


def _to_current(call: Call) -> bool:
    """``to("cuda")``: the current device, which is GPU 0 of each process."""
    names = list[Value]()
    for option in (option for value in call.arguments[:1] for option in options(value)):
        device = option.call if isinstance(option, Result) and option.call.name == "torch.device" else None
        if device is not None and (len(device.arguments) > 1 or device.gives("index")):
            return False
        names += options(device.arguments[0]) if device is not None and device.arguments else [option]
    return {constant(name) for name in names} - {"cpu", "mps"} == {"cuda"}


def _chooses_devices(context: Context) -> bool:
    """Return whether a process is limited to one GPU, or any tensor is moved to the GPU of a rank."""
    visible = any(mentions(module.tree, "cuda_visible_devices") for module in context.trace.modules)
    moved = (call for call in context.trace.methods("cuda", "to") if call.arguments or call.keywords)
    return visible or any(
        ranks(part) or isinstance(part, Operation) or mentions(call.node, "rank")
        for call in moved
        for value in (*call.arguments, *call.keywords.values())
        for part in options(value)
    )


@check("DDP602")
def _wrapped_model_used(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in parallel_wraps(context) if not in_place(wrap)]
    if context.libraries.smp_v2 or not wraps:
        return
    reported: set[ast.AST] = set()
    for call in forwards(context):
        receiver = call.receiver
        if receiver is None or call.node in reported or any(wrapped_by(value, wraps) for value in call.candidates):
            continue
        if call.functions and call.functions[-1].name == "forward":
            continue  # of a module around the model, where another one replaces the wrapper
        called = [model for value in call.candidates for model in inside(value)]
        # Losses are plain modules, too.
        losses = any(isinstance(m, Result) and m.call.name.endswith(("Loss", "Criterion")) for m in called)
        models = called and not losses and all(map(is_plain_model, called))
        for wrap in wraps if models else ():
            originals = origins(wrap.argument("module", 0))
            inner = all(any(same(model, original) for original in originals) for model in called)
            if inner and wrap.order < call.order and not exclusive(wrap, call):
                reported.add(call.node)
                yield Hit(call.module, call.node, {"wrapper": wrap.name.rpartition(".")[2]})


@check("DDP605")
def _gradients_reset(context: Context) -> Iterator[Hit]:
    libraries = context.libraries
    parallel = libraries.smp_torch or libraries.xla or libraries.smp_v2 or parallel_wraps(context)
    fabrics = any(call.name.endswith(".Fabric") for call in context.trace.calls)
    if not (parallel or context.trace.named(*ACCELERATORS) or fabrics) or context.trainer:
        return
    for module in context.trace.modules:
        if any(word in module.source.text for word in ("zero_grad", ".grad = None", "set_to_none", "clear_gradients")):
            return
    makes = any(is_optimizer(call.name) for call in context.trace.calls)
    for step, optimizer in updates(context.trace):
        backward = any(
            call.loops and call.loops[-1:] == step.loops[-1:] for call in context.trace.methods("backward")
        ) or any(call.step is not None and call.reached for call in context.trace.calls)
        own = is_optimizer_call(optimizer) or is_wrapped_optimizer(optimizer)
        prepares = [maker for maker in elements_of(optimizer) if maker.method in ("prepare", "setup")]
        own |= any(is_optimizer_call(value) for maker in prepares for value in maker.arguments)
        own |= makes and not makers(optimizer) and "optim" in step.module.text(step.node.func).lower()
        if step.reached and step.loops and backward and own:
            yield Hit(step.module, step.node)
            return


@check("DDP608")
def _no_inner_forward(context: Context) -> Iterator[Hit]:
    wraps = parallel_wraps(context)
    innermost = {call.loops[-1] for call in context.trace.methods("backward") if call.reached and call.loops}
    # The script may reduce the gradients by itself.
    reads_gradients = any(node.attr == "grad" for module in context.trace.modules for node in module.all(ast.Attribute))
    reduces = reads_gradients and context.trace.methods("all_reduce")
    for call in context.trace.methods("module") if wraps and not reduces else ():
        if not call.reached or call.loops[-1:] == () or call.loops[-1] not in innermost or without_gradients(call):
            continue
        wrap = wrapped_by(call.receiver, wraps)
        if wrap is not None:
            shown = call.module.text(call.node.func)
            values: dict[str, object] = {"call": shown, "wrapper": wrap.name.rpartition(".")[2]}
            yield Hit(call.module, call.node, values)
    for back in context.trace.methods("backward") if wraps and not reduces else ():
        parts = [part.call for part in derivation(back.receiver) if isinstance(part, Result) and back.reached]
        for call in parts:
            owners = (call.receiver, *(() if call.method else call.candidates))
            inner = next((value for value in owners if isinstance(value, Member) and value.name == "module"), None)
            wrap = wrapped_by(inner.owner, wraps) if inner is not None else None
            # The inner model goes to a function of another package, and the wrapper to none that the loss comes from.
            passed = [value for value in call.arguments if isinstance(value, Member) and value.name == "module"]
            passed = passed if call.function is None and not call.name.startswith("torch.") else []
            around = [value for part in parts for value in (*part.arguments, *part.keywords.values(), part.receiver)]
            unsure = wrap is None  # the function may do without a forward pass
            if passed and not any(wrapped_by(value, wraps) for value in around):
                wrap = wrap or wrapped_by(passed[0].owner, wraps)
            if wrap is not None and not in_place(wrap) and call.method not in _PARTS:
                values = {"call": call.module.text(call.node.func), "wrapper": wrap.name.rpartition(".")[2]}
                yield Hit(call.module, call.node, values, severity="warning" if unsure else None)
    yield from _through_the_wrapper_of_trainer(context)


_PARTS = ("parameters", "named_parameters", "state_dict", "modules", "children")


def _through_the_wrapper_of_trainer(context: Context) -> Iterator[Hit]:
    """``model.module(**inputs)`` in compute_loss of a Trainer, which passes the model in its wrapper."""
    for instance in context.trace.instances:
        method = instance.cls.find("compute_loss")
        node = getattr(method, "node", None)
        if node is None or len(node.args.args) < 2 or not any(p.endswith("Trainer") for p in instance.cls.ancestors()):
            continue
        wrapped = f"{node.args.args[1].arg}.module"
        inner = {wrapped}
        for part in ast.walk(node):
            if isinstance(part, ast.Assign) and wrapped in map(ast.unparse, ast.walk(part.value)):
                inner |= {ast.unparse(target) for target in part.targets if isinstance(target, ast.Name)}
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and ast.unparse(part.func) in inner and not _in_no_grad(node, part):
                values: dict[str, object] = {"call": ast.unparse(part.func), "wrapper": "DistributedDataParallel"}
                yield Hit(method.module, part, values)  # type: ignore[union-attr]


def _in_no_grad(function: ast.AST, call: ast.Call) -> bool:
    blocks = [part for part in ast.walk(function) if isinstance(part, ast.With) and call in ast.walk(part)]
    return any("no_grad" in ast.unparse(item) for block in blocks for item in block.items)


@check("SMP310")
def _sharded_before_optimizer(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in parallel_wraps(context) if "fsdp" in wrap.name.lower() or in_place(wrap)]
    again = [call for call in context.trace.methods("__init__") if call.receiver and is_optimizer_call(call.receiver)]
    if context.libraries.smp_v2 or not wraps or again:
        return
    for call in context.trace.calls:
        if not call.reached or call.order > wraps[0].order or exclusive(call, wraps[0]):
            continue
        if is_optimizer_call(Result(call)) and _of_model(call, wraps):
            yield Hit(call.module, call.node, {"optimizer": call.name.rpartition(".")[2]})


def _of_model(optimizer: Call, wraps: list[Call]) -> bool:
    """Return whether the optimizer has parameters of a model that is sharded later, in a way that replaces them."""
    parameters = [option for value in optimizer.arguments[:1] for option in options(value)]
    owners = [
        owner
        for value in parameters
        if isinstance(value, Result) and value.call.method in ("parameters", "named_parameters")
        for owner in origins(value.call.receiver)
    ]
    for wrap in wraps:
        keeps = wrap.argument("use_orig_params", 9)
        if not in_place(wrap) and keeps is not None and constant(keeps) is not False:
            continue
        sharded = origins(wrap.argument("module", 0))
        if any(same(owner, model) or owner is model for owner in owners for model in sharded):
            return True
    return False


def _counts(guard: Guard) -> bool:
    """Return whether a condition holds for each n-th batch."""
    value = guard.value
    parts = value.operands if isinstance(value, Operation) and value.operator == "Eq" else ()
    return any(isinstance(part, Operation) and part.operator == "Mod" for part in parts)


@check("DDP610")
def _synchronized_once_per_update(context: Context) -> Iterator[Hit]:
    wraps = [wrap for wrap in parallel_wraps(context) if wrap.name in REPLICATING]
    texts = [module.source.text for module in context.trace.modules]
    if not wraps or any("no_sync" in text or "require_backward_grad_sync" in text for text in texts):
        return
    never, option = option_of_batches(context)
    rounds = {iteration.node: iteration.over for iteration in context.trace.iterations}

    def several(loop: ast.AST) -> bool:
        over = rounds.get(loop)
        if isinstance(over, Result) and over.call.name == "range":
            return not is_one(Conditions(context.settings).known(over.call.arguments[-1]))
        return not isinstance(over, Collection) or len(over.items) > 1

    for step, optimizer in updates(context.trace) if not never else ():
        # The same optimizer also updates with every batch: what is counted is another loss.
        peers = [peer for peer, owner in updates(context.trace) if set(makers(owner)) & set(makers(optimizer))]
        counted = all(any(map(_counts, peer.guards)) for peer in peers if peer.loops == step.loops)
        depth = len(step.loops)
        for call in context.trace.methods("backward") if step.reached and step.loops else ():
            inside = call.loops[:depth] == step.loops and any(several(loop) for loop in call.loops[depth:])
            every = call.reached and (inside or (counted and call.loops == step.loops))
            if every and not call.guards[len(wraps[0].guards) :] and is_optimizer_call(optimizer):
                yield Hit(call.module, call.node, needed=f"with --{option} above 1" if option else "")
                return
