"""A model of images is spoken of in samples: no tokens, no sequence, no batch of millions."""

from __future__ import annotations

from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.notebook.figures import figures
from smp_advisor.notebook.view_state import explanation, recommendation
from smp_advisor.wording import cost_per_million

VIT = smpa.Model.from_config({"model_type": "vit"})
TRACED = replace(VIT, name="traced", origin="measured", fixed_sequence_length=1)
"""As a profile describes any module without a sequence: a sample is one position as wide as the sample is large."""


@pytest.fixture(scope="module", params=[VIT, TRACED], ids=["vit", "traced"])
def advice(request):
    return smpa.advise(request.param, "ml.p4d.24xlarge", instance_count=2, library="smp-v1")


def test_no_text_counts_tokens(advice):
    shown = recommendation(advice)
    told = [advice.report(details=True), advice.cell(), *explanation(advice)["because"], *shown["defaults"]]
    told += [fact["text"] for fact in shown["facts"]]
    told += [f"{one.value} {one.note}" for one in figures(advice.model, advice.estimate)]
    assert [line for text in told for line in text.splitlines() if "token" in line] == []
    assert advice.reference is None  # AWS's rows are language models
    assert "sequence_length" not in advice.cell()


def test_rates_and_prices_are_a_samples(advice):
    estimate = advice.estimate
    throughput = next(one for one in figures(advice.model, estimate) if one.label == "Throughput")
    low, high = (float(text.replace(",", "")) for text in throughput.note.split(": ")[1].split(" to "))
    assert low < estimate.samples_per_second < high
    price = estimate.usd_per_hour / 3600 / (estimate.samples_per_second * estimate.effective.share) * 1e6
    cost = cost_per_million(advice.model, estimate)
    assert cost.endswith(" per million samples")
    assert float(cost.split()[0]) == pytest.approx(price, rel=0.005)
    assert cost in advice.report(details=True)


def test_a_free_batch_is_one_that_images_are_trained_with(advice):
    assert 0 < advice.estimate.global_batch_size <= 8192
    assert "global batch free up to 8,192 samples" in advice.defaults
    at_limit = advice.estimate.global_batch_size == 8192
    assert ("would exceed the limit of 8,192 samples" in advice.because) == at_limit
    larger = smpa.advise(advice.model, "ml.p4d.24xlarge", instance_count=2, global_batch_size=16_384)
    assert larger.estimate.global_batch_size == 16_384


def test_a_samples_size_is_no_width():
    def words(model):
        facts = recommendation(smpa.advise(model, "ml.p4d.24xlarge"))["facts"]
        return facts[0]["text"], model.summary

    assert all("width 768" in text or "hidden 768" in text for text in words(VIT))
    assert not any("width" in text or "hidden" in text for text in words(TRACED))


def test_language_models_are_spoken_of_in_tokens():
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", sequence_length=512)
    assert "per million tokens" in advice.report(details=True)
    assert " tokens); GPT-3" in advice.because
    assert "global batch free up to 4,194,304 tokens" in advice.defaults
    assert '"sequence_length": 512' in advice.cell()
