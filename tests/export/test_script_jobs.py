"""The generated PyTorch scripts as jobs of 1 and 2 processes over gloo: train, save, resume, and load the model.

The first job of a case trains for six steps on two processes, and its newest checkpoint then loses a file. The second
job continues from the older one, on one process with the same global batch. Both print the same losses. The model of
the second job is loaded with `from_pretrained` and trained further.

The jobs with faults continue each other: a full disk, a process that ends while it saves.
"""

import json
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.export.script import companions, writable, written
from smp_advisor.libraries import Plan
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, TASKS
from tests.export.gloo_jobs import QUICK, losses_of, run_jobs, spec

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TWO_NODES = Cluster(P4D, 2)
LENGTH, BATCH = 16, 4
STAND_INS = {
    "smp-v2": Path(__file__).parent / "fakes_smp_v2" / "stand_in.py",
    "ddp": Path(__file__).with_name("compiled.py"),
    "fsdp": Path(__file__).with_name("reductions.py"),
}
STEPS = QUICK["max_steps"]
NO_DROPOUT = {
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout_rate"), 0.0),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
}


@dataclass(frozen=True)
class Resumed:
    """A plan whose jobs save and resume."""

    task: str
    plan: dict[str, Any]
    job: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    """Of the second job."""
    small_host: bool = False
    """Whether the host memory is sufficient for one copy of the model only."""
    tolerance: float = 1e-3
    """Of the losses after resuming."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Of the configuration."""


CASES = {
    "DDP": Resumed(
        "gpt2 classifier", {"library": "ddp", "activation_checkpointing": "each"}, {"stack": "torch-compile"}
    ),
    # Which tokens are masked depends on the batch of a process.
    "DDP, masked": Resumed("bert", {"library": "ddp"}, tolerance=0.1),
    "FSDP2, encoder": Resumed(
        "t5",
        {"library": "fsdp", "precision": "bf16", "activation_checkpointing": "each"},
        {"gradient_reduction": "16-bit"},
        tolerance=0.05,
    ),
    # The experts of a layer are one weight, whose first dimension does not divide by two processes.
    "FSDP2": Resumed(
        "mixtral", {"library": "fsdp", "precision": "bf16"}, sizes={"num_local_experts": 3}, tolerance=0.05
    ),
    "FSDP2, hybrid": Resumed(
        "gpt2",
        {"library": "fsdp", "version": "2.6.0", "sharding_strategy": "_hybrid_shard_zero2"},
        {"loss": "chunked", "unsharded_accumulation": True, "optimizer_step": "foreach"},
    ),
    "FSDP2, built once, 16-bit states": Resumed(
        "mistral",
        {"library": "fsdp", "precision": "bf16", "activation_checkpointing": "every_2"},
        {"state_precision": "16-bit"},
        small_host=True,
        tolerance=0.05,
    ),
    "SMP v2": Resumed(
        "llama",
        {
            "library": "smp-v2",
            "hybrid_shard_degree": 2,
            "tensor_parallel_degree": 2,
            "sharding_strategy": "full_shard",
            "activation_checkpointing": "each",
        },
        processes=2,
    ),
    "SMP v2, undivided": Resumed("vit", {"library": "smp-v2", "sharding_strategy": "full_shard"}),
}
"""Every way of saving, and a model of every task."""


def files_of(case):
    """Texts of the script and of the files next to it, by name, and the plan."""
    plan = Plan(**{"batch_size": BATCH, "precision": "fp32", **case.plan})
    config = json.loads(TASKS[case.task].config_json) | NO_DROPOUT | case.sizes
    model = replace(TASKS[case.task], config_json=json.dumps(config))
    job = Job(sequence_length=LENGTH, precision=plan.precision, **case.job)
    cluster = TWO_NODES
    if case.small_host:
        cluster = replace(
            cluster, instance=replace(cluster.instance, host_memory_gib=16 * model.parameter_count / 2**30)
        )
    training = writable(model, cluster, job, plan)
    return {"train.py": written(training)} | companions(training), plan


