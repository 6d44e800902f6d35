"""The script of a job: followed with what the job passes to it, and what it shows of the training."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.calls import Calls
from smp_advisor.estimators.configuration import OF_DEEPSPEED, SHARDS, Setting, Strategy, count, section
from smp_advisor.estimators.readback import BATCH, SEQUENCE, known_model
from smp_advisor.estimators.strategies import deepspeed_configs, strategy_in_code
from smp_advisor.estimators.terms import gpus_of
from smp_advisor.review.reading.outside import COMMAND_LINES
from smp_advisor.review.reading.places import field_default
from smp_advisor.review.reading.unused import unused_options
from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    External,
    Function,
    Item,
    Mapping,
    Operation,
    Result,
    Unknown,
    options,
)
from smp_advisor.review.scripts.check import report_of
from smp_advisor.review.scripts.checks.arguments import passed
from smp_advisor.review.scripts.checks.outputs import MODEL_DIR, flags_of, in_model_folder
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.following import follow, stack_shown
from smp_advisor.review.scripts.queries import constant, makers
from smp_advisor.review.scripts.releases import default_of, newest, span_of
from smp_advisor.review.scripts.settings import CHECKPOINTING, from_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.review.findings.report import Report
    from smp_advisor.review.reading.source import Source
    from smp_advisor.review.reading.trace import Call, Store
    from smp_advisor.review.reading.values import Value
    from smp_advisor.review.scripts.context import Context

_PARSES = ("parse_args", "parse_known_args")
_NO_PYTHON = re.compile(r"line \d+: (?:expected an indented|unexpected indent|unindent|unmatched|'.' was never closed)")
"""Errors of syntax in every release of Python."""
_OF_LAUNCHERS = ("sagemaker_", "mp_", "smp_")
_MOST_CHARACTERS = 400_000
"""Longest script that is followed with a cell."""
BITS = ("load_in_4bit", "load_in_8bit")
MICRO_BATCH = "micro_batch_size"
ADAPTS = ("use_peft", "use_lora", "enable_lora", "lora_enable", "peft_enabled")
"""Options of scripts, of TRL as well, that turn an adapter on."""
STRATEGY = ("activation_checkpointing", "activation_strategy")
SAVES = ("save_strategy", "save_steps", "save_total_limit")
"""Arguments of Trainer that decide which checkpoints it keeps."""
READ = frozenset([*BATCH, MICRO_BATCH, *SEQUENCE, "gradient_accumulation_steps", "bf16", "fp16", *BITS, *STRATEGY])
"""Options and arguments of scripts that a plan has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The part of a job that its script gets, and what its code determines."""

    name: str
    """Name of its file."""
    report: Report
    ignored: tuple[str, ...]
    """Hyperparameters of the job that it does not receive."""
    unused: frozenset[str]
    """Options that it parses, and none of its calls receives."""
    distributed: bool
    """Whether it is written for several processes."""
    starts: bool
    """Whether it starts the processes of its node by itself: Lightning, or ``spawn``."""
    spawns: bool = False
    """Whether it does so under every launcher, which then starts too many."""
    model: str
    """Name of the model that it loads; empty if it is not known."""
    head: str
    """Class of transformers that loads it, if its head classifies; else empty."""
    checkpoints_in: str
    """Folder of its checkpoints; empty if it is not seen."""
    saves: dict[str, Any]
    """Arguments of its trainers, of `SAVES`; None for values that are not known."""
    uploads: bool
    """Whether it may copy its files to S3, or to a hub, by itself."""
    channels: frozenset[str]
    """Channels of the job that it certainly needs: those whose variables its calls read without a default."""
    resumes: bool
    """Whether it may load a checkpoint at its start; true unless it certainly does not."""
    strategy: Strategy | None
    """Strategy in the code; None if its arguments or the launcher decide."""
    deepspeed_file: str
    """File of DeepSpeed's configuration that its code names."""
    trainer: bool
    """Whether a Trainer, or accelerate, runs the loop: arguments or the environment choose the strategy."""
    arguments_files: tuple[str, ...]
    """Files of arguments that its parser reads."""
    opened: frozenset[str]
    """Configurations that its code loads, whose entries its calls receive."""
    parses_arguments: bool
    """Whether its hyperparameters are the Trainer's own arguments (HfArgumentParser)."""
    sets_arguments: bool
    """Whether the code sets ``fsdp`` or ``deepspeed`` to a value that is not known."""
    lora: bool | None
    """Whether it adapts the model; None if it makes no adapter itself."""
    rank: int | None
    targets: str
    """Adapted products that it names."""
    bits: str
    """Argument with which it quantizes the base: one of `BITS`."""
    upcast: bool
    """Whether it casts what is not quantized to fp32, with ``prepare_model_for_kbit_training``."""
    checkpoints_quantized: bool
    """Whether this also checkpoints the activations of a quantized base, its default."""
    checkpoints: bool
    """Whether it checkpoints activations, by itself or by the default of its option."""
    trains: bool
    """Whether it calls anything that trains."""
    programs: tuple[str, ...]
    """Other programs that it starts, but those that install or move files, as lines of a shell."""
    neuron: bool
    """Whether it is written for AWS Trainium."""
    loads_in: str
    """``bf16`` or ``fp16`` if it loads every model in this type, unquantized."""
    of_job: dict[str, Any]
    """Fields of `Job` for its optimizer and its loss."""
    wraps: bool
    """Whether its own loop shards the model with FSDP."""
    settings: dict[str, Any]
    """Values that the script sets, or has as defaults of its options: batch size, accumulation, precision, length."""
    own: dict[str, Any]
    """Those that it stores in the parsed arguments, whatever the job passes."""
    accelerates: bool
    """Whether the number of accumulated steps is that of the launcher where it uses DeepSpeed through accelerate."""
    batch: int | None
    """Batch size that its trainer gets, or that it computes: 0 if this is not known; None if it is the job's option."""
    unset: bool
    """Whether it certainly leaves the batch size of TrainingArguments at its default, unless it is passed."""
    shares: str
    """Other work on the GPUs."""
    compares: bool
    """Whether it trains on preferences, with a reference model."""
    freezes: bool
    """Whether it sets ``requires_grad`` of parameters to False."""
    full: bool
    """Whether it certainly computes in fp32: it names no other precision."""
    maps_devices: bool
    """Whether ``device_map`` spreads one model over the GPUs of a process."""


