"""Plans that `advise` recommends: their export accepts them, or there is no advice."""

from __future__ import annotations

import random

import pytest

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError
from smp_advisor.workload.from_config import model_names

LORA = {"adapter": smpa.Adapter()}
TUNED, TRAINED = {"training": "fine-tuning"}, {"training": "pretraining"}
MACHINES = ("ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.g6e.12xlarge", "ml.p4d.24xlarge", "ml.p5en.48xlarge")
FOUND = (
    ("DeepSeek-V3", "ml.p5en.48xlarge", 64, {}, "more host memory than a node has"),
    ("Mistral 7B", "ml.g4dn.12xlarge", 1, LORA, "adapters with TRL in images"),
    ("BGE small", "ml.p4d.24xlarge", 1, LORA, "language models only"),
    ("Llama 4 Scout", "ml.p5.48xlarge", 32, LORA, "PEFT and TRL do not train"),
    ("Llama 3.1 8B", "ml.g5.12xlarge", 2, TRAINED, "the nearest"),  # a loss in parts with the library's own layers
    ("RoBERTa base", "ml.p5en.48xlarge", 1, TUNED, ""),  # two of its positions are reserved
)
"""Requests whose plans the export refused, and what their refusal says; empty where the plan is exported."""


def refusal(model, machine, nodes, settings):
    """What `advise` refuses; empty where its plan is exported."""
    try:
        advice = smpa.advise(model, machine, instance_count=nodes, **settings)
    except AdvisorError as error:
        return str(error)
    assert advice.cell()
    assert advice.script_cell()
    return ""


def test_an_advised_plan_is_exported_or_there_is_no_advice():
    for *request, reason in FOUND:
        said = refusal(*request)
        assert reason in said if reason else not said, request


@pytest.mark.slow
def test_seeded_requests_of_named_models_are_exported_or_refused():
    listed = model_names()
    draw = random.Random(48)
    said = [
        refusal(
            draw.choice(listed), draw.choice(MACHINES), draw.choice((1, 4, 16)), draw.choice((TRAINED, TUNED, LORA))
        )
        for _ in range(6)
    ]
    assert "" in said
