"""A plan: the configuration of a training library and of the script."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from smp_advisor.arguments import brief, nearest
from smp_advisor.arguments.signatures import checked_methods
from smp_advisor.core.files import sentence
from smp_advisor.errors import PlanError
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library, libraries, plan_defaults, require_library
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import fields_from, setting_violations, violations
from smp_advisor.libraries.version import default_version, require_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from dataclasses import Field
    from typing import Unpack

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.keywords import PlanFields as _PlanFields
    from smp_advisor.keywords import PlanSettings
    from smp_advisor.workload.job import Precision

Checkpointing = Literal[False, "each", "contiguous"] | str

MAX_PARAMETERS_LENGTH = 2500
"""Characters of one hyperparameter in SageMaker's CreateTrainingJob; the parameters travel as one, as JSON."""


if not TYPE_CHECKING:
    _PlanFields = object  # with the fields of every library, for type checkers


class _Keywords:
    """Signature of a kind of plan, for completion in notebooks: ``Plan(`` takes the keywords of every library."""

    def __get__(self, plan: object, kind: type[Plan]) -> Signature:
        of_each = (plan_defaults(record.plan) for record in libraries())
        names = dict.fromkeys(("library", *(name for fields in of_each for name in fields)), Parameter.empty)
        defaults = names if kind is Plan else plan_defaults(kind)
        return Signature([Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()])


