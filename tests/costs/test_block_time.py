"""Time of one block: laws between batches, stacks and kernels."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.costs.compute import BlockSeconds, block_seconds
from smp_advisor.costs.constants import constant, overriding, peak_flops
from smp_advisor.costs.evaluate import estimate, seconds_columns
from smp_advisor.costs.kernels import share_of_peak
from smp_advisor.costs.world import World
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import fully_sharded
from smp_advisor.workload import Adapter, Job, Model, stacks

P4D, P5 = "ml.p4d.24xlarge", "ml.p5.48xlarge"
LLAMA = Model.from_shape(layers=8, hidden=2048, heads=16, vocab=32_000, family="llama")
MIXTRAL = Model.from_shape(
    layers=4, hidden=2048, heads=16, vocab=32_000, family="mixtral", ffn=1408, experts=64, experts_per_token=4
)
NAMES = sorted(stacks())


def block(
    stack: str, *, samples: int = 4, sequence: int = 1024, model: Model = LLAMA, instance: str = P4D, tp: int = 1
) -> BlockSeconds:
    job = Job(sequence_length=sequence, precision="bf16", stack=stack)
    layout = Layout.of_columns(fully_sharded(job), batch_samples=samples, tensor_parallel_degree=tp)
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
    layout = Layout.of_columns(fully_sharded(job), batch_samples=1, tensor_parallel_degree=4)
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
    assert estimate(LLAMA, cluster, replace(job, stack="hf-sdpa"), plan).step_seconds == exported.step_seconds
    assert estimate(LLAMA, cluster, replace(job, stack="torch-compile"), plan).step_seconds < exported.step_seconds
    assert any("exported script" in sentence for sentence in exported.assumptions)


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
