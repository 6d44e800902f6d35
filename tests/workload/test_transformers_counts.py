"""Parameter counts against the models that transformers builds."""

import json
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.workload import Model
from smp_advisor.workload.settings import families
from tests.deferred import Deferred
from tests.rows import rows

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")


def count(class_name, config):
    """Parameters of the model that transformers builds, tied ones once."""
    if config.model_type == "t5":
        config.decoder_start_token_id = 0
    return count_of(class_name, config.__class__, config.to_json_string())


@cache
def count_of(class_name, config_class, values):
    """The same for the values of a configuration: several of them have the same."""
    with torch.device("meta"):
        model = getattr(transformers, class_name)(config_class.from_dict(json.loads(values)))
    return sum(parameter.numel() for parameter in model.parameters())


CONFIGURATIONS = tomllib.loads(Path(__file__).with_name("configurations.toml").read_text("utf-8"))

CLASSES = {"Llama4TextForCausalLM": "Llama4ForCausalLM", "Gemma3TextForCausalLM": "Gemma3ForCausalLM"}


@pytest.mark.parametrize(
    ("prefix", "keywords", "suffix"),
    rows(
        (
            (prefix, given, suffix)
            for prefix, given, suffixes in CONFIGURATIONS["counted"]
            for suffix in suffixes.split()
        ),
        share=4,
    ),
)
def test_object_and_plain_values_count_what_transformers_builds(prefix, keywords, suffix):
    keywords = {name: None if value == "None" else value for name, value in keywords.items()}
    class_name, config_class = CLASSES.get(prefix + suffix, prefix + suffix), getattr(transformers, prefix + "Config")
    if prefix != "GPTNeo":  # which lists the kinds of its layers
        keywords = {config_class.attribute_map.get("num_hidden_layers", "num_hidden_layers"): 5} | keywords
    config = config_class(**keywords)
    config.architectures = [class_name]
    built = count(class_name, config)
    from_object = Model.from_config(config)
    assert from_object.parameter_count == built
    assert not from_object.note
    labels = {"id2label": config.id2label} if "num_labels" in keywords else {}
    plain = Model.from_config({"model_type": config.model_type, "architectures": [class_name]} | keywords | labels)
    assert plain.parameter_count == built
    for model in (from_object, plain):
        assert count(class_name, config_class.from_dict(json.loads(model.config_json))) == built


DECODERS = ["gpt2", "gptj", "gpt_neo", "gpt_neox", "llama", "mistral", "opt", "bloom", "falcon"]
DECODERS += ["qwen2", "qwen3", "gemma", "gemma2", "phi3", "olmo", "olmo2", "olmo3"]


@given(st.data())
def test_shapes_count_what_transformers_builds(data):
    family = data.draw(st.sampled_from([*DECODERS, "mixtral", "bert", "roberta", "t5", "vit"]))
    heads = data.draw(st.sampled_from([1, 2, 4, 6]))
    keywords = {
        "layers": data.draw(st.integers(1, 3)),
        "heads": heads,
        "hidden": heads * 2 * data.draw(st.integers(1, 20)),
    }
    keys = families()[family].shape_keys
    if "vocab" in keys:
        keywords["vocab"] = data.draw(st.integers(20, 300))
    if "ffn" in keys:
        keywords["ffn"] = data.draw(st.integers(1, 200))
    if "kv_heads" in keys:
        keywords["kv_heads"] = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    if "tied" in keys and family != "t5":  # transformers 5 ties T5 whatever its configuration says
        keywords["tied"] = data.draw(st.booleans())
    model = Model.from_shape(family=family, **keywords)
    facts = families()[family]
    config = getattr(transformers, facts.config_class).from_dict(
        json.loads(model.config_json) | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    )
    suffix = {"gpt2": "LMHeadModel", "t5": "ForConditionalGeneration", "vit": "ForImageClassification"}.get(family)
    suffix = suffix or ("ForCausalLM" if "bert" not in family else "ForMaskedLM")
    assert count(facts.config_class.removesuffix("Config") + suffix, config) == model.parameter_count


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.model_type)
def test_defaults_are_those_of_the_configuration_class(family):
    config = getattr(transformers, family.config_class)()
    assert config.model_type == family.model_type
    assert dict(config.attribute_map).items() <= {**family.aliases}.items()
    values = config.to_dict()
    for key, value in family.defaults.items():
        if value is None:
            continue  # derived, which the counts above check
        if key in {"rotary_pct", "partial_rotary_factor"} and key not in values:
            assert value == values["rope_parameters"]["partial_rotary_factor"]
        else:
            assert value == (values[key] if key in values else getattr(config, key)), key
