"""The library that ``library="auto"`` chooses, the reason, and the container of a settled framework."""

import re

import pytest

from smp_advisor import advise
from smp_advisor.cluster import Cluster
from smp_advisor.errors import NoPlanFitsError
from smp_advisor.libraries.version import image
from smp_advisor.search.candidates import Candidate, Request, titled
from smp_advisor.search.library import _compared, choose_library, framework_of
from smp_advisor.workload import Adapter, Job, Model

LLAMA_70B = Model.from_shape(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32_000, family="llama", name="Llama 2 70B"
)
GPT2 = Model.from_shape(layers=12, hidden=768, heads=12, vocab=50_257, max_positions=1024, family="gpt2", name="GPT-2")
BERT = Model.from_name("bert-large-uncased")
P4D_32 = Cluster("ml.p4d.24xlarge", 32)


def request_of(model, cluster, job, pytorch=None):
    open_terms = {"pins": {}, "user_settings": frozenset(), "min_fit_probability": 0.95}
    return Request(model=model, cluster=cluster, job=job, pytorch=pytorch, **open_terms)


def chosen_for(model, cluster, job, framework=None):
    return choose_library(request_of(model, cluster, job, framework_of(framework)[1]), framework)


@pytest.mark.parametrize(
    ("model", "cluster", "framework", "library", "words"),
    [
        (GPT2, Cluster("ml.p4d.24xlarge"), None, "ddp", "model parallelism is not required"),
        (LLAMA_70B, Cluster("ml.p5.48xlarge", 8), None, "fsdp", "patches that of FSDP with version='2.13.0'"),
        (LLAMA_70B, P4D_32, "pytorch 2.5.1", "smp-v2", "SMP v1 (archived)"),
        (GPT2, Cluster("ml.g5.48xlarge"), "pytorch 1.13", "training-compiler", "discontinued"),
        (
            Model.from_parameters("20B", family="gpt2"),
            Cluster("ml.p4d.24xlarge", 4),
            "pytorch 1.13",
            "smp-v1",
            "archived",
        ),
        (GPT2, Cluster("ml.p4d.24xlarge"), "tensorflow 2.6", "smp-v1-tensorflow", "only model-parallel library"),
    ],
)
def test_auto_chooses_and_says_why(model, cluster, framework, library, words):
    job = Job(sequence_length=512)
    chosen = chosen_for(model, cluster, job, framework=framework)
    assert chosen.library == library
    assert words in " ".join((chosen.because, *chosen.comparisons))
    assert chosen.because.startswith(f"{titled(library)}. ")
    for sentence in (chosen.because, *chosen.comparisons):
        assert sentence.endswith(".")


def test_an_unpatched_library_is_called_faster_only_where_it_is():
    for name, cluster, is_faster in (
        ("phi-4", Cluster("ml.p5.48xlarge", 2), False),
        ("llama-3.1-8b", Cluster("ml.p5.48xlarge"), True),
    ):
        because = chosen_for(Model.from_name(name), cluster, Job(sequence_length=8192)).because
        assert "AWS no longer patches the images of SMP v2" in because
        assert ("faster: name the library" in because) == is_faster, name


def test_auto_prefers_libraries_with_a_script_for_the_adapter():
    settings = {"instance_count": 1, "sequence_length": 2048, "adapter": Adapter(rank=16, base_bits=8)}
    chosen = advise("llama-3-8b", "ml.p4d.24xlarge", **settings)
    assert chosen.plan.library == "ddp"
    assert any(
        text.startswith("FSDP: ") and "without a generated script" in text for text in chosen.library_comparisons
    )
    chosen.cell()
    with pytest.raises(NoPlanFitsError, match=r"does not shard a base of 8 bits.*library='ddp'.*pass script="):
        advise("llama-3-8b", "ml.p4d.24xlarge", library="fsdp", **settings)
    # A script of the user may shard a quantized base.
    own = advise("llama-3-8b", "ml.p4d.24xlarge", script="train.py", **settings)
    assert not any("without a generated script" in text for text in own.library_comparisons)
    # Where no replica fits, only sharding remains, which has no generated script.
    with pytest.raises(NoPlanFitsError, match=r"does not shard a base of 8 bits.*pass script="):
        advise("llama-3-70b", "ml.p4d.24xlarge", **settings)
    assert advise("llama-3-70b", "ml.p4d.24xlarge", script="train.py", **settings).plan.library == "fsdp"
    # Where a change fits with a library that has one, that is the remedy, and the script of the user's another.
    settings = {"sequence_length": 4096, "adapter": Adapter(rank=16)}
    with pytest.raises(NoPlanFitsError, match=r"changes that fit: 1 x .*; 2 nodes.*; your own script.*SMP v2\."):
        advise("llama-3-70b", "ml.p4d.24xlarge", **settings)
    assert advise("llama-3-70b", "ml.p4d.24xlarge", instance_count=2, **settings).plan.library == "fsdp"