@checked_methods
class Plan(_PlanFields):
    """A training configuration as plain data: hashable, equal by value.

    ``Plan(library=..., ...)`` makes the plan of that library: a small class, whose fields are the parameters of the
    library and the settings of the training script in its schema. `parameters` is the exact dictionary for the
    estimator; `hyperparameters` holds the script's settings; the two are never mixed. A plan that the library version
    would refuse raises `PlanError`. Settings without an effect (``sdp_*`` without sharded data parallelism, the loading
    horizon without offloading) are dropped, so that plans that run alike are equal.

    Examples
    --------
    >>> plan = Plan(
    ...     tensor_parallel_degree=4, shard_optimizer_state=True, prescaled_batch=True, fp16=True, batch_size=40
    ... )
    >>> plan.parameters["tensor_parallel_degree"], plan.hyperparameters["batch_size"]
    (4, 40)
    >>> Plan(library="smp-v2", hybrid_shard_degree=8, batch_size=4).parameters["hybrid_shard_degree"]
    8
    """

    __slots__ = ()
    __signature__ = _Keywords()
    BATCH_DEGREES: ClassVar[tuple[str, ...]] = ()
    """Fields whose product is the number of GPUs that process one batch together."""
    PIPELINE_FIELD: ClassVar[str] = "pipeline_parallel_degree"
    """Field with the number of pipeline stages."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        @property
        def library(self) -> str:
            """Library that runs the plan."""

        @property
        def version(self) -> str:
            """Library version of the plan; decides which parameters exist and how they combine."""

        @property
        def batch_size(self) -> int:
            """Samples that the script passes to one step."""

        @property
        def precision(self) -> Precision:
            """Precision of the training step."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_methods(cls)

    def __new__(cls, *, library: str = DEFAULT_LIBRARY, **settings: Unpack[PlanSettings]) -> Plan:  # noqa: PYI034
        kind = get_library(library).plan if cls is Plan else cls
        defaults = plan_defaults(kind)
        for name in sorted(settings.keys() - defaults.keys()):
            owners = [record.title for record in libraries() if name in plan_defaults(record.plan)]
            near, title = nearest(name, defaults), get_library(defaults["library"]).title
            hint = f"the most similar one is {near}" if near else "leave it out"
            elsewhere = f"; {' and '.join(owners)} {'have' if len(owners) > 1 else 'has'} it" if owners else ""
            raise PlanError(f"A plan of {title} has no setting {name!r}{elsewhere}: {hint}.")
        return object.__new__(kind)

    def __repr__(self) -> str:
        own = self._changed(name for name in plan_defaults(type(self)) if name != "library")
        return brief("Plan", [f"library={self.library!r}", *(f"{name}={value!r}" for name, value in own.items())])

    def __post_init__(self) -> None:
        """Check the settings against the schema of the library version, and drop those without an effect."""
        own = plan_defaults(type(self))["library"]
        if self.library != own:
            raise PlanError(f"library must be {own!r} for {type(self).__name__}, not {self.library!r}.")
        require_version(self.library, self.version)
        self._complete()
        strategy = getattr(self, "activation_checkpointing", False)
        if strategy is True or strategy == "none":  # their names in tables and scripts
            object.__setattr__(self, "activation_checkpointing", "each" if strategy is True else False)
        settings = {entry.key: getattr(self, entry.key) for entry in schema(self.library).settings}
        for violation in setting_violations(settings, library=self.library):
            raise PlanError(violation.text)
        parameters = self.parameters
        for violation in violations(parameters, version=self.version, library=self.library, settings=settings):
            raise PlanError(violation.text)
        # Dropped after the checks, because the library also checks settings without an effect.
        for name in self._without_effect():
            object.__setattr__(self, name, plan_defaults(type(self))[name])
        length = len(json.dumps(parameters))
        if length > MAX_PARAMETERS_LENGTH:
            raise PlanError(sentence("libraries", "too_long", length=length, most=MAX_PARAMETERS_LENGTH))

    def _complete(self) -> None:
        """Set the fields that other fields determine."""

    def _without_effect(self) -> tuple[str, ...]:
        return ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The library's parameters, exactly as the estimator takes them.

        Those that are always written, and those that differ from their default. One that the version lacks is written
        if it is set, so that validation refuses it by name.
        """
        defaults = plan_defaults(type(self))
        own = [parameter for parameter in schema(self.library).parameters if parameter.key in defaults]
        changed = self._changed(parameter.key for parameter in own)
        always = (p.key for p in own if p.emit == "always" and p.exists_in(self.version))
        written = changed | {key: getattr(self, key) for key in always if getattr(self, key) is not None}
        return {parameter.key: written[parameter.key] for parameter in own if parameter.key in written}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The script's settings: batch size, checkpointing, precision.

        Flags are 1 and 0, because a script's ``type=bool`` reads the text "False" as true.
        """
        values = {entry.key: getattr(self, entry.key) for entry in schema(self.library).settings}
        written = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
        if "activation_checkpointing" in written:
            written["activation_checkpointing"] = self.activation_checkpointing or "none"
        return written | {"precision": self.precision}

    def _changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Values of fields that differ from their default, by type as well: the library distinguishes 1 and True."""
        own, defaults = {name: getattr(self, name) for name in names}, plan_defaults(type(self))
        return {
            name: value
            for name, value in own.items()
            if value != defaults[name] or type(value) is not type(defaults[name])
        }

    @property
    def pipeline_parallel_degree(self) -> int:
        """Consecutive stages of the model."""
        return 1

    @property
    def active_in_flight(self) -> int:
        """Microbatches in the pipeline at a time."""
        return self.microbatches

    @property
    def shards_parameters(self) -> bool:
        """Whether data-parallel ranks share parameters, gradients and optimizer state."""
        return False

    @property
    def ddp(self) -> bool | None:
        """Whether the library replicates the model over data-parallel ranks."""
        return True

    @property
    def batches_per_group(self) -> int:
        """Batches of `batch_size` that one tensor-parallel group processes in a step."""
        return 1

    def shard_degree(self, cluster: Cluster) -> int:
        """Return the GPUs over which parameters, gradients and optimizer state are sharded on a cluster; 1 for none."""
        del cluster
        return 1

    @classmethod
    def precision_remedy(cls, precision: Precision) -> str:
        """Setting with which the plan trains in a precision, for error messages."""
        return f"precision={precision!r}"

    @classmethod
    def precision_fields(cls, precision: Precision) -> dict[str, Any]:
        """Return fields of a plan that trains in a precision; none if the plan does not decide it."""
        return {"precision": precision} if "precision" in getattr(cls, "__dataclass_fields__", ()) else {}

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        library: str = DEFAULT_LIBRARY,
    ) -> Plan:
        """Read a plan back: the inverse of `parameters` and `hyperparameters`.

        Parameters
        ----------
        parameters
            Parameters as the estimator takes them (``mp_parameters``). Missing ones have the library's default, which
            is off for SMP v1's ``ddp``.
        hyperparameters
            Hyperparameters of the estimator. Settings that are not part of a plan (learning rate, paths) are ignored.
            The default batch size is one sample per microbatch. Activation checkpointing is on (``each``) by default
            with offloading, which requires it, and off without.
        version, library
            Library and version of the parameters; by default the library's recommended version.

        Examples
        --------
        >>> Plan.from_parameters({"partitions": 2, "microbatches": 4, "ddp": True}).pipeline_parallel_degree
        2
        >>> Plan.from_parameters({"hybrid_shard_degree": 4}, {"batch_size": 2}, library="smp-v2").batch_size
        2
        """
        require_library(library)
        version = default_version(library) if version is None else version
        require_version(library, version)
        kind: type[Plan] = get_library(library).plan
        settings = fields_from(
            parameters,
            hyperparameters or {},
            version=version,
            library=library,
            plan_fields=frozenset(plan_defaults(kind)),
        )
        return kind(library=library, version=version, **kind.from_reading(settings))

    @classmethod
    def from_reading(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return fields of a plan from a dictionary, with the library's values for missing settings."""
        return settings


_WITHOUT: dict[str, object] = {
    **dict.fromkeys(("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree"), 1),
    **dict.fromkeys(("microbatches", "gradient_accumulation_steps", "sharded_data_parallel_degree"), 1),
    **dict.fromkeys(("active_microbatches", "activation_loading_horizon", "default_partition"), None),
    **dict.fromkeys(("activation_checkpointing", "offload_activations", "shard_optimizer_state", "fp8"), False),
    **dict.fromkeys(("debug", "delayed_parameter_initialization", "prescaled_batch"), False),
    "hybrid_shard_degree": 0,
    "sharding_strategy": "",
    "pipeline": "interleaved",
    "optimize": "speed",
    "distributed_backend": "nccl",
    "placement_strategy": "cluster",
    "auto_partition": True,
}
"""Values of the techniques that a library lacks, so that all plans have the same names; the schemas describe them."""
for _name, _value in _WITHOUT.items():
    setattr(Plan, _name, _value)
