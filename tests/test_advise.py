"""The one call: from what a user has to advice, or one sentence."""

import json
from importlib.machinery import ModuleSpec

import pytest

import smp_advisor as smpa
from smp_advisor.advice import description
from smp_advisor.advice.description import read_model
from smp_advisor.arguments import meant
from smp_advisor.errors import AdvisorError, ModelError

P4D = "ml.p4d.24xlarge"


@pytest.fixture(scope="module")
def advice() -> smpa.Advice:
    return smpa.advise("10B", P4D, instance_count=16, library="smp-v1", family="gpt2", sequence_length=512)


def test_the_recommendation_fits_and_names_its_defaults(advice: smpa.Advice) -> None:
    assert advice.estimate.fits
    assert advice.estimate.fit_probability >= 0.95
    assert advice.estimate == smpa.estimate(advice.model, advice.cluster, advice.job, advice.plan)
    assert advice.model.origin == "inferred"
    assert advice.plans_scored == advice.plans_enumerated > advice.plans_fit > 0
    assert f"{advice.estimate.global_batch_size:,} samples" in advice.because
    assert advice.estimate.tokens_per_step <= advice.job.max_tokens_per_step
    assert all(len(repr(value)) <= 120 for value in (advice, advice.plan, advice.estimate, advice.model, advice.job))

    named = " ".join(advice.defaults)
    for phrase in ("bf16", "Adam", "eager attention", "vocabulary 50,304", "4,194,304 tokens"):
        assert phrase in named
    assert "sequence length" not in named
    given = smpa.advise(
        "1B", P4D, library="smp-v1", vocab=50_000, precision="fp16", attention="fused", global_batch_size=64
    )
    assert "vocabulary" not in " ".join(given.defaults)
    assert "eager" not in " ".join(given.defaults)
    assert "sequence length 2,048" in " ".join(given.defaults)


def test_a_model_keeps_within_its_positions() -> None:
    bert = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    unsaid = smpa.advise(bert, P4D)
    assert unsaid.job.sequence_length == 512
    assert "sequence length 512 tokens" in unsaid.defaults
    with pytest.raises(AdvisorError, match="512 positions"):
        smpa.advise(bert, P4D, sequence_length=1024)


@pytest.mark.slow
def test_a_small_model_is_not_sharded_for_nothing() -> None:
    for count, nodes in (("350M", 1), ("350M", 8), ("760M", 2)):
        settings = {"instance_count": nodes, "library": "smp-v1", "sequence_length": 1024}
        advice = smpa.advise(count, P4D, **settings)
        assert advice.plan.sharded_data_parallel_degree == advice.plan.pipeline_parallel_degree == 1, (count, nodes)
        if advice.plan.tensor_parallel_degree > 1:  # the library's own layers are faster than those of transformers
            plain = smpa.advise(count, P4D, **settings, tensor_parallel_degree=1)
            assert advice.estimate.samples_per_second > 1.05 * plain.estimate.samples_per_second


def test_a_cluster_is_neither_oversized_nor_idle_without_a_word() -> None:
    settings = {"library": "smp-v1", "sequence_length": 2048, "vocab": 50_000, "max_tokens_per_step": 500_000}
    with pytest.raises(smpa.errors.NoPlanFitsError) as caught:
        smpa.advise("30B", P4D, instance_count=2, **settings)
    nodes = int(str(caught.value).split(";")[-1].split()[0])
    assert smpa.advise("30B", P4D, instance_count=nodes, **settings).estimate.fits
    for fewer in range(3, nodes):
        with pytest.raises(smpa.errors.NoPlanFitsError):
            smpa.advise("30B", P4D, instance_count=fewer, **settings)

    held = smpa.advise("6.7B", "ml.g4dn.12xlarge", instance_count=8, sequence_length=512, tensor_parallel_degree=8)
    assert held.estimate.mfu < 0.1
    assert "Warning:" in held.because
    assert "Warning:" not in smpa.advise("1.3B", P4D, sequence_length=1024).because


