"""Step time: known volumes, rooflines and orderings."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster, instances
from smp_advisor.cluster import gpu as gpu_board
from smp_advisor.costs import estimate
from smp_advisor.costs.communication import Collectives, Group, all_gather_seconds, all_reduce_seconds, ring_rate
from smp_advisor.costs.compute import BlockSeconds, block_seconds, model_flops_per_sample
from smp_advisor.costs.constants import constant, constants, overriding, peak_flops
from smp_advisor.costs.evaluate import seconds_columns
from smp_advisor.costs.kernels import share_of_peak
from smp_advisor.costs.world import World, local_parameters, stages
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout, layout_of
from smp_advisor.libraries.state_bytes import amp, fully_sharded, over_frozen, trained
from smp_advisor.workload import Adapter, Job, Model, stacks
from tests.costs.shapes import P4D, gpt, row_30b


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_groups_inside_a_node_use_nvlink_and_others_share_the_network() -> None:
    cluster = Cluster(P4D, 16)
    groups = Group.of(cluster, ints(8, 8, 16, 128), ints(1, 2, 8, 1))
    rate = ring_rate(cluster, groups)
    assert groups.inside.tolist() == [True, False, False, False]
    assert rate[0] == pytest.approx(0.73 * 300e9)
    # Stride 2: two such groups cross each node; stride 8: eight share 400 Gbps; one group has it all.
    reached = constant("communication.efa_efficiency") * 50e9
    shared = constant("communication.shared_network_share") * reached
    assert rate[1:] == pytest.approx([shared / 2, shared / 8, reached])
    # 3 and 6 do not divide the 8 GPUs of a node: {6, 7, 8} crosses.
    assert Group.of(Cluster(P4D, 3), ints(2, 3, 6, 8), ints(1, 1, 1, 1)).inside.tolist() == [True, False, False, True]


def test_optimizer_state_sharding_exposes_the_gather_of_updated_parameters() -> None:
    # The 30 B row: 7.5 GB a GPU, eight groups on 400 Gbps: about 1.2 s at full rate. The documentation says that the
    # gather is exposed; the reduction hides behind the backward pass in part.
    model, cluster, job, plan = row_30b()
    sharded = estimate(model, cluster, job, plan).time.data_parallel_seconds
    gather = 7.5e9 / (constant("communication.efa_efficiency") * 50e9 / 8)
    assert gather < sharded < 2 * gather


@given(st.floats(1e5, 1e10), st.sampled_from([2, 4, 8, 16, 64]), st.sampled_from([1, 2, 8]))
def test_an_all_reduce_costs_at_most_two_gathers(bytes_: float, members: int, stride: int) -> None:
    cluster = Cluster(P4D, 16)
    size = np.array([bytes_])
    reduce = all_reduce_seconds(cluster, size, ints(members), ints(stride))
    gather = all_gather_seconds(cluster, size, ints(members), ints(stride))
    assert reduce <= 2 * gather
    # Trees spare small messages most of a ring's hops. Large ones wait for their bytes.
    if bytes_ >= 2**30:
        assert gather < reduce
    assert all_reduce_seconds(cluster, size, ints(1), ints(stride)) == 0


def test_flops_follow_the_published_count() -> None:
    # Narayanan et al. 2021, eq. 3 without recomputation: 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)).
    model, s = gpt(), 2048
    layers, h, vocab = 48, 7168, 50_000
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model_flops_per_sample(model, s) == pytest.approx(expected, rel=1e-6)


def test_recomputation_adds_one_forward_pass() -> None:
    model, cluster, job, plan = row_30b()
    time = estimate(model, cluster, job, plan).time
    # Twice the products, and gradients of microbatches added up.
    assert 2 * time.forward_seconds < time.backward_seconds < 2.1 * time.forward_seconds
    # All of it but the head.
    assert 0.9 * time.forward_seconds < time.recomputation_seconds <= time.forward_seconds


def test_spread_placement_takes_tensor_parallel_groups_apart() -> None:
    model, cluster, job, plan = row_30b()
    together = estimate(model, cluster, job, plan).time
    apart = estimate(model, cluster, job, replace(plan, placement_strategy="spread")).time
    assert apart.tensor_parallel_seconds > 5 * together.tensor_parallel_seconds


def test_replicas_reduce_every_gradient_once() -> None:
    model, cluster, job = gpt(layers=8, hidden=1024, heads=16), Cluster(P4D, 2), Job(sequence_length=128)
    layout = layout_of([Plan(batch_size=4, fp16=True)], job)
    world, local = World.of(model, cluster, job, layout), local_parameters(model, layout, stages(model, 1)[0])
    reduced = Collectives.of(model, cluster, layout, world, 1, local).reduced
    every = all_reduce_seconds(cluster, layout.state_bytes.reduced_bytes * model.parameter_count, 16, 1)
    assert 1 <= np.max(reduced) / np.max(every) < 1.1  # in two collectives


def test_only_what_is_trained_has_gradients_to_add_up() -> None:
    model = Model.from_shape(layers=16, hidden=2048, heads=16, vocab=32_000, family="llama")
    cluster, seconds = Cluster(P4D, 1), []
    for adapter in (None, Adapter(rank=8, targets="query-value")):
        job = Job(sequence_length=128, precision="bf16", attention="fused", adapter=adapter)
        layout = Layout.of_columns(over_frozen(amp(job), job), batch_samples=64, microbatches=64)
        seconds.append(float(seconds_columns(model, cluster, job, layout)["backward_seconds"][0]))
    full, adapted = seconds
    # fp32 gradients of 0.9 B parameters: 2 bytes read, 4 read and 4 written for each of 64 microbatches.
    moved = 10 * model.parameter_count * 64 / (cluster.instance.hbm_gb_per_s * 1e9)
    assert full - adapted > moved


def test_an_h200_computes_like_an_h100_and_faster_from_memory_alone() -> None:
    # The same processors with more and faster memory: what compute bounds takes as long.
    model, job = gpt(layers=24, hidden=8192, heads=64), Job(sequence_length=4096, precision="bf16", attention="fused")
    layout = Layout.of_columns(amp(job), batch_samples=2)
    slow, fast = (
        seconds_columns(model, Cluster(name, 1), job, layout)["forward_seconds"][0]
        for name in ("ml.p5.48xlarge", "ml.p5en.48xlarge")
    )
    assert 0.85 * slow < fast <= slow


def test_every_gpu_of_a_table_by_gpu_is_found_by_its_board() -> None:
    boards = {row.gpu for row in instances()} | {gpu_board("rtx4090-24gb").gpu, gpu_board("a6000-48gb").gpu}
    words = {word for board in boards for word in board.split()}
    tables = {name.split(".")[2] for name in constants() if name.startswith("gpu.")}
    assert tables - {"other"} <= words


@given(
    st.sampled_from(["hybrid_shard", "_hybrid_shard_zero2", "full_shard"]),
    st.integers(1, 4),
    st.sampled_from([2, 3, 5]),
    st.sampled_from(["ml.g5.48xlarge", P4D]),
)
def test_faster_gpus_never_make_a_sharded_step_slower(strategy: str, samples: int, nodes: int, name: str) -> None:
    """Compute hides communication once: where it shrinks, no more than it becomes visible."""
    model = Model.from_shape(layers=1, hidden=4096, heads=32, family="mixtral", experts=8, experts_per_token=2)
    plan = Plan(library="fsdp", precision="bf16", batch_size=samples, sharding_strategy=strategy)
    job, cluster = Job(sequence_length=128, precision="bf16", attention="fused"), Cluster(name, nodes)
    faster = Cluster(replace(cluster.instance, peak_tflops=2 * cluster.instance.peak_tflops), nodes)
    assert estimate(model, faster, job, plan).step_seconds <= estimate(model, cluster, job, plan).step_seconds


def test_keeping_parameters_gathered_moves_twice_their_volume_instead_of_three_times() -> None:
    model = Model.from_shape(layers=24, hidden=4096, heads=32, family="llama")
    job = Job(sequence_length=16, precision="bf16", attention="fused", gradient_reduction="16-bit")
    # The step computes next to nothing.
    faster = Cluster(replace(Cluster(P4D).instance, peak_tflops=1e6, fp8_tflops=0.0), 2)
    with overriding({"time.launch_seconds": 1e-12, "time.unit_seconds": 1e-12}):
        kept, freed = (
            estimate(model, faster, job, Plan(library="fsdp", batch_size=1, sharding_strategy=strategy))
            for strategy in ("shard_grad_op", "full_shard")
        )
    assert kept.time.data_parallel_seconds / freed.time.data_parallel_seconds == pytest.approx(2 / 3, rel=0.05)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "shards", "floor"), [(8, 1, 1, False), (8, 2, 1, True), (1, 1, 2, True)]
)
def test_hosts_that_coordinate_every_pass_set_a_floor(tensor: int, pipeline: int, shards: int, floor: bool) -> None:
    """SMP v1 on two p4d: steps of small workloads took a second with a pipeline or sharded data parallelism."""
    model, cluster, job = gpt(layers=32, hidden=1024, heads=16), Cluster(P4D, 2), Job(sequence_length=128)
    degrees = {"tensor_parallel_degree": tensor, "pipeline_parallel_degree": pipeline}
    plan = Plan(**degrees, sharded_data_parallel_degree=shards, batch_size=4, fp16=True)
    small, more = (estimate(model, cluster, job, replace(plan, batch_size=batch)).step_seconds for batch in (4, 8))
    assert (small > 0.9) == floor
    assert more > small
    # A step far above the floor does not wait for the hosts.
    long = replace(plan, batch_size=8192)
    with overriding({"time.host_floor_seconds": 1e-6}):
        unlimited = estimate(model, cluster, job, long).step_seconds
    assert unlimited > 3
    assert estimate(model, cluster, job, long).step_seconds < 1.02 * unlimited


def test_a_hand_over_costs_more_where_hosts_coordinate_it() -> None:
    names = ("handover_in_node", "handover", "host_handover")
    seconds = [constant(f"communication.{name}_seconds") for name in names]
    assert seconds == sorted(seconds)
    model, job = gpt(layers=24, hidden=1024, heads=16), Job(sequence_length=128)
    columns = {"pipeline_parallel_degree": 4, "microbatches": 4, "active_microbatches": 4}
    layouts = [Layout.of_columns(amp(job), batch_samples=4, host_handover=host, **columns) for host in (False, True)]
    bubbles = [seconds_columns(model, Cluster(P4D, 1), job, each)["pipeline_bubble_seconds"] for each in layouts]
    assert np.all(bubbles[0] < bubbles[1])


def test_copies_of_pytorchs_offloading_are_never_hidden() -> None:
    """A 7B at 4,096 tokens: 1.1 GB of inputs, 0.4 GB of the head's weight, 1.7 GB of logits, each way."""
    model = Model.from_shape(layers=32, hidden=4096, heads=32, vocab=50_432, family="llama", ffn=11_008)
    job, cluster = Job(sequence_length=4096, precision="bf16", attention="fused"), Cluster("ml.p5.48xlarge", 4)
    columns = {"shard_level": 3, "checkpoint_layers": 1, "offload_activations": True, "offload_running": True}
    layouts = [Layout.of_columns(amp(job), **columns, blocking_offload=blocking) for blocking in (False, True)]
    waits = [seconds_columns(model, cluster, job, layout)["offload_seconds"] for layout in layouts]
    moved = 2 * 3.2e9 / (constant("offload.blocking_gb_per_s") * 1e9)
    assert waits[0] == 0
    assert waits[1] == pytest.approx(moved, rel=0.1)


