"""A library that a user registers is exported as a torchrun job, with a PyTorch script of the FSDP or DDP kind."""

import ast
from dataclasses import dataclass, replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import estimator_cell, permissions_cell, script_cell
from smp_advisor.libraries.fsdp import FsdpPlan
from smp_advisor.libraries.library import get_library, register, unregister
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, TASKS, training_script

CLUSTER, JOB = Cluster(P4D, 2), Job(sequence_length=32)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyPlan(FsdpPlan):
    library: str = "toy"


@pytest.fixture(params=[True, False], ids=["shards", "replicates"])
def plan(request, monkeypatch):
    monkeypatch.setattr(ToyPlan, "shards_parameters", property(lambda _: request.param))
    register(replace(get_library("fsdp"), name="toy", plan=ToyPlan))
    yield Plan(library="toy", batch_size=4)
    unregister("toy")


def test_its_job_is_a_pytorch_loop_started_by_torchrun(plan):
    parts = TASKS["llama"], CLUSTER, JOB, plan
    v2, v3 = (estimator_cell(*parts, sdk=sdk) for sdk in ("v2", "v3"))
    assert '"torch_distributed": {\n            "enabled": True,' in v2
    assert "smdistributed" not in v2
    assert "distributed=Torchrun(\n        process_count_per_node=8,\n    )," in v3
    ast.parse(v2)
    ast.parse(v3)
    assert 'repository/pytorch"' in permissions_cell(CLUSTER, plan)
    assert script_cell(*parts).startswith("%%writefile train_")
    script = training_script(*parts)
    ast.parse(script)
    assert ("fully_shard(" in script) is plan.shards_parameters
    assert ("DistributedDataParallel(" in script) is not plan.shards_parameters
    assert "torch.sagemaker" not in script