def read_script(
    configuration: Configuration, source: Source, files: dict[str, dict[str, Any]] | None = None
) -> Script | None:
    """Follow the script of a job, with the configurations that it loads; None if it is not Python, or too long."""
    by_command = isinstance(configuration.get("command"), str) and configuration.form != "manifest"
    of_image = {"transformers": "transformers_version", "torch": "framework_version"}
    versions = {name: str(value) for name, key in of_image.items() if (value := configuration.get(key))}
    versions |= configuration.get("installs", {})
    values = {name: setting.value for name, setting in configuration.hyperparameters.items()}
    names = {} if by_command else {name: name.replace("-", "_") for name in passed_names(configuration)}
    written = {name: values[key] for name, key in names.items() if key in values}
    if len(source.text) > _MOST_CHARACTERS:
        return None
    try:
        settings = from_plan(None, None, written)
        paths, received = configuration.get("paths", {}), {**settings.hyperparameters, **values}
        received = {name: paths.get(str(value), value) for name, value in received.items()}
        older = str(configuration.get("framework_version")).startswith("1.")
        settings = replace(
            settings,
            versions=versions,
            older_image=older,
            processes=_processes(configuration),
            launcher=configuration.get("launcher", {}),
        )
        context = follow(source, replace(settings, hyperparameters=received))
        by_option = _by_option(values, context.trace.options)
        settings_there = [configuration.hyperparameters.pop(name) for name in by_option]
        for (option, value), setting in zip(by_option.values(), settings_there, strict=True):  # the last one counts
            configuration.hyperparameters[option] = setting if value is None else replace(setting, value=value)
            received[option] = configuration.hyperparameters[option].value
        parses = [call for call in context.trace.methods(*_PARSES) if call.reached]
        flags = flags_of(context, parses) if parses and not by_command else None
        strict = any(call.method != "parse_known_args" for call in parses)
        ignored = tuple(
            name
            for name in (written if flags is not None else ())
            if not any(flag.startswith(f"--{name}") if strict else flag == f"--{name}" for flag in flags or ())
        )
        read = {call.method for call in context.trace.methods(*_READS_FILE, *_PARSES_ALL) if call.reached}
        if read and not read & {*_PARSES_ALL}:  # its parser gets a file alone
            ignored += tuple(name for name in written if name.replace("-", "_") not in context.trace.options)
        lost = {name.replace("-", "_") for name in ignored}
        merges = any("TrlParser" in module.source.text for module in context.trace.modules)
        if merges and "unread_file" not in configuration.settings:  # the file's values are among the arguments
            lost |= {"config"}
        arriving = {name: value for name, value in received.items() if name not in lost}
        context.settings = replace(context.settings, hyperparameters=arriving)
        return _Reader(Calls(context, *gpus_of(configuration), files or {})).script(source.path, ignored)
    except (AdvisorError, OSError, ValueError) as error:
        if _NO_PYTHON.search(str(error)):
            configuration.set(no_python=str(error).partition(": the script must parse")[0].rpartition("/")[2])
        return None


