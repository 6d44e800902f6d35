"""The target of an adaptation: the library, and the settings of the plan that affect the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.libraries.registry import DEFAULT_LIBRARY, get_library, libraries
from smp_advisor.scripts.adapt.adaptation import AdaptError

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan

__all__ = ["Target"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The library to which a script is adapted, and the settings of the plan that affect the script."""

    library: str = DEFAULT_LIBRARY
    steps: bool = True
    """Whether the training loop moves into ``smp.step`` functions; otherwise FSDP shards the model."""
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
    def from_plan(cls, plan: Plan | None, library: str | None = None) -> Target:
        """Read the settings of a `smp_advisor.Plan`; None stands for the defaults of the library.

        Raises
        ------
        AdaptError
            The library has no documented steps.
        """
        supported = [record.name for record in libraries() if record.smdistributed and record.framework == "pytorch"]
        library = library or (plan.library if plan is not None else DEFAULT_LIBRARY)
        if library not in supported:
            raise AdaptError(
                f"A script can be adapted to {' or '.join(supported)}, not to {library!r}: pass library= one of these."
            )
        record = get_library(library)
        plan = plan or record.plan()
        steps = record.script == "smp_step"
        # Scripts with FSDP are adapted to bfloat16, which needs no loss scaling, unless the plan has the flag `fp16`.
        fp16 = bool(getattr(plan, "fp16", False))
        bf16 = bool(getattr(plan, "bf16", False)) or (not steps and not fp16)
        return cls(
            library=library,
            steps=steps,
            tensor_parallel=plan.tensor_parallel_degree > 1,
            context_parallel=plan.context_parallel_degree > 1,
            expert_parallel=plan.expert_parallel_degree > 1,
            pipeline_parallel=plan.pipeline_parallel_degree > 1,
            sharded_data_parallel=plan.sharded_data_parallel_degree > 1,
            shard_optimizer_state=plan.shard_optimizer_state,
            prescaled_batch=plan.prescaled_batch,
            microbatches=plan.microbatches,
            dtype="torch.float16" if fp16 else "torch.bfloat16" if bf16 else "torch.float32",
            activation_checkpointing=plan.activation_checkpointing or "",
            offload_activations=plan.offload_activations,
        )
