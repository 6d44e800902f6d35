"""Which instances SMP v1 runs on, and what is suggested in place of others."""

from __future__ import annotations

import pytest

from smp_advisor.cluster import Cluster, instances
from smp_advisor.errors import InstanceError
from smp_advisor.libraries import nearest_supported, require_supported_instance, supported_instances
from tests.libraries.test_check import HARDWARE

LISTED = ["ml.g4dn.12xlarge", "ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"]


@pytest.mark.parametrize("machine", [one for one in instances() if one.name not in LISTED], ids=lambda one: one.name)
def test_any_other_is_refused_with_one_that_can_be_ordered(machine):
    with pytest.raises(InstanceError) as refusal:
        require_supported_instance("smp-v1", machine)
    assert machine.name in str(refusal.value)
    suggested = nearest_supported("smp-v1", machine)
    assert f"{suggested.name} ({suggested.gpus} x {suggested.gpu_label}); on" in str(refusal.value)
    assert f"on {machine.name}, use library=" in str(refusal.value)
    assert str(refusal.value).endswith("'fsdp'.")
    assert "V100" not in suggested.gpu


def test_the_sentence_for_gpus_newer_than_its_containers():
    with pytest.raises(InstanceError) as refusal:
        require_supported_instance("smp-v1", "ml.p5.48xlarge")
    assert str(refusal.value) == (
        "SMP v1 cannot use ml.p5.48xlarge: its newest container, PyTorch 1.13.1 (CUDA 11.7), has no code for sm_90; the"
        " nearest instance it can use is ml.p4de.24xlarge (8 x A100 80 GB); on ml.p5.48xlarge,"
        " use library='smp-v2', 'ddp' or 'fsdp'."
    )


def test_the_listed_instances_and_custom_hardware_are_accepted():
    assert sorted(machine.name for machine in supported_instances("smp-v1")) == LISTED
    for name in LISTED:
        assert require_supported_instance("smp-v1", name) == ""

    note = require_supported_instance("smp-v1", Cluster.custom(**HARDWARE).instance)
    assert "custom hardware" in note