def test_copies_of_state_on_the_host_take_the_time_of_its_link() -> None:
    """Parameters twice and gradients once; computation hides the same part of both times."""
    model = Model.from_shape(layers=32, hidden=4096, heads=32, vocab=50_432, family="llama", ffn=11_008)
    job, cluster = Job(sequence_length=16, precision="bf16"), Cluster("ml.p5.48xlarge")
    layout = Layout.of_columns(amp(job), shard_level=3, offload_state=True)
    state = layout.state_bytes
    moved = (2 * state.parameter_bytes + state.gradient_bytes) * model.parameter_count / cluster.gpus
    slow, fast = (
        seconds_columns(
            model, replace(cluster, instance=replace(cluster.instance, host_link_gb_per_s=link)), job, layout
        )
        for link in (4.0, 8.0)
    )
    assert slow["offload_seconds"] - fast["offload_seconds"] == pytest.approx(moved / 8e9, rel=0.01)


def _sharded(*, accumulated: int, **settings: bool) -> float:
    """Data-parallel seconds of a step on two replicas of a sharding group, which computes next to nothing."""
    model, job = gpt(layers=24, hidden=4096, heads=32), Job(sequence_length=16, precision="bf16", **settings)
    cluster = Cluster(P4D, 4)
    faster = Cluster(replace(cluster.instance, peak_tflops=1e6), 4)
    columns = {"shard_level": 3, "shard_degree": 16, "batch_samples": accumulated, "microbatches": accumulated}
    with overriding({"time.launch_seconds": 1e-12}):
        layout = Layout.of_columns(trained(fully_sharded(job), job), **columns)
        return float(seconds_columns(model, faster, job, layout)["data_parallel_seconds"][0])


