"""The training loop that is exported for a module of the user's."""

from dataclasses import replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import script_cell
from smp_advisor.libraries import Plan
from smp_advisor.rehearsal import rehearse
from smp_advisor.workload import Job, Model
from tests.forked import import_libraries
from tests.rows import rows

pytestmark = pytest.mark.torch

_FILLED = {
    'raise NotImplementedError("TODO: import and return your module, from a file next to this one.")': (
        "return torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(4, 4)])[0], torch.nn.Linear(4, 1))"
    ),
    'raise NotImplementedError(f"TODO: return a data set with a length; the training channel is in {folder}.")': (
        "return torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))"
    ),
    'raise NotImplementedError("TODO: call the module with a batch and return the mean loss of its samples.")': (
        "return torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])"
    ),
}


PLANS = {
    "DDP": Plan(library="ddp", precision="bf16", batch_size=8, gradient_accumulation_steps=2),
    "FSDP": Plan(library="fsdp", precision="bf16", batch_size=8, activation_checkpointing="each"),
    "FSDP, hybrid": Plan(library="fsdp", precision="bf16", batch_size=8, sharding_strategy="hybrid_shard"),
}


def script_of(plan):
    model = Model.from_shape(layers=1, hidden=64, heads=1, vocab=64, family="gpt2")
    unknown = replace(model, config_json="{}", name="Own")
    job = Job(precision="bf16", gradient_reduction="16-bit")
    name, _, text = script_cell(unknown, Cluster("ml.g5.12xlarge"), job, plan).partition("\n")
    assert "reduce_dtype=torch.float32" not in text, "the plan's gradients are reduced in 16 bits"
    assert name == "%%writefile train.py"
    for place, code in _FILLED.items():
        assert place in text
        text = text.replace(place, code)
    return text.replace("num_workers=2", "num_workers=0")


@pytest.mark.slow
@pytest.mark.parametrize("name", rows(PLANS, "DDP", "FSDP"))  # the hybrid one has the parts of both
def test_the_loop_of_an_unknown_module_trains_once_its_three_places_are_filled_in(name):
    """In 16 bits: it saves, resumes with the same batch and state, and its model loads."""
    import_libraries()  # the rehearsal forks this process
    job = {"hyperparameters": {"max_steps": 6, "checkpoint_every": 2}, "checkpoints": True}
    done = rehearse(script_of(PLANS[name]), job, keep_half_precision=True)
    assert (done.findings, done.mark) == ((), "rehearsed: 2 processes, 6 updates, resumed, loads"), done
