"""Advice for the libraries beside SMP v1: ordered practices, reference rows, pitfalls, and which library it is."""

from __future__ import annotations

import math
import re

import pytest

from smp_advisor import advise
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError, ExportError
from smp_advisor.guidance import explain, nearest_reference, pitfalls, reference_rows
from smp_advisor.guidance.library_candidates import titled
from smp_advisor.guidance.library_choice import choose_library
from smp_advisor.guidance.pitfalls import _rows
from smp_advisor.guidance.practices import order, practice
from smp_advisor.guidance.ranges import run_time
from smp_advisor.libraries import Plan
from smp_advisor.libraries.registry import LIBRARIES
from smp_advisor.libraries.training_compiler.tested_models import all_tested_models, nearest_tested
from smp_advisor.workload import Adapter, Job, Model

LLAMA_70B = Model.from_shape(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32_000, family="llama", name="Llama 2 70B"
)
GPT2 = Model.from_shape(layers=12, hidden=768, heads=12, vocab=50_257, max_positions=1024, family="gpt2", name="GPT-2")
P4D_32 = Cluster("ml.p4d.24xlarge", 32)
BF16 = Job(sequence_length=4096, precision="bf16", attention="fused")


def explained(plan: Plan, model: Model = LLAMA_70B, cluster: Cluster = P4D_32, job: Job = BF16):
    return {one.technique: one for one in explain(model, cluster, job, plan, estimate(model, cluster, job, plan))}


@pytest.fixture(scope="module")
def smp_v2():
    plan = Plan(library="smp-v2", hybrid_shard_degree=256, batch_size=2, activation_checkpointing="each")
    return explained(plan)


def test_smp_v2_goes_through_its_own_practices_in_order(smp_v2):
    assert tuple(smp_v2) == order("smp-v2")
    assert [one.order for one in smp_v2.values()] == list(range(1, len(smp_v2) + 1))
    for step in smp_v2.values():
        assert step.details.endswith(".")
        assert step.source_url.startswith("https://docs.aws.amazon.com/sagemaker/")
        assert step.trade_off


def test_sharding_is_argued_with_the_next_lower_degree(smp_v2):
    step = smp_v2["sharding"]
    assert step.decision == "used"
    assert "sharded over 256 GPUs" in step.details
    assert step.alternative.hybrid_shard_degree < 256
    assert {"memory needed with", "memory needed without"} <= set(dict(step.figures))


def test_degrees_that_the_family_lacks_are_not_possible(smp_v2):
    assert smp_v2["expert_parallelism"].decision == "not possible"
    assert smp_v2["tensor_parallelism"].decision == "not used"
    assert smp_v2["tensor_parallelism"].alternative.tensor_parallel_degree == 2
    gpt = explained(
        Plan(library="smp-v2", hybrid_shard_degree=8, batch_size=1),
        model=GPT2,
        cluster=Cluster("ml.p4d.24xlarge"),
        job=Job(sequence_length=512, precision="bf16", attention="fused"),
    )
    assert gpt["tensor_parallelism"].decision == "not possible"
    assert "not for gpt2" in gpt["tensor_parallelism"].details


def test_an_alternative_keeps_the_global_batch(smp_v2):
    for step in smp_v2.values():
        if step.alternative is not None and step.technique not in {"batch", "instance"}:
            there = estimate(LLAMA_70B, P4D_32, BF16, step.alternative)
            assert there.global_batch_size == 512


@pytest.mark.parametrize("row", reference_rows("smp-v2"), ids=lambda row: row.name)
def test_aws_reference_rows_of_smp_v2_fit(row):
    assert estimate(row.model, row.cluster, row.job, row.plan).fits


def test_the_nearest_reference_of_smp_v2_argues_each_difference():
    plan = Plan(
        library="smp-v2",
        hybrid_shard_degree=128,
        batch_size=3,
        activation_checkpointing="each",
        offload_activations=True,
    )
    found = nearest_reference(LLAMA_70B, P4D_32, BF16, plan, estimate(LLAMA_70B, P4D_32, BF16, plan))
    assert found.name == "70 B"
    assert {one.setting for one in found.differences} == {
        "Hybrid shard degree",
        "Offload activations",
        "Batch size",
    }
    assert all(one.because.endswith(".") for one in found.differences)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_has_practices_and_pitfalls_with_sources(library):
    for technique in order(library):
        stated = practice(technique, library)
        assert stated.title
        assert stated.source_url.startswith("https://docs.")
    assert all(row.source_url.startswith("https://docs.") for row in _rows(library))


