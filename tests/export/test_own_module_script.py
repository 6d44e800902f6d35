"""The training loop that is exported for a module of the user's."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from smp_advisor.cluster import Cluster
from smp_advisor.export import script_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model
from tests.ports import free_port

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


@pytest.mark.parametrize(
    "plan",
    [
        Plan(library="ddp", precision="bf16", batch_size=8, gradient_accumulation_steps=2),
        Plan(library="fsdp", precision="bf16", batch_size=8, activation_checkpointing="each"),
        Plan(library="fsdp", precision="bf16", batch_size=8, sharding_strategy="hybrid_shard"),
    ],
    ids=["DDP", "FSDP", "FSDP, hybrid"],
)
def test_the_loop_of_an_unknown_module_trains_once_its_three_places_are_filled_in(plan, tmp_path):
    model = Model.from_shape(layers=1, hidden=64, heads=1, vocab=64, family="gpt2")
    unknown = replace(model, config_json="{}", name="Own")
    job = Job(precision="bf16", gradient_reduction="16-bit")
    name, _, text = script_cell(unknown, Cluster("ml.g5.12xlarge"), job, plan).partition("\n")
    assert "reduce_dtype=torch.float32" not in text, "the plan's gradients are reduced in 16 bits"
    assert name == "%%writefile train.py"
    for place, code in _FILLED.items():
        assert place in text
        text = text.replace(place, code)
    script = tmp_path / "train.py"
    script.write_text(text.replace("num_workers=2", "num_workers=0"))

    def train(steps):
        port = str(free_port())
        options = f"--max_steps {steps} --checkpoint_every 2 --checkpoint_directory {tmp_path}/runs".split()
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), *options],
                env={
                    **os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SM_MODEL_DIR": str(tmp_path / "model"),
                },
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in ("0", "1")
        ]  # fmt: skip
        outputs = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        return {line.split()[1]: line.split()[3] for line in outputs[0][0].splitlines() if line.startswith("step")}

    whole = train(5)
    assert list(whole) == ["1", "2", "3", "4", "5"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["step-4", "step-5"]
    saved = torch.load(tmp_path / "model/model.pt", weights_only=True)
    assert [tuple(values.shape) for values in saved.values()] == [(4, 4), (4,), (1, 4), (1,)]
    if not plan.activation_checkpointing:
        (tmp_path / "runs/step-5/.metadata").unlink()  # the job ended while it saved
        assert train(5) == {"5": whole["5"]}, "the same batch and state"
