"""The target of an adaptation: the library, and the settings of the plan that affect the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smp_advisor.scripts.adapt.adaptation import AdaptError

__all__ = ["Target"]

LIBRARIES = ("smp-v1", "smp-v2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The library to which a script is adapted, and the settings of the plan that affect the script."""

    library: str = "smp-v1"
    tensor_parallel: bool = False
    context_parallel: bool = False
    expert_parallel: bool = False
    pipeline_parallel: bool = False
    sharded_data_parallel: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False
    microbatches: int = 1
    dtype: str = "torch.float32"
    """Expression of the data type in the script."""
    activation_checkpointing: str = ""
    """Strategy of activation checkpointing; empty if it is off."""
    offload_activations: bool = False

    @property
    def fp16(self) -> bool:
        """Whether the model computes in fp16, which requires loss scaling."""
        return self.dtype == "torch.float16"

    @property
    def half(self) -> bool:
        """Whether the model computes in fp16 or bf16."""
        return self.dtype != "torch.float32"

    @property
    def data_rank(self) -> str:
        """Expression of the rank that selects the data shard: a tensor-parallel group shares a prescaled batch."""
        return "smp.rdp_rank()" if self.prescaled_batch else "smp.dp_rank()"

    @property
    def data_size(self) -> str:
        """Expression of the number of data shards."""
        return "smp.rdp_size()" if self.prescaled_batch else "smp.dp_size()"

    @classmethod
    def from_plan(cls, plan: Any, library: str | None = None) -> Target:
        """Read the settings of a `smp_advisor.Plan`; None stands for the defaults of the library.

        Raises
        ------
        AdaptError
            The library has no documented steps.
        """
        library = library or getattr(plan, "library", "smp-v1")
        if library not in LIBRARIES:
            raise AdaptError(
                f"A script can be adapted to {' or '.join(LIBRARIES)}, not to {library!r}: pass library= one of these."
            )
        fp16 = bool(getattr(plan, "fp16", False))
        bf16 = bool(getattr(plan, "bf16", False)) or (library == "smp-v2" and not fp16)
        checkpointing = getattr(plan, "activation_checkpointing", False)
        return cls(
            library=library,
            tensor_parallel=_degree(plan, "tensor_parallel_degree") > 1,
            context_parallel=_degree(plan, "context_parallel_degree") > 1,
            expert_parallel=_degree(plan, "expert_parallel_degree") > 1,
            pipeline_parallel=_degree(plan, "pipeline_parallel_degree") > 1,
            sharded_data_parallel=_degree(plan, "sharded_data_parallel_degree") > 1,
            shard_optimizer_state=bool(getattr(plan, "shard_optimizer_state", False)),
            prescaled_batch=bool(getattr(plan, "prescaled_batch", False)),
            microbatches=_degree(plan, "microbatches"),
            dtype="torch.float16" if fp16 else "torch.bfloat16" if bf16 else "torch.float32",
            activation_checkpointing=checkpointing if isinstance(checkpointing, str) else "each" * bool(checkpointing),
            offload_activations=bool(
                getattr(plan, "offload_activations", False) or getattr(plan, "sm_activation_offloading", False)
            ),
        )


def _degree(plan: Any, name: str) -> int:
    value = getattr(plan, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