def write(folder, files):
    """Write the source folder of a job; the path of its script."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "train.py"


def batch_of(task):
    """A batch of the data below, as the model takes it."""
    labels = {"labels": [0, 0, 0, 0]}
    if task == "vit":
        return {"pixel_values": np.ones((4, 3, 16, 16)).tolist()} | labels
    tokens = [[(first + place) % 8 for place in range(LENGTH)] for first in range(4)]
    return {"input_ids": tokens} | (labels if "classifier" in task else {"labels": tokens})


FAULTS = {
    "disk full": ({"full": ["step-6"]}, 2, 10),
    "killed": ({"killed": "step-8"}, 2, 10),
    "continued": ({}, 1, 8),
    "two nodes": ({"nodes": True}, 2, 6),
    "one node": ({}, 1, 8),
}
"""Jobs that continue each other: their faults, processes and steps. The last two have a folder of their own."""


def make_specs(folder):
    data = folder / "data"
    data.mkdir()
    counted = (np.arange(LENGTH) + np.arange(400)[:, None]) % 8
    np.save(data / "tokens.npy", counted.astype(np.uint16).ravel())
    labelled = folder / "labelled"
    shutil.copytree(data, labelled)
    np.save(labelled / "labels.npy", np.zeros(400, dtype=np.int64))
    images = folder / "images"
    images.mkdir()
    np.save(images / "images.npy", np.ones((400, 3, 16, 16), dtype=np.float32))
    np.save(images / "labels.npy", np.zeros(400, dtype=np.int64))
    specs = {}
    for name, case in CASES.items():
        files, plan = files_of(case)
        script, place = write(folder / f"{name}, source", files), folder / name
        options = QUICK | {"checkpoint_every": 2, "checkpoint_directory": place / "checkpoints"}
        for later in (False, True):
            processes = case.processes if later else 2
            specs[f"{name}, resumed" if later else name] = spec(
                script,
                place,
                options | {"gradient_accumulation_steps": 2 // processes},
                processes=processes,
                stand_in=STAND_INS.get(plan.library),
                channels={"train": {"vit": images, "gpt2 classifier": labelled}.get(case.task, data)},
                environment={"SM_HP_MP_PARAMETERS": json.dumps(plan.parameters)},
            )
        specs[f"{name}, resumed"] |= {"removed": [newest_part(plan)], "batch": batch_of(case.task)}
    script = write(folder / "faults, source", files_of(Resumed("gpt_neox", {"library": "fsdp"}))[0])
    for name, (faults, processes, steps) in FAULTS.items():
        place = folder / ("nodes" if "node" in name else "faults")
        chosen = {"max_steps": steps, "log_every": 1, "checkpoint_every": 2, "gradient_accumulation_steps": 1}
        chosen |= {"checkpoint_directory": "checkpoints"}
        specs[name] = spec(
            script,
            place,
            chosen,
            processes=processes,
            stand_in=Path(__file__).with_name("faults.py"),
            environment={"SM_MODEL_DIR": str(place / name), "FAULTS": json.dumps(faults)},
            merged=["node-0", "node-1"] if name == "one node" else [],
        )
    return specs


def newest_part(plan):
    """A file of the newest checkpoint."""
    return f"checkpoints/step-{STEPS}/{'tp0_ep0/' if plan.library == 'smp-v2' else ''}__0_0.distcp"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    return run_jobs(folder, make_specs(folder))


@pytest.mark.parametrize("name", CASES)
def test_a_job_trains_and_saves(jobs, name):
    first, losses = jobs[name], losses_of(jobs[name])
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    assert losses[6] < losses[1]
    assert first["checkpoints"] == ["step-4", "step-6"]


@pytest.mark.parametrize("name", CASES)
def test_a_later_job_resumes_from_the_newest_complete_checkpoint(jobs, name):
    """On another number of processes, with the losses of the first job."""
    first, later = losses_of(jobs[name]), losses_of(jobs[f"{name}, resumed"])
    assert "checkpoint step-6 lacks files" in jobs[f"{name}, resumed"]["printed"]
    assert list(later) == [5, 6]
    assert later == pytest.approx({step: first[step] for step in later}, abs=CASES[name].tolerance)


@pytest.mark.parametrize("name", CASES)
def test_the_model_that_a_job_leaves_is_loaded_and_continued(jobs, name):
    later = jobs[f"{name}, resumed"]
    assert later["losses"]["missing"] == []
    losses = later["losses"]["losses"]
    assert losses[0] < losses_of(jobs[name])[1], "the weights are those that were trained"
    assert losses[2] < losses[0]
    answers = CASES[name].task not in ("bert", "vit", "gpt2 classifier")
    assert later["losses"]["generated"] == (4 if answers else None)


def test_blocks_are_compiled(jobs):
    blocks = json.loads(TASKS["gpt2 classifier"].config_json)["n_layer"]
    assert jobs["DDP"]["printed"].count("compiled GPT2Block") == blocks * 2
    assert "compiled" not in jobs["DDP, masked"]["printed"]


def test_gradients_are_reduced_in_the_type_that_the_estimate_counts(jobs):
    types = {name: set(re.findall(r"^reduces torch\.(\w+)$", jobs[name]["printed"], re.MULTILINE)) for name in CASES}
    reduced = {name: {"float32"} for name, case in CASES.items() if case.plan["library"] == "fsdp"}
    for name in ("FSDP2, encoder", "FSDP2, built once, 16-bit states"):
        reduced[name] = {"bfloat16"}
    assert {name: found for name, found in types.items() if found} == reduced
    for name, (kind,) in reduced.items():
        _, plan = files_of(CASES[name])
        job = Job(sequence_length=LENGTH, precision=plan.precision, **CASES[name].job)
        assert layout_of_plan(plan, job, TWO_NODES).state_bytes.reduced_bytes == {"float32": 4, "bfloat16": 2}[kind]


def test_processes_wait_for_one_as_long_as_its_work_takes():
    """NCCL ends a job whose processes wait for ten minutes: the first one draws 70 B values in a quarter of an hour."""
    texts = {name: files_of(case)[0]["train.py"] for name, case in CASES.items()}
    assert not [name for name, text in texts.items() if "dist.barrier()" in text]
    waits = r"\n    # .*\n    dist\.barrier\(group\)\n"
    assert re.search(waits, texts["FSDP2, built once, 16-bit states"])


def test_experts_that_are_one_weight_are_divided_evenly():
    import torch

    text = files_of(CASES["FSDP2"])[0]["train.py"]
    source = re.search(r"def place_experts.*?return None\n", text, re.DOTALL)
    assert source is not None
    assert "functools.partial(place_experts, shards=mesh.size(-1))" in text
    names: dict[str, Any] = {"Shard": int}
    exec(source[0], names)
    dimensions = [
        names["place_experts"](torch.empty(8, *sizes, device="meta"), 16) for sizes in ((32, 6), (6, 32), (7, 5))
    ]
    assert dimensions == [1, 2, None]
    assert names["place_experts"](torch.empty(32, 6, 4, device="meta"), 16) is None
    assert names["place_experts"](torch.empty(8, 32, device="meta"), 16) is None
    assert "shard_placement_fn" not in files_of(CASES["FSDP2, hybrid"])[0]["train.py"]


def test_a_divided_model_is_transformed_before_it_trains(jobs):
    printed = jobs["SMP v2"]["printed"]
    assert printed.index("library initialized") < printed.index("model transformed") < printed.index("step 1/")


def test_jobs_continue_after_a_full_disk_and_after_one_that_was_killed_while_it_saved(jobs):
    full, killed, later = jobs["disk full"], jobs["killed"], jobs["continued"]
    assert "No space left on device" in full["error"]
    assert "step-4" in full["checkpoints"]
    assert "resumed from step 4" in killed["printed"]
    assert killed["error"] is not None
    assert "resumed from step 6" in later["printed"]
    assert list(losses_of(later)) == [7, 8]


def test_nodes_without_a_shared_disk_resume_from_their_common_location(jobs):
    """Each node saves its part and the mark, and has the parts of all after SageMaker's download from S3."""
    first, later = jobs["two nodes"], jobs["one node"]
    assert len(losses_of(first)) == 6
    assert list(losses_of(later)) == [7, 8]
    assert "lacks files" not in first["printed"]
    assert "resumed from step 6" in later["printed"]
    assert later["checkpoints"] == ["step-6", "step-8"], "each node removes its older parts"
