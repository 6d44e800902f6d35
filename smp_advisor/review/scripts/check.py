"""Check a training script: its findings, what the check saw, and whether it trains as its plan does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smp_advisor.arguments.signatures import checked
from smp_advisor.core.words import listed
from smp_advisor.review.findings.report import Coverage, Part, Report
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import Instance, options
from smp_advisor.review.scripts.checks import judge
from smp_advisor.review.scripts.checks.arguments import filled_arguments, released_calls
from smp_advisor.review.scripts.checks.parallel import ACCELERATORS, REPLICATING
from smp_advisor.review.scripts.checks.sharding import FSDP
from smp_advisor.review.scripts.conditions import BACK_ENDS
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.queries import (
    KNOWN_PACKAGES,
    is_optimizer,
    is_plain_model,
    known_names,
    makers,
    origins,
)
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.source import Source
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.scripts.context import Context


_WRAPPERS = ("smp.DistributedModel", "tsm.transform", "tsm.transform.transform", *FSDP, *REPLICATING)
_SAVES = known_names("saves")
_LIGHTNING = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
_SAVING = ("save_pretrained", "save_model", "save_checkpoint", "save_state", "save_weights")
_PARSERS = ("HfArgumentParser", "TrlParser")
_KERAS = ("tensorflow.keras.optimizers.", "tensorflow.optimizers.", "keras.optimizers.")
_TITLES = {"smp_torch": "SMP v1 (PyTorch)", "smp_tensorflow": "SMP v1 (TensorFlow)", "smp_v2": "SMP v2"}


def coverage(context: Context) -> Coverage:
    """Return the parts of the script that the check saw, and its assumptions."""
    libraries = context.libraries
    names = [
        _TITLES.get(name, back_end.title) + (" (only in its own branches)" if name in libraries.optional else "")
        for name, back_end in BACK_ENDS.items()
        if getattr(libraries, name)
    ]
    used = [call.name for call in context.trace.calls if call.reached]
    used += [path for cls in context.trace.classes for path in cls.ancestors()]
    lightning = any(name.startswith(_LIGHTNING) for name in used)
    names += ["FSDP"] if (libraries.fsdp and not lightning) or _reached(context.trace.named(*FSDP)) else []
    names += ["DDP"] if _reached(context.trace.named(*REPLICATING)) else []
    names += ["Accelerate"] if _reached(context.trace.named(*ACCELERATORS)) else []
    names += ["Hugging Face Trainer"] if context.trainer else []
    names += ["Lightning (ranks, data, checkpoints)"] if lightning else []
    packages = {name.partition(".")[0] for _, name in released_calls(context)} - {"lightning"}
    names += [f"arguments by release of {', '.join(sorted(packages))}"] if packages else []
    by_trainer = ("that of Trainer",) if context.trainer else ()
    optimizers = [
        call
        for call in context.trace.calls
        if is_optimizer(call.name) or call.name.startswith(("smp.DistributedOptimizer", *_KERAS))
    ]
    parts = (
        Part(role="models", places=_places(_models(context))),
        Part(role="optimizers", places=_places(_reached(optimizers) or optimizers) or by_trainer),
        Part(role="training loops", places=_loops(context)),
        Part(role="savers", places=_places([*context.trace.named(*_SAVES), *context.trace.methods(*_SAVING)])),
    )
    return Coverage(
        libraries=tuple(dict.fromkeys(names)),
        parts=parts,
        assumed=tuple(_assumed(context)),
        outside=tuple(dict.fromkeys(_outside(context))),
    )


def _outside(context: Context) -> Iterator[str]:
    """Yield the calls of packages whose code is not read and that no rule knows."""
    packages = {
        name.partition(".")[0] for _, _, name in context.trace.imports if not name.startswith(".")
    } - KNOWN_PACKAGES
    for call in context.trace.calls:
        if call.reached and call.function is None and "." in call.name and call.name.partition(".")[0] in packages:
            yield call.name


def _reached(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.reached]


def _models(context: Context) -> Iterator[Call]:
    wrappers = context.trace.named(*_WRAPPERS)
    for call in context.trace.methods("prepare", "setup", "setup_module"):
        wrappers += [call] if any(o.name.endswith(("Accelerator", "Fabric")) for o in makers(call.receiver)) else []
    wrappers += [call for call in context.trace.calls if call.name.endswith("Trainer")]
    wrappers += [
        instance.call
        for instance in context.trace.instances
        if any(path.endswith((".DistributedModel", "keras.Model", "Trainer")) for path in instance.cls.ancestors())
    ]
    yield from _reached(wrappers) or wrappers
    if not wrappers:
        for call in context.trace.methods("parameters"):
            plain = call.receiver is not None and is_plain_model(call.receiver)
            yield from (origin.call for origin in origins(call.receiver) if plain and hasattr(origin, "call"))


def _loops(context: Context) -> tuple[str, ...]:
    places = {}
    for call in context.trace.methods("backward", "apply_gradients"):
        if call.loops:
            line = getattr(call.loops[-1], "lineno", call.node.lineno)
            places[call.loops[-1]] = f"loop ({_place(call.module, line)})"
    for call in context.trace.methods("train", "fit"):
        owners = [owner.name for owner in makers(call.receiver)]
        classes = (option.cls for option in options(call.receiver) if isinstance(option, Instance))
        owners += [path for cls in classes for path in cls.ancestors()]
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
    yield from context.trace.assumed
    entries = list(dict.fromkeys(f"{function.name}()" for function in context.trace.assumed_entries))
    if entries:
        yield f"Another file calls {listed(entries)}: no line of this file does."
    options = sorted(set(context.trace.options) - set(context.settings.hyperparameters))
    if options and not context.settings.hyperparameters:
        yield f"Options of the script have their defaults ({len(options):,} options)."
    parsers = [call for call in context.trace.calls if call.reached and call.called.endswith(_PARSERS)]
    if parsers and not context.settings.hyperparameters:
        yield "The job sets the arguments of Trainer: FSDP, precision and batches are not known. Pass hyperparameters=."
    for name in sorted(context.libraries.optional):
        title = BACK_ENDS[name].title
        yield f"{title} may be absent: code outside of its branches is judged without it. Pass library= to require it."
    if any(call.name.endswith(".SelectedOptimizer") for call in context.trace.calls):
        yield "An optimizer that is chosen by name is one of torch.optim."


@checked
def check_script(
    path_or_source: str | Path,
    plan: Plan | Mapping[str, Any] | None = None,
    *,
    library: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> Report:
    r"""Find defects that make a job fail, hang, train incorrectly or waste money.

    The script is read, never run. A check reports only defects that it can see. Code that could not be followed is
    listed in `unresolved` of the report. ``# smp: ignore[SMP109] why`` suppresses a finding on its line.

    Parameters
    ----------
    path_or_source
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules next to a file are followed if it
        imports them.
    plan
        Settings of the job: a `Plan`, or a dictionary with some of the library's parameters. Without one, the arguments
        of ``smp.init`` apply, and checks that depend on other settings report nothing.
    library
        ``smp-v1``, ``smp-v2``, ``training-compiler`` or ``fsdp`` (PyTorch's alone), if neither the script's
        imports nor the plan determine the library.
    hyperparameters
        Options that the job passes to the script. Without them, an error behind an option that is off by default is a
        warning that names the option.

    Raises
    ------
    AdvisorError
        If there is nothing to check: the file does not exist, is not text, or is not Python 3.

    Examples
    --------
    >>> report = check_script("import smdistributed.modelparallel.torch as smp\nprint(smp.rank())\n")
    >>> [finding.id for finding in report]
    ['SMP101']
    """
    return check_source(read(path_or_source), plan, library=library, hyperparameters=hyperparameters)


def check_source(
    source: Source,
    plan: Plan | Mapping[str, Any] | None = None,
    *,
    library: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Report:
    """Like `check_script`, for a source. `variables` are names that it does not assign."""
    return report_of(follow(source, from_plan(plan, library, hyperparameters), variables=variables))


def report_of(context: Context) -> Report:
    """Return the findings of a script that was followed."""
    context.memo["filled"] = [*filled_arguments(context)]
    for call in context.memo["filled"]:
        context.trace.add(call)
    findings = tuple(finding for finding, _ in judge(context))
    return Report(findings, tuple(context.unresolved), context.trace.modules[0].source.path, coverage=coverage(context))
