"""Plans that `advise` recommends: their export accepts them, or there is no advice."""

import random

import pytest

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError
from smp_advisor.workload.from_config import model_names

LORA = {"adapter": smpa.Adapter()}
TUNED, TRAINED = {"training": "fine-tuning"}, {"training": "pretraining"}
PAIRS, SHARDED = {"training": "dpo"}, {"library": "fsdp"}
MACHINES = ("ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.g6e.12xlarge", "ml.p4d.24xlarge", "ml.p5en.48xlarge")
FOUND = (
    ("DeepSeek-V3", "ml.p5en.48xlarge", 64, {}, "more host memory than a node has"),
    ("Mistral 7B", "ml.g4dn.12xlarge", 1, LORA, "adapters with TRL in images"),
    ("BGE small", "ml.p4d.24xlarge", 1, LORA, "language models only"),
    ("Llama 4 Scout", "ml.p5.48xlarge", 32, LORA, "PEFT and TRL do not train"),
    ("Llama 3.1 8B", "ml.g5.12xlarge", 2, TRAINED, "the nearest"),  # a loss in parts with the library's own layers
    ("RoBERTa base", "ml.p5en.48xlarge", 1, TUNED, ""),  # two of its positions are reserved
    ("RoBERTa base", "ml.p5en.48xlarge", 1, PAIRS | {"sequence_length": 512}, "preferences with TRL"),
    ("Llama 3.1 8B", "ml.p5en.48xlarge", 1, PAIRS, ""),
    ("Llama 3.2 1B", "ml.p4d.24xlarge", 2, PAIRS | LORA | SHARDED, ""),
    ("Llama 3.1 8B", "ml.p4d.24xlarge", 2, PAIRS | {"library": "smp-v2"}, "preferences with DDP or FSDP"),
    ("Llama 3.1 8B", "ml.g5.12xlarge", 2, {"adapter": smpa.Adapter(base_bits=8)} | SHARDED, "a base of 8 bits"),
    ("Llama 3.1 8B", "ml.p5.48xlarge", 1, TUNED | {"optimizer": "adam-8bit"}, ""),
    (
        "GPT-2 XL",
        "ml.p5.48xlarge",
        1,
        TRAINED | {"optimizer": "adam-8bit", "library": "ddp", "sequence_length": 1024},
        "",
    ),
)
"""Requests whose plans the export refused, and what their refusal says; empty where the plan is exported."""


def refusal(model, machine, nodes, settings):
    """What `advise` refuses; empty where its plan is exported."""
    try:
        advice = smpa.advise(model, machine, instance_count=nodes, **settings)
    except AdvisorError as error:
        return str(error)
    assert advice.job.training != "dpo" or advice.plan.batch_size % 2 == 0
    assert advice.cell(data={"train": "s3://data/rows", "model": "s3://data/model"} if advice.job.tunes else None)
    assert advice.script_cell()
    return ""


def test_an_advised_plan_is_exported_or_there_is_no_advice():
    for *request, reason in FOUND:
        said = refusal(*request)
        assert reason in said if reason else not said, request
    advice = smpa.advise("350M", "ml.p4d.24xlarge")
    with pytest.raises(AdvisorError, match="not with SMP v2"):
        advice.change(training="dpo", library="smp-v2")
    assert advice.script_cell()


def test_an_optimizer_that_a_chosen_version_lacks_is_a_warning():
    for version, lacks in (("2.8.0", True), ("2.13.0", False)):
        advice = smpa.advise("1B", "ml.p4d.24xlarge", library="fsdp", version=version, optimizer="adam-8bit")
        assert any("images of PyTorch 2.11 or later" in warning for warning in advice.warnings) is lacks


@pytest.mark.slow
def test_seeded_requests_of_named_models_are_exported_or_refused():
    listed = model_names()
    draw = random.Random(48)
    said = [
        refusal(
            draw.choice(listed),
            draw.choice(MACHINES),
            draw.choice((1, 4, 16)),
            draw.choice((TRAINED, TUNED, LORA, PAIRS)),
        )
        for _ in range(6)
    ]
    assert "" in said
