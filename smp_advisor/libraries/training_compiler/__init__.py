"""SageMaker Training Compiler."""

from functools import partial

from smp_advisor.libraries.library import Library
from smp_advisor.libraries.replica_space import replica_space
from smp_advisor.libraries.training_compiler.layout import layout
from smp_advisor.libraries.training_compiler.plan import TrainingCompilerPlan

__all__ = ["LIBRARY"]

LIBRARY = Library(
    name="training-compiler",
    package=__name__,
    plan=TrainingCompilerPlan,
    layout=layout,
    stack="xla",
    space=partial(replica_space, "training-compiler"),
    launcher="xla",
    default_precision="fp16",
    half_precision="amp",
    default_attention="eager",
    divides_model=False,
    compiles=True,
    script="trainer",
    controls=("batch_size",),
    alternatives=("batch_size",),
)
