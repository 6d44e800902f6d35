"""Degrees and batches, against AWS's reference configurations and the definitions."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, groups
from tests.libraries.plans import valid_plans


@given(valid_plans(), st.integers(1, 64))
def test_degrees_multiply_to_the_world(plan, nodes):
    cluster = Cluster("ml.p4d.24xlarge", nodes)
    together = plan.pipeline_parallel_degree * plan.tensor_parallel_degree * plan.context_parallel_degree
    assume(cluster.gpus % together == 0)
    dp, rdp = groups.data_parallel_degree(plan, cluster), groups.reduced_data_parallel_degree(plan, cluster)
    assert dp * plan.pipeline_parallel_degree == cluster.gpus
    assert rdp * together == cluster.gpus
    # Every sample is processed by exactly one tensor-parallel group of one replica.
    assert groups.global_batch_size(plan, cluster) == rdp * groups.samples_per_tensor_parallel_group(plan)


def test_a_world_that_is_no_multiple_is_refused():
    with pytest.raises(PlanError, match=r"8 GPUs are not a multiple of .* \(3 x 1 = 3\).* or a multiple of 3 nodes"):
        groups.data_parallel_degree(Plan(pipeline_parallel_degree=3), Cluster("ml.p4d.24xlarge"))
