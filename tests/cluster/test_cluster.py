"""Clusters: known by name, or custom with every assumption listed."""

from __future__ import annotations

import dataclasses

import pytest

from smp_advisor.cluster import Cluster, instance
from smp_advisor.errors import ClusterError, InstanceError

HARDWARE = {
    "gpu": "A100 80GB",
    "usable_gpu_memory_gib": 79.0,
    "peak_tflops": 312.0,
    "gpus_per_node": 4,
    "nodes": 2,
    "intra_node_gb_per_s": 600.0,
    "inter_node_gbps": 200.0,
}


def test_totals_and_rates_of_p4d():
    cluster = Cluster("ml.p4d.24xlarge", 16)
    assert (cluster.gpus, cluster.gpus_per_node) == (128, 8)
    assert cluster.usd_per_hour == pytest.approx(16 * 25.251286)
    assert cluster.intra_node_bytes_per_s == 300e9
    assert cluster.inter_node_bytes_per_s_per_node == 50e9
    assert cluster.summary == (
        "16 x ml.p4d.24xlarge: 128 x A100 40 GB, NVLink3/NVSwitch, 400 Gbps EFA per node with GPUDirect RDMA,"
        " 404.02 USD per hour"
    )


@pytest.mark.parametrize("nodes", [0, -1, True, 2.0, "2", None])
def test_nodes_must_be_a_whole_number_of_at_least_one(nodes):
    with pytest.raises(ClusterError, match=r"whole number of at least 1, not .*\.$"):
        Cluster("ml.p4d.24xlarge", nodes)


def test_names_prices_and_what_is_no_instance():
    cluster = Cluster("ml.p5e.48xlarge", 2)
    assert cluster.usd_per_hour is None
    assert "no on-demand price known" in cluster.summary

    assert Cluster("p4d.24xlarge", 2) == Cluster(instance("ml.p4d.24xlarge"), 2)
    assert hash(Cluster("p4d.24xlarge")) == hash(Cluster("ml.p4d.24xlarge", 1))
    assert dataclasses.replace(Cluster("p4d.24xlarge"), nodes=3).gpus == 24

    with pytest.raises(ClusterError, match="not 8"):
        Cluster(8)
    with pytest.raises(InstanceError, match="most similar"):
        Cluster("ml.p4d.32xlarge")


def test_custom_takes_the_given_figures_and_lists_the_others_as_assumed():
    machine = Cluster.custom(**HARDWARE, hbm_gb_per_s=2000.0).instance
    assert machine.custom
    assert (machine.gpus, machine.usable_gpu_memory_gib, machine.hbm_gb_per_s) == (4, 79.0, 2000.0)
    assert (machine.host_memory_gib, machine.vcpus) == (1152 / 2, 96 // 2)  # half a p4de node
    assert "hbm_gb_per_s" not in machine.assumed
    assert {"host_memory_gib", "host_link_gb_per_s", "gpudirect_rdma", "intra_node", "vcpus"} <= set(machine.assumed)
    assert "ml.p4de.24xlarge" in machine.source

    assert Cluster.custom(**HARDWARE).usd_per_hour is None
    assert Cluster.custom(**HARDWARE, usd_per_hour=10.0).usd_per_hour == 20.0


@pytest.mark.parametrize(("gb_per_s", "nvlink"), [(600.0, True), (64.0, False)])
def test_the_kind_of_link_is_assumed_from_its_bandwidth(gb_per_s, nvlink):
    machine = Cluster.custom(**(HARDWARE | {"intra_node_gb_per_s": gb_per_s})).instance
    assert machine.nvlink is nvlink
    assert "intra_node" in machine.assumed


@pytest.mark.parametrize(
    ("gpu", "memory", "tflops", "similar"),
    [("NVIDIA H100 NVL", 93.0, 835.0, "H100"), ("T4", 14.5, 65.0, "T4"), ("RTX 6000 Ada", 47.0, 364.0, "L40S")],
)
def test_what_is_missing_comes_from_the_nearest_gpu(gpu, memory, tflops, similar):
    figures = HARDWARE | {"gpu": gpu, "usable_gpu_memory_gib": memory, "peak_tflops": tflops}
    assert similar in Cluster.custom(**figures).instance.source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": ""}, "gpu must be the name of the GPU"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number"),
        ({"gpus_per_node": True}, "gpus_per_node must be a whole number"),
        ({"nodes": 0}, "number of nodes"),
        ({"usable_gpu_memory_gib": 0}, "above 0 .GiB., not 0"),
        ({"usable_gpu_memory_gib": 90, "gpu_memory_gib": 80}, "cannot exceed gpu_memory_gib"),
        ({"peak_tflops": "312"}, "peak_tflops must be a number"),
        ({"peak_tflops": float("nan")}, "peak_tflops must be a number"),
        ({"peak_tflops": None}, "peak_tflops must be a number"),
        ({"intra_node_gb_per_s": 0}, "intra_node_gb_per_s must be a number above 0"),
        ({"inter_node_gbps": 0}, "inter_node_gbps must be a number above 0"),
        ({"inter_node_gbps": float("inf")}, "inter_node_gbps must be a number"),
        ({"usd_per_hour": -1}, "usd_per_hour must be a number of at least 0"),
        ({"vcpus": 1.5}, "vcpus must be a whole number"),
        ({"nvlink": "yes"}, "nvlink must be True or False"),
    ],
)
def test_nonsense_is_refused(change, words):
    with pytest.raises(ClusterError, match=words):
        Cluster.custom(**(HARDWARE | change))
