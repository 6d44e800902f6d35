"""Models of other families of transformers than the advisor has formulas for: built, wrapped by layer, and trained."""

import json
import runpy
from dataclasses import replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.errors import ExportError
from smp_advisor.export import local_cell
from smp_advisor.export.script import writable
from smp_advisor.export.script_parts import architecture_of, newest_release, patched_release
from smp_advisor.export.template import render
from smp_advisor.libraries import Plan
from smp_advisor.libraries.version import has_plain_head
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import P4D, TASKS, training_script
from tests.rows import rows

JOB = Job(sequence_length=8192, precision="bf16")
PLAN = Plan(library="fsdp", batch_size=2, activation_checkpointing="each")
FAMILIES = (
    *("gemma", "gemma2", "gemma3_text", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "olmo", "olmo2"),
    *("granite", "granitemoe", "cohere", "starcoder2", "stablelm", "glm4", "helium", "smollm3", "gpt_oss"),
    *("deepseek_v3", "gpt_bigcode", "mpt", "mamba2", "granitemoehybrid", "falcon_h1", "albert", "modernbert"),
    *("t5", "t5gemma", "switch_transformers", "umt5", "pegasus"),
)


def model_of(family, **settings):
    """A model of a family: a causal one with another configuration."""
    config = {"model_type": family} | settings
    return replace(TASKS["llama"], family=family, config_json=json.dumps(config))


LLAMA_3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500_000.0}
LLAMA_3 |= {"original_max_position_embeddings": 8192}
NUMERICS = {
    # Name: rotary positions, epsilon, end of text and shares of experts, as published.
    "qwen2.5-7b": ({"rope_theta": 1e6}, 1e-6, 151_643, None),
    "qwen3-30b-a3b": ({"rope_theta": 1e6}, 1e-6, 151_645, True),
    "llama-3.2-1b": (LLAMA_3 | {"factor": 32.0}, 1e-5, 128_001, None),
    "llama-3-8b": ({"rope_theta": 500_000.0}, 1e-5, 128_001, None),
    "phi-4": ({"rope_theta": 250_000.0}, 1e-5, 100_265, None),
    "smollm2-1.7b": ({"rope_theta": 130_000.0}, 1e-5, 0, None),
    "olmo-2-7b": ({"rope_theta": 500_000.0}, 1e-6, 100_257, None),
    "mistral-7b": ({"rope_theta": 10_000.0}, 1e-5, 2, None),
    "llama-2-7b": ({"rope_theta": 10_000.0}, 1e-5, 2, None),
}


@pytest.mark.torch
def test_named_models_train_with_their_published_numerics():
    from transformers import AutoConfig

    for name, (rope, epsilon, end, shares) in NUMERICS.items():
        training = writable(Model.from_name(name), Cluster(P4D, 2), replace(JOB, sequence_length=512), PLAN)
        config = AutoConfig.for_model(training.model.family, **training.configuration)
        assert config.rope_parameters.items() >= rope.items(), name
        assert config.rms_norm_eps == epsilon, name
        assert config.eos_token_id == end, name
        assert getattr(config, "norm_topk_prob", None) is shares, name


@pytest.mark.torch
@pytest.mark.parametrize("family", rows(FAMILIES, share=16))  # dense, experts and state spaces
def test_a_small_model_of_the_family_trains(family, tmp_path):
    """From the usual configuration of the family, as the cell for the user's machine builds it."""
    import torch
    from transformers import AutoConfig

    usual = AutoConfig.for_model(family).to_dict()
    cell = local_cell(model_of(family, **usual), Cluster(P4D, 2), JOB, PLAN)
    script = tmp_path / "train_smp.py"
    script.write_text(cell.split("\n", 1)[1])
    names = runpy.run_path(str(script))
    config = AutoConfig.for_model(names["MODEL_TYPE"], use_cache=False, **names["MODEL"])
    torch.manual_seed(0)
    model = names["build_model"](config).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) < 5e7
    layers = names["layer_classes"](model)
    counts = [sum(type(module) is layer for module in model.modules()) for layer in layers]
    assert all(count % 2 == 0 or count == 1 for count in counts), "one or two of each kind in each stack"
    tokens = torch.randint(config.vocab_size, (2, 64))
    labels = tokens.clone()
    labels[0, :9] = -100
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    loss = model(**batch)["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    if has_plain_head(family):
        # The loss in parts has the same value and gradients.
        gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        model.zero_grad()
        flags = dict.fromkeys(("fp8", "smp", "image_classification", "transformed", "autocast"), False)
        parts = {"torch": torch, "checkpoint": torch.utils.checkpoint.checkpoint}
        exec(render("torch/loss.py.in", **flags | {"chunked_loss": True}), parts)
        parts["compute_loss_in_parts"](model)
        in_parts = model(**batch)["loss"]
        in_parts.backward()
        assert in_parts.item() == pytest.approx(loss.item(), abs=1e-4)
        for name, value in model.named_parameters():
            assert (value.grad is None) == (name not in gradients)
            assert value.grad is None or torch.allclose(value.grad, gradients[name], atol=1e-4)


def test_a_traced_model_of_images_has_its_classes():
    """A trace has no head apart from the blocks."""
    config = {"architectures": ["SwinForImageClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    head = replace(TASKS["vit"].head, kind="none", outputs=0)
    model = replace(model_of("swin", **config), head=head, origin="measured")
    script = training_script(model, Cluster(P4D), JOB, Plan(library="ddp"))
    assert '"num_labels": 3' in script
    with pytest.raises(ExportError, match="has no head"):
        architecture_of(replace(model, config_json='{"model_type": "swin"}'))


def test_the_release_of_transformers_has_the_family():
    llama, gemma, qwen = (architecture_of(model_of(family)) for family in ("llama", "gemma2", "qwen3"))
    assert [newest_release("2.8.0", family) for family in (llama, gemma, qwen)] == ["4.46.3", "4.46.3", "4.57.6"]
    assert newest_release("2.1.0", llama) == patched_release(llama) == "4.37.2"
    with pytest.raises(ExportError, match=r"requires transformers 4\.46\.3, which does not support PyTorch 2\.1\.0"):
        newest_release("2.1.0", gemma)
    with pytest.raises(ExportError, match=r"does not support SMP v1.* script= with your own script\."):
        training_script(model_of("gemma2"), Cluster(P4D, 2), Job(sequence_length=32), Plan(batch_size=4))


def test_rotations_have_the_keys_of_older_releases():
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
    script = training_script(model_of("llama", rope_parameters=rope), Cluster(P4D), JOB, Plan(library="ddp"))
    assert '"rope_theta": 500000.0' in script
    assert '"rope_type": "llama3"' in script
    assert "rope_parameters" not in script


def test_infinity_is_a_number_whether_the_configuration_was_saved_or_is_in_memory():
    for infinity in (float("inf"), {"__float__": "Infinity"}):  # the second as transformers saves it
        model = model_of("llama", time_step_limit=[0.0, infinity])
        assert 'float("inf"),' in training_script(model, Cluster(P4D), JOB, Plan(library="ddp"))
