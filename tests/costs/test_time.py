"""Step time: known volumes, rooflines and orderings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster, instances
from smp_advisor.cluster import gpu as gpu_board
from smp_advisor.costs import estimate
from smp_advisor.costs.communication import all_gather_seconds, all_reduce_seconds, bus_bytes_per_second
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.constants import constant, constants, overriding
from smp_advisor.costs.evaluate import seconds_columns
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import amp, fully_sharded, over_frozen, trained
from smp_advisor.workload import Adapter, Job, Model
from tests.costs.shapes import P4D, gpt, row_30b


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_groups_inside_a_node_use_nvlink_and_others_share_the_network() -> None:
    cluster = Cluster(P4D, 16)
    rate, inside = bus_bytes_per_second(cluster, ints(8, 8, 16, 128), ints(1, 2, 8, 1))
    assert inside.tolist() == [True, False, False, False]
    assert rate[0] == pytest.approx(0.73 * 300e9)
    # Stride 2: two such groups cross each node; stride 8: eight share 400 Gbps; one group has it all.
    reached = constant("communication.efa_efficiency") * 50e9
    shared = constant("communication.shared_network_share") * reached
    assert rate[1:] == pytest.approx([shared / 2, shared / 8, reached])
    # 3 and 6 do not divide the 8 GPUs of a node: {6, 7, 8} crosses.
    _, inside = bus_bytes_per_second(Cluster(P4D, 3), ints(2, 3, 6, 8), ints(1, 1, 1, 1))
    assert inside.tolist() == [True, False, False, True]


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


def _communication(strategy: str, *, nodes: int = 2, batch: int = 1) -> float:
    """Data-parallel seconds of a step that computes next to nothing."""
    model = Model.from_shape(layers=24, hidden=4096, heads=32, family="llama")
    plan = Plan(library="fsdp", precision="bf16", batch_size=batch, sharding_strategy=strategy)
    job, cluster = Job(sequence_length=16, precision="bf16", attention="fused"), Cluster(P4D, nodes)
    faster = Cluster(replace(cluster.instance, peak_tflops=1e6, fp8_tflops=0.0), nodes)
    with overriding({"time.launch_seconds": 1e-12, "time.unit_seconds": 1e-12}):
        return estimate(model, faster, job, plan).time.data_parallel_seconds


def test_keeping_parameters_gathered_moves_twice_their_volume_instead_of_three_times() -> None:
    assert _communication("shard_grad_op") / _communication("full_shard") == pytest.approx(2 / 3, rel=0.05)


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
