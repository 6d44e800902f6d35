"""Records of the training libraries: what each has, and which there are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from smp_advisor.core.files import table
from smp_advisor.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job, Precision
    from smp_advisor.workload.model import Model


Setting = int | str | bool
Settings = dict[str, Setting]
"""One value for each of a library's controls."""

_CHECKPOINTING = "activation_checkpointing"


class ControlCodec:
    """Controls with the names of their fields. Without checkpointing, its control has the value ``none``."""

    labels: ClassVar[Mapping[str, str]] = {}
    """Labels of the controls that are not fields; those of fields are their titles in the schema."""

    def settings(self, names: tuple[str, ...], fields: Mapping[str, Any]) -> Settings:
        """Return values of the controls for fields of a plan."""
        return {name: fields[name] or "none" if name == _CHECKPOINTING else fields[name] for name in names}

    def fields(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields of a plan for values of controls."""
        return {
            name: False if name == _CHECKPOINTING and value == "none" else value for name, value in settings.items()
        }

    def positions(self, name: str, shardable_gpus: int) -> Iterable[Setting] | None:
        """Return values of a control that is not a field of the plan; None for the values of the field."""
        del name, shardable_gpus
        return None


REPLICATED_SETTINGS = frozenset({"loss", "state_precision", "optimizer_step", "paged_optimizer"})
"""Training settings of PyTorch code with a replica on each GPU."""
SHARDED_SETTINGS = REPLICATED_SETTINGS | {
    "unsharded_accumulation",
    "separate_embeddings",
    "gradient_reduction",
}
"""Those of PyTorch code that shards parameters."""


FULLY_SHARD_SINCE = (2, 6)
"""PyTorch release from which the generated script shards with ``fully_shard``."""
TRL_SINCE = (2, 11)
"""PyTorch release from which scripts install TRL, with the transformers that it requires."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One training library.

    Its package holds the data: ``schema.toml`` (parameters, settings, rules, assumptions), ``versions.toml``
    (containers and instances), ``practices.toml`` and ``pitfalls.toml``, and ``models.toml`` if techniques support only
    some model families. Fields that hold plans, their columns, layouts or spaces have no type here, since their modules
    read the record.
    """

    name: str
    package: str
    plan: type[Any]
    """Class of its plans, a `smp_advisor.libraries.plan.Plan`."""
    layout: Callable[[Any, Job, Cluster | None], Any]
    """`PlanColumns` of n plans as a `Layout`, the form of the cost model."""
    space: Callable[[Model, Cluster, Job, Mapping[str, Any]], Any]
    """`Space` of all plans on a cluster, with some fields pinned."""
    cluster_mismatches: Callable[[Any, Cluster, int], Iterable[str]] = lambda *_: ()
    """A sentence for each mismatch of a plan with a cluster, given its number of replicas."""
    model_mismatches: Callable[[Any, Model, Job | None], Iterable[str]] = lambda *_: ()
    """A sentence for each mismatch of a plan with a model and a job."""
    follow_ups: Callable[[Any, Mapping[str, Any], Cluster], dict[str, Any]] = lambda *_: {}
    """Fields that the cluster and the other fields of a plan determine."""
    versions_package: str = ""
    """Package with ``versions.toml`` if libraries share one; `package` if empty."""
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    launcher: Literal["mpi", "torchrun", "xla"] = "torchrun"
    """Program that starts the processes in the container."""
    smdistributed: bool = False
    """Whether the SageMaker SDK passes the parameters of the plan to the library (``mp_parameters``)."""
    replication: str = ""
    """Parameter that turns on data parallelism; empty if it is always on."""
    trainer_argument: str = ""
    """Argument of transformers' Trainer that turns the library on; empty without one."""
    compiles: bool = False
    """Whether the library compiles the training step, with the parameters of the plan as ``compiler_config``."""
    script: Literal["torch", "smp_step", "keras", "trainer"] = "torch"
    """Kind of the generated training script: a PyTorch loop (FSDP, or DDP if the plan does not shard parameters), a
    PyTorch loop with ``smp.step`` functions, a Keras loop, or the Trainer of transformers."""
    adapters: bool = False
    """Whether the library documents training of adapters (LoRA)."""
    optimizers: tuple[str, ...] = ("adam", "sgd", "plain-sgd")
    """Optimizers of the generated script."""
    adapter_bases: frozenset[int] = frozenset()
    """Bits of the frozen weights (`Adapter.base_bits`) over which the generated script trains adapters. Its checkpoints
    contain the adapter and its optimizer state only."""
    training_settings: frozenset[str] = frozenset()
    """Settings of the job in ``training_settings.toml`` with which the library trains in another form than the
    default."""
    default_precision: Precision = "bf16"
    """Default precision of jobs; fp16 instead of bf16 on GPUs without bf16."""
    half_precision: Literal["mixed", "amp", "fp16"] = "mixed"
    """Form of training in 16 bits, a key of `smp_advisor.profiling.precision.PRECISIONS`: layers over gathered fp32
    parameters, autocast, or fp32 copies of 16-bit parameters."""
    stack: str = "hf-sdpa"
    """Kind of code of the generated training script (`smp_advisor.workload.stack`)."""
    default_attention: Literal["eager", "fused"] = "fused"
    divides_model: bool = True
    """Whether plans can divide the model's state over GPUs, so that more nodes help a model to fit."""
    shard_field: str = ""
    """Field of the plan with the number of shards; empty without one."""
    shards_beside: tuple[str, ...] = ()
    """Degrees by which the number of GPUs is divided before sharding."""
    restricts_families: bool = False
    """Whether techniques support only the model families in ``models.toml``."""
    controls: tuple[str, ...] = ()
    """Names of the controls, in the order of the form: fields of the plan, or names that `control_codec` maps."""
    control_codec: ControlCodec = field(default_factory=ControlCodec)
    reported: tuple[str, ...] = ()
    """Fields of the plan in the text report; all user-facing ones if empty."""
    alternatives: tuple[str, ...] = ()
    """Fields of the plan in the rows of `Advice.alternatives`."""

    def table(self, file: str) -> dict[str, Any]:
        return table(self.package, file)

    @property
    def of_sagemaker(self) -> bool:
        """Whether it is one of SageMaker's own libraries, which only AWS's containers have."""
        return self.smdistributed or self.compiles

    @property
    def title(self) -> str:
        return str(self.table("schema.toml")["name"])


_FOLDERS = ("smp_v1", "smp_v1_tensorflow", "smp_v2", "training_compiler", "ddp", "fsdp")

LIBRARIES = tuple(folder.replace("_", "-") for folder in _FOLDERS)

DEFAULT_LIBRARY = LIBRARIES[0]
LOCAL_LIBRARY = "ddp"
"""Library of small runs on the machine of the user, which may have no GPU."""

_REGISTERED: dict[str, Library] = {}


def get_library(name: str) -> Library:
    require_library(name)
    return _REGISTERED.get(name) or _built_in(name)


def libraries() -> tuple[Library, ...]:
    return tuple(get_library(name) for name in dict.fromkeys((*LIBRARIES, *_REGISTERED)))


def library_with(**features: object) -> Library:
    return next(
        record for record in libraries() if all(getattr(record, name) == value for name, value in features.items())
    )


def register(record: Library) -> None:
    """Add a library, or replace one of the same name."""
    _REGISTERED[record.name] = record


def unregister(name: str) -> None:
    _REGISTERED.pop(name, None)


def meant_library(library: Any) -> Any:
    """The name of a library that a text means: ``FSDP``, ``SMP v2``, ``smp_v2``; the text itself if it means none."""
    if not isinstance(library, str):
        return library

    def key(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower()).removeprefix("pytorch")

    names = {key(text): entry.name for entry in libraries() for text in (entry.name, entry.title)} | {"auto": "auto"}
    return names.get(key(library), library)


def require_library(name: object) -> None:
    if not isinstance(name, str) or (name not in LIBRARIES and name not in _REGISTERED):
        raise PlanError(f"library must be one of {', '.join((*LIBRARIES, *_REGISTERED))}, not {name!r}.")


@cache
def _built_in(name: str) -> Library:
    folder = import_module(f"smp_advisor.libraries.{name.replace('-', '_')}")
    return cast("Library", folder.LIBRARY)


_DEFAULTS: dict[type[Any], dict[str, Any]] = {}


def plan_defaults(kind: type[Any]) -> Mapping[str, Any]:
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = {field.name: field.default for field in fields(kind)}
    return _DEFAULTS[kind]


def plan_fields(library: str) -> frozenset[str]:
    return frozenset(plan_defaults(get_library(library).plan))


def supported_families(technique: str, library: str, *, adapter: bool = False) -> tuple[str, ...]:
    """Families (transformers ``model_type``) to which a library applies a technique without extra code."""
    record = get_library(library)
    families = record.table("models.toml") if record.restricts_families else {}
    if adapter and technique in families.get("with_adapter", {}):
        families = families["with_adapter"]
    return tuple(families.get(technique, ()))


def loads_with_smp_v2(family: str) -> bool:
    """Return whether the script of SMP v2 starts this family without weights, since the library divides its layers."""
    return supports_tensor_parallelism(family, "smp-v2")


def supports(family: str, technique: str, library: str, *, adapter: bool = False) -> bool:
    """Return whether a library applies a technique to a family without extra code."""
    return family in supported_families(technique, library, adapter=adapter)


def supports_tensor_parallelism(family: str, library: str = DEFAULT_LIBRARY) -> bool:
    """Return whether a library divides this family's layers without registration by the user."""
    return supports(family, "tensor_parallel", library)
