"""A plan: how the model is run, in a library's own words."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from smp_advisor.errors import PlanError
from smp_advisor.library import emission, reading
from smp_advisor.library.schema import schema
from smp_advisor.library.validation import setting_violations, violations
from smp_advisor.library.version import default_version, require_library, require_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.job import Precision

__all__ = ["MAX_PARAMETERS_LENGTH", "Checkpointing", "Plan", "plan_defaults", "plan_fields"]

Checkpointing = Literal[False, "each", "contiguous"] | str

MAX_PARAMETERS_LENGTH = 2500
"""Characters of one hyperparameter in SageMaker's CreateTrainingJob; the parameters travel as one, as JSON."""


class Plan:
    """A training configuration as plain data: hashable, equal by value.

    ``Plan(library=..., ...)`` makes the plan of that library: one small class each (`smp_advisor.library.plans`), whose
    fields are the library's own parameters and the settings of the training script, as the library's schema lists
    them. `parameters` is the exact dictionary for the estimator; `hyperparameters` holds the script's settings; the two
    are never mixed. A plan that the library version would refuse raises `PlanError`. Settings that cannot have an
    effect (``sdp_*`` without sharded data parallelism, the loading horizon without offloading) are dropped, so that
    plans that run alike are equal.

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
    SCRIPT_SETTINGS: ClassVar[tuple[str, ...]] = ()
    """Fields that the training script reads; all others but library and version are the library's."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        @property
        def library(self) -> str:
            """Library that runs the plan."""

        @property
        def version(self) -> str:
            """Library version the plan is written for; decides which parameters exist and how they combine."""

        @property
        def batch_size(self) -> int:
            """Samples the script hands to one step."""

        @property
        def precision(self) -> Precision:
            """What the training step computes in."""

        def __getattr__(self, name: str) -> Any:
            """What only some libraries have."""

    def __new__(cls, **settings: Any) -> Plan:  # noqa: PYI034 - the library named decides the class
        """Make the plan of the library named in `settings`; SMP v1's without a name."""
        kind = _plan_type(settings.get("library", "smp-v1")) if cls is Plan else cls
        unknown = settings.keys() - plan_defaults(kind).keys()
        if unknown:
            _refuse(kind, min(unknown))
        return object.__new__(kind)

    def __post_init__(self) -> None:
        """Check what is given against the schema of the library version, and drop what has no effect."""
        own = plan_defaults(type(self))["library"]
        if self.library != own:
            raise PlanError(f"library must be {own!r} for {type(self).__name__}, not {self.library!r}.")
        require_version(self.library, self.version)
        self._complete()
        settings = {name: getattr(self, name) for name in self.SCRIPT_SETTINGS}
        for violation in setting_violations(settings, library=self.library):
            raise PlanError(violation.text)
        parameters = self.parameters
        for violation in violations(parameters, version=self.version, library=self.library, settings=settings):
            raise PlanError(violation.text)
        # Dropped only now: a setting without effect must still be one that the library takes.
        for name in self._without_effect():
            object.__setattr__(self, name, plan_defaults(type(self))[name])
        length = len(json.dumps(parameters))
        if length > MAX_PARAMETERS_LENGTH:
            raise PlanError(
                f"The parameters take {length} characters as JSON and SageMaker takes {MAX_PARAMETERS_LENGTH} in one"
                " hyperparameter: leave settings at their defaults, or pass some with smp.init in the script."
            )

    def _complete(self) -> None:
        """Fill in what follows from other fields."""

    def _without_effect(self) -> tuple[str, ...]:
        """Fields that nothing in the plan reads."""
        return ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The library's parameters, exactly as the estimator takes them."""
        return emission.parameters(self)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The script's settings: batch size, checkpointing, precision."""
        return emission.hyperparameters(self)

    # What every library's plan answers; the libraries that have the technique say more.

    @property
    def tensor_parallel_degree(self) -> int:
        """GPUs that share each layer's matrices."""
        return 1

    @property
    def pipeline_parallel_degree(self) -> int:
        """Consecutive stages the model is cut into."""
        return 1

    @property
    def context_parallel_degree(self) -> int:
        """GPUs that share each sequence."""
        return 1

    @property
    def expert_parallel_degree(self) -> int:
        """GPUs over which the experts of a layer are spread."""
        return 1

    @property
    def microbatches(self) -> int:
        """Pieces `batch_size` is split into."""
        return 1

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches of `batch_size` before each optimizer step."""
        return 1

    @property
    def activation_checkpointing(self) -> Checkpointing:
        """False, or what is recomputed in the backward pass."""
        return False

    @property
    def offload_activations(self) -> bool:
        """Whether checkpointed activations wait in host memory."""
        return False

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        library: str = "smp-v1",
    ) -> Plan:
        """Read a plan back: the inverse of `parameters` and `hyperparameters`.

        Parameters
        ----------
        parameters
            As the estimator takes them (``mp_parameters``). What is left out has the library's default, which is off
            for SMP v1's ``ddp``.
        hyperparameters
            Of the estimator; settings other than a plan's (learning rate, paths) are passed over. Where the batch size
            is not given it is one sample a microbatch; where activation checkpointing is not, it is on (``each``) with
            offloading, which has no effect otherwise, and off without.
        version, library
            What the parameters are written for; the library's recommended version if not given.

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
        kind = _plan_type(library)
        stated = reading.fields_from(
            parameters,
            hyperparameters or {},
            version=version,
            library=library,
            plan_fields=frozenset(plan_defaults(kind)),
        )
        return kind(library=library, version=version, **kind.from_reading(stated))

    @classmethod
    def from_reading(cls, stated: dict[str, Any]) -> dict[str, Any]:
        """Fields of a plan of what was read, with what its absence means in this library."""
        return stated


def plan_fields(library: str) -> frozenset[str]:
    """Names of a plan's fields."""
    return frozenset(plan_defaults(_plan_type(library)))


_DEFAULTS: dict[type[Plan], dict[str, Any]] = {}


def plan_defaults(kind: type[Plan]) -> dict[str, Any]:
    """Fields of a kind of plan with their defaults."""
    found = _DEFAULTS.get(kind)
    if found is None:
        stated = fields(kind)
        found = _DEFAULTS[kind] = {
            one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in stated
        }
    return found


def _plan_type(library: Any) -> type[Plan]:
    from smp_advisor.library.plans import KINDS

    require_library(library)
    return KINDS[library]


def _refuse(kind: type[Plan], name: str) -> None:
    """Say what is wrong with a keyword that the plan of a library does not have."""
    from smp_advisor.library.plans import KINDS

    library = plan_defaults(kind)["library"]
    stated = schema(library)
    elsewhere = [schema(other).name for other, one in KINDS.items() if name in plan_defaults(one)]
    near = stated.nearest_field(name, frozenset(plan_defaults(kind)))
    hint = f"the nearest it has is {near}" if near else "leave it out"
    known = f"; {' and '.join(elsewhere)} {'have' if len(elsewhere) > 1 else 'has'} it" if elsewhere else ""
    raise PlanError(f"A plan of {stated.name} has no setting {name!r}{known}: {hint}.")