def test_gradients_are_reduced_for_every_microbatch_unless_they_are_accumulated_unsharded() -> None:
    once, often = _sharded(accumulated=1), _sharded(accumulated=4)
    assert often == pytest.approx(4 * once, rel=0.01)
    unsharded = _sharded(accumulated=4, unsharded_accumulation=True)
    # Two of three times the volume remain, and one reduction.
    assert 0.5 * often < unsharded < 0.8 * often


def test_context_parallelism_exchanges_keys_and_values_and_returns_their_gradients() -> None:
    model, job = gpt(layers=4, hidden=4096, heads=32), Job(sequence_length=65_536, precision="bf16", attention="fused")
    layout = Layout.of_columns(amp(job), batch_samples=1, context_parallel_degree=16)
    cluster = Cluster(P4D, 2)
    seconds = float(seconds_columns(model, cluster, job, layout)["tensor_parallel_seconds"][0])
    # 2 x 4,096 elements of 2 bytes for every token, three times in each of 4 layers.
    gather = float(all_gather_seconds(cluster, 65_536 * 2 * 4096 * 2, 16, 1))
    assert seconds == pytest.approx(3 * 4 * gather, rel=0.02)


P5 = "ml.p5.48xlarge"
LLAMA = Model.from_shape(layers=8, hidden=2048, heads=16, vocab=32_000, family="llama")
MIXTRAL = Model.from_shape(
    layers=4, hidden=2048, heads=16, vocab=32_000, family="mixtral", ffn=1408, experts=64, experts_per_token=4
)
NAMES = sorted(stacks())


