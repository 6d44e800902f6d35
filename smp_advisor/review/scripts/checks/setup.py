"""Startup: initialization, devices, options, downloads, and calls that every script of a library needs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from smp_advisor.core.files import table
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.review.reading.trace import whenever
from smp_advisor.review.reading.values import (
    Class,
    Collection,
    Constant,
    External,
    Instance,
    Member,
    Operation,
    Result,
    options,
)
from smp_advisor.review.scripts.checks.parallel import ACCELERATORS, REPLICATING, forwards
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.conditions import BACK_ENDS
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    constant,
    guarded_by,
    is_optimizer,
    is_plain_model,
    is_wrapped_model,
    known_names,
    makers,
    mentions,
    origins,
    rank_conditions,
    ranks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call


_BEFORE_INIT = frozenset({"smp.init", "smp.step", "smptf.step", "smptf.init"})
_KERAS_MODELS = frozenset(
    {"tensorflow.keras.Model", "keras.Model", "tensorflow.keras.models.Model", "tensorflow.Module"}
)
_OF_NODE = frozenset({"smp.local_rank", "smptf.local_rank", "os.environ.LOCAL_RANK", "xm.get_local_ordinal"})
_DOWNLOADS = known_names("downloads")


@check("SMP101", "smp_v1")
def _initialized(context: Context) -> Iterator[Hit]:
    for flavour in () if context.trainer else ("smp", "smptf"):
        calls = [call for call in context.trace.each(f"{flavour}.") if call.reached and call.name not in _BEFORE_INIT]
        starts = [call for call in context.trace.named(f"{flavour}.init") if call.reached]
        if not calls:
            continue
        first = calls[0]
        if not starts or first.order < starts[0].order:
            yield Hit(first.module, first.node, {"call": first.name.replace("smptf", "smp")})


@check("SMP102")
def _model_wrapped(context: Context) -> Iterator[Hit]:
    yield from _on_another_base(context)
    if not context.libraries.smp_torch or context.trainer:
        return
    wrappings = context.wrappings
    for number, second in enumerate(wrappings):
        first = second.argument("module", 0)
        if first is not None and all(is_wrapped_model(option) for option in options(first)):
            yield Hit(second.module, second.node, variant="twice")
            continue
        for earlier in wrappings[:number]:
            if earlier.node is not second.node and whenever(earlier, second):
                yield Hit(second.module, second.node, variant="second")
                break
    for call in _unwrapped_in_steps(context):
        yield Hit(call.module, call.node, variant="unwrapped")
        return
    if wrappings or not context.settings.pipelined or not context.trace.named("smp.DistributedOptimizer"):
        return
    owners = [owner for source in context.trace.methods("parameters") for owner in origins(source.receiver)]
    visible = not any(isinstance(owner, External) for owner in owners)
    for call in context.trace.named("smp.DistributedOptimizer", "smp.init"):
        if call.reached and visible and context.trains:
            yield Hit(call.module, call.node, variant="none")
            return


def _on_another_base(context: Context) -> Iterator[Hit]:
    """Yield the first call in a step of a TensorFlow model that does not derive from smp.DistributedModel."""
    for call in context.trace.calls if context.libraries.smp_tensorflow else ():
        if call.step is not None and not call.method and isinstance(call.receiver, Instance):
            bases = set(call.receiver.cls.ancestors())
            if "smptf.DistributedModel" not in bases and bases & _KERAS_MODELS:
                yield Hit(call.module, call.node, variant="base class")
                break


def _unwrapped_in_steps(context: Context) -> Iterator[Call]:
    """Forward and backward calls of plain models in steps without a wrapped model: a loss may be a plain module too."""
    proper = {
        call.step.node
        for call in context.trace.calls
        if call.step is not None and call.receiver is not None and is_wrapped_model(call.receiver)
    }
    for call in context.trace.calls:
        if call.step is None or call.step.node in proper or not call.reached or call.receiver is None:
            continue
        runs = not call.method or call.method == "backward"
        models = [value.owner if isinstance(value, Member) else value for value in call.candidates]
        # The step itself calls the model, not the forward of another module.
        outermost = call.functions and (call.functions[-1].home is None or call.functions[-1].step is not None)
        if runs and all(map(is_plain_model, models)) and outermost:
            yield call


@check("SMP108", "smp_torch")
def _device_set(context: Context) -> Iterator[Hit]:
    if context.trainer or not context.trains:
        return
    starts = [call for call in context.trace.named("smp.init") if call.reached]
    calls = context.trace.named("torch.cuda.set_device")
    if starts and not calls and (context.wrappings or any(context.models())):
        start = starts[-1]
        yield Hit(start.module, start.node, variant="never")
    for call in calls:
        device = call.argument("device", 0)
        wrong = ranks(device) - {"smp.local_rank", "os.environ.LOCAL_RANK"}
        # The rank modulo the GPUs of an instance is the local rank: processes are numbered node by node.
        if wrong and all(isinstance(option, Operation) and option.operator == "Mod" for option in options(device)):
            continue
        if device is not None and (wrong or isinstance(device, Constant)):
            yield Hit(call.module, call.node, variant="other")


@check("SMP133")
def _job_options(context: Context) -> Iterator[Hit]:
    # Only by its imports: a script that prepares data for the job is not the job's entry point.
    used = context.trace.imported("smdistributed.modelparallel", "torch.sagemaker")
    needed = ""
    if not context.trace.requires("smdistributed.modelparallel", "torch.sagemaker"):
        needed = "where the model parallel library is used"
        used = used if context.trains else []
    if not used or "mp_parameters" in context.trace.options:
        return
    for call in context.trace.methods("parse_args"):
        # It parses the arguments of the process: none passed, or those of sys.argv.
        arguments = "".join(map(call.module.text, call.node.args)).replace(" ", "")
        if call.keywords or call.unpacks or arguments not in ("", "sys.argv[1:]"):
            continue
        parsers = [getattr(getattr(parser, "call", None), "name", "") for parser in origins(call.receiver)]
        if set(parsers) == {"argparse.ArgumentParser"} and isinstance(call.node.func, ast.Attribute):
            yield Hit(call.module, call.node, {"call": "parse_args"}, needed=needed)
    for call in context.trace.methods("parse_args_into_dataclasses"):
        if not call.gives("return_remaining_strings") and call.reached and _all_here(call):
            yield Hit(call.module, call.node, {"call": call.method}, needed=needed)


def _all_here(call: Call) -> bool:
    """Return whether all dataclasses are the script's own and none has the job's option."""
    parser = call.receiver.call if isinstance(call.receiver, Result) else None
    dataclasses = parser.argument("dataclass_types", 0) if parser is not None else None
    classes = dataclasses.items if isinstance(dataclasses, Collection) else (dataclasses,)
    return all(
        isinstance(cls, Class) and not any(cls.ancestors()) and cls.find("mp_parameters") is None for cls in classes
    )


@check("SMP134", "smp_v1")
def _downloads(context: Context) -> Iterator[Hit]:
    for call in context.trace.calls:
        if not call.reached or not _fetches(call) or any(map(ranks, (*call.arguments, *call.keywords.values()))):
            continue
        name = call.name.rpartition(".")[2]
        words = ("rank", "main_process", "is_main", "is_master")
        around = [option.call for value in call.contexts for option in options(value) if isinstance(option, Result)]
        if any("first" in f"{outer.name}.{outer.method}" for outer in around):
            continue  # with training_args.main_process_first()
        if not any(mentions(guard.test, *words) for guard in call.guards):
            yield Hit(call.module, call.node, {"name": name}, variant="every process")
            continue
        if rank_conditions(call) and not rank_conditions(call) & _OF_NODE and not mentions(call.node, "local"):
            yield Hit(call.module, call.node, {"name": name}, variant="first node")
        for reader in context.trace.named(call.name):
            after = reader.reached and reader.order > call.order and not _fetches(reader)
            if after and not _waits(context, call, reader):
                yield Hit(reader.module, reader.node, {"name": name}, variant="no barrier")
                break


def _fetches(call: Call) -> bool:
    data = call.name.startswith(("torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets."))
    return (data and constant(call.argument("download")) is True) or call.name in _DOWNLOADS


def _waits(context: Context, first: Call, last: Call) -> bool:
    """Return whether a call between the two may synchronize the processes."""
    return any(
        first.order < call.order < last.order
        and any(word in f"{call.name}.{call.method}".lower() for word in ("barrier", "wait", "sync", "rendezvous"))
        for call in context.trace.calls
    ) or any(mentions(guard.test, "rank") for guard in last.guards)


_PREREQUISITES = table("smp_advisor.review.scripts", "data/prerequisites.toml")
"""By library: its title, packages, import, and the calls that scripts need."""
_LAUNCHED = {record.launcher: record.name for record in map(get_library, reversed(LIBRARIES)) if record.smdistributed}
_V1, _V2 = _LAUNCHED["mpi"], _LAUNCHED["torchrun"]


@check("SMP001")
def _uses_the_library(context: Context) -> Iterator[Hit]:
    of_v1 = (context.settings.microbatches, context.settings.prescaled_batch)
    library = context.settings.library or (_V1 if any(value is not None for value in of_v1) else "")
    if library not in _PREREQUISITES:
        return
    record = _PREREQUISITES[library]
    names = [name for need in record["needs"] for name in need["names"] if not name.startswith("torch.cuda")]
    if context.trace.imported(*record["packages"]) or context.trace.named(*names):
        return
    arguments = next(trainer_arguments(context), None)
    if library == _V2 and arguments is not None:
        yield Hit(arguments.module, arguments.node, {"library": record["title"]}, variant="trainer")
    tensorflow = bool(context.trace.imported("tensorflow")) and not context.trace.imported("torch")
    of_torch = get_library(library)
    if tensorflow and not (of_torch.smdistributed or of_torch.compiles):
        calls = [] if context.trace.imported("sagemaker") else context.trace.methods("fit", "apply_gradients")
        for call in calls[:1]:
            yield Hit(call.module, call.node, {"library": record["title"]}, variant="tensorflow")
        return
    if not _trains(context) or _by_trainer(context):
        return
    if tensorflow and of_torch.compiles:
        return  # the image compiles
    alias = f"{record['import'].rpartition(' ')[2]}."
    uses = alias in context.text  # and does not import it
    # A package that is not followed may replicate the model: task.prepare_distributed().
    outside = [call.called.lower() for call in context.trace.calls if not call.function and "torch." not in call.name]
    hidden = any("distributed" in name for name in outside) or not _shows_its_model(context)
    if not tensorflow and not uses and hidden:
        what = f"how the model is made, and whether it uses {record['title']}, as the plan does"
        return context.leave_open(context.trace.modules[0], context.trace.modules[0].tree.body[0], what)
    missing = [f"`{record['import']}`", *(need["text"] for need in record["needs"] if not tensorflow)]
    module = context.trace.modules[0]
    if module.tree.body:
        values: dict[str, object] = {"library": record["title"], "missing": _listed(missing)}
        yield Hit(module, module.tree.body[0], values, severity=record.get("severity"))


def _shows_its_model(context: Context) -> bool:
    """Return whether the trained models were followed to their construction, or to a wrapper that replicates them."""
    if any(call.reached and not guarded_by(call, "fsdp", "shard") for call in context.trace.named(*REPLICATING)):
        return True
    optimizers = [call for call in context.trace.calls if is_optimizer(call.name)]
    if not optimizers and not context.trace.methods("step"):
        return False  # a backward pass without an update is no training
    groups = [maker for call in optimizers for maker in makers(call.argument("params", 0)) if maker.method]
    if groups:
        return all(group.receiver is not None and is_plain_model(group.receiver) for group in groups)
    return any(call.receiver is not None and is_plain_model(call.receiver) for call in forwards(context))


@check("SMP002")
def _has_what_it_needs(context: Context) -> Iterator[Hit]:
    # A part of a script has no optimizer of its own.
    makes_optimizer = any(is_optimizer(call.name) and call.reached for call in context.trace.calls)
    if not makes_optimizer or not _trains(context) or _by_trainer(context):
        return
    for library, name in ((_V1, "smp_torch"), (_V2, "smp_v2")):
        imports = context.trace.imported(*BACK_ENDS[name].packages)
        optional = name in context.libraries.optional or context.trace.requires("torch_xla")
        if not getattr(context.libraries, name) or optional or not imports:
            continue
        steps = any(function.step is not None for function in context.trace.functions)
        no_step = steps or not (context.settings.microbatches or 2) > 1
        missing = [
            need
            for need in _PREREQUISITES[library]["needs"]
            if not (no_step if need["names"] == ["smp.step"] else context.trace.named(*need["names"]))
        ]
        if missing:
            module, node, _ = imports[0]
            reported_by = frozenset(need["reported_by"] for need in missing)
            values: dict[str, object] = {
                "library": _PREREQUISITES[library]["title"],
                "missing": _listed([need["text"] for need in missing]),
            }
            yield Hit(module, node, values, reported_by=reported_by)


def _trains(context: Context) -> bool:
    """Return whether the file trains anywhere, reached or not."""
    in_step = any(call.step is not None for call in context.trace.calls)
    return in_step or bool(context.trace.methods("backward", "apply_gradients"))


def _by_trainer(context: Context) -> bool:
    """Return whether a framework trains, which starts the library itself."""
    frameworks = ("accelerate", "lightning", "pytorch_lightning", "torch.distributed._tensor")
    return context.trainer or bool(context.trace.imported(*frameworks)) or bool(context.trace.named(*ACCELERATORS))


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
