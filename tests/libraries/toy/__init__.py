"""A training library as small as one can be: data parallelism that shards the optimizer state (ZeRO-1)."""

from functools import partial

from smp_advisor.libraries.library import Library
from smp_advisor.libraries.space import replica_space
from tests.libraries.toy.layout import layout
from tests.libraries.toy.plan import ToyPlan

__all__ = ["LIBRARY"]

LIBRARY = Library(
    name="toy-zero",
    package=__name__,
    plan=ToyPlan,
    layout=layout,
    space=partial(replica_space, "toy-zero"),
    controls=("activation_checkpointing", "batch_size", "gradient_accumulation_steps"),
    alternatives=("activation_checkpointing", "gradient_accumulation_steps"),
)
