"""Known settings of the job, from the plan and from the `init` call of the script, and those that a script lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import nearest
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.libraries.schema import schema
from smp_advisor.review.reading.values import Constant, Mapping, options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.review.reading.trace import Trace


def blocks_of(models: Iterable[str]) -> set[str]:
    """Classes of the repeated layers of models with these names, for known families."""
    blocks: dict[str, str] = table("smp_advisor.review.scripts", "data/names.toml")["blocks"]
    names = [name.lower().rpartition("/")[2] for name in models]
    names = [name for name in names if not re.search(r"-(?:vl|omni|audio|vision)\b", name)]  # with blocks of their own
    starts = {re.compile(rf"(?<![a-z]){family}"): block for family, block in blocks.items()}
    return {block for name in names for start, block in starts.items() if start.search(name)}


_ALIASES = {"partitions": "pipeline_parallel_degree", "fp16_params": "fp16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Parameters of the job by their names in the library; None if unknown."""

    library: str | None = None
    microbatches: int | None = None
    pipeline_parallel_degree: int | None = None
    tensor_parallel_degree: int | None = None
    sharded_data_parallel_degree: int | None = None
    hybrid_shard_degree: int | None = None
    context_parallel_degree: int | None = None
    expert_parallel_degree: int | None = None
    shard_optimizer_state: bool | None = None
    prescaled_batch: bool | None = None
    fp16: bool | None = None
    bf16: bool | None = None
    offload_activations: bool | None = None
    sm_activation_offloading: bool | None = None
    delayed_parameter_initialization: bool | None = None
    activation_checkpointing: str | bool | None = None
    precision: str | None = None
    batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    hyperparameters: MappingABC[str, Any] = field(default_factory=dict)
    """Options that the job passes to the script."""
    passed: tuple[str, ...] = ()
    """Names of these options as they are written."""
    versions: MappingABC[str, str] = field(default_factory=dict)
    """Versions of packages that the image of the job has."""
    older_image: bool = False
    """Whether the Python of the image bounds its packages: one that nothing pins is not the newest."""
    processes: int | None = None
    """Processes that the job starts."""
    launcher: MappingABC[str, Any] = field(default_factory=dict)
    """Options of the launcher: accelerate's own, and those of its file."""

    @property
    def tensor_parallel(self) -> bool:
        """Whether tensor parallelism is known to be on."""
        return (self.tensor_parallel_degree or 1) > 1

    @property
    def pipelined(self) -> bool:
        """Whether the model is known to have several pipeline stages."""
        return (self.pipeline_parallel_degree or 1) > 1

    @property
    def shards_by_launcher(self) -> bool:
        """Whether accelerate shards the model, with FSDP."""
        chosen = str(self.launcher.get("use_fsdp", "")).lower() in ("true", "1")
        return chosen or self.launcher.get("distributed_type") == "FSDP"

    @property
    def sharded(self) -> bool:
        """Whether sharded data parallelism is known to be on."""
        return (self.sharded_data_parallel_degree or 1) > 1


_DEGREES = {"pipeline_parallel_degree", "tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree"}
"""Degrees of every plan, even without a field for them."""

_OF_JOBS = {"hyperparameters", "passed", "versions", "older_image", "processes", "launcher"}
_NAMES = frozenset(field.name for field in fields(Settings)) - _OF_JOBS


@cache
def checked_libraries() -> tuple[str, ...]:
    """Libraries whose scripts have checks of their own: those of PyTorch that do more than replicate the model."""
    return tuple(
        record.name
        for record in map(get_library, LIBRARIES)
        if record.framework == "pytorch" and (record.divides_model or record.compiles)
    )


def from_plan(plan: object, library: str | None, hyperparameters: MappingABC[str, Any] | None = None) -> Settings:
    """Return the settings from a `Plan` or a dictionary of library parameters; all unknown without one."""
    if library is not None and library not in checked_libraries():
        raise AdvisorError(f"library must be one of {', '.join(checked_libraries())}, not {library!r}.")
    if plan is None:
        return Settings(library=library, hyperparameters=_options(hyperparameters), passed=_written(hyperparameters))
    if isinstance(plan, MappingABC):
        values = {_ALIASES.get(str(key), str(key)): value for key, value in plan.items()}
        parameters = _NAMES | {parameter.key for name in LIBRARIES for parameter in schema(name).parameters}
        if unknown := next((name for name in values if name not in parameters), ""):
            hint = f"; did you mean {near!r}?" if (near := nearest(unknown, parameters)) else "."
            raise AdvisorError(f"plan has {unknown!r:.80}, which is no parameter of a library{hint}")
    elif hasattr(plan, "library") and hasattr(plan, "parameters"):
        # Other attributes are constants of libraries that leave the technique to the script.
        own = {*getattr(plan, "__dataclass_fields__", vars(type(plan))), *_DEGREES}
        values = {name: getattr(plan, name) for name in _NAMES & own if hasattr(plan, name)}
    else:
        raise AdvisorError(
            f"plan must be a Plan or a dictionary of the library's parameters, not {type(plan).__name__}."
        )
    usable = {name: value for name, value in values.items() if name in _NAMES and _fits(name, value)}
    if library is not None:
        usable["library"] = library
    return Settings(**usable, hyperparameters=_options(hyperparameters), passed=_written(hyperparameters))


def _options(hyperparameters: MappingABC[str, Any] | None) -> dict[str, Any]:
    """Return the options by their attribute names in argparse: ``train-batch-size`` is ``train_batch_size``."""
    return {str(name).lstrip("-").replace("-", "_"): value for name, value in (hyperparameters or {}).items()}


def _written(hyperparameters: MappingABC[str, Any] | None) -> tuple[str, ...]:
    """Return the options of the job as it passes them, without those that SageMaker's launchers take for themselves."""
    names = (str(name).lstrip("-") for name in hyperparameters or {})
    return tuple(name for name in names if not name.startswith(("sagemaker_", "mp_")))


def _fits(name: str, value: Any) -> bool:
    if name in ("library", "activation_checkpointing", "precision"):
        return isinstance(value, (str, bool))
    return isinstance(value, int)


def with_script(settings: Settings, trace: Trace) -> Settings:
    """Add the literal arguments of ``smp.init`` or ``tsm.init``. The values of the estimator take precedence."""
    values: dict[str, Any] = {}
    for call in trace.named("smp.init", "smptf.init", "tsm.init"):
        config = call.argument("config", 0)
        for option in options(config) if config is not None else ():
            if isinstance(option, Mapping):
                for key, value in option.values().items():
                    name = _ALIASES.get(key, key)
                    if name in _NAMES and isinstance(value, Constant) and _fits(name, value.value):
                        values[name] = value.value
    missing = {name: value for name, value in values.items() if getattr(settings, name) is None}
    return replace(settings, **missing) if missing else settings


CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")
"""Arguments of TrainingArguments, before and from transformers 5.23; methods of models end in ``_enable``."""