def block(
    stack: str,
    *,
    samples: int = 4,
    sequence: int = 1024,
    model: Model = LLAMA,
    instance: str = P4D,
    tp: int = 1,
    level: int = 0,
) -> BlockSeconds:
    job = Job(sequence_length=sequence, precision="bf16", stack=stack)
    layout = Layout.of_columns(
        fully_sharded(job), 2, batch_samples=samples, tensor_parallel_degree=tp, shard_level=level
    )
    cluster = Cluster(instance, 1)
    world = World.of(model, cluster, job, layout)
    seconds = block_seconds(model.groups[0].block, layout, world, cluster.instance, job)
    return BlockSeconds(*(float(np.asarray(getattr(seconds, field.name)).ravel()[0]) for field in fields(seconds)))


@given(st.sampled_from(NAMES), st.integers(0, 6), st.sampled_from([LLAMA, MIXTRAL]))
def test_a_larger_batch_never_takes_less_time(stack: str, power: int, model: Model) -> None:
    small, large = (block(stack, samples=size, model=model) for size in (2**power, 2 ** (power + 1)))
    assert small.forward <= large.forward
    assert small.backward <= large.backward


@given(st.sampled_from(NAMES), st.sampled_from([P4D, P5]), st.integers(1, 64), st.sampled_from([128, 2048, 16384]))
def test_no_block_is_faster_than_the_peak(stack: str, instance: str, samples: int, sequence: int) -> None:
    seconds = block(stack, samples=samples, sequence=sequence, instance=instance)
    flops = sum(m.flops_per_token for m in LLAMA.groups[0].block.matmuls) * samples * sequence
    peak = peak_flops(Cluster(instance, 1).instance, Job(precision="bf16"))
    assert seconds.forward > flops / peak
    assert seconds.backward > 2 * flops / peak


@pytest.mark.parametrize("stack", NAMES)
def test_the_time_of_launches_does_not_depend_on_the_batch(stack: str) -> None:
    model = Model.from_shape(layers=2, hidden=256, heads=4, vocab=1000, family="llama")
    with overriding({"time.launch_seconds": 1.0}):  # the host is always slower
        one, many = (block(stack, samples=size, model=model).forward for size in (1, 64))
    assert one == pytest.approx(many)


