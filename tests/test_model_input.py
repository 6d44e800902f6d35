"""Configurations of families without formulas."""

import json
from importlib.machinery import ModuleSpec

import pytest

import smp_advisor as smpa
from smp_advisor.advice import request
from smp_advisor.advice.request import has_formulas, read_model
from smp_advisor.errors import ModelError

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
    monkeypatch.setattr(request, "find_spec", lambda name: None if name == missing else ModuleSpec(name, None))
    with pytest.raises(ModelError, match=rf"'cohere' has no formulas: install {missing} \(pip install {missing}\)"):
        smpa.advise(COHERE, "ml.p4d.24xlarge")


def test_only_configurations_of_other_families_need_a_trace():
    assert not has_formulas(COHERE)
    for model in ("10B", "gpt2-xl", 1e9, {"model_type": "qwen3"}, {"no": "type"}, "nothing/there.json"):
        assert has_formulas(model)
