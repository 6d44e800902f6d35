"""The instance table: complete, plausible, and honest about what is assumed."""

from __future__ import annotations

import pytest

from smp_advisor.cluster import Cluster, Instance, instance, instances
from smp_advisor.cluster.table import completed_instance, sources, table_date
from smp_advisor.errors import AdvisorError, InstanceError


@pytest.mark.parametrize("machine", instances(), ids=lambda machine: machine.name)
def test_figures_are_plausible(machine):
    assert machine.gpus in {1, 2, 4, 8}
    assert 0.9 * machine.gpu_memory_gib < machine.usable_gpu_memory_gib < machine.gpu_memory_gib
    assert (machine.intra_node_gb_per_s > 0) == (machine.gpus > 1)
    assert machine.nvlink == (machine.intra_node_gb_per_s >= 300)
    assert machine.inter_node_gbps > 0
    assert machine.efa or not machine.gpudirect_rdma
    assert machine.source
    assert machine.price_note


def test_what_is_assumed_is_named():
    machine = instance("ml.p4d.24xlarge")
    knowledge = {"usable_gpu_memory_gib", "peak_tflops", "hbm_gb_per_s", "intra_node_gb_per_s", "host_link_gb_per_s"}
    assert knowledge <= set(machine.assumed)
    assert {"gpus", "gpu_memory_gib", "inter_node_gbps", "usd_per_hour"}.isdisjoint(machine.assumed)
    assert set(machine.assumed) <= set(Instance.__dataclass_fields__)

    assert "usd_per_hour" in instance("ml.p5en.48xlarge").assumed
    unknown = instance("ml.p5e.48xlarge")
    assert unknown.usd_per_hour is None
    assert "usd_per_hour" not in unknown.assumed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p4d", "ml.p4d.24xlarge"),
        ("ml.p4d", "ml.p4d.24xlarge"),
        ("P4de", "ml.p4de.24xlarge"),
        ("p4d.24xlarge", "ml.p4d.24xlarge"),
        ("p5.48", "ml.p5.48xlarge"),
        ("p6-b200", "ml.p6-b200.48xlarge"),
    ],
)
def test_the_beginning_of_a_name_is_completed(text, name):
    assert completed_instance(text).name == name
    assert Cluster(text).instance.name == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ml.trn1.32xlarge", "AWS Trainium is not covered"),
        ("trn2", "AWS Trainium is not covered"),
        ("ml.inf2.48xlarge", "AWS Inferentia is not covered"),
        ("ml.m5.xlarge", "without GPUs is not covered"),
    ],
)
def test_other_accelerators_are_refused_by_name(name, words):
    with pytest.raises(InstanceError, match=words):
        Cluster(name)


def test_sources_cover_every_column_once():
    columns = [column for source in sources() for column in source.columns]
    assert len(columns) == len(set(columns))
    described = set(Instance.__dataclass_fields__) - {"name", "price_note", "source", "assumed", "custom"}
    assert set(columns) == described
    assert table_date() >= max(source.date for source in sources())


def test_every_instance_is_there_once():
    names = [machine.name for machine in instances()]
    assert len(names) == len(set(names)) == 49

    assert instances() is instances()


def test_an_incomplete_or_unknown_name_is_answered_with_candidates():
    with pytest.raises(InstanceError, match=r"'p5' is not complete: choose one of ml.p5.4xlarge, ml.p5.48xlarge\."):
        completed_instance("p5")
    with pytest.raises(InstanceError, match=r"ml.g5.xlarge, .* and 2 more\."):
        completed_instance("g5")

    with pytest.raises(InstanceError) as refusal:
        instance("ml.p4d.24xlage")
    assert str(refusal.value).startswith("Unknown instance type 'ml.p4d.24xlage': the most similar are ml.p4d.24xlarge")
    assert isinstance(refusal.value, AdvisorError)
    with pytest.raises(InstanceError, match="supported are, for example"):
        instance("???")