@pytest.mark.parametrize(("batch", "multiple"), [(8, 16), (24, 32)])
def test_a_batch_of_preferences_without_whole_pairs_is_refused_as_such(batch, multiple):
    for library in ("auto", "ddp"):
        settings = {"training": "dpo", "library": library}
        with pytest.raises(NoPlanFitsError, match=rf"{batch} samples .* for pairs of .*example {multiple}\."):
            advise("350M", "ml.p4d.24xlarge", global_batch_size=batch, **settings)
        assert advise("350M", "ml.p4d.24xlarge", global_batch_size=multiple, **settings).plan.library == "ddp"


def test_a_fixed_batch_of_half_a_pair_names_pairs():
    with pytest.raises(NoPlanFitsError, match="for pairs of samples with batch_size fixed"):
        advise("350M", "ml.p4d.24xlarge", training="dpo", library="fsdp", batch_size=1)


def test_a_free_setting_is_tried_only_where_optimizer_and_script_have_it():
    for optimizer in ("adam-8bit", "lion", "muon", "adafactor"):
        advice = advise("350M", "ml.p4d.24xlarge", library="ddp", optimizer=optimizer)
        words = f"and the job {optimizer!r}: set optimizer to one of them, or pass script="
        assert (words in " ".join(advice.warnings)) == (optimizer != "adam-8bit")
    pinned = advise("30B", "ml.p4d.24xlarge", instance_count=4, tensor_parallel_degree=8)
    assert pinned.job.loss == "plain"
    assert pinned.script_cell()


def test_a_script_of_the_user_is_not_assumed_to_compute_its_loss_in_parts():
    """All logits of this plan need 18 GiB more than the exported script has: it would run out of memory."""
    request = {"library": "fsdp", "training": "fine-tuning", "sequence_length": 4096, "batch_size": 4}
    exported = advise("llama-3-8b", "ml.p4d.24xlarge", **request)
    with pytest.raises(NoPlanFitsError, match=r"the nearest needs 48\.. GiB"):
        advise("llama-3-8b", "ml.p4d.24xlarge", script="train.py", **request)
    own = advise("llama-3-8b", "ml.p4d.24xlarge", script="train.py", **request | {"batch_size": 1})
    logits = exported.estimate.memory.peak.logits_gib
    assert own.estimate.memory.peak.logits_gib > 1.4 * logits


def test_every_other_library_for_pytorch_is_compared():
    chosen = chosen_for(LLAMA_70B, P4D_32, Job(sequence_length=4096))
    others = {sentence.split(":")[0] for sentence in chosen.comparisons}
    assert others == {"DDP", "SMP v2", "SMP v1 (archived)", "Training Compiler (discontinued)"}
    slower = next(sentence for sentence in chosen.comparisons if sentence.startswith("SMP v1"))
    assert re.search(r"(about as fast|% slower|% faster) in fp16 with the same batch\.", slower)


def test_settings_and_instances_select_a_library():
    for name, value in {"pipeline_parallel_degree": 2, "microbatches": 4}.items():
        advice = advise("13B", "ml.p4d.24xlarge", instance_count=4, sequence_length=512, **{name: value})
        assert advice.plan.library == "smp-v1"
        assert f"Only SMP v1 has '{name}'" in advice.library_because
    advice = advise("13B", "ml.p4d.24xlarge", instance_count=2, family="gpt2", tensor_parallel_degree=2)
    assert advice.plan.library == "smp-v1"
    advice = advise("7B", "ml.g5.48xlarge", sequence_length=1024)
    assert advice.plan.library == "smp-v2"
    assert "check that a job starts" in advice.library_because


def test_a_bare_count_is_llamas_shape():
    advice = advise("7B", "ml.p5.48xlarge", library="auto", instance_count=2, sequence_length=4096)
    assert advice.plan.library == "fsdp"
    assert (advice.model.family, advice.model.origin) == ("llama", "inferred")
    given = advise("7B", "ml.p5.48xlarge", library="smp-v2", family="gpt2", sequence_length=2048)
    assert given.model.family == "gpt2"


def test_fp8_selects_a_library_and_a_small_model_needs_none():
    assert chosen_for(GPT2, Cluster("ml.p5.48xlarge"), Job(precision="bf16", fp8=True)).library == "smp-v2"
    assert advise("350M", "ml.g5.xlarge", sequence_length=512).plan.library == "ddp"  # one GPU divides nothing


