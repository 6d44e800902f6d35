"""Scripts of Trainer, TRL and Accelerate: whether their arguments turn on what the plan has, and fit each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from smp_advisor.core.files import CONFIGURATION, folders_from, is_path, read_bytes, table
from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.values import Collection, Constant, Mapping, options
from smp_advisor.review.scripts.checks.parallel import reached_accelerators
from smp_advisor.review.scripts.checks.sharding import FSDP, shards
from smp_advisor.review.scripts.conditions import Conditions
from smp_advisor.review.scripts.context import Context, Hit, check
from smp_advisor.review.scripts.processes import PROCESSES, of_counted_processes
from smp_advisor.review.scripts.queries import argument_node, constant
from smp_advisor.review.scripts.settings import CHECKPOINTING, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from smp_advisor.review.findings.finding import Severity
    from smp_advisor.review.reading.trace import Call


_PARSERS = ("HfArgumentParser", "TrlParser")
_OTHER_CONFIGS = ("ModelConfig", "LoraConfig", "PeftConfig")
_SHARDED_CONFIG = re.compile(r"^ *distributed_type: *['\"]?(?:FSDP|DEEPSPEED)", re.MULTILINE)
_MOST_CONFIGS = 50


def trainer_arguments(context: Context) -> Iterator[Call]:
    """Reached constructions of the arguments of Trainer, of its subclasses in any package, and of TRL's trainers."""
    for path, calls in context.trace.by_name.items():
        name = path.rpartition(".")[2]
        of_trl = path.startswith("trl.") and name.endswith("Config") and name not in _OTHER_CONFIGS
        if of_trl or name.endswith("TrainingArguments"):
            yield from (call for call in calls if call.reached)
    for instance in context.trace.instances:
        if instance.call.reached and any(path.endswith("TrainingArguments") for path in instance.cls.ancestors()):
            yield instance.call


def _checkpointing_argument(call: Call) -> str:
    return next((name for name in CHECKPOINTING if call.argument(name) is not None), CHECKPOINTING[0])


def _shards(context: Context) -> bool:
    """Return whether the plan or the script certainly shards the model."""
    switches = [option for call in trainer_arguments(context) for option in options(call.argument("fsdp"))]
    by_arguments = any(map(constant, switches))
    wraps = any(call.reached for call in context.trace.named(*FSDP))
    return by_arguments or wraps or shards(context, *reached_accelerators(context))


