"""SMP v1 with TensorFlow."""

from smp_advisor.libraries.library import Library
from smp_advisor.libraries.smp_v1_tensorflow.layout import layout
from smp_advisor.libraries.smp_v1_tensorflow.mismatches import cluster_mismatches
from smp_advisor.libraries.smp_v1_tensorflow.plan import SmpV1TensorFlowPlan
from smp_advisor.libraries.smp_v1_tensorflow.space import space

__all__ = ["LIBRARY"]

LIBRARY = Library(
    name="smp-v1-tensorflow",
    package=__name__,
    plan=SmpV1TensorFlowPlan,
    layout=layout,
    stack="tensorflow",
    space=space,
    cluster_mismatches=cluster_mismatches,
    framework="tensorflow",
    launcher="mpi",
    default_precision="fp32",
    half_precision="amp",
    default_attention="eager",
    smdistributed=True,
    script="keras",
    controls=("partitions", "batch_size", "microbatches", "pipeline"),
    alternatives=("partitions", "pipeline", "microbatches"),
)
