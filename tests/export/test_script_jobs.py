"""The generated PyTorch scripts as jobs of 1 and 2 processes: train, save, resume, and load the model.

The first job of a case trains for six steps on two processes, and its newest checkpoint then loses a file. The second
job continues from the older one, on one process with the same global batch. Both print the same losses. The model of
the second job is loaded with `from_pretrained`, and generates.

The jobs with faults continue each other: a full disk, a process that ends while it saves.
"""

import json
import re
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
from tests.export.rehearsed import QUICK, loaded_of, losses_of, printed, run_stages, types_of
from tests.rows import rows

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TWO_NODES = Cluster(P4D, 2)
LENGTH, BATCH = 16, 4
HERE = Path(__file__).parent
STAND_INS = {
    "smp-v2": (HERE / "fakes_smp_v2" / "stand_in.py").read_text("utf-8"),
    "ddp": """
import torch
torch.nn.Module.compile = lambda self, *_, **__: print(f"compiled {type(self).__name__}", flush=True)
""",
}
"""Code that each process of a library's jobs runs first."""
FAULTY, LOADED = (HERE.joinpath(name).read_text("utf-8") for name in ("faults.py", "loaded.py"))
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
# A script of each library, parts that do not divide evenly, a model that is built once, and a group of tensor
# parallelism stay in the suite; other models and groups save and load with the same lines.
IN_SUITE = rows(CASES, "DDP, masked", "FSDP2, encoder", "FSDP2, hybrid", "SMP v2, undivided")


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


def run(name, folder):
    """Both jobs of a case."""
    case = CASES[name]
    files, plan = files_of(case)
    files["train.py"] = FAULTY + STAND_INS.get(plan.library, "") + files["train.py"] + LOADED
    again = faults_of({"removed": newest_part(plan)})
    again["environment"]["LOADED"] = json.dumps(batch_of(case.task))
    stages = {"first": steps_of(2), "later": steps_of(case.processes) | {"keeps": True} | again}
    environment = {"SM_HP_MP_PARAMETERS": json.dumps(plan.parameters)}
    return run_stages(files, stages, channels={"train": data_of(case.task, folder)}, environment=environment)


def steps_of(processes, **options):
    """A stage of a number of processes with one global batch."""
    options = {"gradient_accumulation_steps": 2 // processes, "checkpoint_every": 2} | options
    return {
        "world": processes,
        "arguments": [text for key, value in options.items() for text in (f"--{key}", str(value))],
    }


def faults_of(faults):
    return {"environment": {"FAULTS": json.dumps(faults)}}


def data_of(task, folder):
    """A channel with something to learn."""
    if task == "vit":
        np.save(folder / "images.npy", np.ones((400, 3, 16, 16), dtype=np.float32))
    else:
        counted = (np.arange(LENGTH) + np.arange(400)[:, None]) % 8
        np.save(folder / "tokens.npy", counted.astype(np.uint16).ravel())
    if task in ("vit", "gpt2 classifier"):
        np.save(folder / "labels.npy", np.zeros(400, dtype=np.int64))
    return folder


def batch_of(task):
    """A batch of these data, as the model takes it."""
    labels = {"labels": [0, 0, 0, 0]}
    if task == "vit":
        return {"pixel_values": np.ones((4, 3, 16, 16)).tolist()} | labels
    tokens = [[(first + place) % 8 for place in range(LENGTH)] for first in range(4)]
    return {"input_ids": tokens} | (labels if "classifier" in task else {"labels": tokens})


def newest_part(plan):
    """A file of the newest checkpoint."""
    return f"step-{STEPS}/{'tp0_ep0/' if plan.library == 'smp-v2' else ''}__0_0.distcp"


@pytest.mark.parametrize("name", IN_SUITE)
def test_a_job_trains_saves_and_is_resumed_on_another_number_of_processes(name, tmp_path):
    """From the newest complete checkpoint, with the losses of the first job; the model that it leaves is loaded."""
    case, stages = CASES[name], run(name, tmp_path)
    first, later = losses_of(stages["first"]), losses_of(stages["later"])
    assert list(first) == [1, 2, 3, 4, 5, 6]
    assert first[6] < first[1]
    assert {path.partition("/")[0] for path, _ in stages["first"]["checkpoints"]} == {"step-4", "step-6"}
    assert "checkpoint step-6 lacks files" in printed(stages["later"])
    assert later == pytest.approx({step: first[step] for step in (5, 6)}, abs=case.tolerance)
    assert [(entry["error"], entry["missing"]) for entry in stages["later"]["loaded"] if "missing" in entry] == [
        ("", 0)
    ]
    loaded = loaded_of(stages["later"])
    assert loaded["losses"][0] < first[1], "the weights are those that were trained"
    assert loaded["losses"][2] < loaded["losses"][0]
    assert bool(loaded["generated"]) is (case.task not in ("bert", "vit", "gpt2 classifier"))
    blocks = printed(stages["first"]).count("compiled GPT2Block")
    assert blocks == (json.loads(TASKS[case.task].config_json)["n_layer"] if name == "DDP" else 0)
    _, plan = files_of(case)
    if plan.library == "fsdp":  # gradients are reduced in the type that the estimate counts
        job = Job(sequence_length=LENGTH, precision=plan.precision, **case.job)
        (kind,) = types_of(stages["first"])
        assert kind == ("bfloat16" if name in ("FSDP2, encoder", "FSDP2, built once, 16-bit states") else "float32")
        assert layout_of_plan(plan, job, TWO_NODES).state_bytes.reduced_bytes == {"float32": 4, "bfloat16": 2}[kind]
    if name == "SMP v2":
        text = printed(stages["first"])
        assert text.index("library initialized") < text.index("model transformed") < text.index("step 1/")


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


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.release)])  # as `FSDP2` resumes
def test_jobs_continue_after_a_full_disk_a_kill_during_a_save_and_on_nodes_without_a_shared_disk(tmp_path, shared):
    """Each node saves its part and the mark, and has the parts of all after SageMaker's download from S3."""
    files, _ = files_of(Resumed("gpt_neox", {"library": "fsdp"}))
    ten = {"max_steps": 10, "gradient_accumulation_steps": 1}
    eight, own = ten | {"max_steps": 8}, {"checkpoint_directory": "checkpoints"}
    stages = {
        "disk full": steps_of(2, **ten) | faults_of({"full": ["step-6"]}),
        "killed": steps_of(2, **ten) | faults_of({"killed": "step-8"}) | {"keeps": True},
        "continued": steps_of(1, **eight) | {"keeps": True},
    }
    of_nodes = {
        "two nodes": steps_of(2, **ten | own | {"max_steps": 6}) | faults_of({"nodes": True}) | {"nodes": 2},
        "one node": steps_of(1, **eight | own) | faults_of({"merged": True}) | {"keeps": True},
    }
    jobs = run_stages(
        {**files, "train.py": FAULTY + files["train.py"]},
        stages if shared else of_nodes,
        channels={"train": data_of("gpt_neox", tmp_path)},
    )
    texts = {name: "\n".join(line for rank in job["ranks"] for line in rank["log"]) for name, job in jobs.items()}
    last = "continued" if shared else "one node"
    assert "resumed from step 6" in texts[last]
    assert list(losses_of(jobs[last])) == [7, 8]
    if shared:
        assert "No space left on device" in texts["disk full"]
        assert jobs["killed"]["failed"]
        assert any(path.startswith("step-4/") for path, _ in jobs["disk full"]["checkpoints"])
    else:
        assert len(losses_of(jobs["two nodes"])) == 6
        assert "lacks files" not in texts["two nodes"]