def test_hosts_gather_the_parameters_of_a_unit_in_each_pass() -> None:
    usual = block("hf-sdpa", samples=1, level=3)
    with overriding({"time.unit_seconds": 1.0}):
        slow = block("hf-sdpa", samples=1, level=3)
    assert slow.backward > slow.forward > usual.forward + 0.5


@given(st.integers(1, 32), st.sampled_from([128, 1024, 4096]), st.sampled_from([LLAMA, MIXTRAL]))
def test_compiled_code_is_no_slower_than_eager_code(samples: int, sequence: int, model: Model) -> None:
    eager, sdpa, liger, compiled = (
        block(stack, samples=samples, sequence=sequence, model=model)
        for stack in ("hf-eager", "hf-sdpa", "liger", "torch-compile")
    )
    assert liger.forward <= sdpa.forward
    assert compiled.forward <= sdpa.forward <= eager.forward
    assert compiled.backward <= sdpa.backward <= eager.backward


def test_launches_do_not_hide_collectives() -> None:
    model = Model.from_shape(layers=8, hidden=1024, heads=16, vocab=32_000, family="llama")
    job = Job(sequence_length=128, precision="fp16", stack="megatron")
    layout = Layout.of_columns(fully_sharded(job), 2, batch_samples=1, tensor_parallel_degree=4)
    cluster = Cluster(P4D, 1)
    with overriding({"time.launch_seconds": 1e-4}):
        waiting = seconds_columns(model, cluster, job, layout)["tensor_parallel_seconds"]
    with overriding({"time.launch_seconds": 1e-9, "time.collective_launch_seconds": 1e-9}):
        exposed = seconds_columns(model, cluster, job, layout)["tensor_parallel_seconds"]
    assert float(waiting[0]) == float(exposed[0]) > 0


def test_loops_over_small_experts_wait_for_the_host() -> None:
    loop, grouped = (block(name, samples=1, model=MIXTRAL) for name in ("hf-flash-2", "transformer-engine"))
    assert loop.forward > 64 * 10 * constant("time.launch_seconds")
    assert grouped.forward < loop.forward


@given(
    kernel=st.sampled_from(["flash-1", "flash-2", "flash-3", "cudnn"]),
    gpu=st.sampled_from(["A100-40GB", "H100-80GB", "A10G", "V100", "B200"]),
    head_dim=st.integers(8, 512),
    length=st.integers(16, 2**20),
    causal=st.booleans(),
    of=st.sampled_from(["forward", "backward"]),
)
def test_rates_of_attention_are_shares_of_the_peak(
    kernel: str, gpu: str, head_dim: int, length: int, *, causal: bool, of: str
) -> None:
    share = share_of_peak(kernel, gpu, head_dim, length, causal=causal, of=of)  # type: ignore[arg-type]
    longer = share_of_peak(kernel, gpu, head_dim, 2 * length, causal=causal, of=of)  # type: ignore[arg-type]
    assert 0 < share <= 0.95
    assert longer > 0.95 * share  # cuDNN is a little slower beyond 2,048 tokens


@pytest.mark.parametrize(
    ("kernel", "head_dim", "length", "causal", "tflops"),
    [("flash-2", 128, 16384, False, 370), ("flash-3", 128, 16384, True, 616), ("flash-3", 64, 512, False, 333)],
)
def test_published_rates_come_out(kernel: str, head_dim: int, length: int, causal: bool, tflops: float) -> None:
    # Shah et al. 2024, figure 5, on an H100 with 989 dense TFLOPS; the fit moves all rates of a kernel together.
    name = f"gpu.{kernel.replace('-', '_')}_efficiency.H100"
    published = {"flash-2": 370 / 989, "flash-3": 648 / 989}[kernel]
    with overriding({name: published}):
        share = share_of_peak(kernel, "H100-80GB", head_dim, length, causal=causal, of="forward")  # type: ignore[arg-type]
    assert share * 989 == pytest.approx(tflops, rel=0.01)


def test_newer_kernels_are_faster_on_an_h100() -> None:
    seconds = [
        block(name, sequence=16384, samples=1, instance=P5).forward
        for name in ("hf-flash-1", "hf-flash-2", "hf-flash-3")
    ]
    assert seconds == sorted(seconds, reverse=True)
    # FlashAttention-3 exists for Hopper: elsewhere FlashAttention-2 runs.
    two, three = (block(name, sequence=16384, samples=1).forward for name in ("hf-flash-2", "hf-flash-3"))
    assert two == three


