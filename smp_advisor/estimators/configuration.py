"""Settings of a job in a common form, and its strategy: FSDP, DDP, or a configuration of accelerate or DeepSpeed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smp_advisor.libraries.library import library_with
from smp_advisor.libraries.sharding import OF_TOOLS, OF_ZERO
from smp_advisor.review.reading.data import plain, reason
from smp_advisor.review.reading.values import Constant, Mapping, Value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping as Dictionary

    from smp_advisor.review.reading.source import Span


def plain_of(table: Value) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        return {}
    data: dict[str, Any] = {}
    for key, entry in table.entries.items():
        if isinstance(entry.value, Mapping):
            data[str(key)] = plain_of(entry.value)
        elif (value := _plain(entry.value)) is not _NOT_PLAIN:
            data[str(key)] = value
    return data


def inner_table(table: Mapping | None, name: str) -> Mapping | None:
    """Return the dictionary at a key; None for anything else."""
    value = table.get(name) if table is not None else None
    return value if isinstance(value, Mapping) else None


def constant(table: Mapping | None, *names: str) -> Any:
    value = next((table.get(name) for name in names if name in table.entries), None) if table else None
    return value.value if isinstance(value, Constant) else None


def section(data: object, *names: str) -> dict[str, Any]:
    """Return the table at a path of names; empty if there is none."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def count(value: object) -> int | None:
    """Return a whole number of at least 1; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def is_on(value: object) -> bool:
    """Return whether a flag is on; hyperparameters and environment variables are often text."""
    return str(value).strip().lower() in ("1", "true", "yes", "on")


SHARDS = library_with(of_sagemaker=False, divides_model=True).trainer_argument
"""Argument of transformers' Trainer for FSDP, and verl's name for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How a job divides its model over GPUs."""

    name: str
    """For sentences: "DeepSpeed ZeRO-3"."""
    library: str | None = None
    """Library whose plans describe it; None if there is no plan."""
    settings: Dictionary[str, Any] = field(default_factory=dict)
    """Settings of the plan that follow."""
    why_no_plan: str = ""
    """Reason without a library, one sentence."""
    inferred: tuple[str, ...] = ()
    """Assumptions, one sentence each."""
    offloads: bool = False
    """Whether parameters or optimizer state are in host memory, which no plan describes."""

    def assuming(self, *sentences: str) -> Strategy:
        return replace(self, inferred=(*self.inferred, *(sentence for sentence in sentences if sentence)))


def fully_sharded(sharding: object, *, offloads: bool = False, name: str = "FSDP") -> Strategy:
    sharded = OF_TOOLS.get(str(sharding).lower().rpartition(".")[2])
    if sharded is None:
        return undescribed(name, f"the sharding strategy {str(sharding)[:40]!r} is none of PyTorch's")
    title = f"{name} ({sharded.removeprefix('_') or 'no_shard'})"
    if not sharded:
        return replace(replicated(title), offloads=offloads)
    return Strategy(
        offloads=offloads,
        name=f"{title} with offloading to the CPU" if offloads else title,
        library=library_with(of_sagemaker=False, divides_model=True).name,
        settings={"sharding_strategy": sharded},
    )


def zero(stage: object, *, offloads: bool = False) -> Strategy:
    """DeepSpeed's ZeRO, which has no library of its own here."""
    stage = stage if type(stage) is int and stage in range(4) else None
    title = "DeepSpeed" if stage is None else f"DeepSpeed ZeRO-{stage}"
    if stage == 0:
        return replicated(title)
    sharding = None if stage is None else OF_ZERO.get(stage)
    if sharding is None:
        why = "no library here shards only the optimizer state" if stage == 1 else "its stage is not known"
        return undescribed(title, why)
    plan = fully_sharded(sharding, offloads=offloads, name=title)
    return replace(plan, name=f"{title} with offloading" if offloads else title).assuming(
        f"{title} is estimated as FSDP with {sharding}, which shards the same tensors; DeepSpeed's own buffers are not"
        " included."
    )