def test_a_comparison_is_with_the_nearest_plan_and_names_what_is_in_the_way() -> None:
    odd = smpa.advise("7B", P4D, instance_count=2, global_batch_size=7)
    assert any("no plan with a global batch of 7 samples fits" in text for text in odd.library_comparisons)
    adapter = smpa.Adapter(rank=16, base_bits=4)
    with pytest.raises(AdvisorError, match=r"the nearest \(FSDP\) needs .*; changes that fit: 1 x ml\.g7e"):
        smpa.advise("llama-3-70b", "ml.g5.48xlarge", adapter=adapter)  # no other library has a plan that fits
    single = smpa.advise("bert-large", "ml.p3.2xlarge", library="ddp")
    assert single.plan.gradient_accumulation_steps == 32
    assert "no plan with twice the batch fits in 32 accumulated batches" in " ".join(str(single).split())
    with pytest.raises(AdvisorError, match="an Advice or a Recommendation"):
        smpa.Advisor(3)  # type: ignore[arg-type]
    with pytest.raises(AdvisorError, match="for job a Job or None, not 2"):
        smpa.advise("10B", P4D, 2)  # type: ignore[call-arg]


COHERE = {
    "model_type": "cohere",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}


@pytest.mark.torch
@pytest.mark.slow
def test_a_family_without_formulas_is_traced_and_flagged(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(COHERE))
    calls = []
    model = read_model(str(file), sequence_length=64, on_progress=lambda *call: calls.append(call))
    assert model.origin == "measured"
    assert model.note.startswith("traced on this machine, because the family cohere has no formulas; ")
    assert model.name == "cohere 98.5 K"
    assert calls
    advice = smpa.advise(model, "ml.p4d.24xlarge", sequence_length=64)
    assert "traced on this machine" in " ".join(advice.report(details=True).split())


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_torch_or_transformers_one_sentence_states_what_to_install(monkeypatch, missing):
    monkeypatch.setattr(description, "find_spec", lambda name: None if name == missing else ModuleSpec(name, None))
    with pytest.raises(ModelError, match=rf"'cohere' has no formulas: install {missing} \(pip install {missing}\)"):
        smpa.advise(COHERE, "ml.p4d.24xlarge")


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("days", "max_days"),
        ("budget", "max_usd"),
        ("nodes", "instance_count"),
        ("instance_type", "cluster"),
        ("seq_len", "sequence_length"),
        ("dtype", "precision"),
        ("tp", "tensor_parallel_degree"),
        ("sequence_lenght", "sequence_length"),
        ("qqqqqq", ""),
    ],
)
def test_a_keyword_is_known_by_its_meaning_or_its_letters(name, keyword):
    keywords = {"max_days", "max_usd", "instance_count", "cluster", "sequence_length", "precision"}
    assert meant(name, keywords | {"tensor_parallel_degree"}) == keyword


def test_check_estimator_suggests_the_keyword_that_is_meant():
    with pytest.raises(
        AdvisorError, match=r"check_estimator\(\) takes no argument 'instance_type'; did you mean cluster\?"
    ):
        smpa.check_estimator("", instance_type="ml.p4d.24xlarge")


def test_a_model_by_name_has_its_own_length_and_a_question() -> None:
    """A count or a configuration is no published model, whose weights could be fine-tuned."""
    for name, length in (("llama-3-8b", 8192), ("gpt2", 1024), ("llama-2-7b", 4096)):
        named = smpa.advise(name, "ml.p5.48xlarge", library="fsdp")
        assert named.job.sequence_length == length
        assert "Pre-training or fine-tuning? This plan is for pre-training from random weights" in named.because
    tuned = smpa.advise("llama-2-7b", "ml.p5.48xlarge", library="fsdp", training="fine-tuning", sequence_length=2048)
    assert tuned.job.sequence_length == 2048
    for advice in (tuned, smpa.advise("7B", "ml.p5.48xlarge", library="fsdp")):
        assert "Pre-training or fine-tuning" not in advice.because