def _processes(configuration: Configuration) -> int | None:
    """Return the processes that the launcher of a job starts; None if there is none, or they are not known."""
    if not any(map(configuration.get, ("torch_distributed", "starts", "driver", "mpi", "dataparallel", "pytorchddp"))):
        return None
    launcher, nodes = configuration.get("launcher", {}), count(configuration.get("instance_count")) or 1
    per_node = launcher.get("nproc_per_node", configuration.get("processes_per_host"))
    total = launcher.get("num_processes", per_node * nodes if type(per_node) is int else None)
    return gpus_of(configuration)[0] if total is None and per_node in (None, "gpu", "auto") else count(total)


def _by_option(values: dict[str, Any], declared: dict[str, Call]) -> dict[str, tuple[str, Any]]:
    """Return the options that other flags set, in their order: ``-b 64``, ``-b64`` (with its value), ``--batch 64``."""
    flags = {str(constant(flag)).lstrip("-").replace("-", "_"): option
             for option, call in reversed(declared.items()) for flag in call.arguments}  # fmt: skip
    changed: dict[str, tuple[str, Any]] = {}
    for name in values:
        longer = {option for flag, option in flags.items() if flag.startswith(name) and option in READ}
        if name in flags:
            changed[name] = flags[name], None
        elif name[:1] in flags and name[1:].isdigit():
            changed[name] = flags[name[0]], int(name[1:])
        elif len(longer) == 1 and name not in READ:
            changed[name] = longer.pop(), None
    return changed


def passed_names(configuration: Configuration) -> list[str]:
    """Return the hyperparameters of the script by the names in the text."""
    table = configuration.tables.get("hyperparameters")
    names = [str(key) for key in table.entries] if table is not None else []
    gone = configuration.get("left_out", ())
    return [name for name in names if not name.startswith(_OF_LAUNCHERS) and name not in gone]


def take_from_script(configuration: Configuration, script: Script) -> None:
    """Leave out settings that the script does not receive, and take the model that it names."""
    configuration.leave_out(script.ignored, f"{script.name} does not receive it")
    configuration.leave_out(sorted(script.unused), f"{script.name} reads it, but no call receives it")
    configuration.set(script_is_distributed=script.distributed, script_starts=script.starts)
    configuration.set(script_calls=bool(script.programs) and not script.trains)
    if script.model:
        configuration.settings["script_model"] = Setting(script.model)
    configuration.set(script_head=script.head)