def test_known_issues_follow_the_version():
    def ids(version: str, **fields: object) -> set[str]:
        plan = Plan(library="smp-v2", version=version, hybrid_shard_degree=256, batch_size=1, **fields)
        return {one.id for one in pitfalls(LLAMA_70B, P4D_32, BF16, plan, script_is_generated=False)}

    assert "2.1.0-flash-attention" in ids("2.1.0")
    assert "2.1.0-flash-attention" not in ids("2.8.0")
    assert "2.2.0-offloading" in ids("2.2.0", offload_activations=True, activation_checkpointing="each")
    assert "2.6.0-checkpoint-module" in ids("2.6.0")
    assert "moved-tag" in ids("2.6.1")
    assert "moved-tag" not in ids("2.7.0")
    assert "old-transformers" in ids("2.5.0")
    assert "SMP302" not in ids("2.8.0")


def test_what_a_group_shares_is_said():
    plan = Plan(library="smp-v2", hybrid_shard_degree=64, tensor_parallel_degree=4, batch_size=1)
    found = {one.id: one for one in pitfalls(LLAMA_70B, P4D_32, BF16, plan, script_is_generated=False)}
    assert "SMP302" in found
    assert "4 GPUs" in found["SMP202"].text
    assert "over the 64 groups" in found["SMP202"].text


def fsdp_pitfalls(library: str, *, adapter: Adapter | None = None, generated: bool = False, **fields: object):
    model = Model.from_parameters("13B", family="llama")
    job = Job(sequence_length=1024, precision="bf16", adapter=adapter)
    plan = Plan(library=library, batch_size=1, **fields)
    found = pitfalls(model, Cluster("ml.p4d.24xlarge"), job, plan, script_is_generated=generated)
    return [one for one in found if one.id in {"SMP308", "SMP309"}]


@pytest.mark.parametrize("library", ["fsdp", "smp-v2"])
def test_accumulation_under_fsdp_names_what_whole_gradients_take(library):
    (found,) = fsdp_pitfalls(library, gradient_accumulation_steps=4)
    assert found.severity == "warning"
    assert "each of the 4 batches" in found.text
    parameters = Model.from_parameters("13B", family="llama").parameter_count
    assert f"{2 * parameters / 2**30:.1f} GiB" in found.text
    assert found.source_url.endswith("FullyShardedDataParallel.no_sync")
    assert not fsdp_pitfalls(library, gradient_accumulation_steps=1)
    (done,) = fsdp_pitfalls(library, gradient_accumulation_steps=4, generated=True)
    assert done.severity == "info"
    assert done.text.endswith("with each of the 4 batches. The generated script does this.")


@pytest.mark.parametrize("library", ["fsdp", "smp-v2"])
def test_adapters_under_fsdp_are_to_be_wrapped_apart(library):
    adapter = Adapter(rank=8)
    (apart,) = fsdp_pitfalls(library, adapter=adapter)
    assert apart.id == "SMP309"
    assert "fsdp_auto_wrap_policy" in apart.text
    assert "3.0 GiB more" in apart.text  # 24.2 GiB over 8 GPUs
    both = fsdp_pitfalls(library, adapter=adapter, gradient_accumulation_steps=4)
    assert {one.id for one in both} == {"SMP308", "SMP309"}
    assert "24.2 GiB" in next(one.text for one in both if one.id == "SMP308")
    # The advisor writes no script for adapters: nothing is done already.
    generated = fsdp_pitfalls(library, adapter=adapter, gradient_accumulation_steps=4, generated=True)
    assert all(one.severity == "warning" for one in generated)
    assert not any("generated" in one.text for one in generated)