def test_a_stack_of_the_job_replaces_that_of_the_exported_script() -> None:
    plan = Plan(library="fsdp", precision="bf16", batch_size=1)
    job, cluster = Job(sequence_length=2048, precision="bf16", attention="fused"), Cluster(P4D, 1)
    exported = estimate(LLAMA, cluster, job, plan)
    own = replace(job, stack="hf-sdpa", gradient_reduction="fp32")  # as the exported script
    assert estimate(LLAMA, cluster, own, plan).step_seconds == exported.step_seconds
    assert estimate(LLAMA, cluster, replace(job, stack="torch-compile"), plan).step_seconds < exported.step_seconds
    assert any("exported script" in sentence for sentence in exported.assumptions)


def test_weights_are_cast_to_fp8_once_where_their_copies_are_kept() -> None:
    def growth(stack: str, level: int) -> float:
        """Seconds of eight forward passes over eight times those of a step's only one."""
        job, many = Job(sequence_length=4096, precision="bf16", stack=stack, fp8=True), ints(1, 8)
        layout = Layout.of_columns(fully_sharded(job), 2, batch_samples=many, microbatches=many,
                                   shard_level=level)  # fmt: skip
        one, eight = seconds_columns(LLAMA, Cluster(P5, 2), job, layout)["forward_seconds"]
        return float(eight / one / 8)

    assert 0.8 < growth("transformer-engine", 1) < 0.995
    # Sharded weights are gathered anew, and other code keeps no copies.
    assert growth("transformer-engine", 3) == growth("torch-compile", 1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("stack", "divided", "ratio"),
    [("transformer-engine", True, 0.75), ("transformer-engine", False, 1), ("torch-compile", True, 1)],
)
def test_only_transformer_engine_gathers_sequences_in_fp8(stack: str, divided: bool, ratio: float) -> None:
    half, eighth = (Job(precision="bf16", stack=stack, fp8=fp8) for fp8 in (False, True))
    layout = Layout.of_columns(fully_sharded(half), tensor_parallel_degree=8, sequence_parallel=divided)
    cluster = Cluster(P5, 1)
    before, after = (seconds_columns(LLAMA, cluster, job, layout)["tensor_parallel_seconds"] for job in (half, eighth))
    assert after == pytest.approx(ratio * before)


def test_products_in_fp8_save_less_than_half_of_their_time() -> None:
    layout = Layout.of_columns(fully_sharded(Job(precision="bf16")), batch_samples=4)
    cluster = Cluster(P5, 1)
    half, eighth = (
        float(seconds_columns(LLAMA, cluster, job, layout)["forward_seconds"][0])
        for job in (Job(sequence_length=2048, precision="bf16", stack="megatron", fp8=fp8) for fp8 in (False, True))
    )
    # Twice the peak, less the casts of the operands.
    assert 0.5 * half < eighth < half


def test_an_adapter_launches_kernels_of_its_own() -> None:
    adapted = Adapter(rank=8, targets="all-linear").applied_to(LLAMA).groups[0].block
    plain = LLAMA.groups[0].block
    assert plain.separate.products > len(plain.matmuls)  # query, key and value are one matrix of three weights
    assert plain.separate.repeated_products == 0
    # Seven products, each with a cast, a dropout, two products, a scale and a sum.
    assert adapted.separate.launches == plain.separate.launches + 7 * 6
    assert adapted.separate.split_elements > plain.separate.split_elements


def test_attention_of_new_pytorch_is_cudnns_on_hopper_alone() -> None:
    """Measured on one H200 with PyTorch 2.11: 32,768 tokens in 1.20 s, where FlashAttention-2 would need 1.7 s."""
    job = Job(sequence_length=32_768, precision="bf16", attention="fused")
    for name, faster in (("ml.p5en.48xlarge", True), ("ml.p4d.24xlarge", False)):
        old, new = (
            estimate(LLAMA, Cluster(name, 1), job, Plan(library="fsdp", version=version)).time.forward_seconds
            for version in ("2.8.0", "2.11.0")
        )
        assert new < 0.9 * old if faster else new == old