_LAUNCHED = {"DistributedDataParallel", "init_process_group", "Accelerator", "fully_shard", "FullyShardedDataParallel"}
_GENERATING = ("GRPOTrainer", "RLOOTrainer", "PPOTrainer", "OnlineDPOTrainer")
_COMPARING = ("DPOTrainer", "KTOTrainer")
"""Trainers of TRL that generate answers, or compare them with those of a reference model."""
_IS_MODEL = re.compile(r"Model|ForCausalLM|ForConditional|ForSequence")
_CLASSIFIES = re.compile(r"For(?:Sequence|Token)Classification\.from_pretrained$")
_FULL = re.compile(r"\.float\(\)|torch\.float(?:32)?\b")
_SAVED_IN_BF16 = re.compile(r"llama-?3|qwen-?[23]|mistral|mixtral|gemma-?3|phi-?[34]|falcon-(7|40)b|smollm2|deepseek")
"""Families whose checkpoints are in bf16; those of others, as Gemma 2 and OLMo 2, are in fp32, too."""
_UPCAST = re.compile(r"\.data\s*=.*float|cast_training_params|upcast")
_HALF = re.compile(
    r"bf16|fp16|float16|\bhalf\(|autocast\((?!enabled=False)|\bamp\b(?!\.GradScaler|\.autocast\(enabled=False| import)"
    r"|mixed_precision|--precision|precision\s*="
)
_LOADS = re.compile(
    r"resume|restore|last_checkpoint|load_state|load_checkpoint|torch\.load|dcp\.load|ckpt_path|from_checkpoint"
)
_RECOMPUTES = (
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
    "set_activation_checkpointing",
    *(f"{name}_enable" for name in CHECKPOINTING),
)
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_EVALUATES = re.compile(r"(?i)(?:\b|_)(?:val(?!ue)|test|eval|dev(?!ice))")
"""In the text of a loader that is not of the training."""
_PREPARES = re.compile(
    r"\bpip3?\b|\buv\b|\bapt(-get)?\b|^\W*(\./)?(s5cmd|chmod|cp|mv|rm|ls|mkdir|tar|aws|nvidia-smi|echo)\b"
)
_UPLOADS = re.compile(r"s3['\", ]+(?:sync|cp|mv)\b|s5cmd|s3fs|boto3|upload_file|S3Uploader|push_to_hub|upload_folder")
_OF_CHANNEL = re.compile(r"os\.environ\['SM_CHANNEL_(\w+)'\]")
_SETS = r"\b(?:['\"] *(?:,|:|\] *=[^=]|in\b|not in\b)| *=[^=])"
"""Text after the name of a variable that the script sets, or looks for."""
_OF_NEURON = re.compile(r"^(?:from|import) (?:optimum\.neuron|torch_neuronx?|neuronx?_)", re.MULTILINE)
_PARSES_ALL = ("parse_args_into_dataclasses", "parse_args_and_config")
_READS_FILE = ("parse_yaml_file", "parse_json_file")
_ACCUMULATES = ("gradient_accumulation_steps", "accumulate_grad_batches")
_PLUGINS = ("fsdp_plugin", "deepspeed_plugin", "parallelism_config")
"""Arguments of Accelerator that choose how the model is divided."""