def test_replicas_hold_whole_gradients_anyway():
    replicated = {"hybrid_shard_degree": 1, "gradient_accumulation_steps": 4}
    assert not fsdp_pitfalls("smp-v2", **replicated)
    assert not fsdp_pitfalls("smp-v2", adapter=Adapter(rank=8), **replicated)


def test_layers_divided_by_tensor_parallelism_have_divided_gradients():
    (found,) = fsdp_pitfalls("smp-v2", tensor_parallel_degree=2, gradient_accumulation_steps=4)
    assert "12.1 GiB" in found.text


# -- Training Compiler


def test_the_tested_table_is_whole():
    rows = all_tested_models()
    assert len(rows) == 270
    assert all(row.native_batch_size > 0 and row.compiled_batch_size > 0 for row in rows)
    vit = next(row for row in rows if row.model == "ViT" and row.instance_type == "ml.g5.4xlarge")
    assert vit.factor < 1  # the compiler does not always allow more


def test_the_nearest_tested_row_is_of_the_same_shape_gpu_and_length():
    row = nearest_tested(GPT2, Cluster("ml.g5.12xlarge").instance, 512, "1.13.1")
    assert (row.model, row.instance_type, row.native_batch_size, row.compiled_batch_size) == (
        "gpt2",
        "ml.g5.48xlarge",
        18,
        45,
    )
    assert nearest_tested(LLAMA_70B, Cluster("ml.g5.12xlarge").instance, 512, "1.13.1") is None


def test_training_compiler_gives_the_batch_and_the_learning_rate_to_go_with_it():
    plan = Plan(library="training-compiler", batch_size=12)
    steps = explained(
        plan, model=GPT2, cluster=Cluster("ml.g5.48xlarge"), job=Job(sequence_length=512, precision="fp16")
    )
    assert tuple(steps) == order("training-compiler")
    assert steps["batch"].alternative.batch_size == 45
    rates = dict(steps["learning_rate"].figures)
    assert rates["linear"] == "x 2.50"
    assert rates["square root"] == f"x {math.sqrt(2.5):.2f}"
    assert "no new releases" in steps["support"].details
    assert "max_length=512" in steps["padding"].details


def test_training_compiler_is_said_to_be_discontinued_and_to_exclude_smdistributed():
    plan = Plan(library="training-compiler", batch_size=4)
    found = pitfalls(
        GPT2,
        Cluster("ml.p4d.24xlarge"),
        Job(sequence_length=512, precision="fp16"),
        plan,
        script_is_generated=False,
    )
    text = " ".join(one.text for one in found)
    assert "no new releases" in text
    assert "smdistributed" in text
    assert '{"pytorchxla": {"enabled": True}}' in text


# -- which library


@pytest.mark.parametrize(
    ("model", "cluster", "framework", "library", "words"),
    [
        (GPT2, Cluster("ml.p4d.24xlarge"), None, "ddp", "model parallelism is not required"),
        (LLAMA_70B, Cluster("ml.p5.48xlarge", 8), None, "smp-v2", "cannot use ml.p5.48xlarge"),
        (LLAMA_70B, P4D_32, "pytorch 2.5.1", "smp-v2", "SMP v1 (archived)"),
        (GPT2, Cluster("ml.g5.48xlarge"), "pytorch 1.13", "training-compiler", "discontinued"),
        (GPT2, Cluster("ml.p4d.24xlarge"), "tensorflow 2.6", "smp-v1-tensorflow", "only model-parallel library"),
    ],
)
def test_auto_chooses_and_says_why(model, cluster, framework, library, words):
    job = Job(sequence_length=512)
    chosen = choose_library(model, cluster, job, framework=framework)
    assert chosen.library == library
    assert words in " ".join((chosen.because, *chosen.comparisons))
    assert chosen.because.startswith(f"{titled(library)}. ")
    for sentence in (chosen.because, *chosen.comparisons):
        assert sentence.endswith(".")


