"""Models read from configurations, without transformers."""

import json
import subprocess
import sys

import pytest

from smp_advisor.errors import ModelError
from smp_advisor.workload import Model


@pytest.mark.parametrize("argument", ["file", "path", "folder"])
def test_reads_a_file_or_its_folder(tmp_path, argument):
    folder = tmp_path / "my-model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    model = Model.from_config({"file": str(file), "path": file, "folder": folder}[argument])
    assert model.shape.layers == 3
    assert model.name == "GPT-2 60.6 M"  # never the folder


@pytest.mark.parametrize(
    ("origin", "title"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("gpt2-xl", "gpt2-xl"),
        ("./output/checkpoint-500", "GPT-2 124 M"),
        ("/home/me/run", "GPT-2 124 M"),
        ("output", "GPT-2 124 M"),
        (None, "GPT-2 124 M"),
    ],
)
def test_a_configuration_is_titled_by_its_model(origin, title):
    assert Model.from_config({"model_type": "gpt2", "_name_or_path": origin}).name == title


def test_other_spellings_and_unknown_heads_are_read():
    config = {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    assert "as in the published checkpoints" in Model.from_config(config).note

    model = Model.from_config({"model_type": "gpt2", "hidden_size": 1024, "num_hidden_layers": 3, "n_head": 16})
    assert (model.shape.hidden, model.shape.layers) == (1024, 3)

    model = Model.from_config({"model_type": "gpt2", "architectures": ["GPT2DoubleHeadsModel2"]})
    assert model.head.kind == "language-model"
    assert "GPT2DoubleHeadsModel2" in model.note


def test_configurations_of_images_and_rebuilt_models():
    model = Model.from_config(
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}
    )
    assert model.family == "gemma3_text"
    assert "without the parts for images" in model.note

    config = {
        "model_type": "falcon",
        "auto_map": {"AutoModel": "modeling_falcon.FalconModel"},
        "_name_or_path": "/home/me/falcon",
        "n_layer": 2,
    }
    text = Model.from_config(config).config_json
    values = json.loads(text)
    assert values["num_hidden_layers"] == 2
    assert values["hidden_size"] == 4544
    assert not {"auto_map", "_name_or_path"} & set(values)
    assert text == json.dumps(values, sort_keys=True)
    assert Model.from_config(values).parameter_count == Model.from_config(config).parameter_count


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not a JSON file"),
        ("[1, 2]", "contains no JSON object"),
        ("[" * 100_000, "is not a JSON file"),
        ("{}", "model_type is missing: add one such as"),
        ('{"tokenizer_class": "GPT2Tokenizer"}', "describes a tokenizer; pass the config.json next to it"),
        (
            '{"model_type": "mamba"}',
            "names the model type 'mamba', which has no formulas: pass it to smp_advisor.advise or profile",
        ),
        ('{"model_type": ["gpt2"]}', "supported are gpt2"),
        ('{"model_type": "gpt2", "n_layer": -1}', "n_layer must be a whole number of at least 1, not -1"),
        ('{"model_type": "gpt2", "n_embd": 768.5}', "n_embd must be a whole number"),
        ('{"model_type": "gpt2", "n_embd": true}', "n_embd must be a whole number"),
        ('{"model_type": "gpt2", "n_embd": 1e30}', "n_embd must be a whole number"),
        ('{"model_type": "gpt2", "n_head": 5}', "the hidden size 768 must be a multiple of the 5 attention heads"),
        ('{"model_type": "gpt2", "resid_pdrop": NaN}', "resid_pdrop must be between 0 and 1"),
        ('{"model_type": "gpt2", "note": NaN}', "cannot be written as JSON"),
        ('{"model_type": "gpt2", "activation_function": "gleu"}', "function 'gleu'; supported are gelu"),
        ('{"model_type": "gpt2", "tie_word_embeddings": 1}', "tie_word_embeddings must be true or false"),
        ('{"model_type": "gpt2", "add_cross_attention": true}', "add_cross_attention must be false"),
        ('{"model_type": "llama", "num_key_value_heads": 5}', r"num_key_value_heads \(5\) must divide the 32"),
        ('{"model_type": "mixtral", "num_experts_per_tok": 9}', "must be at most the 8 experts"),
        ('{"model_type": "gpt_neo", "num_layers": 3}', "attention_types must describe each of the 3 layers"),
        ('{"model_type": "gpt_neo", "attention_types": 3}', "attention_types must describe"),
        ('{"model_type": "t5", "feed_forward_proj": "double-relu"}', "such as 'relu' or 'gated-gelu'"),
        ('{"model_type": "t5", "feed_forward_proj": "gated-gleu"}', "Unknown activation function 'gleu'"),
        ('{"model_type": "vit", "patch_size": 500}', "patch_size must be at most image_size"),
        ('{"model_type": "vit", "image_size": [1, 2, 3]}', "image_size must be a whole number or a pair"),
    ],
)
def test_what_is_no_model_configuration_is_refused_in_one_sentence(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        Model.from_config(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("gpt2", "the name of a published model"),
        (b"gpt2", "not bytes"),
        ([], "not list"),
        (None, "not NoneType"),
        ("a\0b", "cannot be read"),
        ({"model_type": "gpt2", "odd": object()}, "cannot be written as JSON"),
    ],
)
def test_anything_else_is_refused_with_a_remedy(tmp_path, monkeypatch, config, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        Model.from_config(config)


def test_a_file_that_is_no_text_or_far_too_large_is_refused(tmp_path):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"\x80\x02\x8a")
    with pytest.raises(ModelError, match="cannot be read"):
        Model.from_config(file)
    with file.open("wb") as handle:
        handle.truncate(2**30)
    with pytest.raises(ModelError, match="it is larger than"):
        Model.from_config(file)


def test_reading_a_model_imports_nothing_heavy():
    program = (
        "import sys; from smp_advisor.workload import Model; Model.from_config({'model_type': 'llama'}); "
        "Model.from_parameters('10B'); "
        "print(sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
