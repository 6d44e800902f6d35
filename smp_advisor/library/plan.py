"""A plan: how the model is run, in the library's own words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import PlanError
from smp_advisor.library import emission, reading
from smp_advisor.library.schema import schema
from smp_advisor.library.validation import violations
from smp_advisor.library.version import require_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.job import Precision

__all__ = ["MAX_PARAMETERS_LENGTH", "Checkpointing", "Plan"]

Checkpointing = Literal[False, "each", "contiguous"] | str

MAX_PARAMETERS_LENGTH = 2500
"""Characters of one hyperparameter in SageMaker's CreateTrainingJob; the parameters travel as one, as JSON."""

_STRATEGY = re.compile(r"each|contiguous|group_(?:[2-9]|[1-9][0-9]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A model-parallel configuration as plain data: hashable, equal by value.

    `parameters` is the exact dictionary for the estimator (``mp_parameters``); `hyperparameters` holds the script's
    settings. The two are never mixed. A plan that the library version would refuse raises `PlanError`. Settings that
    cannot have an effect (``sdp_*`` without sharded data parallelism, the loading horizon without offloading) are
    dropped, so that plans that run alike are equal.

    Examples
    --------
    >>> plan = Plan(
    ...     tensor_parallel_degree=4, shard_optimizer_state=True, prescaled_batch=True, fp16=True, batch_size=40
    ... )
    >>> plan.parameters["tensor_parallel_degree"], plan.hyperparameters["batch_size"]
    (4, 40)
    """

    library: str = "smp-v1"
    version: str = "1.15.0"
    """Library version the plan is written for; decides which parameters exist and how they combine."""
    pipeline_parallel_degree: int = 1
    tensor_parallel_degree: int = 1
    sharded_data_parallel_degree: int = 1
    shard_optimizer_state: bool = False
    microbatches: int = 1
    active_microbatches: int | None = None
    """None: the library's own default, min(pipeline_parallel_degree + 2, microbatches)."""
    pipeline: Literal["interleaved", "simple"] = "interleaved"
    optimize: Literal["speed", "memory"] = "speed"
    placement_strategy: str = "cluster"
    prescaled_batch: bool = False
    fp16: bool = False
    bf16: bool = False
    ddp: bool | None = None
    """None is read as True: every plan but one replica on exactly as many GPUs needs it, and that one takes it."""
    offload_activations: bool = False
    activation_loading_horizon: int | None = None
    """None here and below: the library's own default."""
    auto_partition: bool = True
    default_partition: int | None = None
    delayed_parameter_initialization: bool = False
    skip_tracing: bool = False
    memory_weight: float | None = None
    ddp_dist_backend: str | None = None
    sdp_reduce_bucket_size: int | None = None
    sdp_param_persistence_threshold: int | None = None
    sdp_max_live_parameters: int | None = None
    sdp_hierarchical_allgather: bool | None = None
    sdp_gradient_clipping: float | None = None
    tensor_parallel_seed: int | None = None
    # script settings
    batch_size: int = 1
    """Samples the script hands to one step: per GPU, or per tensor-parallel group where `prescaled_batch`."""
    activation_checkpointing: Checkpointing = False
    """False, or the strategy of ``smp.set_activation_checkpointing``: each, contiguous, group_N."""

    def __post_init__(self) -> None:
        require_version(self.library, self.version)
        if self.ddp is None:
            object.__setattr__(self, "ddp", True)
        _check_script_settings(self.batch_size, self.activation_checkpointing)
        settings = {name: getattr(self, name) for name in emission.SCRIPT_SETTINGS}
        parameters = self.parameters
        for violation in violations(parameters, version=self.version, library=self.library, settings=settings):
            raise PlanError(violation.text)
        # Dropped only now: a setting without effect must still be one that the library takes.
        for name in emission.without_effect(self):
            object.__setattr__(self, name, None)
        length = len(json.dumps(parameters))
        if length > MAX_PARAMETERS_LENGTH:
            raise PlanError(
                f"The parameters take {length} characters as JSON and SageMaker takes {MAX_PARAMETERS_LENGTH} in one"
                " hyperparameter: leave settings at their defaults, or pass some with smp.init in the script."
            )

    @property
    def precision(self) -> Precision:
        """What the training step computes in."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def active_in_flight(self) -> int:
        """Microbatches in the pipeline at a time: `active_microbatches`, or the library's default for it."""
        if self.active_microbatches is not None:
            return self.active_microbatches
        return min(self.pipeline_parallel_degree + 2, self.microbatches)

    @property
    def parameters(self) -> dict[str, Any]:
        """``mp_parameters``: the library's parameters, exactly as the estimator takes them."""
        return emission.parameters(self, known=schema(self.library).keys_for(self.version), defaults=_DEFAULTS)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The script's settings: batch size, checkpointing strategy, precision."""
        return emission.hyperparameters(self)

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        hyperparameters: Mapping[str, Any] | None = None,
        *,
        version: str = "1.15.0",
        library: str = "smp-v1",
    ) -> Plan:
        """Read a plan back: the inverse of `parameters` and `hyperparameters`.

        Parameters
        ----------
        parameters
            ``mp_parameters`` of an estimator. What is left out has the library's default, which is off for ``ddp``.
        hyperparameters
            Of the estimator; settings other than a plan's (learning rate, paths) are passed over. Where the batch size
            is not given it is one sample a microbatch; where activation checkpointing is not, it is on (``each``) with
            ``offload_activations``, which has no effect otherwise, and off without.
        version, library
            What the parameters are written for.

        Examples
        --------
        >>> Plan.from_parameters({"partitions": 2, "microbatches": 4, "ddp": True}).pipeline_parallel_degree
        2
        """
        require_version(library, version)
        return cls(
            library=library,
            version=version,
            **reading.fields_from(
                parameters, hyperparameters or {}, version=version, library=library, plan_fields=frozenset(_DEFAULTS)
            ),
        )


_DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in fields(Plan)})


def _check_script_settings(batch_size: object, checkpointing: object) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise PlanError(f"batch_size must be a whole number of at least 1, not {batch_size!r}.")
    if checkpointing is False or (isinstance(checkpointing, str) and _STRATEGY.fullmatch(checkpointing)):
        return
    raise PlanError(
        "activation_checkpointing must be False, 'each', 'contiguous' or 'group_N' with N of at least 2,"
        f" not {checkpointing!r}."
    )