def test_auto_prefers_libraries_with_a_script_for_the_adapter():
    settings = {"instance_count": 1, "sequence_length": 2048, "adapter": Adapter(rank=16, base_bits=4)}
    chosen = advise("llama-3-8b", "ml.p4d.24xlarge", **settings)
    assert chosen.plan.library == "ddp"
    assert any(
        text.startswith("FSDP: ") and "without a generated script" in text for text in chosen.library_comparisons
    )
    chosen.cell()
    sharded = advise("llama-3-8b", "ml.p4d.24xlarge", library="fsdp", **settings)
    with pytest.raises(ExportError) as refused:
        sharded.cell()
    assert str(refused.value) in sharded.warnings
    assert str(refused.value) in " ".join(str(sharded).split())
    # A script of the user may shard a quantized base.
    assert advise("llama-3-8b", "ml.p4d.24xlarge", script="train.py", **settings).plan.library == "fsdp"
    # Where no replica fits, only sharding remains.
    large = advise("llama-3-70b", "ml.p4d.24xlarge", **settings)
    assert large.plan.library == "fsdp"
    assert "does not shard a base of 4 bits" in large.because


def test_every_other_library_for_pytorch_is_compared():
    chosen = choose_library(LLAMA_70B, P4D_32, Job(sequence_length=4096))
    others = {sentence.split(":")[0] for sentence in chosen.comparisons}
    assert others == {"DDP", "FSDP", "SMP v1 (archived)", "Training Compiler (discontinued)"}
    slower = next(sentence for sentence in chosen.comparisons if sentence.startswith("SMP v1"))
    assert re.search(r"(about as fast|% slower|% faster) in fp16 with the same batch\.", slower)


@pytest.mark.parametrize("setting", [{"pipeline_parallel_degree": 2}, {"microbatches": 4}])
def test_a_setting_of_version_1_selects_it(setting):
    advice = advise("13B", "ml.p4d.24xlarge", instance_count=4, sequence_length=512, **setting)
    assert advice.plan.library == "smp-v1"
    assert f"Only SMP v1 has '{next(iter(setting))}'" in advice.library_because


def test_a_degree_that_a_family_lacks_in_one_library_selects_another():
    advice = advise("13B", "ml.p4d.24xlarge", instance_count=2, family="gpt2", tensor_parallel_degree=2)
    assert advice.plan.library == "smp-v1"
    with pytest.raises(AdvisorError, match=r"on ml\.g6\.xlarge, use library='ddp' or 'fsdp'"):
        advise("gpt-neo-2.7b", "ml.g6.xlarge", instance_count=2, framework="pytorch 1.13")
    with pytest.raises(AdvisorError, match="No library has tensor_parallel_degree here: leave it out"):
        advise("13B", "ml.g5.48xlarge", instance_count=2, family="gpt2", tensor_parallel_degree=2)


def test_no_degree_leaves_a_layer_undivided():
    with pytest.raises(AdvisorError, match=r"None of .* nodes would be enough"):
        advise("13B", "ml.g5.8xlarge", sequence_length=32_768)


def test_a_plan_of_an_unlisted_instance_is_preferred_to_none():
    advice = advise("7B", "ml.g5.48xlarge", sequence_length=1024)
    assert advice.plan.library == "smp-v2"
    assert "check that a job starts" in advice.library_because


def test_one_gpu_divides_nothing():
    assert advise("350M", "ml.g5.xlarge", sequence_length=512).plan.library == "ddp"


def test_an_old_framework_keeps_version_1():
    model = Model.from_parameters("20B")
    chosen = choose_library(model, Cluster("ml.p4d.24xlarge", 4), Job(sequence_length=512), framework="pytorch 1.13")
    assert chosen.library == "smp-v1"
    assert "archived" in chosen.because
    with pytest.raises(AdvisorError, match="has no code for sm_90"):
        choose_library(model, Cluster("ml.p5.48xlarge", 4), Job(sequence_length=512), framework="pytorch 1.13")


def test_an_unlisted_instance_takes_plain_fsdp():
    model = Model.from_parameters("7B")
    chosen = choose_library(model, Cluster("ml.g5.48xlarge"), Job(sequence_length=1024))
    assert chosen.library == "fsdp"
    assert "not in a confirmed AWS list for SMP v2" in chosen.because


