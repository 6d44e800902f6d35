"""The training loop that is exported for a module of the user's."""

from dataclasses import replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export import script_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model
from tests.export.gloo_jobs import run_jobs, spec

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


def test_the_loop_of_an_unknown_module_trains_once_its_three_places_are_filled_in(tmp_path):
    import torch

    specs = {}
    for name, plan in PLANS.items():
        place = tmp_path / name
        place.mkdir()
        (place / "train.py").write_text(script_of(plan))
        options = {"max_steps": 5, "checkpoint_every": 2, "checkpoint_directory": place / "checkpoints"}
        specs[name] = spec(place / "train.py", place, options)
        if not plan.activation_checkpointing:  # the job ended while it saved
            specs[f"{name}, again"] = specs[name] | {"removed": ["checkpoints/step-5/.metadata"]}
    jobs = run_jobs(tmp_path, specs)
    assert {name: job["error"] for name, job in jobs.items()} == dict.fromkeys(specs)
    losses = {
        name: dict(line.split()[1:4:2] for line in job["printed"].splitlines() if line.startswith("step"))
        for name, job in jobs.items()
    }
    for name in PLANS:
        assert list(losses[name]) == ["1", "2", "3", "4", "5"]
        assert jobs[name]["checkpoints"] == ["step-4", "step-5"]
        saved = torch.load(tmp_path / name / "model.pt", weights_only=True)
        assert [tuple(values.shape) for values in saved.values()] == [(4, 4), (4,), (1, 4), (1,)]
    for name in ("DDP", "FSDP, hybrid"):
        assert losses[f"{name}, again"] == {"5": losses[name]["5"]}, "the same batch and state"
