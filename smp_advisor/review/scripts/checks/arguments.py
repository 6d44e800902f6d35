"""Arguments of trainers in the releases that the job has: removed, renamed, unknown, and in contradiction."""

from __future__ import annotations

import ast
import difflib
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.review.reading.values import (
    Argument,
    Class,
    Collection,
    Constant,
    Entry,
    Function,
    Instance,
    Mapping,
    options,
)
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check, is_of_transformers
from smp_advisor.review.scripts.queries import argument_node, constant, makers
from smp_advisor.review.scripts.releases import (
    accepts,
    arguments_of,
    base_of,
    callable_of,
    default_of,
    derived_from,
    ever,
    exists,
    instead_of,
    newest,
    oldest,
    release,
    span_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.scripts.releases import Release, Span


def filled_arguments(context: Context) -> Iterator[Call]:
    """Yield the arguments of trainers that a parser fills from the options of the job, as calls with these."""
    options_of_job = context.settings.hyperparameters
    fills = context.trace.methods("parse_args_into_dataclasses", "parse_args_and_config") if options_of_job else []
    stored = {store.node.attr for store in context.trace.stores}
    for call, maker in [(fill, maker) for fill in fills if fill.reached for maker in makers(fill.receiver)]:
        types = maker.argument("dataclass_types", 0)
        for kind in types.items if isinstance(types, Collection) else options(types):
            paths = kind.ancestors() if isinstance(kind, Class) else [getattr(kind, "path", "")]
            path = next(filter(callable_of, paths), "")
            names = set(_names(callable_of(path))) & options_of_job.keys() if path else set()
            if not names or (isinstance(kind, Class) and not names.isdisjoint(kind.fields())):
                continue
            entries = {name: Entry(Constant(_read(options_of_job[name]))) for name in sorted(names - stored)}
            unknown = "config" in options_of_job or not stored.isdisjoint(_names(callable_of(path)))
            more = "its file of arguments, or the script, may set others" if unknown else ""
            yield replace(call, name=path, method="", receiver=None, arguments=(), passed=Mapping(entries, open=more))


def _read(text: object) -> object:
    """Return the value that a parser makes of an option."""
    return {"true": True, "false": False}.get(str(text).lower(), digits_as_number(text))


def trainer_calls(context: Context) -> Iterator[tuple[Call, str]]:
    """Reached calls of callables in the table, with their names there; of subclasses in the script, too."""
    for call in context.trace.calls:
        derived = derived_from(call.name) if is_of_transformers(call) else ""
        if call.reached and call.name and (name := callable_of(call.name) or derived):
            yield call, name
    for instance in context.trace.instances:
        own = instance.cls.find("__init__")
        name = next(filter(None, map(callable_of, instance.cls.ancestors())), "")
        if own is None and name and instance.call.reached:
            yield instance.call, name


def released_calls(context: Context) -> list[tuple[Call, str]]:
    """Calls whose arguments are compared with a release, other than those of images with a PyTorch of their own."""
    compiled = context.libraries.xla or any(function.name == "_mp_fn" for function in context.trace.functions)
    if context.libraries.smp_v1 or compiled:
        return []
    own = ("torch.",) if context.libraries.smp_v2 else ()  # AWS's FSDP has more arguments
    return [(call, name) for call, name in trainer_calls(context) if not name.startswith(own)]


@check("TRN720")
def _known_to_the_release(context: Context) -> Iterator[Hit]:
    patched = ("trl", "transformers") if context.trace.imported("unsloth") else ()  # takes the older arguments too
    for call, name in released_calls(context):
        package = name.partition(".")[0]
        if package in patched:
            continue
        span = span_of(context, package)
        uncertain = context.settings.older_image or call in context.memo.get("filled", ())
        if uncertain and not span.where:
            continue
        first, last = max(span.first, oldest(package)), min(span.last, newest(package))
        if not exists(name, last):
            values: dict[str, object] = {
                "call": name.partition(".")[2],
                "release": f"{package} {_text(last)}",
                "why": _why(span, package),
            }
            yield Hit(
                call.module,
                call.node,
                values,
                severity=_severity(certain=span.known and not exists(name, first)),
                variant="name",
            )
            continue
        for argument in call.passed.entries:
            hit = _unknown(context, call, name, str(argument), last, span)
            if hit is not None:
                yield hit


def _unknown(context: Context, call: Call, name: str, argument: str, last: Release, span: Span) -> Hit | None:
    if span.first > newest(name.partition(".")[0]) or accepts(name, argument, last):
        return None
    base, package = base_of(name), name.partition(".")[0]
    if base:  # the arguments of transformers, in the release that belongs to this one
        outer = span_of(context, "transformers")
        if accepts(base, argument, min(outer.last, newest("transformers"))):
            return None
        if ever(base, argument) is not None:
            package, name, span = "transformers", base, outer
            last = min(outer.last, newest(package))
    release_span = ever(name, argument)
    node = argument_node(call, argument) or call.node
    values: dict[str, object] = {
        "argument": argument,
        "call": call.called or call.module.text(call.node.func),
        "why": _why(span, package),
    }
    if release_span is not None and release_span[0] > last:
        if argument_node(call, argument) is None:
            return None  # it comes from a dictionary, which the script may fill by the release
        values["release"] = f"{package} {_text(release_span[0])}"
        return Hit(call.module, node, values, severity=_severity(certain=span.known), variant="later")
    if release_span is not None and not callable_of(call.name) and not instead_of(name, argument):
        return None  # a subclass of another package may keep it
    if release_span is not None:
        values |= {"release": f"{package} {_text(release_span[1])}", "instead": _instead(call, name, argument, last)}
        return Hit(
            call.module, node, values, severity=_severity(certain=span.first >= release_span[1]), variant="removed"
        )
    if (span.known and span.last < oldest(package)) or not callable_of(call.name):
        return None  # a subclass has arguments of its own
    instead = _instead(call, name, argument, last)
    values |= {"package": package, "first": _text(oldest(package)), "instead": instead}
    certain = span.known or not instead_of(name, argument)  # a name of releases that are older than the table
    return Hit(call.module, node, values, severity=_severity(certain=certain), variant="unknown")


def _instead(call: Call, name: str, argument: str, last: Release) -> str:
    """Return the text to write instead of an argument."""
    newer = instead_of(name, argument)
    config = name.replace("Trainer", "Config")
    for candidate in filter(None, (newer, argument)):
        if accepts(name, candidate, last) and candidate != argument:
            return f"Write {candidate}"
        if name.startswith("trl.") and ever(config, candidate) and accepts(config, candidate, last):
            return f"Write it as {candidate} of {config.partition('.')[2]}"
    near = difflib.get_close_matches(argument, [key for key in _names(name) if accepts(name, key, last)], 1, 0.8)
    return f"Write {near[0]}" if near else f"Remove it from {call.called}()"


def _names(name: str) -> list[str]:
    return [*arguments_of(name), *(arguments_of(base_of(name)) if base_of(name) else ())]


def _severity(*, certain: bool) -> Severity:
    """Return an error where no release that the job may have accepts it: an image keeps its own within the bounds."""
    return "error" if certain else "warning"


def _why(span: Span, package: str) -> str:
    return span.where or f"no file pins {package}"


def _text(release_: Release) -> str:
    return ".".join(map(str, release_))


def passed(context: Context, call: Call, argument: str) -> object:
    """Return the value of an argument, passed or the default of the release; Ellipsis if it is not known."""
    value = call.argument(argument)
    if value is not None or call.unpacks:
        literal = Conditions(context.settings, defaults=True).known(value) if value is not None else ...
        return literal if literal is None or isinstance(literal, (str, int, float)) else ...
    name = callable_of(call.name)
    for candidate in filter(None, (name, base_of(name) if name else "")):
        package = candidate.partition(".")[0]
        default = default_of(candidate, argument, min(span_of(context, package).last, newest(package)))
        if default is not ...:
            return default
    return ...


@check("TRN736")
def _metric_that_is_computed(context: Context) -> Iterator[Hit]:
    """A metric that ``compute_metrics`` does not return: its dictionary has other keys."""
    for call, _ in trainer_calls(context):
        for arguments in makers(call.argument("args", 1)):
            metric = str(constant(arguments.argument("metric_for_best_model")) or "loss").removeprefix("eval_")
            for function in options(call.argument("compute_metrics")):
                nodes = [*ast.walk(function.node)] if isinstance(function, Function) else []
                ends = [ast.unparse(node.value) for node in nodes if isinstance(node, ast.Return) and node.value]
                literal = ends and all(re.fullmatch(r"\{(?:'\w+': [^{}*]*)*\}", end) for end in ends)
                if literal and metric != "loss" and not any(f"'{metric}'" in end for end in ends):
                    yield Hit(arguments.module, arguments.node, variant="metric of another name")


@check("TRN723")
def _whole_groups(context: Context) -> Iterator[Hit]:
    for call in trainer_arguments(context):
        if not call.name.endswith(("GRPOConfig", "RLOOConfig")):
            continue
        group, batch = passed(context, call, "num_generations"), passed(context, call, "per_device_train_batch_size")
        steps = passed(context, call, "gradient_accumulation_steps")
        is_set = any(call.gives(name) for name in ("generation_batch_size", "steps_per_generation"))
        numbers = [number for number in (group, batch, steps) if isinstance(number, int) and number > 0]
        processes = context.settings.processes
        if is_set or len(numbers) != 3 or not (processes or call.gives("num_generations")):
            continue
        # A group had to fit in one batch of all processes before TRL 0.17.
        samples = numbers[1] * (1 if span_of(context, "trl").last < (0, 17) else numbers[2])
        place = argument_node(call, "num_generations") or call.node
        if processes:
            if samples * processes % numbers[0]:
                counts = {"group": numbers[0], "samples": samples, "product": samples * processes, "needed": processes}
                yield Hit(call.module, place, {**counts}, severity="error", variant="of the job")
            continue
        needed = numbers[0] // math.gcd(numbers[0], samples)
        never = all(samples * 2**power % numbers[0] for power in range(8))
        if never or needed >= 8:  # GPUs of the largest instances
            counts = {"group": numbers[0], "samples": samples, "product": samples * 8, "needed": needed}
            yield Hit(call.module, place, {**counts}, variant="" if never else "few")


@check("TRN719")
def _divisor_of_the_loss(context: Context) -> Iterator[Hit]:
    for instance in context.trace.instances:
        kinds = [path for path in instance.cls.ancestors() if path.startswith(("transformers.", "trl."))]
        method = instance.cls.find("compute_loss")
        node = getattr(method, "node", None)
        if not any(path.endswith("Trainer") for path in kinds) or node is None:
            continue
        names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        span = span_of(context, "transformers")
        if "num_items_in_batch" not in names and node.args.kwarg is None:
            if span.last >= release("4.46"):
                severity: Severity = "error" if span.first >= release("4.46") else "warning"
                yield Hit(method.module, node, severity=severity, variant="signature")  # type: ignore[union-attr]
        elif not _uses_divisor(node) and _steps_above_one(makers(instance.call.argument("args", 1))):
            yield Hit(method.module, node, variant="ignored")  # type: ignore[union-attr]

    for call, name in trainer_calls(context):
        if name.partition(".")[2] != "Trainer" or not _steps_above_one(makers(call.argument("args", 1))):
            continue
        for model in options(call.argument("model", 0)):
            forward = model.cls.find("forward") if isinstance(model, Instance) else None
            node = getattr(forward, "node", None)
            own = isinstance(model, Instance) and not any(
                path.startswith("transformers.") for path in model.cls.ancestors()
            )
            kwargs = node.args.kwarg.arg if node is not None and node.args.kwarg is not None else ""
            if own and node is not None and kwargs and not _reads(node, "num_items_in_batch", kwargs):
                yield Hit(forward.module, node, variant="forward")  # type: ignore[union-attr]


def _reads(node: ast.AST, *names: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _uses_divisor(node: ast.AST) -> bool:
    body = getattr(node, "body", [])
    read = {part.id for statement in body for part in ast.walk(statement) if isinstance(part, ast.Name)}
    inner = any("super().compute_loss" in ast.unparse(statement) for statement in body)
    return "num_items_in_batch" in read or inner


def _steps_above_one(arguments: list[Call]) -> bool:
    for maker in arguments:
        steps = maker.argument("gradient_accumulation_steps")
        number = steps.default if isinstance(steps, Argument) else steps
        if isinstance(constant(number), int) and constant(number) > 1:
            return True
    return False
