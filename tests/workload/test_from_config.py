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


def test_a_file_that_is_no_text_or_far_too_large_is_refused(tmp_path):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"\x80\x02\x8a")
    with pytest.raises(ModelError, match=r"pytorch_model.bin.* cannot be read"):
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
