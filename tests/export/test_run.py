"""The size of a run: its time limit, its checkpoints, its jobs and what the cell states about them."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise, check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import ExportError
from smp_advisor.export import JobOptions, estimator_cell
from smp_advisor.export.run import run_of
from smp_advisor.libraries import Plan
from smp_advisor.workload import Adapter, Job, Model
from tests.export.reading import estimator_arguments

LLAMA = Model.from_shape(layers=32, hidden=4096, heads=32, kv_heads=8, vocab=128_256, family="llama")
FOUR = Cluster("ml.p4d.24xlarge", 4)
FSDP = Plan(library="fsdp", batch_size=2, activation_checkpointing="each")
DAY = 86_400
LONGEST = 28 * DAY
FSX = {
    "checkpoints": "fsx://fs-0123456789abcdef0/fsx/c",
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
}


def job(tokens=None, **settings):
    return Job(sequence_length=2048, precision="bf16", tokens=tokens, **settings)


def size(tokens, *, plan=FSDP, cluster=FOUR, model=LLAMA, settings=None, **options):
    chosen = JobOptions.of(options)
    parts = (model, cluster, job(tokens, **settings or {}), plan, chosen)
    return run_of(*parts, min_fit_probability=0.95, reads_data="train" in chosen.channels)


def cell(tokens=None, *, plan=FSDP, cluster=FOUR, sdk="v2", settings=None, **options):
    return estimator_cell(LLAMA, cluster, job(tokens, **settings or {}), plan, sdk=sdk, **options)


def comments(emitted):
    """The comments of a cell as one line."""
    return " ".join(line.removeprefix("# ") for line in emitted.splitlines() if line.startswith("#"))


def test_data_without_a_length_are_trained_on_once():
    emitted = cell(data="s3://bucket/train")
    sent = estimator_arguments(emitted)
    assert sent["hyperparameters"]["epochs"] == 1
    assert "max_steps" not in sent["hyperparameters"]
    assert 0 < sent["hyperparameters"]["warmup_steps"] < 1
    assert "checkpoint_every" in sent["hyperparameters"], "the time is unknown"
    assert "1 epoch of the channel `train`, whose size decides the number of steps." in comments(emitted)
    assert "of the steps as warm-up" in comments(emitted)
    assert "3 epochs of the channel" in comments(cell(data="s3://b/c", extra_hyperparameters={"epochs": 3}))
    own = cell(data="s3://bucket/train", script="mine.py")
    assert {"epochs", "max_steps", "learning_rate", "warmup_steps"}.isdisjoint(
        estimator_arguments(own)["hyperparameters"]
    )
    assert "your script must save them" in comments(own)
    assert estimator_arguments(cell())["hyperparameters"]["max_steps"] == 100


def test_time_limit_is_the_upper_end_of_the_estimate():
    run = size(5e9)
    costs = estimate(LLAMA, FOUR, job(5e9), FSDP)
    steps = math.ceil(5e9 / (2 * 32 * 2048))
    slowest = steps * costs.step_seconds_range[1]
    assert run.steps == steps
    assert slowest < run.max_run_seconds < 1.2 * slowest + 3600
    assert run.max_run_seconds % 3600 == 0
    assert run.jobs == 1
    assert estimator_arguments(cell(5e9))["max_run"] == run.max_run_seconds


@given(st.floats(8, 13), st.one_of(st.none(), st.integers(2 * 3600, LONGEST)), st.booleans())
def test_the_jobs_of_a_run_have_the_time_that_it_takes(exponent, limit, spot):
    try:
        run = size(10**exponent, max_run_seconds=limit, spot=spot)
    except ExportError:  # more than a thousand jobs
        assert limit is not None
        return
    assert run.max_run_seconds <= (limit or LONGEST)
    slowest = run.steps * run.estimate.step_seconds_range[1]
    assert run.jobs * run.max_run_seconds >= slowest
    assert run.checkpoint_every >= 1
    if run.is_chain:
        assert run.saves_checkpoints
        # Each job saves several times before SageMaker stops it.
        assert run.checkpoint_every * run.estimate.step_seconds_range[1] <= run.max_run_seconds


def test_checkpoints_have_the_interval_of_the_estimate():
    run = size(1e11)
    effective = estimate(LLAMA, FOUR, job(1e11), FSDP).effective
    expected = effective.checkpoint_interval_seconds / run.estimate.step_seconds
    assert run.checkpoint_every == pytest.approx(expected, abs=1)
    assert run.checkpoint_gib == effective.checkpoint_gib
    assert size(1e11, settings={"adapter": Adapter(rank=8)}).checkpoint_gib < run.checkpoint_gib / 3
    assert size(1e11, settings={"overheads": "none"}).max_run_seconds == run.max_run_seconds
    # FSx is slower than local disks, so that it pays to save less often.
    assert size(1e11, **FSX).checkpoint_every > run.checkpoint_every
    assert size(1e11, spot=True).checkpoint_interval_seconds <= 1800 + run.estimate.step_seconds
    assert size(1e11, extra_hyperparameters={"checkpoint_every": 7}).checkpoint_every == 7


@pytest.mark.parametrize(
    ("tokens", "options", "saves"),
    [
        (None, {}, False),
        (1e7, {}, False),
        (1e7, {"checkpoints": True}, True),
        (1e7, {"spot": True}, True),
        (5e9, {}, True),
        (5e9, {"checkpoints": False, "long_run_without_checkpoints": True}, False),
    ],
)
def test_checkpoints_are_on_for_runs_over_an_hour(tokens, options, saves):
    emitted = cell(tokens, **options)
    assert size(tokens, **options).saves_checkpoints is saves
    place = r'checkpoint_s3_uri=f"s3://\{session.default_bucket\(\)\}/smp-[-\w]+-[0-9a-f]{8}/checkpoints"'
    assert bool(re.search(place, emitted)) is ("checkpoint_s3_uri" in emitted) is saves
    assert ("checkpoint_every" in estimator_arguments(emitted)["hyperparameters"]) is saves


def test_another_run_has_another_location():
    def place(*tokens, **options):
        return re.search(r"/(smp-[-\w]+)/checkpoints", cell(*tokens, **options))[1]

    assert place(5e9) == place(5e9)
    assert len({place(5e9), place(6e9), place(5e9, data="s3://b/c"), place(5e9, sdk="v3", data="s3://b/d")}) == 4
    # Weights of one adapter do not fit into another.
    ranks = (8, 16, 32)
    assert len({place(5e9, settings={"adapter": Adapter(rank=rank)}) for rank in ranks}) == len(ranks)


@pytest.mark.parametrize(
    ("tokens", "options", "sentence"),
    [
        (5e9, {"checkpoints": False}, "add long_run_without_checkpoints=True"),
        (1e13, {"checkpoints": False, "long_run_without_checkpoints": True}, "chain of jobs that resume"),
        (5e9, {"max_run_seconds": 300}, "is too short: starting the job takes about"),
        (1e13, {"max_run_seconds": 1000}, "at most 1,000 jobs"),
        (5e9, {"checkpoints": "here"}, "must be an S3 URI"),
        (5e9, {"long_run_without_checkpoints": 1}, "must be True or False"),
    ],
)
def test_runs_that_would_lose_their_work_are_refused(tokens, options, sentence):
    with pytest.raises(ExportError) as raised:
        cell(tokens, **options)
    assert sentence in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_a_run_longer_than_a_job_is_a_chain(sdk):
    emitted = cell(1e12, sdk=sdk)
    run = size(1e12)
    assert run.jobs > 2
    limited = [size(5e9, max_run_seconds=seconds) for seconds in (4 * 3600, 20 * DAY)]
    assert limited[0].jobs > limited[1].jobs == 1
    assert limited[1].max_run_seconds == 20 * DAY
    assert f"JOBS = {run.jobs}\n" in emitted
    assert "Each resumes" in emitted
    assert str(LONGEST) in emitted
    assert check_estimator(emitted).plan == FSDP


def test_header_states_duration_price_and_fit():
    header, run = comments(cell(5e9)), size(5e9)
    low, high = (f"{seconds:.3g}" for seconds in run.estimate.step_seconds_range)
    assert f"Duration: {run.steps:,} steps of" in header
    assert f"({low} to {high}) per step" in header
    assert re.search(r"Price: \$[\d,.]+ \(\$[\d,.]+ to \$[\d,.]+\)\.", header)
    assert "fits with a probability of" in header
    assert "95 % intervals" in header
    assert "only measure memory and speed" in comments(cell())
    assert "SageMaker stops the job after 60 min." in comments(cell())
    assert "SageMaker stops the job after 60 s, which can be before its last step." in comments(
        cell(max_run_seconds=60)
    )


@pytest.mark.parametrize("sdk", ["v2", "v3"])
@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(library="ddp", batch_size=8), "fits with a probability of under 0.1 %, less than the required 95 %"),
        (Plan(library="fsdp", batch_size=64, activation_checkpointing="each"), "available and fits with a probability"),
        (Plan(library="smp-v1", tensor_parallel_degree=64, fp16=True, batch_size=64), "tensor_parallel_degree"),
    ],
)
def test_a_plan_that_is_not_expected_to_run_stops_with_the_reason(sdk, plan, reason):
    emitted = cell(plan=plan, sdk=sdk, script="train.py")
    with pytest.raises(RuntimeError) as raised:
        exec(emitted, {})
    assert reason in str(raised.value)
    assert emitted.index("START_ANYWAY = False") < emitted.index("import ")
    assert check_estimator(emitted).plan == plan
    with pytest.raises(RuntimeError, match=r"This cell requires version|region|missing"):
        exec(emitted.replace("START_ANYWAY = False", "START_ANYWAY = True").replace('"2."', '"9."'), {})


def test_advice_passes_its_required_probability():
    advice = advise("7B", "ml.p4d.24xlarge", instance_count=2, sequence_length=2048, library="fsdp")
    assert "START_ANYWAY" not in advice.cell()
    assert "START_ANYWAY" in advice.cell(plan=Plan(library="ddp", precision=advice.job.precision, batch_size=8))
    assert "START_ANYWAY" not in advice.probe_cell()


def test_learning_rates_follow_size_batch_and_kind():
    def rate(model=LLAMA, plan=FSDP, **settings):
        emitted = estimator_cell(model, FOUR, job(1e9, **settings), plan, sdk="v2")
        return estimator_arguments(emitted)["hyperparameters"]

    gpt3 = Model.from_shape(layers=32, hidden=4096, heads=32, vocab=50_257)  # GPT-3 6.7B
    # 131,072 tokens per step instead of 2 million: the square root of the ratio is just above a quarter.
    assert rate(gpt3)["learning_rate"] == pytest.approx(1.2e-4 * (131_072 / 2e6) ** 0.5, rel=0.05)
    larger = Plan(library="fsdp", batch_size=8, gradient_accumulation_steps=4, activation_checkpointing="each")
    assert rate(gpt3, larger)["learning_rate"] == pytest.approx(1.2e-4, rel=0.05)
    assert rate(training="fine-tuning")["learning_rate"] == 2e-5
    assert rate()["warmup_steps"] == round(0.01 * math.ceil(1e9 / 131_072))
    assert "GPT-3 (Brown et al." in comments(cell(5e9))


def test_the_header_states_the_settings_of_the_user():
    own = {"learning_rate": 1e-5, "warmup_steps": 0, "checkpoint_every": 7, "max_steps": 5000}
    emitted = cell(5e9, extra_hyperparameters=own)
    header = comments(emitted)
    assert "Learning rate: 1e-05 after 0 steps of warm-up (your setting, instead of " in header
    assert "Checkpoints: every 7 steps" in header
    assert "Duration: 5,000 steps" in header
    assert own.items() <= estimator_arguments(emitted)["hyperparameters"].items()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", "500"),
        ("max_steps", 0),
        ("max_steps", 500.0),
        ("checkpoint_every", 0),
        ("warmup_steps", -1),
        ("warmup_steps", True),
        ("learning_rate", "1e-5"),
        ("learning_rate", 0),
    ],
)
def test_settings_that_the_cell_could_not_state_are_refused(name, value):
    with pytest.raises(ExportError, match=f"The hyperparameter '{name}' must be a"):
        cell(5e9, extra_hyperparameters={name: value})
    assert name in cell(5e9, extra_hyperparameters={name: value}, script="train.py", plan_hyperparameters=False)
