"""The exporter's cells, read back, give the plan that they were written for."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.errors import AdvisorError, ExportError
from smp_advisor.export import estimator_cell
from smp_advisor.libraries.library import LIBRARIES
from smp_advisor.libraries.space import Space, enumerate_plans
from smp_advisor.libraries.version import supported_instances
from smp_advisor.workload import Job, Model

MODELS = {
    "gpt2": Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257),
    "llama": Model.from_shape(layers=32, hidden=4096, heads=32, kv_heads=8, vocab=128_256, family="llama"),
    "mixtral": Model.from_shape(layers=8, hidden=2048, heads=16, vocab=32_000, family="mixtral", experts=8),
}
NODES = (1, 2, 8)
OPTIONS = (
    {},
    {"script": "train.py", "data": "s3://bucket/data"},
    {"script": "src/train.py", "source_dir": "src", "extra_hyperparameters": {"learning_rate": 1e-4, "fp16": 1}},
    {"job_name": "mine", "checkpoint_s3_uri": "s3://b/c", "data": {"train": "s3://b/t", "test": "s3://b/v"}},
)


@cache
def space(library: str, model: str, instance: str, nodes: int, precision: str) -> Space | None:
    """Everything that the search can return there; None where it can return nothing."""
    job = Job(sequence_length=2048, precision=precision)
    try:
        found = enumerate_plans(MODELS[model], Cluster(instance, nodes), job, library=library)
    except AdvisorError:
        return None
    return found if len(found) else None


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@given(data=st.data())
def test_any_plan_of_the_search_is_read_back_from_its_cell(library, data):
    instance = data.draw(st.sampled_from([one.name for one in supported_instances(library)]), "instance")
    nodes, model = data.draw(st.sampled_from(NODES), "nodes"), data.draw(st.sampled_from(sorted(MODELS)), "model")
    precision = data.draw(st.sampled_from(("fp16", "bf16", "fp32")), "precision")
    if precision == "bf16" and not Cluster(instance).instance.bf16:
        return  # the search is never asked for it
    plans = space(library, model, instance, nodes, precision)
    if plans is None:
        return
    try:
        plan = plans.plan(data.draw(st.integers(0, len(plans) - 1), "plan"))
    except AdvisorError:
        return  # the search passes over what the library refuses
    sdk = data.draw(st.sampled_from(("v2", "v3")), "SDK")
    cluster, job = Cluster(instance, nodes), Job(sequence_length=2048, precision=plan.precision)
    options = data.draw(st.sampled_from(OPTIONS), "options")
    try:
        cell = estimator_cell(MODELS[model], cluster, job, plan, sdk=sdk, **options)
    except ExportError:
        return  # no script can be written for it: the cell needs the user's own
    report = check_estimator(cell)
    assert report.plan == plan, cell
    assert report.cluster == cluster
    assert not [one for one in report if one.severity == "error"], str(report)
    assert not [note for note in report.unresolved if "No plan" in note.what]
    assert report.corrected == cell or {one.id for one in report} <= {"EST504"}


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_text_of_the_user_does_not_change_what_is_read(sdk):
    model, cluster, job = MODELS["gpt2"], Cluster("ml.p4d.24xlarge", 2), Job(precision="fp16")
    plan = space("smp-v1", "gpt2", "ml.p4d.24xlarge", 2, "fp16").plan(0)
    hostile = 'train".py\'); smp = {"ddp": False} #\n{{ x }}é.py'
    cell = estimator_cell(model, cluster, job, plan, sdk=sdk, script=hostile, extra_hyperparameters={"note": hostile})
    assert check_estimator(cell).plan == plan
