"""Rules of jobs, and that no exported job breaks one: `check_estimator` finds no error in any exported cell."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.cluster.containers import container
from smp_advisor.cluster.table import instances
from smp_advisor.errors import AdvisorError, ExportError
from smp_advisor.export import estimator_cell
from smp_advisor.libraries import LIBRARIES, Plan, versions
from smp_advisor.libraries.job_rules import MAX_RUN_SECONDS, JobTerms, job_faults
from smp_advisor.libraries.schema import schema
from smp_advisor.workload import Job, Model

P4D = "ml.p4d.24xlarge"
SPOT = {"spot": True, "waits": True, "max_wait_seconds": 90, "max_run_seconds": 60, "checkpoints": True}


@pytest.mark.parametrize(
    ("terms", "rules"),
    [
        ({}, set()),
        (SPOT, set()),
        (SPOT | {"checkpoints": False}, {"spot without checkpoints"}),
        (SPOT | {"checkpoints": None}, set()),
        (SPOT | {"waits": False, "max_wait_seconds": None}, {"spot without a waiting time"}),
        (SPOT | {"max_wait_seconds": 30}, {"waiting time shorter than the run"}),
        (SPOT | {"keep_alive_seconds": 60}, {"warm pool of spot instances"}),
        ({"keep_alive_seconds": 60}, set()),
        ({"max_run_seconds": MAX_RUN_SECONDS}, set()),
        ({"max_run_seconds": MAX_RUN_SECONDS + 1}, {"longer than SageMaker runs a job"}),
        ({"file_system": True, "network": False}, {"file system without a network"}),
        ({"file_system": True, "network": None}, set()),
        ({"instance_type": P4D, "launched": False}, {"no launcher"}),
        ({"instance_type": "ml.g5.xlarge", "launched": False}, set()),
        ({"instance_type": "ml.g5.xlarge", "launched": False, "instance_count": 2}, {"no launcher"}),
        ({"instance_type": "ml.p4d.24xlrge"}, {"unknown instance"}),
        ({"instance_type": "ml.m5.xlarge"}, set()),
        ({"instance_type": "local_gpu"}, set()),
    ],
)
def test_rules_of_terms(terms, rules):
    assert {fault.rule for fault in job_faults(JobTerms(**terms))} == rules


@pytest.mark.parametrize(
    ("version", "kind", "remedy"),
    [
        ("2.5.1", "ml.p6-b200.48xlarge", "2.8.0 with py312"),
        ("1.13.1", "ml.p5.48xlarge", "2.8.0 with py312"),
        ("2.10.0", "ml.p3.2xlarge", "2.8.0 with py312"),
        ("2.13.0", "ml.p3.2xlarge", "2.8.0 with py312"),
        ("2.8.0", "ml.p6e-gb200.36xlarge", "image of your own"),
    ],
)
def test_a_container_that_cannot_use_the_instance(version, kind, remedy):
    terms = JobTerms(
        instance_type=kind, container=container("pytorch" if version == "2.13.0" else "pytorch-training", version)
    )
    (fault,) = job_faults(terms)
    assert remedy in fault.remedy
    assert fault.severity == "error"


MODELS = (Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257),)


@cache
def cluster(kind, nodes):
    return Cluster(kind, nodes)


@st.composite
def requests(draw):
    """Any plan of any library on any instance, as a user may write it: most do not match the cluster."""
    library = draw(st.sampled_from(LIBRARIES))
    degrees = st.sampled_from([1, 2, 8, 16])
    fields = {"version": draw(st.sampled_from(versions(library))), "batch_size": draw(st.sampled_from([1, 4, 16]))}
    optional = {
        "pipeline_parallel_degree": degrees,
        "tensor_parallel_degree": degrees,
        "hybrid_shard_degree": degrees,
        "sharded_data_parallel_degree": degrees,
        "partitions": degrees,
        "microbatches": st.sampled_from([1, 4]),
        "horovod": st.booleans(),
        "bf16": st.booleans(),
        "fp16": st.booleans(),
        "fp8": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
        "enabled": st.booleans(),
    }
    taken = {parameter.key for parameter in schema(library).parameters} | {s.key for s in schema(library).settings}
    fields |= {name: draw(values) for name, values in optional.items() if name in taken and draw(st.booleans())}
    kind = draw(st.sampled_from([machine.name for machine in instances()]))
    return library, fields, kind, draw(st.sampled_from([1, 2, 16]))


OPTIONS = (
    {},
    {"data": "s3://bucket/data", "checkpoints": "s3://bucket/checkpoints", "spot": True},
    {"data": "fsx://fs-0123456789abcdef0/fsx/train", "subnets": ["subnet-1"], "security_group_ids": ["sg-1"]},
    {"data": "fsx://fs-0123456789abcdef0/fsx/train"},
    {"spot": True},
    {"spot": True, "checkpoints": "s3://bucket/checkpoints", "keep_alive_seconds": 60},
    {"keep_alive_seconds": 600, "max_run_seconds": MAX_RUN_SECONDS},
    {"max_run_seconds": MAX_RUN_SECONDS + 1},
)


@pytest.mark.slow
@given(requests(), st.sampled_from(["v2", "v3"]), st.sampled_from(OPTIONS))
def test_no_exported_job_has_an_error_of_the_checker(request, sdk, options):
    library, fields, kind, nodes = request
    try:
        plan = Plan(library=library, **fields)
        cell = estimator_cell(
            MODELS[0],
            cluster(kind, nodes),
            Job(sequence_length=512, precision=plan.precision, fp8=bool(plan.fp8)),
            plan,
            sdk=sdk,
            script="train.py",
            **options,
        )
    except (AdvisorError, ExportError):
        return  # refused, with the reason
    errors = [finding for finding in check_estimator(cell, model=MODELS[0]) if finding.severity == "error"]
    # A cell of a plan that does not match its cluster stops before it submits the job.
    assert not errors or "START_ANYWAY = False" in cell, (cell, [str(one) for one in errors])


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_a_compiler_that_is_off_is_sent_as_off(sdk):
    plan = Plan(library="training-compiler", enabled=False, batch_size=4)
    cell = estimator_cell(MODELS[0], cluster(P4D, 1), Job(sequence_length=512), plan, sdk=sdk, script="train.py")
    sent = {"v2": "enabled=False", "v3": '"sagemaker_training_compiler_enabled": False'}
    assert sent[sdk] in cell
    assert check_estimator(cell).plan == plan


def test_a_change_that_the_model_does_not_allow_is_not_proposed():
    plan = Plan(library="smp-v2", version="2.0.0", batch_size=64)
    job = Job(sequence_length=2048, precision=plan.precision)
    cell = estimator_cell(MODELS[0], cluster("ml.g5.12xlarge", 1), job, plan, sdk="v2", script="train.py")
    report = check_estimator(cell, model=MODELS[0])  # SMP v2 has no tensor parallelism for GPT-2
    assert [finding.id for finding in report if "tensor_parallel_degree" in finding.remedy] == []
    assert "EST508" in {finding.id for finding in report}