@check("TRN709")
def _sharding_turned_on(context: Context) -> Iterator[Hit]:
    texts = [module.source.text for module in context.trace.modules]
    by_itself = context.trace.named(*FSDP) or any("ACCELERATE_USE_" in text or "FSDPStrategy" in text for text in texts)
    if not context.libraries.fsdp or by_itself:
        return
    calls = list(trainer_arguments(context))
    switches = [option for call in calls for name in ("fsdp", "deepspeed") for option in options(call.argument(name))]
    if any(not isinstance(option, Constant) or option.value for option in switches):
        return
    parsers = [call for call in context.trace.calls if call.reached and call.name.endswith(_PARSERS)]
    accelerators = reached_accelerators(context)
    for call in (*calls, *parsers, *accelerators):
        passed = context.settings.hyperparameters
        if call in parsers and any(passed.get(name) for name in ("fsdp", "deepspeed", "config")):
            return
        if config := _sharded_config(context):
            what = f"the model is sharded only if the job starts with accelerate launch --config_file {config}"
            context.leave_open(call.module, call.node, what)
        elif call.unpacks or (call in parsers and not passed):
            context.leave_open(call.module, call.node, "whether its arguments turn on FSDP, as the plan does")
        elif call in accelerators:
            if not any(call.gives(name) for name in ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins")):
                yield Hit(call.module, call.node, severity="warning", variant="accelerate")
        else:
            yield Hit(call.module, call.node, {"call": call.called})
        return


_NAMED = ("deepspeed", "fsdp_config", "hf_ds_config", "config_file")
"""Arguments of trainers and plugins, and options of jobs, that can be files."""


@check("TRN717")
def _files_of_settings(context: Context) -> Iterator[Hit]:
    script, job_options = context.trace.modules[0].source.file, context.settings.hyperparameters
    plugins = [call for call in context.trace.calls if call.reached and call.name.endswith("DeepSpeedPlugin")]
    files = [
        (call, name, str(constant(option)))
        for call in (*trainer_arguments(context), *plugins)
        for name in _NAMED
        for option in options(call.argument(name))
    ]
    parsers = [call for call in context.trace.calls if call.reached and call.name.endswith(_PARSERS)]
    files += [(call, name, str(job_options.get(name))) for call in parsers for name in (*_NAMED, "config")]
    for call, name, text in files:
        if script is None or not text.endswith((".json", ".yaml", ".yml")) or text.startswith("/opt/ml/"):
            continue
        if not is_path(text):
            continue
        path = next((folder / text for folder in folders_from(script) if (folder / text).is_file()), None)
        if path is None:
            yield Hit(call.module, argument_node(call, name) or call.node, {"file": text, "argument": name})
        else:
            yield from _differences_of_file(context, call, path)


def _differences_of_file(context: Context, call: Call, path: Path) -> Iterator[Hit]:
    """Yield the settings in a file of DeepSpeed, Trainer or TRL that are not those of the plan."""
    settings = context.settings
    try:
        content = yaml.safe_load(read_bytes(path, CONFIGURATION)) if settings.precision else None
    except (OSError, AdvisorError, yaml.YAMLError, RecursionError, ValueError):
        content = None
    if not isinstance(content, dict):
        what = f"{path.name}, whose settings the job uses, is not a table of names and values"
        return context.leave_open(call.module, call.node, what) if settings.precision else None
    planned = {
        **dict.fromkeys(("per_device_train_batch_size", "train_micro_batch_size_per_gpu"), settings.batch_size),
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        **{name: name == settings.precision for name in _HALF},
    }
    differing = dict[str, tuple[Any, Any]]()
    for name, plan in planned.items():
        value = content.get(name)
        setting = value.get("enabled") if isinstance(value, dict) else value
        if plan is not None and type(setting) is type(plan) and setting != plan:
            differing[name] = setting, plan
    if differing:
        texts = [", ".join(f"{name}={pair[n]!r}" for name, pair in differing.items()) for n in (0, 1)]
        yield Hit(call.module, call.node, {"file": path.name, "written": texts[0], "planned": texts[1]}, variant="file")


def _sharded_config(context: Context) -> str:
    """Return the name of a configuration of Accelerate near the script that shards the model."""
    file = context.trace.modules[0].source.file
    if file is None:
        return ""
    nearby = [path for pattern in ("*.y*ml", "*/*.y*ml") for path in sorted(file.parent.glob(pattern))]
    for path in nearby[:_MOST_CONFIGS]:
        try:
            if _SHARDED_CONFIG.search(read_bytes(path, CONFIGURATION).decode("utf-8", "replace")):
                return path.name
        except (OSError, AdvisorError):
            continue
    return ""


_DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
"""Of TrainingArguments in transformers 5.0."""
_HALF = ("bf16", "fp16")


@check("TRN710")
def _arguments_of_the_plan(context: Context) -> Iterator[Hit]:
    settings = context.settings
    if settings.library is None or not settings.precision:
        return
    numbers = (settings.batch_size, settings.gradient_accumulation_steps)
    for call in trainer_arguments(context):
        checkpoints = settings.activation_checkpointing not in (None, False, "none")
        methods = context.trace.methods(*(f"{name}_enable" for name in CHECKPOINTING))
        by_method = methods or config_entry(call, "activation_checkpointing")
        # Name, default of TrainingArguments, plan. Defaults of TRL's differ by release.
        rows: list[tuple[str, Any, Any]] = [
            (name, _DEFAULTS[name], number) for name, number in zip(_DEFAULTS, numbers, strict=True)
        ]
        rows += [(name, False if name == settings.precision else None, name == settings.precision) for name in _HALF]
        rows += [] if by_method else [(_checkpointing_argument(call), False, checkpoints)]
        of_trl = not call.name.endswith("TrainingArguments")
        yield from _differences(call, [(name, None if of_trl else default, plan) for name, default, plan in rows])
    precision: Any = "no" if settings.precision == "fp32" else settings.precision
    for call in reached_accelerators(context):
        steps = settings.gradient_accumulation_steps
        rows = [("mixed_precision", None, precision), ("gradient_accumulation_steps", None, steps)]
        yield from _differences(call, rows)


def _differences(call: Call, rows: list[tuple[str, Any, Any]]) -> Iterator[Hit]:
    """Yield the arguments (name, default, plan) that are certainly not those of the plan."""
    for name, default, planned in rows if not call.unpacks else ():
        value, node = call.argument(name), argument_node(call, name)
        written = default if value is None else constant(value)
        if planned is not None and type(written) is type(planned) and written != planned:
            values: dict[str, object] = {"argument": name, "written": repr(written), "planned": repr(planned)}
            yield Hit(call.module, node or call.node, values)


def config_entry(call: Call, name: str) -> Any:
    """Return an entry of ``fsdp_config``: a text, a number, or a list of texts."""
    for option in options(call.argument("fsdp_config")):
        entry = (option.get(name) or option.get(f"fsdp_{name}")) if isinstance(option, Mapping) else None
        if isinstance(entry, Collection):
            return [constant(item) for item in entry.items if isinstance(constant(item), str)]
        if entry is not None:
            return constant(entry)
    return None


def loaded_names(context: Context) -> set[str]:
    """Return the names of the models that the script loads, also by an option that the job passes."""
    passes = bool(context.settings.hyperparameters)
    conditions = Conditions(context.settings, defaults=passes, tests=context.trace.tests)
    values = [
        call.argument("pretrained_model_name_or_path", 0) if call.method else call.argument("model", 0)
        for call in context.trace.calls
        if call.reached and not re.search("[Tt]okenizer|Processor|Config", call.name)
        if call.method == "from_pretrained" or call.called.endswith("Trainer")
    ]
    names = [conditions.known(value) for value in values if value is not None]
    return {name.rpartition("/")[2].lower() for name in names if isinstance(name, str)}


@check("TRN712")
def _class_of_the_model(context: Context) -> Iterator[Hit]:
    names: dict[str, str] = table("smp_advisor.review.scripts", "data/names.toml")["blocks"]
    class_names, meant = names.values(), blocks_of(loaded_names(context))
    written = [(call, config_entry(call, "transformer_layer_cls_to_wrap")) for call in trainer_arguments(context)]
    option = "fsdp_transformer_layer_cls_to_wrap"
    classes = context.settings.hyperparameters.get(option) or context.settings.launcher.get(option)
    loads = [call for call in context.trace.methods("from_pretrained") if call.reached and "Model" in call.name]
    written += [(call, str(classes).split(",")) for call in loads[:1] if classes]
    for call, entry in written:
        for name in entry if isinstance(entry, list) else [entry] if isinstance(entry, str) else []:
            if meant and name not in meant:
                yield Hit(call.module, call.node, {"written": name, "meant": " or ".join(sorted(meant))})
            elif not meant and name not in class_names:
                context.leave_open(call.module, call.node, f"whether the model has the class {name} (TRN712)")


_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")


@check("TRN713")
def _one_device_per_process(context: Context) -> Iterator[Hit]:
    sharded, accelerators = _shards(context), reached_accelerators(context)
    texts = context.text
    several = (context.settings.processes or 1) > 1
    severity: Severity = "error" if several else "warning" if accelerators or _SEVERAL.search(texts) else "info"
    for call in context.trace.methods("from_pretrained"):
        device_map = call.argument("device_map")
        spreads = constant(device_map) in _SPREADING
        fixed = isinstance(device_map, Mapping) and constant(device_map.get("")) == 0
        if not PROCESSES[1].runs(call) or of_counted_processes(call):
            continue
        if call.reached and spreads and sharded:
            yield Hit(call.module, argument_node(call, "device_map") or call.node, variant="sharded")
        elif call.reached and (spreads or fixed) and (accelerators or context.trainer) and not sharded:
            node = argument_node(call, "device_map") or call.node
            if severity == "error" and fixed and "load_in_" not in texts:
                severity = "warning"
            yield Hit(call.module, node, severity=severity, variant="spread" if spreads else "first")


_SEVERAL = re.compile(r"LOCAL_RANK|\bddp_|init_process_group|torchrun")