class _Reader:
    """Facts of one followed script, from the calls that run with the options of the job."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.context, self.makers = calls, calls.context, calls.makers
        self.text = "\n".join(module.source.text for module in self.context.trace.modules)
        self.unused = unused_options(module.tree for module in self.context.trace.modules)

    def script(self, path: str, ignored: tuple[str, ...]) -> Script:
        # An adapter counts by the call that makes it, under whichever name.
        lora, casts = self.calls.named("LoraConfig"), self.calls.named("prepare_model_for_kbit_training")
        adapters = [*lora, *self.calls.named("get_peft_model", "Fastget_peft_model")]
        ranks = {rank for call in adapters if type(rank := self.calls.known(call.argument("r"))) is int}
        targets = [call.argument("target_modules") for call in adapters if call.argument("target_modules") is not None]
        items = [
            constant(item)
            for option in options(next(iter(targets), None))
            for item in getattr(option, "items", [option])
        ]
        words = [item for item in items if isinstance(item, str)]
        # Weights are loaded in few bits by an argument, or cast for it by peft's own call.
        loads = [name for name in BITS for call in self.calls.ending("")
                 if constant(call.argument(name)) is True]  # fmt: skip
        parses = bool(self.calls.ending("HfArgumentParser", "H4ArgumentParser", "TrlParser"))
        # A file of arguments is opened by the parser, not by the script.
        reads = [call for call in self.context.trace.methods(*_READS_FILE) if call.reached]
        files = [self.calls.known(call.argument("yaml_file", 0) or call.argument("json_file")) for call in reads]
        trains = self.calls.ending("Trainer") + self.calls.named("backward", "fit", "train")
        instances = [
            instance
            for instance in self.context.trace.instances
            if any(path.endswith("Trainer") for path in instance.cls.ancestors())
        ]
        strategy, file = strategy_in_code(self.calls)
        passed_values = self.context.settings.hyperparameters
        switches = {**dict(self._defaults()), **passed_values}
        declines = any(str(switches.get(name)).lower() in ("false", "0") for name in ADAPTS)
        lightning = [call for call in self.calls.ending("Trainer", "Fabric") if call.name.startswith(_LIGHTNING)]
        # Lightning and Accelerate choose the strategy in code: the command then decides nothing.
        chosen = [call for call in lightning if call.argument("strategy") is not None]
        chosen += [
            call for call in self.calls.named("Accelerator") for name in _PLUGINS if call.argument(name) is not None
        ]
        # Who starts the processes: the job's launcher, or the script itself.
        names = {call.called for call in self.context.trace.calls if call.reached}
        spawns = any("spawn" in name or name == "notebook_launcher" for name in names)
        stack = stack_shown(self.context.trace)
        job_fields = {} if stack.undecided else stack.settings
        loss = {"loss": "fused"} if job_fields.get("stack") == "liger" else {}
        batch = self._batch(self.makers)
        computed = self._changed_batch(batch) if self.makers else self._computed_batch()
        models = [call.name for call in self.calls.named("from_pretrained") if _IS_MODEL.search(call.name)]
        heads = {name.split(".")[-2] if _CLASSIFIES.search(name) else "" for name in models if "Peft" not in name}
        own = self._stored()
        return Script(
            name=path.rpartition("/")[2],
            report=report_of(self.context),
            ignored=ignored,
            unused=self.unused,
            distributed=not spawns
            and (bool(names & _LAUNCHED) or any(name.endswith(("Trainer", "Fabric")) for name in names)),
            starts=spawns or any(constant(call.argument("devices")) not in (1, "1") for call in lightning),
            spawns=any(
                call.reached and call.sure and call.gives("nprocs", 2) and constant(call.argument("nprocs", 2)) != 1
                for call in self.context.trace.named("torch.multiprocessing.spawn")
                if self.calls.named("init_process_group")
                or not any(isinstance(option, Function) for option in options(call.argument("fn", 0)))
            ),
            model=_model_of(self.calls),
            head=heads.pop() if len(heads) == 1 else "",
            checkpoints_in=_checkpoints_in(self.context),
            saves={
                name: self.calls.known(maker.argument(name))
                for maker in self.makers
                for name in SAVES
                if maker.gives(name)
            },
            uploads=_UPLOADS.search(self.text) is not None,
            channels=frozenset(self._channels()),
            resumes=not trains or bool(self.context.unresolved) or _LOADS.search(self.text) is not None,
            strategy=strategy,
            deepspeed_file=file,
            trainer=bool(self.calls.ending("Trainer") or self.calls.named("Accelerator") or instances),
            arguments_files=tuple(file for file in files if isinstance(file, str)),
            opened=frozenset(self.calls.opened),
            parses_arguments=parses,
            sets_arguments=bool(chosen)
            or any(
                not isinstance(option, (Constant, Mapping)) and self.calls.known(option) is None
                for maker in self.makers
                for name in (SHARDS, "deepspeed")
                for option in options(maker.argument(name))
            ),
            lora=not declines if adapters else False if self.context.trace.named("peft.LoraConfig") else None,
            rank=ranks.pop() if len(ranks) == 1 else None,
            targets=" ".join(words) if len(targets) == 1 else "",
            bits=loads[0] if loads else BITS[0] if casts else "",
            upcast=bool(casts),
            checkpoints_quantized=any(
                constant(call.argument("use_gradient_checkpointing", 1)) is not False for call in casts
            ),
            checkpoints=self._checkpoints(),
            trains=bool(trains or instances),
            programs=tuple(self._programs()),
            neuron=_OF_NEURON.search(self.text) is not None,
            loads_in="" if loads or casts else self._loads_in(),
            of_job={name: job_fields[name] for name in ("optimizer", "paged_optimizer") if name in job_fields} | loss,
            wraps=bool(self.calls.named("fully_shard", "FullyShardedDataParallel", "FSDP"))
            and not (self.makers or self.calls.named("Accelerator")),
            settings=self._settings(batch or computed, parses=parses, has_batch=computed != 0)
            | {"batch_size" if name in BATCH else name: value for name, value in own.items()},
            own=own,
            accelerates=bool(self.calls.named("Accelerator"))
            and not (parses or self.makers or any(call.gives(_ACCUMULATES[0]) for call in self.calls.plugins())),
            batch=batch if computed is None else computed,
            unset=(parses or bool(self.makers))
            and not any(maker.gives(name) for maker in self.makers for name in BATCH),
            shares="the generation and the reference model" if self.calls.named(*_GENERATING) else "",
            compares=bool(self.calls.named(*_COMPARING)),
            freezes=any(map(self._freezes, self.context.trace.stores)),
            full=_HALF.search(self.text) is None and "4bit" not in self.text and "TrlParser" not in self.text,
            maps_devices=any(
                constant(call.argument("device_map")) == "auto"
                for several in self.calls.by_name.values()
                for call in several
            ),
        )

    def _channels(self) -> Iterator[str]:
        for call in self.context.trace.calls:
            certain = call.reached and call.sure and not call.guards and not self._may_fail(call)
            parts = [*ast.walk(call.node)] if certain else []
            if not any(isinstance(part, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)) for part in parts):
                keys = [_OF_CHANNEL.fullmatch(ast.unparse(part)) for part in parts if isinstance(part, ast.Subscript)]
                names = [key[1] for key in keys if key]  # but those that the script sets or looks for itself
                yield from (name for name in names if not re.search(name + _SETS, self.text))

    def _may_fail(self, call: Call) -> bool:
        """Return whether the script goes on where a call fails, or one of the functions around it."""
        callers = [caller for caller in self.context.trace.calls if caller.function in call.functions]
        return any(map(_is_tried, (call, *(caller for caller in callers if caller.function is not None))))

    def _programs(self) -> Iterator[str]:
        for call in self.context.trace.calls:
            value = call.argument("args", 0) or call.argument("command", 0)
            if not call.reached or not (call.name.startswith("subprocess.") or call.name == "os.system"):
                continue
            parts = value.items if isinstance(value, Collection) else [value]
            parts = [*parts, Unknown()] if isinstance(value, Collection) and value.open else parts
            words = [constant(part) for part in parts]
            text = " ".join(str(word) if isinstance(word, str | int) else "$UNKNOWN" for word in words)
            if not _PREPARES.search(text):
                yield text

    def _loads_in(self) -> str:
        """Return the type of 16 bits that every model gets that is loaded or built."""
        models = [call for call in self.calls.named("from_pretrained", "from_config") if _IS_MODEL.search(call.name)]
        casts = [call for call in self.calls.named("float", "to") if _FULL.search(call.module.text(call.node))]
        if _UPCAST.search(self.text) or any(set(models) & set(makers(call.receiver)) for call in casts):
            return ""
        types = [call.argument("torch_dtype") or call.argument("dtype") for call in models]
        names = {str(getattr(value, "path", None) or self.calls.known(value)).rpartition(".")[2] for value in types}
        default = span_of(self.context, "transformers").first >= (5, 0)
        if names == {"auto"} or (names == {"None"} and default):  # the type of the checkpoint
            return "bf16" if _SAVED_IN_BF16.search(_model_of(self.calls).lower()) else ""
        return {"bfloat16": "bf16", "float16": "fp16"}.get(names.pop(), "") if len(names) == 1 else ""

    def _batch(self, calls: list[Call]) -> int | None:
        """Return the one batch size that arrives in these calls."""
        passed_values = [
            self.calls.known(call.argument(name)) for call in calls for name in BATCH if call.argument(name) is not None
        ]
        return passed_values[0] if len(set(passed_values)) == 1 and type(passed_values[0]) is int else None

    def _computed_batch(self) -> int | None:
        """Return the batch size that loaders get where the script computes it from its option; 0 if not known."""
        loaders = self.calls.named("DataLoader")
        training = [call for call in loaders if not _EVALUATES.search(call.module.text(call.node))] or loaders
        sizes = [value for call in training if (value := call.argument("batch_size", 1)) is not None]
        stored = any(store.node.attr in BATCH and _is_parsed(store) for store in self.context.trace.stores)
        sizes = [value for value in sizes if stored or any(map(_has_batch, options(value)))]
        computed = [chosen for value in sizes if (chosen := self.calls.conditions.chosen(value)) is not None]
        left = [option for value in computed for option in options(value) if _has_batch(option)]
        if all(isinstance(option, Argument) for option in left) and (left or not computed):
            return None
        numbers = set(map(self.calls.number, computed))
        return int(numbers.pop() or 0) if len(numbers) == 1 else 0

    def _changed_batch(self, batch: int | None) -> int | None:
        """Return the batch size that a Trainer gets where the script computes it from its option; 0 if not known."""
        values = [value for maker in self.makers for name in BATCH if (value := maker.argument(name)) is not None]
        changed = [value for value in values if any(_has_batch(option) and not isinstance(option, Argument)
                                                    for option in options(value))]  # fmt: skip
        if batch is not None or not changed:
            return None
        numbers = set(map(self.calls.number, changed))
        return int(numbers.pop() or 0) if len(numbers) == 1 else 0

    def _settings(self, batch: int | None, *, parses: bool, has_batch: bool) -> dict[str, Any]:
        """Values that arrive in TrainingArguments, above defaults of options, of parameters and of dataclasses."""
        settings = dict(self._defaults())
        if re.search(r"\.load_in_4bit\b", self.text):
            settings.setdefault("load_in_4bit", False)  # an option of TRL's ModelConfig
        settings = {name: value for name, value in settings.items() if name in READ and name not in self.unused}
        batch = batch or next((settings[name] for name in BATCH if settings.get(name) is not None), None)
        batch = batch or self._batch([] if self.makers or parses else self.calls.named("DataLoader"))
        for maker in self.makers:
            settings |= {
                name: self.calls.known(maker.argument(name))
                for name in sorted(READ)
                if maker.argument(name) is not None
            }
        for call in [*self.calls.named("Accelerator"), *self.calls.ending("Trainer", "Fabric")]:
            word = str(
                self.calls.known(call.argument("mixed_precision")) or self.calls.known(call.argument("precision"))
            )
            settings |= {half: True for half in ("bf16", "fp16") if word.startswith((half, half[2:] + "-"))}
        for call in [*self.calls.named("Accelerator"), *self.calls.plugins(), *self.calls.ending("Trainer")]:
            steps = next(filter(None, (self.calls.known(call.argument(name)) for name in _ACCUMULATES)), None)
            settings |= {"gradient_accumulation_steps": steps} if type(steps) is int else {}
        for config in deepspeed_configs(self.calls):
            settings |= {half: True for half in ("bf16", "fp16") if section(config, half).get("enabled") is True}
            own = {name: config[key] for key, name in OF_DEEPSPEED.items() if type(config.get(key)) is int}
            batch = own.pop("batch_size", batch)
            settings |= own
        planned = {name: value for name, value in settings.items() if value is not None and name not in BATCH}
        return planned | ({"batch_size": batch} if batch and has_batch else {})

    def _defaults(self) -> Iterator[tuple[str, Any]]:
        """Defaults of the options of python-fire, of fields of classes, and of argparse."""
        trace = self.context.trace
        passed_values = [value for call in trace.named(*COMMAND_LINES) for value in call.arguments]
        commands = [option for value in passed_values for option in options(value) if isinstance(option, Function)]
        for function in [*commands, *trace.commands]:
            spec = function.node.args
            for argument, default in zip(spec.args[::-1], spec.defaults[::-1], strict=False):
                yield argument.arg, default.value if isinstance(default, ast.Constant) else None
        for cls in trace.classes:
            for name in cls.fields():
                yield name, constant(field_default(cls.find(name)))
        for name, call in trace.options.items():
            yield name, constant(call.argument("default"))
        for call in trace.methods("set_defaults"):
            yield from ((name, constant(value)) for name, value in call.keywords.items())

    def _freezes(self, store: Store) -> bool:
        """Return whether a parameter is frozen, unless it certainly is another model's than the Trainer's."""
        frozen = {maker for call in makers(_root(store)) for maker in makers(call.receiver)}
        trained = {maker for call in self.calls.ending("Trainer") for maker in makers(call.argument("model", 0))}
        fixed = store.node.attr == "requires_grad" and constant(store.value) is False
        return fixed and not (frozen and trained and frozen.isdisjoint(trained))

    def _stored(self) -> dict[str, Any]:
        """Return the constants that the script certainly stores in its parsed arguments before it uses them."""
        users = [*self.calls.ending("Trainer"), *self.calls.named("DataLoader", "Accelerator")]
        stored: dict[str, Any] = {}
        for store in self.context.trace.stores:
            if store.node.attr in READ and _is_parsed(store) and all(store.order < user.order for user in users):
                place = store.module.parent(store.module.statement(store.node) or store.node) or store.node
                whole = isinstance(place, (ast.Module, ast.FunctionDef)) or "__name__" in ast.dump(place)[:99]
                stored[store.node.attr] = constant(store.value) if whole else None
        return {name: value for name, value in stored.items() if value is not None}

    def _checkpoints(self) -> bool:
        """Return whether activations are checkpointed: by the default of an option for it, or by a call or argument."""
        trace = self.context.trace
        declared = [trace.options[name] for name in CHECKPOINTING if name in trace.options]
        if declared:
            return bool(constant(declared[0].argument("default")))
        of_trl = [
            f"trl.{option.path.rpartition('.')[2]}"
            for parser in self.calls.ending("HfArgumentParser", "TrlParser")
            for passed_values in options(parser.argument("dataclass_types", 0))
            for option in (passed_values.items if isinstance(passed_values, Collection) else [passed_values])
            if isinstance(option, External)
        ]
        return (
            any(default_of(name, CHECKPOINTING[0], newest("trl")) is True for name in of_trl)
            or bool(self.calls.named("Fastget_peft_model", *_RECOMPUTES))
            or any(
                passed(self.context, maker, name) is True or self.calls.known(maker.argument(name)) is True
                for maker in self.makers
                for name in CHECKPOINTING
            )
        )


def _root(store: Store) -> Value:
    """Return what holds the object whose attribute is stored, as the results of a parser, or parameters."""
    value = store.owner
    while isinstance(value, Item):
        value = value.owner
    return value


def _is_parsed(store: Store) -> bool:
    return any(call.method in (*_PARSES, *_PARSES_ALL) for call in makers(_root(store)))


def _is_tried(call: Call) -> bool:
    """Return whether a call is in a ``try`` with a handler that does not raise again, or in ``suppress()``."""
    for outer in call.module.around(call.node):
        if isinstance(outer, ast.With) and any("suppress" in ast.unparse(item) for item in outer.items):
            return True
        inside = isinstance(outer, ast.Try) and any(call.node in ast.walk(part) for part in outer.body)
        handlers = outer.handlers if inside and isinstance(outer, ast.Try) else []
        if not all(isinstance(handler.body[-1], ast.Raise) for handler in handlers):
            return True
    return False


def _has_batch(value: Value) -> bool:
    """Return whether the option for the batch size is in a computed value."""
    if isinstance(value, Argument):
        return value.name in BATCH
    parts = value.operands if isinstance(value, Operation) else ()
    parts = value.call.arguments if isinstance(value, Result) else parts
    return any(_has_batch(option) for part in parts for option in options(part))


def _model_of(calls: Calls) -> str:
    """Return the one model that the script loads by its name; empty if there is none, or a choice."""
    names = set()
    for call in calls.context.trace.calls:
        value = call.argument("pretrained_model_name_or_path", 0) if call.method == "from_pretrained" else None
        if call.called.endswith("Trainer") and isinstance(call.argument("model", 0), Constant):
            value = call.argument("model", 0)
        if value is None or not call.reached or "okenizer" in call.name or "Processor" in call.name:
            continue
        text = calls.known(value)
        names.add(known_model(text))
    return names.pop() if len(names) == 1 else ""


def _checkpoints_in(context: Context) -> str:
    """Return where the Trainer's checkpoints are."""
    for call in trainer_arguments(context):
        if constant(call.argument("save_strategy")) == "no":
            return ""
        source = call.argument("output_dir", 0)
        if isinstance(source, Argument):
            passed_value = context.settings.hyperparameters.get(source.name)
            source = source.default if passed_value is None else Constant(passed_value)
        if in_model_folder(source):
            return MODEL_DIR
        if isinstance(source, Constant):
            return str(source.value)
    return ""
