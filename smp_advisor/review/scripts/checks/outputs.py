"""Inputs that a script receives of its job, outputs that it leaves, and those that a resumed run finds."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import table
from smp_advisor.review.reading.values import (
    Argument,
    Class,
    Collection,
    Constant,
    External,
    Function,
    Item,
    Member,
    Result,
    options,
)
from smp_advisor.review.scripts.checks.data import LOADERS
from smp_advisor.review.scripts.checks.planned import loaded_names, trainer_arguments
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.queries import (
    argument_node,
    constant,
    derivation,
    is_optimizer,
    known_names,
    makers,
)
from smp_advisor.review.scripts.releases import arguments_of, base_of, callable_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value


@check("SMP003")
def _options_that_text_can_switch(context: Context) -> Iterator[Hit]:
    passed = context.settings.hyperparameters
    possible: list[tuple[str, Call]] = []
    for name, call in context.trace.options.items():
        kind, value = call.argument("type"), passed.get(name)
        if not (isinstance(kind, External) and kind.path == "bool") or not call.reached:
            continue
        if value is None:
            possible.append((name, call))
        elif str(value).lower() in ("false", "0", "no"):
            yield Hit(call.module, call.node, {"option": name, "value": str(value)}, variant="received")
    numbers = [
        option.name
        for use in context.trace.calls
        if use.reached and (use.name in _OF_NUMBERS or is_optimizer(use.name))
        for option in (*use.arguments, *use.keywords.values())
        if isinstance(option, Argument)
    ]
    texts = [
        (name, call)
        for name, call in context.trace.options.items()
        if call.reached and not (call.gives("type") or call.gives("action") or call.gives("nargs"))
        and type(constant(call.argument("default"))) in (int, float) and name in passed and name in numbers
    ]  # fmt: skip
    # setattr() and vars() change options by names that are not followed.
    by_name = any(re.search(r"setattr\(|vars\(|__dict__", module.source.text) for module in context.trace.modules)
    for name, call in texts if not by_name else ():
        yield Hit(call.module, call.node, {"option": name, "value": str(passed[name])}, variant="text")
    if possible and not passed:
        names = ", ".join(f"--{name}" for name, _ in possible)
        yield Hit(possible[0][1].module, possible[0][1].node, {"option": names, "value": "False"}, variant="possible")


_OF_NUMBERS = ("range", *LOADERS)


@check("SMP004")
def _options_that_are_received(context: Context) -> Iterator[Hit]:
    passed = context.settings.passed
    parses = [call for call in context.trace.methods("parse_args", "parse_known_args") if call.reached]
    fills = [call for call in context.trace.methods("parse_args_into_dataclasses") if call.reached]
    flags = _flags_of_classes(context, fills) if fills else flags_of(context, parses) if passed and parses else None
    if flags is None:
        return
    skips_unknown = all(call.method == "parse_known_args" for call in parses) and not fills
    parses = fills or parses
    for name in passed:
        flag = f"--{name}"
        declared = context.trace.options.get(name)
        action = constant(declared.argument("action")) if declared is not None else None
        if declared is not None and action in ("store_true", "store_false") and not skips_unknown:
            yield Hit(declared.module, declared.node, {"option": name, "near": ""}, variant="flag")
        if flag in flags or (not skips_unknown and any(option.startswith(flag) for option in flags)):
            continue
        spelling = flag.replace("_", "-") if "_" in name else flag.replace("-", "_")
        near = f" The parser has {spelling}." if f"--{spelling.lstrip('-')}" in flags else ""
        values: dict[str, object] = {"option": name, "near": near}
        call = parses[0]
        yield Hit(call.module, call.node, values, variant="ignored" if skips_unknown else "refused")


def _flags_of_classes(context: Context, fills: list[Call]) -> set[str] | None:
    """Return the options of an HfArgumentParser; None if not all of its classes are known, or it ignores others."""
    makes = [maker for call in fills for maker in makers(call.receiver) if maker.called == "HfArgumentParser"]
    types = makes[0].argument("dataclass_types", 0) if len(makes) == len(fills) == 1 else None
    text = context.text
    if types is None or fills[0].arguments or fills[0].keywords or "aliases" in text:
        return None
    names = {*context.trace.options, "sharded_ddp", "xpu_backend"}  # and those before the first release in the table
    for kind in types.items if isinstance(types, Collection) else options(types):
        bases = [base for part in kind.lineage for base in part.bases] if isinstance(kind, Class) else [kind]
        paths = [callable_of(base.path) for base in bases if isinstance(base, External)]
        if not all(paths) or not all(isinstance(base, (Class, External)) for base in bases):
            return None
        names.update(kind.fields() if isinstance(kind, Class) else ())
        names.update(
            name for path in paths for base in filter(None, (path, base_of(path))) for name in arguments_of(base)
        )
    spelled = {name.replace("_", mark) for name in names for mark in "_-"}
    return {f"--{start}{name}" for name in spelled for start in ("", "no_")}


def flags_of(context: Context, parses: list[Call]) -> set[str] | None:
    """Return the options that the script defines; None if code outside of its files may define or supply some."""
    for call in parses:
        own = isinstance(call.receiver, Result) and call.receiver.call.name == "argparse.ArgumentParser"
        if not own or call.arguments or "args" in call.keywords:
            return None
    handed = [
        value for call in context.trace.calls if not call.bound for value in (*call.arguments, *call.keywords.values())
    ]
    if any(isinstance(value, Result) and value.call.name == "argparse.ArgumentParser" for value in handed):
        return None
    flags: set[str] = set()
    for call in context.trace.methods("add_argument"):
        values = [value.value if isinstance(value, Constant) else None for value in call.arguments]
        if not values or not all(isinstance(value, str) for value in values):
            return None
        # A positional argument takes the value of an option that parse_known_args() does not know.
        skips = all(call.method == "parse_known_args" for call in parses)
        flags.update(f"--{value}" if skips and value[:1] != "-" else value for value in map(str, values))
    return flags


MODEL_DIR = "/opt/ml/model"
_SAVES = frozenset(known_names("saves"))


def in_model_folder(value: Value | None) -> bool:
    """Return whether a path is certainly below the folder that becomes model.tar.gz."""
    for option in options(value):
        source = option.default if isinstance(option, Argument) else option
        for part in derivation(source):
            if isinstance(part, Constant) and str(part.value).rstrip("/").startswith(MODEL_DIR):
                return True
            key = part.key if isinstance(part, Item) else None
            if isinstance(part, Result) and part.call.name in ("os.environ.get", "os.getenv") and part.call.arguments:
                key = part.call.arguments[0]
            if constant(key) == "SM_MODEL_DIR":
                return True
    return False


_LOST = ("/opt/ml/", "/tmp/", "/root/", "/home/")  # noqa: S108 - named, not used
"""Folders on the instance's own disk, as relative ones are; others can be file systems that are mounted."""
_KEPT = ("/opt/ml/checkpoints", "/opt/ml/input")