def test_advise_with_auto_carries_the_reason_and_the_librarys_defaults():
    advice = advise("350M", "ml.p4d.24xlarge", sequence_length=512)
    assert advice.plan.library == "ddp"
    assert advice.job.precision == "bf16"
    assert advice.job.attention == "fused"
    assert "model parallelism is not required" in advice.library_because
    assert advice.library_because.split(".")[0] in " ".join(str(advice).split())
    assert advice.reference is None
    assert any("bf16" in one for one in advice.defaults)


def test_advise_holds_pins_in_the_librarys_own_words():
    advice = advise(
        "7B", "ml.p4d.24xlarge", instance_count=2, library="smp-v2", sequence_length=1024, hybrid_shard_degree=8
    )
    assert advice.plan.hybrid_shard_degree == 8
    assert advice.estimate.fits
    assert len(advice.alternatives) > 1


def test_advise_refuses_what_the_library_lacks():
    with pytest.raises(AdvisorError, match="SMP v2 has no setting 'microbatches'; SMP v1"):
        advise("7B", "ml.p4d.24xlarge", library="smp-v2", microbatches=4)
    with pytest.raises(AdvisorError, match=r"library must be 'auto' or one of smp-v1, .*fsdp, not 'smp-v3'"):
        advise("7B", "ml.p4d.24xlarge", library="smp-v3")
    with pytest.raises(AdvisorError, match="framework goes with library='auto'"):
        advise("7B", "ml.p4d.24xlarge", library="smp-v2", framework="pytorch")
    with pytest.raises(AdvisorError, match="framework must be"):
        advise("7B", "ml.p4d.24xlarge", library="auto", framework="jax")
    with pytest.raises(AdvisorError, match="Training Compiler cannot use"):
        advise("124M", "ml.p5.48xlarge", library="training-compiler")


def test_a_bare_count_is_llamas_shape_with_smp_v2():
    advice = advise("7B", "ml.p5.48xlarge", library="auto", instance_count=2, sequence_length=4096)
    assert advice.plan.library == "smp-v2"
    assert (advice.model.family, advice.model.origin) == ("llama", "inferred")
    given = advise("7B", "ml.p5.48xlarge", library="smp-v2", family="gpt2", sequence_length=2048)
    assert given.model.family == "gpt2"


def test_what_a_library_does_not_document_is_refused():
    fp8 = {"precision": "bf16", "fp8": True, "sequence_length": 1024}
    for library in ("fsdp", "ddp", "smp-v1"):
        with pytest.raises(AdvisorError, match="documents no fp8 products"):
            advise("1B", "ml.p4d.24xlarge", library=library, **fp8)
    assert choose_library(GPT2, Cluster("ml.p5.48xlarge"), Job(precision="bf16", fp8=True)).library == "smp-v2"


def test_a_replica_that_fits_no_gpu_is_told_to_be_divided():
    with pytest.raises(AdvisorError, match="changes that fit: library='smp-v2'"):
        advise("70B", "ml.p4d.24xlarge", instance_count=16, library="ddp", sequence_length=512)


def test_experts_are_spread_where_that_is_best():
    mixtral = Model.from_shape(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32_000, family="mixtral", experts=8,
        experts_per_token=2,
    )  # fmt: skip
    advice = advise(mixtral, "ml.p4d.24xlarge", instance_count=8, library="smp-v2", sequence_length=2048)
    assert advice.plan.expert_parallel_degree > 1
    step = next(one for one in advice.steps if one.technique == "expert_parallelism")
    assert step.decision == "used"
    assert "SMP302" in {one.id for one in advice.pitfalls}


def test_compilation_is_amortised_over_the_runs_length():
    job = Job(sequence_length=512, precision="fp16", tokens=1e9)
    steps = explained(
        Plan(library="training-compiler", batch_size=8), model=GPT2, cluster=Cluster("ml.g5.48xlarge"), job=job
    )
    run = estimate(GPT2, Cluster("ml.g5.48xlarge"), job, Plan(library="training-compiler", batch_size=8))
    hours = run.days * 24
    assert f"takes {run_time(run)}" in steps["warm_up"].details
    assert f"up to {hours * 12:,.0f} minutes" in steps["warm_up"].details