def replicated(name: str = "DDP") -> Strategy:
    return Strategy(name=name, library=library_with(of_sagemaker=False, divides_model=False).name)


def undescribed(name: str, why: str) -> Strategy:
    """Return a strategy that no plan describes, with the reason as a clause."""
    return Strategy(name=name, why_no_plan=f"{name} has no plan: {why}.")


@dataclass(frozen=True, slots=True)
class Setting:
    value: Any
    span: Span | None = None
    """Place of its key or keyword and value."""
    table: Mapping | None = None
    """The dictionary or call that contains it."""
    key: str = ""
    """Its key there."""


@dataclass(frozen=True, slots=True)
class Gap:
    name: str
    why: str
    span: Span | None


@dataclass(slots=True)
class Configuration:
    """A training job in its author's text; `settings` and `parameters` contain only known values."""

    form: str
    """``estimator``, ``model trainer``, ``parameters``, ``recipe`` or ``request``."""
    title: str
    """Title for sentences: "PyTorch(...)"."""
    span: Span | None = None
    framework: str = "pytorch"
    library: str | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    """Where and how the job runs: `instance_type`, `framework_version`, `processes_per_host`, `mpi`, ..."""
    parameters: dict[str, Setting] = field(default_factory=dict)
    """Parameters of the library, by their names there."""
    hyperparameters: dict[str, Setting] = field(default_factory=dict)
    """Hyperparameters of the script."""
    tables: dict[str, Mapping] = field(default_factory=dict)
    """Tables for new entries: ``estimator``, ``distribution``, ``mpi``, ``parameters``, ``hyperparameters``."""
    gaps: list[Gap] = field(default_factory=list)
    missing: list[Gap] = field(default_factory=list)
    """Files that the job names and that do not exist: path, argument and what is unknown without it, and the place."""
    strategy: Strategy | None = None
    """How a job without SageMaker's libraries divides its model; None for other jobs."""
    sure: bool = True
    """False if the job depends on a condition that cannot be decided."""

    def use(self, strategy: Strategy) -> None:
        self.strategy, self.library = strategy, strategy.library
        self.set_hyperparameters(**strategy.settings)

    def set(self, **values: Any) -> None:
        """Set settings that have no place of their own in the text."""
        self.settings |= {name: Setting(value) for name, value in values.items()}

    def leave_out(self, names: Iterable[str], why: str) -> None:
        """Take hyperparameters away that the script does not receive; `why` is the end of the sentence on each."""
        gone = [name for name in names if self.hyperparameters.pop(name.replace("-", "_"), None) is not None]
        self.settings["left_out"] = Setting({*self.get("left_out", ()), *gone})
        notes = tuple(f"{name} is set in the text, and {why}." for name in gone)
        self.settings["unreceived"] = Setting((*self.get("unreceived", ()), *notes))

    def set_hyperparameters(self, **values: Any) -> None:
        """Set hyperparameters that have no place of their own in the text."""
        self.hyperparameters |= {name: Setting(value) for name, value in values.items()}

    def get(self, name: str, default: Any = None) -> Any:
        return self.settings[name].value if name in self.settings else default

    def unknown(self, *names: str) -> bool:
        return any(gap.name in names for gap in self.gaps)

    def values(self) -> dict[str, Any]:
        return {name: setting.value for name, setting in self.parameters.items()}

    def put(self, name: str, value: Any, table: Mapping, key: str) -> None:
        """Set what the entry `key` of `table` means."""
        entry = table.entries.get(key)
        self.settings[name] = Setting(value, None if entry is None else entry.span, table, key)

    def miss(self, name: str, table: Mapping, key: str, otherwise: str) -> None:
        """Note that an entry cannot be used: it is not known, or `otherwise`."""
        self.gaps.append(Gap(name, why_not(table.entries[key].value, otherwise), table.entries[key].span))

    def inner(self, table: Mapping, key: str, otherwise: str = "it is not a dictionary") -> Mapping | None:
        """Return the dictionary at a key, with a gap for anything else."""
        if key in table.entries and inner_table(table, key) is None:
            self.miss(key, table, key, otherwise)
        return inner_table(table, key)

    def take(self, table: Mapping | None, key: str, name: str = "") -> None:
        """Add the entry `key` of `table` as the setting `name`."""
        if table is None:
            return
        if key in table.entries:
            self._read(table, key, self.settings, name or key)
        elif table.open:
            self.gaps.append(Gap(name or key, table.open, table.span))

    def take_all(self, table: Mapping, into: dict[str, Setting], *, group: str) -> None:
        """Add every entry of a table as settings of `into`."""
        self.tables[group] = table
        for key, entry in table.entries.items():
            if isinstance(key, str):
                # A script's parser reads --batch-size as batch_size.
                self._read(table, key, into, key.replace("-", "_") if group == "hyperparameters" else key)
            else:
                self.gaps.append(Gap(f"{group}[{key!r}]", "its name is no text", entry.span))
        if table.open:
            self.gaps.append(Gap(group, table.open, table.span))

    def take_single(self, table: Mapping, key: str, into: dict[str, Setting], name: str) -> None:
        """Add an entry that is not None and has one value, as those of recipes."""
        if key in table.entries and not isinstance(table.get(key), Constant):
            self.miss(name, table, key, "it is not a single value")
        elif (value := constant(table, key)) is not None:
            into[name] = Setting(value, table.entries[key].span, table, key)

    def _read(self, table: Mapping, key: str, into: dict[str, Setting], name: str) -> None:
        entry = table.entries[key]
        value, span = _plain(entry.value), entry.span or getattr(entry.value, "span", None)
        if value is _NOT_PLAIN:
            self.gaps.append(Gap(name, reason(entry.value), span))
            if into is not self.settings:
                into.pop(name, None)
        else:
            into[name] = Setting(value, span, table, key)


