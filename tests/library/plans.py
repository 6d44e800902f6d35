"""Every kind of valid plan, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from smp_advisor.library import Plan, versions
from smp_advisor.library.version import release

DEGREES = st.sampled_from([1, 2, 3, 4, 8, 16])


@st.composite
def valid_plans(draw):
    """A plan of any version, with any settings that this version lets combine, drawn without rejecting any."""
    version = draw(st.sampled_from(versions("smp-v1")))
    at_least = lambda number: release(version) >= release(number)  # noqa: E731
    maybe = lambda values: draw(st.none() | values)  # noqa: E731

    sharded = draw(DEGREES) if at_least("1.11.0") else 1
    pipeline_degree = 1 if sharded > 1 else draw(DEGREES)
    tensor = draw(DEGREES) if at_least("1.15.0") or (at_least("1.6.0") and sharded == 1) else 1
    optimizer_sharding = at_least("1.6.0") and sharded == 1 and draw(st.booleans())
    microbatches = draw(st.integers(1, 12))
    pipeline = draw(st.sampled_from(["interleaved", "simple"]))
    active = microbatches if pipeline == "simple" else maybe(st.integers(1, microbatches))
    precision = draw(st.sampled_from(["fp16", "bf16", "fp32"]))
    checkpointing = draw(st.sampled_from([False, "each", "contiguous", "group_2", "group_13"]))
    offload = at_least("1.6.0") and checkpointing is not False and draw(st.booleans())
    prescaled = at_least("1.6.0") and draw(st.booleans())
    automatic = draw(st.booleans())
    stage = st.integers(0, pipeline_degree - 1)
    fields = {
        "active_microbatches": active,
        "auto_partition": automatic,
        "default_partition": maybe(stage) if automatic else draw(stage),
        "memory_weight": maybe(st.floats(0, 1)),
        "placement_strategy": draw(st.sampled_from(["cluster", "spread"])),
        "optimize": "speed" if prescaled else draw(st.sampled_from(["speed", "memory"])),
        "skip_tracing": at_least("1.6.0") and draw(st.booleans()),
        "delayed_parameter_initialization": at_least("1.11.0") and draw(st.booleans()),
    }
    needs_ddp = tensor > 1 or sharded > 1 or optimizer_sharding
    fields["ddp"] = True if needs_ddp else draw(st.sampled_from([None, True, False]))
    if fields["ddp"] is not False and at_least("1.12.1"):
        fields["ddp_dist_backend"] = maybe(st.sampled_from(["nccl", "auto"] if at_least("1.13.0") else ["nccl"]))
    if at_least("1.12.1"):
        fields["tensor_parallel_seed"] = maybe(st.integers(0, 2**31))
    if at_least("1.11.0"):
        # Drawn without sharding as well: a setting without effect must not make two equal plans differ.
        fields |= {
            "sdp_reduce_bucket_size": maybe(st.integers(1, 10**9)),
            "sdp_param_persistence_threshold": maybe(st.integers(0, 10**7)),
            "sdp_max_live_parameters": maybe(st.integers(1, 10**10)),
            "sdp_hierarchical_allgather": maybe(st.booleans()),
            "sdp_gradient_clipping": maybe(st.floats(0, 10)),
        }
    if at_least("1.6.0"):
        fields["activation_loading_horizon"] = maybe(st.integers(0, 64))
    return Plan(
        version=version,
        pipeline_parallel_degree=pipeline_degree,
        tensor_parallel_degree=tensor,
        sharded_data_parallel_degree=sharded,
        shard_optimizer_state=optimizer_sharding,
        microbatches=microbatches,
        pipeline=pipeline,
        prescaled_batch=prescaled,
        fp16=precision == "fp16" and at_least("1.10.0"),
        bf16=precision == "bf16" and sharded > 1,
        offload_activations=offload,
        batch_size=microbatches * draw(st.integers(1, 50)),
        activation_checkpointing=checkpointing,
        **fields,
    )
