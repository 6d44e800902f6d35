"""The checks by subject. Importing this package registers them."""

from smp_advisor.scripts.checks import (  # noqa: F401 - the import registers them
    checkpoints,
    compiler_estimator,
    compiler_loop,
    data,
    data_ranks,
    fsdp_accumulation,
    fsdp_adapters,
    memory,
    model,
    optimizer,
    partition,
    precision,
    prerequisites,
    setup,
    step,
    step_output,
    tensor_parallel,
    tensorflow,
    v2,
)
