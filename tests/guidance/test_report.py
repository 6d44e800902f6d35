"""The report, the rank map, reasons for batches, and changes of the model."""

import re
from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.advice.choice import batch_reason
from smp_advisor.advice.rank_map import rank_map
from smp_advisor.cluster import Cluster
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan


@pytest.fixture(scope="module")
def advice():
    return smpa.advise(
        "20B", "ml.p4d.24xlarge", instance_count=16, library="smp-v1", sequence_length=1024, global_batch_size=512
    )


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_the_report_is_short_and_its_verdict_comes_first():
    text = str(smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512))
    assert len(text.split()) <= 400
    # Names that contain digits (ml.p4d.24xlarge, GPT-3, SMP v1) are no figures.
    before = text[: text.index("\nDetails")]
    assert len(re.findall(r"(?<![\w.-])\d[\d,.]*", before)) <= 28

    assert "10 B on 16 x ml.p4d.24xlarge: fits" in text.splitlines()[0]
    assert "Requested: sequence length 512" in flat(text)


def test_details_have_every_part_in_lines_of_a_terminal(advice):
    assert not re.findall(r"\b(?:SMP|STC|DDP|TRN)\d{3}\b", advice.report(details=True))

    text = flat(advice.report(details=True))
    assert text.startswith(flat(str(advice)).partition(" Details ")[0])
    for step in advice.steps:
        assert f"{step.order}. {step.title}: {step.decision}." in text
        assert step.details in text
    assert f"{advice.estimate.memory.peak.total_gib:.2f} GiB" in text
    assert advice.because in text
    assert advice.reference.name in text
    for sentence in advice.estimate.assumptions:
        assert sentence in text
    for pitfall in advice.pitfalls:
        assert flat(pitfall.text) in text

    for text in (str(advice), advice.report(details=True)):
        lines = text.splitlines()
        assert max(len(line) for line in lines if not line.startswith("  ")) <= 100
        assert not any(re.match(r"\s*(%|GiB)", line) for line in lines)
        assert "\xa0" not in text
    assert max(map(len, str(advice).splitlines())) <= 120


def test_settings_of_user_and_script_are_in_the_report():
    job = {"sequence_length": 4096, "global_batch_size": 256, "precision": "bf16", "optimizer": "lion", "tokens": 3e11}
    more = {"objective": "headroom", "min_fit_probability": 0.9, "hybrid_shard_degree": 16, "vocab": 32_000}
    text = flat(str(smpa.advise("7B", "ml.p4d.24xlarge", instance_count=2, library="smp-v2", **job, **more)))
    for words in (
        "sequence length 4,096", "global batch of 256 samples", "300 B tokens", "Lion", "precision bf16",
        "vocabulary 32,000", "objective headroom", "fit probability of at least 90.0 %", "16",
    ):  # fmt: skip
        assert words in text
    assert "Fixed by you." in text

    advice = smpa.advise(
        "350M", "ml.p4d.24xlarge", library="fsdp", global_batch_size=64, loss="chunked", paged_optimizer=True
    )
    rows = [line.split() for line in advice.report(details=True).splitlines()]
    assert ["loss", "chunked"] in rows
    assert ["paged", "optimizer", "on"] in rows
    assert ["loss", "plain"] not in rows
    assert "mixed-precision states" in flat(advice.report(details=True))


P4D = "ml.p4d.24xlarge"


