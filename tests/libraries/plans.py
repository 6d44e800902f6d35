"""Every kind of valid plan, for property tests."""

from hypothesis import strategies as st

from smp_advisor.libraries import Plan, schema, versions
from smp_advisor.libraries.version import release

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


@st.composite
def valid_plans_of(draw, library):
    """A plan of a library beside SMP v1 with PyTorch, of any version."""
    version = draw(st.sampled_from(versions(library)))
    fields = {"library": library, "version": version, "batch_size": draw(st.integers(1, 64))}
    known = schema(library)
    for setting in known.settings:
        if setting.key == "batch_size":
            continue
        if setting.key == "activation_checkpointing":
            fields[setting.key] = draw(st.sampled_from([False, "each"]))
        elif setting.choices:
            fields[setting.key] = draw(st.sampled_from(setting.choices))
        elif setting.type == "int":
            fields[setting.key] = draw(st.integers(1, 16))
    if library == "smp-v2":
        fields |= draw(_smp_v2_fields(version, fields))
    elif library == "smp-v1-tensorflow":
        microbatches, partitions = draw(st.integers(1, 8)), draw(DEGREES)
        fields |= {
            "partitions": partitions,
            "microbatches": microbatches,
            "batch_size": microbatches * fields["batch_size"],
            "pipeline": draw(st.sampled_from(["interleaved", "simple"])),
            "optimize": draw(st.sampled_from(["speed", "memory"])),
            "placement_strategy": draw(st.sampled_from(["cluster", "spread"])),
            "horovod": draw(st.booleans()),
            "contiguous": draw(st.booleans()),
            "default_partition": draw(st.none() | st.integers(0, partitions - 1)),
        }
        fields["auto_partition"] = fields["default_partition"] is None or draw(st.booleans())
    elif library == "training-compiler":
        fields |= {"enabled": draw(st.booleans()), "debug": draw(st.booleans())}
    return Plan(**fields)


@st.composite
def _smp_v2_fields(draw, version, fields):
    at_least = lambda number: release(version) >= release(number)  # noqa: E731
    shards = draw(st.sampled_from([0, 1, 2, 8, 64]))
    fp8 = at_least("2.2.0") and fields["precision"] == "bf16" and draw(st.booleans())
    offload = bool(fields["activation_checkpointing"]) and draw(st.booleans())
    own = st.none() | (st.just(False) if version == "2.2.0" else st.booleans())
    tensor = draw(DEGREES)
    return {
        "hybrid_shard_degree": shards,
        "tensor_parallel_degree": tensor,
        "context_parallel_degree": draw(st.sampled_from([1, 2, 8]).filter(lambda cp: not shards or cp <= shards))
        if at_least("2.5.0")
        else 1,
        "expert_parallel_degree": draw(DEGREES) if at_least("2.3.0") else 1,
        "sm_activation_offloading": draw(own),
        "activation_loading_horizon": draw(st.none() | st.integers(1, 8)),
        "random_seed": draw(st.none() | st.integers(0, 99)),
        "allow_empty_shards": draw(st.none() | st.booleans()),
        "fsdp_cache_flush_warnings": draw(st.none() | st.booleans()),
        "fp8": fp8,
        "offload_activations": offload,
        "delayed_parameter_initialization": draw(st.booleans()),
        "distributed_backend": "nccl" if shards == 1 else draw(st.sampled_from(["nccl", "smddp"])),
    }
