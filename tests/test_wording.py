"""Figures in words: each with its prediction interval, and in samples where a model reads no tokens."""

import re
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.core.tables import number
from smp_advisor.costs.wording import cost_per_million
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.notebook.panels import panel_data
from smp_advisor.notebook.view_state import recommendation

REQUESTS = {
    "smp-v1": {"model": "13B", "cluster": "ml.p4d.24xlarge", "instance_count": 4},
    "smp-v1, priced": {"model": "1.3B", "cluster": "ml.p3.16xlarge", "tokens": 1e9, "objective": "cost"},
    "smp-v2": {"model": "7B", "cluster": "ml.p5.48xlarge", "instance_count": 2, "library": "smp-v2", "tokens": 3e11},
    "fsdp": {"model": "7B", "cluster": "ml.g5.48xlarge", "instance_count": 2, "library": "fsdp"},
    "ddp": {"model": "350M", "cluster": "ml.g5.12xlarge", "library": "ddp", "tokens": 1e8},
    "compiler": {
        "model": "125M",
        "cluster": "ml.p3.16xlarge",
        "library": "training-compiler",
        "tokens": 1e10,
        "sequence_length": 512,
    },
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"
RANGE = rf"{NUMBER} to {NUMBER}"
FIGURE = re.compile(
    rf"{NUMBER}[ \xa0](?:samples/s|tokens/s|TFLOPS?|TFLOP/s|%(?= \(?[\d.]* ?(?:of peak|MFU))|m?s|hours|days)(?![\w/-])"
    rf"|{NUMBER} USD(?! ?(?:per hour|/h))|\$ ?{NUMBER}(?! per hour)"
)
"""Prices per hour are known, not estimated."""


@pytest.fixture(scope="module", params=REQUESTS.values(), ids=REQUESTS)
def advice(request):
    return smpa.advise(**request.param)


def without_range(text: str) -> list[str]:
    """Figures of a text that no interval follows: ``3.54 s (3.02 to 4.87)``."""
    return [
        text[max(0, match.start() - 60) : match.end() + 40]
        for match in FIGURE.finditer(text)
        if not re.match(rf" \({RANGE}\)", text[match.end() :])
    ]


def own_figures(text: str) -> str:
    """The report without the sections on overheads and assumptions, whose figures are no estimates of the plan."""
    return re.sub(r"(Effective time|Assumptions)\n-+\n.*?(\n\n|$)", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("details", [False, True])
def test_every_figure_of_the_report_has_its_range(advice, details):
    lines = own_figures(advice.report(details=details)).replace("\n  ", " ")
    assert len(FIGURE.findall(lines)) > (5 if details else 0)
    assert without_range(lines) == []


def test_every_figure_has_its_range(advice):
    shown = recommendation(advice)
    html = Advisor(advice)._repr_mimebundle_()[0]["text/html"].replace("<span>$</span>", "$")
    text = unescape(re.sub(r"<[^>]+>", " ", html))
    for _, value, unit, rate, low_to_high in shown["recommended"]["headline"]:
        below = f" ({low_to_high})" * bool(low_to_high) + f", {rate}" * bool(rate)
        assert re.search(rf"{re.escape(value)}\s+{re.escape(unit + below)}", text)


@given(st.floats(1e-6, 1e12))
def test_numbers_have_three_digits(value: float) -> None:
    text = number(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.00501)
    digits = re.sub(r"[,.]|e.*", "", text).lstrip("0").rstrip("0")
    assert len(digits) <= 3


VIT = smpa.Model.from_config({"model_type": "vit"})
TRACED = replace(VIT, name="traced", origin="measured", fixed_sequence_length=1)
"""As a profile describes any module without a sequence: a sample is one position as wide as the sample is large."""


@pytest.fixture(scope="module", params=[VIT, TRACED], ids=["vit", "traced"])
def images(request):
    return smpa.advise(request.param, "ml.p4d.24xlarge", instance_count=2, library="smp-v1")


def test_images_are_counted_in_samples(images):
    told = [images.report(details=True), images.cell()]
    lines = [line for text in told for line in text.splitlines() if "SMP_ADVISOR_" not in line]  # names of fields
    assert [line for line in lines if "token" in line or "sequence_length" in line] == []
    assert images.reference is None  # AWS's rows are language models

    estimate = images.estimate
    price = estimate.usd_per_hour / 3600 / (estimate.samples_per_second * estimate.effective.share) * 1e6
    cost = cost_per_million(images.model, estimate)
    assert cost.endswith(" per million samples")
    assert float(cost.split()[0]) == pytest.approx(price, rel=0.005)
    assert cost in images.report(details=True)

    assert 0 < images.estimate.global_batch_size <= 8192
    assert "global batch free up to 8,192 samples" in images.defaults
    at_limit = images.estimate.global_batch_size == 8192
    assert ("would exceed the limit of 8,192 samples" in images.because) == at_limit
    larger = smpa.advise(images.model, "ml.p4d.24xlarge", instance_count=2, global_batch_size=16_384)
    assert larger.estimate.global_batch_size == 16_384

    def words(model):
        advice = smpa.advise(model, "ml.p4d.24xlarge")
        return panel_data("facts", advice, advice.controls)["html"].partition("</p>")[0], model.summary

    assert all("width 768" in text or "hidden 768" in text for text in words(VIT))
    assert not any("width" in text or "hidden" in text for text in words(TRACED))