def _is_lost(folder: str) -> bool:
    relative = not folder.startswith("/") and ":" not in folder
    return relative or (folder.startswith(_LOST) and not folder.startswith(_KEPT))


@check("SMP005")
def _checkpoints_where_they_are_kept(context: Context) -> Iterator[Hit]:
    texts = (module.source.text for module in context.trace.modules)
    on_sagemaker = any(mark in text for text in texts for mark in ("/opt/ml/", "SM_MODEL_DIR", "SM_CHANNEL_"))
    set_later = any(store.node.attr == "output_dir" for store in context.trace.stores)
    for call in trainer_arguments(context):
        node = argument_node(call, "output_dir", 0)
        strategy = constant(call.argument("save_strategy"))
        if strategy == "no" or call.unpacks:
            continue
        if not in_model_folder(call.argument("output_dir", 0)):
            folder = constant(call.argument("output_dir", 0))
            if isinstance(folder, str) and _is_lost(folder) and not set_later and on_sagemaker and _resumes(context):
                yield Hit(call.module, node or call.node, {"folder": folder}, variant="elsewhere")
        elif call.gives("save_steps") or strategy in ("steps", "epoch"):
            yield Hit(call.module, node or call.node)


@check("SMP006")
def _saved_before_the_signal(context: Context) -> Iterator[Hit]:
    handlers = [
        (call, option)
        for call in context.trace.named("signal.signal")
        if call.reached and _is_term(call.argument("signalnum", 0))
        for option in options(call.argument("handler", 1))
        if isinstance(option, Function)
    ]
    saves = [
        call for call in context.trace.calls if call.name in _SAVES or call.method in ("save_pretrained", "save_state")
    ]
    for call, handler in handlers:
        inside = [save for save in saves if any(function.node is handler.node for function in save.functions)]
        # One after the loop is that of the final model.
        flagged = [save for save in saves if _waits_for(save, handler)]
        beside = [save for save in saves if save not in inside and save not in flagged and save.loops]
        if (inside or flagged) and not beside and context.trains:
            yield Hit(call.module, call.node)


