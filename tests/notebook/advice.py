"""Advice of real estimates and made-up explanations, so that the view is tested apart from the search."""

from dataclasses import replace

from smp_advisor.advice.practices import Difference, Pitfall, Reference, Step
from smp_advisor.advice.recommendation import Recommendation
from smp_advisor.advice.request import Request
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.libraries import Plan
from smp_advisor.search.decision import BatchChoice, Decision
from smp_advisor.workload import Job, Model
from tests.guidance.runs import TEN_B

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'name'"
"""A text of the user's that must never become markup."""

TEN_BILLION = replace(TEN_B, batch_size=20)
PIPELINE = replace(TEN_B, pipeline_parallel_degree=2, tensor_parallel_degree=8, microbatches=4, batch_size=16)
DECISION = Decision(
    near_best_probability=0.75,
    expected_regret=0.02,
    family="tensor parallelism",
    indistinct=("sharded data parallelism",),
    published="",
    compared=12,
    batch=BatchChoice(
        tokens_per_step=655_360,
        policy=None,
        cap_tokens=None,
        half=0.96,
        twice=1.01,
        larger_gain=0.0,
        cap_binds=False,
        cap_cost=0.0,
    ),
)


def make_advice(plan: Plan = TEN_BILLION, *, nodes: int = 16, name: str = "test model", **job) -> Recommendation:
    """Recommendation for a GPT-like model of ten billion parameters on p4d nodes."""
    model = Model.from_shape(name=name, layers=48, hidden=4096, heads=32, vocab=50_000, max_positions=1024)
    cluster, job = Cluster("ml.p4d.24xlarge", nodes), Job(**{"sequence_length": 512, **job})
    return Recommendation(
        request=Request.of(model, cluster, job, library=plan.library),
        model=model,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=estimate(model, cluster, job, plan),
        decision=DECISION,
        steps=(
            Step(
                order=1,
                technique="optimizer_state_sharding",
                title="Optimizer state sharding",
                decision="used",
                because="It fits with it only.",
                details=f"Without it: 61 GiB. {HOSTILE}",
                trade_off="A gather that compute does not hide.",
                source_title="Best practices",
                source_url="https://docs.aws.amazon.com/sagemaker/latest/dg/model-parallel.html",
            ),
            Step(
                order=2,
                technique="pipeline_parallelism",
                title="Pipeline parallelism",
                decision="not possible",
                because="It fits without.",
                details="It fits without it.",
                trade_off="Idle time.",
                source_url="javascript:alert(1)",
            ),
        ),
        pitfalls=(Pitfall(id="SMP103", severity="warning", text="Wrap the model once."),),
        reference=Reference(
            name="10 B",
            summary="AWS ran GPT-2.",
            fits=True,
            needed_gib=27.9,
            differences=(Difference(setting="batch", reference="40", recommended="20", because="It fits surely."),),
            extrapolation="This is the size of the row.",
            source_url="https://docs.aws.amazon.com/sagemaker/latest/dg/model-parallel.html",
        ),
        because="It is the fastest that fits.",
        defaults=("precision fp16",),
        plans_enumerated=1234,
        plans_scored=1234,
        plans_fit=56,
        result=None,
    )