_NOT_PLAIN = object()


def _plain(value: Value) -> Any:
    try:
        return plain(value)
    except LookupError:
        return _NOT_PLAIN


def why_not(value: Value, otherwise: str) -> str:
    """Return why a value cannot be used: it is not known, or `otherwise`."""
    return reason(value) if _plain(value) is _NOT_PLAIN else otherwise


_DEVICES = ("cpu", "nvme")
OF_ACCELERATE = ("ACCELERATE_", "FSDP_")  # a job may name its own USE_FSDP
_MICRO_BATCH = "train_micro_batch_size_per_gpu"


def looks_like_deepspeed(table: Mapping) -> bool:
    return "zero_optimization" in table.entries or _MICRO_BATCH in table.entries


def strategy_of_deepspeed(config: dict[str, Any]) -> Strategy:
    stages = section(config, "zero_optimization")
    moved = any(section(stages, name).get("device") in _DEVICES for name in ("offload_optimizer", "offload_param"))
    return zero(stages.get("stage", 0), offloads=moved or stages.get("cpu_offload") is True)


OF_DEEPSPEED = {_MICRO_BATCH: "batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps"}
"""Settings of a plan by their names in DeepSpeed's configuration."""


def configuration_of_deepspeed(table: Mapping) -> Configuration:
    configuration = Configuration("deepspeed", "The DeepSpeed configuration", table.span)
    data = plain_of(table)
    configuration.use(strategy := strategy_of_deepspeed(data))
    for key, name in OF_DEEPSPEED.items():
        if type(data.get(key)) is int:
            configuration.hyperparameters[name] = Setting(data[key], table.entries[key].span, table, key)
    # DeepSpeed trains in fp32 unless a section turns on another precision.
    enabled = {name: section(data, name).get("enabled", False) for name in ("bf16", "fp16")}
    possible = [name for name, on in enabled.items() if on is not False]
    on = next((name for name in possible if enabled[name] is True), None)
    if on is not None:
        configuration.hyperparameters["precision"] = Setting(on, table.entries[on].span, table, on)
        return configuration
    configuration.set_hyperparameters(precision=possible[0] if possible else "fp32")
    if possible:
        assumption = f"The precision is {possible[0]}, because the configuration leaves it to the script."
        configuration.strategy = strategy.assuming(assumption)
    return configuration