def test_ranks_are_a_frame_and_a_table():
    tensor_parallel = smpa.advise(
        "1.3B", P4D, instance_count=2, library="smp-v1", family="gpt2", tensor_parallel_degree=2
    )
    frame = tensor_parallel.rank_map()
    assert len(frame) == 16
    assert frame["node"].tolist() == 8 * [0] + 8 * [1]
    assert {"stage", "tensor_slice", "shard", "replica", "PP_GROUP", "TP_GROUP", "RDP_GROUP", "DP_GROUP"} <= set(frame)
    assert len(tensor_parallel.rank_map(0)) == 16
    assert tensor_parallel.rank_map(placement_strategy="TPD")["tensor_slice"].tolist() == 8 * [0] + 8 * [1]
    with pytest.raises(PlanError, match="rows 0 to"):
        tensor_parallel.rank_map(10_000)

    html = tensor_parallel.ranks()._repr_html_()
    assert html.count('<th scope="row"') == len(tensor_parallel.ranks().shown)
    assert html.count('<th scope="col"') == 9
    assert "<caption" in html
    assert "RDP_GROUP" in html
    assert not re.search(r"<script|onerror", html)


def test_large_clusters_are_described_by_their_first_nodes_and_the_last_and_by_assumptions():
    text = str(rank_map(Plan(tensor_parallel_degree=4, shard_optimizer_state=True), Cluster(P4D, 128)))
    assert "TP_GROUP: 256 groups of 4 GPUs, inside a node; the first has ranks 0, 1, 2, 3." in text
    assert "Nodes 3 to 126: advice.rank_map()" in text
    assert "Node 127" in text
    assert len(text.splitlines()) < 40

    assert "does not document" in str(rank_map(Plan(library="smp-v2"), Cluster(P4D, 1)))


@pytest.fixture(scope="module")
def fsdp():
    return smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", sequence_length=1024)


@pytest.mark.parametrize(
    ("share", "half", "twice", "larger_gain", "words"),
    [
        (1.0, 0.9, 1.0, 0.0, ""),
        (4.0, 0.9, 1.0, 0.0, ", because half of it would be 10 % slower"),
        (4.0, 1.0, 1.0, 0.0, ""),
        (0.25, 0.9, 1.0, 0.01, ", because larger ones are not noticeably faster"),
        (0.25, 0.9, 1.0, 0.08, ", because twice the batch gains less than 3.0 % without more techniques"),
        (0.25, 0.9, 1.2, 0.20, ""),
    ],
)
def test_the_reason_is_that_of_the_figures(fsdp, share, half, twice, larger_gain, words):
    batch = fsdp.decision.batch
    tokens = round(share * batch.policy.target_tokens)
    changed = replace(batch, tokens_per_step=tokens, half=half, twice=twice, larger_gain=larger_gain)
    text = batch_reason(fsdp.model, fsdp.estimate, changed)
    assert f" tokens){words}. GPT-3" in text
    as_requested = batch_reason(fsdp.model, fsdp.estimate, replace(batch, policy=None))
    assert as_requested.endswith(" tokens), as requested.")


@pytest.mark.slow
def test_bf16_is_the_type_of_plans_that_allow_it():
    sharded = smpa.advise("30B", P4D, instance_count=16, library="smp-v1", family="gpt2")
    assert sharded.plan.sharded_data_parallel_degree > 1
    assert sharded.job.precision == sharded.plan.precision == "bf16"
    assert "precision bf16" in sharded.defaults
    plain = smpa.advise("1.3B", P4D, library="smp-v1", family="gpt2", sharded_data_parallel_degree=1)
    assert plain.job.precision == "fp16"
    assert "bf16 only with sharded data parallelism" in plain.defaults[0]
    old = smpa.advise("1.3B", "ml.p3.16xlarge", library="smp-v1", family="gpt2")
    assert "V100 16 GB does not compute in bf16" in old.defaults[0]
    of_job = smpa.advise("30B", P4D, smpa.Job(sequence_length=1024), instance_count=16)
    assert (of_job.job.precision, of_job.job.attention) == ("bf16", "fused")
    by_job = smpa.advise("30B", P4D, smpa.Job(attention="fused"), instance_count=16)
    assert by_job.job.precision == "fp16"
    requested = smpa.advise("30B", P4D, instance_count=16, library="smp-v1", family="gpt2", precision="fp16")
    assert requested.job.precision == "fp16"