def _waits_for(save: Call, handler: Function) -> bool:
    """Return whether a save runs only after the handler has set its flag."""
    nodes = list(ast.walk(handler.node))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [
        node.func.value
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set"
    ]
    flags = set(map(ast.unparse, targets))
    tests = [part for guard in save.guards if guard.holds for part in ast.walk(guard.test)]
    return any(isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in flags for part in tests)


def _is_term(value: Value | None) -> bool:
    return any(isinstance(option, External) and option.path == "signal.SIGTERM" for option in options(value))


def _resumes(context: Context) -> list[Call]:
    return [
        call
        for call in context.trace.methods("train")
        if call.reached and constant(call.argument("resume_from_checkpoint", 0)) not in (None, False)
    ] + [
        call
        for call in context.trace.methods("train")
        if call.reached and not isinstance(call.argument("resume_from_checkpoint", 0), (Constant, type(None)))
    ]


@check("TRN732")
def _end_token_trained(context: Context) -> Iterator[Hit]:
    for store in context.trace.stores:
        padded = store.node.attr in ("pad_token", "pad_token_id")
        ends = isinstance(store.value, Member) and store.value.name in ("eos_token", "eos_token_id")
        for call in context.trace.calls if padded and ends else ():
            collates = call.called == "DataCollatorForLanguageModeling" and call.name.startswith("transformers.")
            causal = constant(call.argument("mlm", 1)) is False
            same = any(maker in makers(store.owner) for maker in makers(call.argument("tokenizer", 0)))
            if collates and causal and call.reached and same:
                appended = call.module.source.text.count("eos_token") > 1 + (store.node.attr == "pad_token_id")
                yield Hit(call.module, call.node, severity="warning" if appended else None)


def _items(value: Value) -> list[Value]:
    return list(getattr(value, "items", ()) or [value])


_ADAPTED: dict[str, Any] = table("smp_advisor.review.scripts", "data/names.toml")["adapted"]
_FAMILIES: dict[str, str] = _ADAPTED["families"]


@check("TRN724")
def _modules_of_the_family(context: Context) -> Iterator[Hit]:
    names = loaded_names(context)
    passes = bool(context.settings.hyperparameters)
    chosen = Conditions(context.settings, defaults=passes, tests=context.trace.tests).chosen
    styles = {style for name in names for family, style in _FAMILIES.items() if name.startswith(family)}
    if len(styles) != 1 or not all(any(name.startswith(family) for family in _FAMILIES) for name in names):
        return
    have = {part for name in _ADAPTED[styles.pop()] for part in (name, name.rpartition(".")[2])} | set(
        _ADAPTED["common"]
    )
    for call in context.trace.calls:
        if not call.reached or not call.name.endswith(".LoraConfig"):
            continue
        values_there = options(chosen(call.argument("target_modules")))
        targets = [constant(item) for option in values_there for item in _items(option)]
        texts = [text for text in targets if isinstance(text, str) and text.isidentifier()]
        if texts and len(texts) == len(targets) and not any(text in have for text in texts):
            values: dict[str, object] = {"modules": ", ".join(texts), "model": min(names)}
            yield Hit(call.module, argument_node(call, "target_modules") or call.node, values)
