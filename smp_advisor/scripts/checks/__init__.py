"""The checks, by what they look at; importing this registers them."""

from smp_advisor.scripts.checks import (
    checkpoints,
    compiler_estimator,
    compiler_loop,
    data,
    data_ranks,
    memory,
    model,
    optimizer,
    partition,
    precision,
    setup,
    step,
    step_output,
    tensor_parallel,
    tensorflow,
    v2,
)

__all__ = [
    "checkpoints",
    "compiler_estimator",
    "compiler_loop",
    "data",
    "data_ranks",
    "memory",
    "model",
    "optimizer",
    "partition",
    "precision",
    "setup",
    "step",
    "step_output",
    "tensor_parallel",
    "tensorflow",
    "v2",
]