_REPLICATES = ("MULTI_GPU", "DATA_PARALLEL", "NO", "SMDDP")


def looks_like_accelerate(table: Mapping) -> bool:
    return "distributed_type" in table.entries or {"compute_environment", "num_processes"} <= table.entries.keys()


def configuration_of_accelerate(table: Mapping) -> Configuration:
    """Read accelerate's configuration: strategy, processes, precision, and SageMaker's instance if it names one."""
    configuration = Configuration("accelerate", "The accelerate configuration", table.span)
    data = plain_of(table)
    options = launch_options(data)
    kind = options["distributed_type"]
    no_plan = undescribed(f"distributed_type {kind or 'without a value'}", "it is none of DDP, FSDP and DeepSpeed")
    if kind == "DEEPSPEED" and options.get("deepspeed_config_file"):
        no_plan = undescribed("DeepSpeed", "its configuration is in another file: paste that file")
        options = {}
    configuration.use(strategy_of_launch(options) or no_plan)
    configuration.take(table, "ec2_instance_type", "instance_type")
    if "num_machines" in data:
        configuration.take(table, "num_machines", "instance_count")
    if data.get("compute_environment") == "AMAZON_SAGEMAKER" and kind in ("DATA_PARALLEL", "SMDDP"):
        configuration.set(dataparallel=True)
    precision = str(data.get("mixed_precision", "no")).lower()
    value = precision if precision in ("bf16", "fp16") else "fp32"
    entry = table.entries.get("mixed_precision")
    place = (entry.span, table, "mixed_precision") if entry is not None else ()
    configuration.hyperparameters["precision"] = Setting(value, *place)
    if is_on(options.get("fsdp_activation_checkpointing")):
        configuration.hyperparameters["activation_checkpointing"] = Setting("each", table.entries["fsdp_config"].span)
    return configuration


def launch_options(data: dict[str, Any]) -> dict[str, Any]:
    """Return accelerate's configuration as options of its launcher, which its own options replace."""
    options = {name: value for name, value in data.items() if not isinstance(value, dict)}
    shards = section(data, "fsdp_config").items()
    options |= {name if name.startswith("fsdp_") else f"fsdp_{name}": value for name, value in shards}
    return (
        options
        | section(data, "deepspeed_config")
        | {"distributed_type": str(data.get("distributed_type", "")).upper()}
    )


def strategy_of_launch(options: Dictionary[str, Any]) -> Strategy | None:
    """Strategy that options of ``accelerate launch``, its file or environment variables choose; None without one."""
    names = {key.upper().removeprefix("ACCELERATE_").removeprefix("DEEPSPEED_"): options[key] for key in options}
    chosen = [name for name in ("USE_DEEPSPEED", "USE_FSDP", "MULTI_GPU") if is_on(names.get(name))]
    kind = chosen[0].removeprefix("USE_") if chosen else names.get("DISTRIBUTED_TYPE")
    if kind == "DEEPSPEED":
        stage = str(names.get("ZERO_STAGE", ""))
        offloads = any(names.get(f"OFFLOAD_{part}_DEVICE") in _DEVICES for part in ("OPTIMIZER", "PARAM"))
        return zero(int(stage) if stage.isdecimal() else None, offloads=offloads)
    if kind != "FSDP":
        return replicated() if kind in _REPLICATES else None
    offloads, sharding = is_on(names.get("FSDP_OFFLOAD_PARAMS")), names.get("FSDP_SHARDING_STRATEGY")
    if str(names.get("FSDP_VERSION")) == "2":
        reshards = str(names.get("FSDP_RESHARD_AFTER_FORWARD")).lower() != "false"
        return fully_sharded("full_shard" if reshards else "shard_grad_op", offloads=offloads, name="FSDP2")
    if sharding is not None:
        return fully_sharded(sharding, offloads=offloads)
    by_default = fully_sharded("full_shard", offloads=offloads)
    return by_default.assuming("FSDP shards with full_shard, accelerate's default.")
