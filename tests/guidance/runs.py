"""Plans to explain: the kinds an engineer meets, and any the library takes."""

from functools import cache

from hypothesis import assume
from hypothesis import strategies as st

from smp_advisor.advice.variants import PlannedRun
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan, mismatches
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

SHAPES = {
    "1.5 B": {"layers": 48, "hidden": 1600, "heads": 25},
    "10 B": {"layers": 48, "hidden": 4096, "heads": 32},
    "20 B": {"layers": 44, "hidden": 6144, "heads": 64},
    "30 B": {"layers": 48, "hidden": 7168, "heads": 64},
    "wide vocabulary": {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 400_000},
}

TEN_B = Plan(
    tensor_parallel_degree=4,
    shard_optimizer_state=True,
    prescaled_batch=True,
    fp16=True,
    batch_size=40,
    activation_checkpointing="each",
)


@cache
def model(name):
    return Model.from_shape(**{"vocab": 50_000, "max_positions": 2048, **SHAPES[name]})


@cache
def llama():
    return Model.from_shape(layers=32, hidden=4096, heads=32, vocab=32_000, family="llama")


def planned_run(of, cluster, plan, *, job=None, least=0.95):
    job = job or Job(sequence_length=512, precision=plan.precision)
    return PlannedRun(
        model=of,
        cluster=cluster,
        job=job,
        plan=plan,
        estimate=estimate(of, cluster, job, plan),
        min_fit_probability=least,
    )


@st.composite
def any_run(draw):
    """Any plan that the library takes, on any of its clusters, whether it fits or not."""
    of = draw(st.sampled_from([*(model(name) for name in SHAPES), llama()]))
    machine = draw(st.sampled_from(["ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p3dn.24xlarge", "ml.g4dn.12xlarge"]))
    cluster = Cluster(machine, draw(st.sampled_from([1, 2, 3, 4, 16])))
    tp, pp = draw(st.sampled_from([1, 1, 2, 4, 8])), draw(st.sampled_from([1, 1, 2, 4]))
    microbatches = draw(st.sampled_from([1, 2, 4, 8]))
    checkpointing = draw(st.sampled_from([False, "each", "group_2", "contiguous"]))
    sharding = draw(st.sampled_from(["none", "optimizer", 2, 8]))
    precision = draw(st.sampled_from(["fp16", "fp32", "bf16"]))
    try:
        plan = Plan(
            tensor_parallel_degree=tp,
            pipeline_parallel_degree=pp,
            microbatches=microbatches,
            active_microbatches=draw(st.integers(1, microbatches)) if pp > 1 else None,
            batch_size=microbatches * draw(st.sampled_from([1, 3, 8])),
            prescaled_batch=tp > 1 and draw(st.booleans()),
            activation_checkpointing=checkpointing,
            offload_activations=bool(checkpointing) and draw(st.booleans()),
            shard_optimizer_state=sharding == "optimizer",
            sharded_data_parallel_degree=sharding if isinstance(sharding, int) else 1,
            fp16=precision == "fp16",
            bf16=precision == "bf16",
        )
    except PlanError:
        assume(False)
    job = Job(sequence_length=draw(st.sampled_from([512, 2048])), precision=precision)
    assume(next(mismatches(plan, cluster, of, job), None) is None)
    if draw(st.booleans()):
        asked = estimate(of, cluster, job, plan).global_batch_size
        job = Job(sequence_length=job.sequence_length, precision=precision, global_batch_size=asked)
    return planned_run(of, cluster, plan, job=job, least=draw(st.sampled_from([0.5, 0.95])))
