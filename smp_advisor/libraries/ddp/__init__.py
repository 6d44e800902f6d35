"""PyTorch's DistributedDataParallel."""

from functools import partial

from smp_advisor.libraries.ddp.layout import layout
from smp_advisor.libraries.ddp.plan import DdpPlan
from smp_advisor.libraries.library import REPLICATED_SETTINGS, Library
from smp_advisor.libraries.replica_space import replica_space

__all__ = ["LIBRARY"]

LIBRARY = Library(
    name="ddp",
    package=__name__,
    versions_package="smp_advisor.libraries.fsdp",
    plan=DdpPlan,
    layout=layout,
    half_precision="amp",
    space=partial(replica_space, "ddp"),
    adapters=True,
    adapter_bases=frozenset({16, 8, 4}),
    training_settings=REPLICATED_SETTINGS,
    divides_model=False,
    controls=("activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    alternatives=("activation_checkpointing", "gradient_accumulation_steps"),
)