@pytest.mark.parametrize(
    ("model", "framework", "library", "container"),
    [
        ("gpt2-xl", "pytorch 1.13", "ddp", "1.13.1"),
        ("gpt2-xl", "pytorch 1.12", "ddp", "1.13.1"),
        ("gpt2", "pytorch 2.3", "ddp", "2.3.0"),
        ("gpt2", "pytorch 2.99", "ddp", "2.13.0"),
        ("llama-3-8b", "pytorch 2.3", "smp-v2", "2.3.1"),
        ("llama-3-8b", "pytorch 1.13", "smp-v1", "1.13.1"),
    ],
)
def test_the_container_has_the_scripts_framework(model, framework, library, container):
    advice = advise(model, "ml.p4d.24xlarge", instance_count=2, sequence_length=512, framework=framework)
    assert advice.plan.library == library
    assert image(library, advice.plan.version).framework_version == container
    assert advice.job.attention == ("eager" if container.startswith("1.") else "fused")
    assert f'framework_version="{container}"' in advice.cell(script="train.py", sdk="v2")


def test_frameworks_decide_containers_and_attention():
    old = advise("gpt2", "ml.p4d.24xlarge", library="ddp", version="1.13.1")
    assert old.job.attention == "eager"
    assert advise("gpt2", "ml.p4d.24xlarge", library="ddp", version="2.3.0").job.attention == "fused"

    request = {"sequence_length": 1024, "framework": "pytorch 1.13"}
    advice = advise("gpt2-xl", "ml.p4d.24xlarge", **request)
    archived = next(text for text in advice.library_comparisons if text.startswith("SMP v1"))
    gain = int(re.search(r"(\d+) % faster", archived)[1]) / 100
    same = {"sequence_length": 1024, "global_batch_size": advice.estimate.global_batch_size}
    rival = advise("gpt2-xl", "ml.p4d.24xlarge", library="smp-v1", **same)
    ratio = rival.estimate.tokens_per_second / advice.estimate.tokens_per_second
    assert ratio == pytest.approx(1 + gain, abs=0.02)
    sized = advise("gpt2-xl", "ml.p4d.24xlarge", instance_count="smallest", **request)
    assert sized.plan == advice.plan
    assert sized.estimate.tokens_per_second == advice.estimate.tokens_per_second


@pytest.mark.parametrize(("optimizer_seconds", "cause"), [(2e-4, "share the optimizer step"), (6e-4, "its code")])
def test_a_library_that_is_faster_where_a_replica_fits_has_the_cause(optimizer_seconds, cause):
    request = request_of(GPT2, Cluster("ml.p4d.24xlarge", 1), Job())
    chosen = Candidate(library="ddp", tokens_per_second=1000, fastest_divided=1100, optimizer_seconds=5e-4)
    rival = Candidate(library="fsdp", tokens_per_second=1400, optimizer_seconds=optimizer_seconds)
    assert re.fullmatch(rf"FSDP: 40 % faster .*{cause}.*\.", _compared(rival, chosen, request))


@pytest.mark.parametrize("instance", ["ml.p4d.24xlarge", "ml.g5.48xlarge", "ml.p5.48xlarge"])
@pytest.mark.parametrize("length", [512, 4096, 16_384])
def test_no_library_divides_a_model_whose_state_is_a_small_part_of_a_gpu(instance, length):
    model = Model.from_shape(layers=12, hidden=512, heads=8, vocab=32_000, family="llama", name="Llama of 60 M")
    choice = chosen_for(model, Cluster(instance, 2), Job(sequence_length=length))
    # Only a library that is clearly faster replaces it, as at the shortest length, where DDP's fp32 gradients wait.
    faster = re.search(r"is (\d+) % faster than that of DDP", choice.because)
    assert choice.library == "ddp" or (length == 512 and faster is not None and int(faster[1]) >= 20)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (None, "Training Compiler (discontinued): no plan with a global batch of 256 samples fits."),
        (100, "DDP: no plan with a global batch of 100 samples fits."),
    ],
)
def test_a_replica_that_fits_alone_is_not_called_too_large(batch, words):
    job = Job(sequence_length=512, global_batch_size=batch)
    cluster = Cluster("ml.p3.16xlarge")
    choice = chosen_for(BERT, cluster, job, framework="pytorch 1.13")
    text = " ".join((choice.because, *choice.comparisons))
    assert words in text
    assert "replica does not fit" not in text
    assert "No entire replica" not in text
