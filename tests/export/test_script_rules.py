"""Every generated script for SMP v1 keeps the rules of the library; tests/scripts has the checker's findings."""

import ast
from types import SimpleNamespace

import pytest

from tests.export.examples import CASES, TASK_CASES, training_script
from tests.export.reading import names_of

CELLS = CASES | TASK_CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_scripts_keep_the_rules_that_the_checker_does_not_follow(name):
    """The ranks that share samples, the scale of the loss, the type of the model; and the containers' Python."""
    case = CELLS[name]
    text, plan = training_script(*case.parts), case.plan
    ast.parse(text, feature_version=(3, 8))
    group = "rdp" if plan.prescaled_batch else "dp"
    assert f"return smp.{group}_size(), smp.{group}_rank()" in text
    assert '"/tmp' not in text  # another user of this machine may have a file of that name
    assert ("dynamic_loss_scale=True" in text) is plan.fp16
    assert {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}[plan.precision] in text
    if plan.shard_optimizer_state:
        assert "overlapping_allreduce=True, gradient_as_bucket_view=True" in text


@pytest.mark.parametrize(("name", "delayed"), [("60 B", True), ("10 B", False), ("sharded data parallelism", False)])
def test_parameters_get_memory_late_where_host_memory_would_not_hold_them(name, delayed):
    """SMP130: 8 ranks x 60 B x 2 bytes crowd 1152 GiB; the third plan delays by its parameter."""
    case = CASES[name]
    assert ("smp.delay_param_initialization(" in training_script(*case.parts)) is delayed


def test_script_says_where_tensor_parallelism_needs_a_registration():
    case = CASES["10 B"]
    unregistered = TASK_CASES["gpt_neox"].model
    assert "smp.tp_register_with_module" in training_script(unregistered, case.cluster, case.job, case.plan)
    assert "smp.tp_register_with_module" not in training_script(*case.parts)


@pytest.mark.torch
def test_layers_of_the_library_are_checkpointed_by_the_plans_strategy():
    """Tensor-parallel layers are an nn.Sequential called seq_layers, to which the strategy applies."""
    import torch

    checkpointed = []
    smp = SimpleNamespace(
        set_activation_checkpointing=lambda module, **options: checkpointed.append((type(module).__name__, options))
    )
    script = training_script(*CASES["offload"].parts)
    checkpoint = names_of(script, "checkpoint_activations", torch=torch, smp=smp)["checkpoint_activations"]

    class Transformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seq_layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    wrapped = torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"transformer": Transformer()})})
    checkpoint(wrapped, "group_2")
    assert checkpointed == [("Sequential", {"strategy": "group_2"})]
    checkpoint(wrapped, "none")
    assert len(checkpointed) == 1
    with pytest.raises(SystemExit, match="no layers named seq_layers or "):
        checkpoint(torch.nn.Linear(2, 2), "each")
