"""Training scripts of SMP v2, FSDP, DDP, Training Compiler and TensorFlow: formatted, checked, run on processors."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.errors import ExportError
from smp_advisor.export import estimator_cell, local_cell
from smp_advisor.export.script import companions, writable
from smp_advisor.libraries import Plan
from smp_advisor.libraries.version import image
from smp_advisor.review.scripts import check_script
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import P4D, TASKS, WORDS, training_script
from tests.export.reading import formatted, names_of, unformatted
from tests.forked import run_forked

pytestmark = pytest.mark.slow

TWO_NODES, GPT2 = Cluster(P4D, 2), TASKS["gpt2"]

PLANS = {
    f"{library} {precision} {checkpointing}": Plan(
        library=library, precision=precision, activation_checkpointing=checkpointing, batch_size=4
    )
    for library in ("ddp", "fsdp", "smp-v2")
    for precision, checkpointing in (("bf16", False), ("bf16", "each"), ("fp16", "each"), ("fp32", False))
} | {
    "accumulation": Plan(library="ddp", batch_size=4, gradient_accumulation_steps=2),
    "accumulation, sharded": Plan(library="fsdp", batch_size=4, gradient_accumulation_steps=2),
    "compiler": Plan(library="training-compiler", batch_size=4),
    "compiler, Hugging Face": Plan(library="training-compiler", version="1.11.0", precision="fp32", batch_size=4),
    "TensorFlow": Plan(library="smp-v1-tensorflow", partitions=8, microbatches=2, batch_size=4),
    "TensorFlow, replicas": Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=4, horovod=True),
}
DIVIDED = {
    "tensor": Plan(
        library="smp-v2",
        hybrid_shard_degree=8,
        tensor_parallel_degree=2,
        activation_checkpointing="each",
        offload_activations=True,
        batch_size=4,
    ),
    "context, fp8, smddp": Plan(
        library="smp-v2",
        hybrid_shard_degree=8,
        context_parallel_degree=2,
        fp8=True,
        distributed_backend="smddp",
        batch_size=4,
    ),
    "delayed": Plan(library="smp-v2", hybrid_shard_degree=8, delayed_parameter_initialization=True, batch_size=4),
}
SAVING = {
    "chunked loss, operators": (
        Plan(library="fsdp", batch_size=4, activation_checkpointing="operators"),
        {"loss": "chunked", "optimizer_step": "foreach"},
    ),
    "16-bit, every second layer, unsharded gradients": (
        Plan(library="fsdp", batch_size=2, activation_checkpointing="every_2", gradient_accumulation_steps=2),
        {"state_precision": "16-bit", "unsharded_accumulation": True, "optimizer_step": "loop"},
    ),
    "16-bit, chunked loss, replicas": (
        Plan(library="ddp", batch_size=4),
        {"state_precision": "16-bit", "loss": "chunked", "optimizer_step": "fused"},
    ),
    "operators, SMP v2": (Plan(library="smp-v2", batch_size=4, activation_checkpointing="operators"), {}),
}
"""Plans with settings of the job that save memory."""
MIXTRAL = Plan(library="smp-v2", hybrid_shard_degree=8, expert_parallel_degree=2, batch_size=4)


def job(plan):
    return Job(sequence_length=32, precision=plan.precision)


def written():
    """Every script by name: its model, job and plan."""
    for name, plan in PLANS.items():
        yield f"{name}, gpt2", TASKS["gpt2"], job(plan), plan
    for name in ("ddp fp16 each", "smp-v2 bf16 each", "compiler"):
        for family in ("bert", "t5", "vit", "gpt2 classifier"):
            yield f"{name}, {family}", TASKS[family], job(PLANS[name]), PLANS[name]
    for name, plan in DIVIDED.items():
        yield f"{name}, llama", TASKS["llama"], job(plan), plan
    yield "experts, mixtral", TASKS["mixtral"], job(MIXTRAL), MIXTRAL
    for name, (plan, settings) in SAVING.items():
        yield name, TASKS["gpt2"], replace(job(plan), **settings), plan


CASES = {name: parts for name, *parts in written()}


@cache
def script_of(name):
    model, job, plan = CASES[name]
    return training_script(model, TWO_NODES, job, plan)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A folder of all scripts."""
    folder = tmp_path_factory.mktemp("scripts")
    for place, name in enumerate(CASES):
        (folder / f"script_{place}.py").write_text(script_of(name))
    return folder


def test_scripts_are_formatted_as_black_formats(scripts):
    assert unformatted(scripts) == ""


@pytest.mark.parametrize("name", CASES)
def test_the_checker_and_the_python_of_the_container_accept_each_script(name):
    script, plan = script_of(name), CASES[name][2]
    assert [(finding.id, finding.message) for finding in check_script(script, plan)] == []
    version = image(plan.library, plan.version).py_version.removeprefix("py")
    ast.parse(script, feature_version=(int(version[0]), int(version[1:])))


def test_no_script_imports_what_it_does_not_use(scripts):
    answer = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", "--quiet", scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == ""


@pytest.mark.parametrize(
    ("model", "settings", "fields", "sentence"),
    [
        (GPT2, {"loss": "fused"}, {}, "does not implement loss='fused'"),
        (GPT2, {"paged_optimizer": True}, {}, "and the job 'paged adam': set optimizer"),
        (GPT2, {"optimizer_step": "backward"}, {}, "does not implement optimizer_step='backward'"),
        (GPT2, {"separate_embeddings": True}, {}, "does not implement separate_embeddings=True"),
        (
            GPT2,
            {"state_precision": "16-bit", "precision": "fp16"},
            {"precision": "fp16"},
            "with 16-bit states only in bf16",
        ),
        (GPT2, {}, {"version": "2.5.1"}, "requires PyTorch 2.6 or later, and the container has 2.5.1"),
        (TASKS["bert"], {"loss": "chunked"}, {}, "only for language models"),
        (replace(TASKS["llama"], family="granite"), {"loss": "chunked"}, {}, "whose logits are not scaled"),
        (
            replace(TASKS["t5"], family="switch_transformers"),
            {},
            {},
            "FSDP reduces gradients of one type: set library=",
        ),
    ],
)
def test_settings_that_the_script_does_not_implement_are_refused(model, settings, fields, sentence):
    plan = Plan(library="fsdp", batch_size=4, **fields)
    with pytest.raises(ExportError, match=sentence):
        training_script(model, TWO_NODES, replace(Job(sequence_length=32, precision="bf16"), **settings), plan)


def test_a_small_model_on_this_machine_needs_no_settings_that_save_memory():
    job = Job(sequence_length=32, precision="bf16", loss="chunked", state_precision="16-bit")
    for settings in ({}, {"fp8": True}, {"fp8": True, "fp8_weights": True}):
        cell = local_cell(TASKS["gpt2"], TWO_NODES, replace(job, **settings), PLANS["ddp bf16 False"])
        assert "compute_loss_in_parts" not in cell


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "gptj", "falcon", "llama", "mixtral", "bert", "t5", "vit"])
def test_local_cells_hold_a_small_model_of_the_family(family):
    parts = TWO_NODES, Job(sequence_length=32), Plan(batch_size=16)
    cell = local_cell(TASKS[family], *parts)
    first, script = cell.split("\n", 1)
    assert first == "%%smp_local --processes 2 --steps 20 --name train.py"
    assert "smdistributed" not in script
    assert formatted(script) == script
    assert '"batch_size": 2,' in script
    large = local_cell(Model.from_config({"model_type": "llama"} | WORDS), *parts)
    assert '"num_hidden_layers": 2' in large
    assert '"hidden_size": 64' in large


def test_own_scripts_are_rehearsed_as_they_are():
    cell = local_cell(TASKS["gpt2"], TWO_NODES, Job(), Plan(), script='it\'s "mine".py', source_dir="code")
    assert shlex.split(cell) == ["%smp_rehearse", 'code/it\'s "mine".py', "--steps", "20"]


@pytest.mark.parametrize(
    ("model", "plan", "sentence"),
    [
        (TASKS["gpt2"], DIVIDED["tensor"], "SMP v2 does not support the family 'gpt2'"),
        (TASKS["llama"], PLANS["compiler"], "does not support the family 'llama'"),
        (TASKS["bert"], PLANS["TensorFlow"], "next-token prediction with the family 'gpt2', not masked-token"),
        (
            Model.from_parameters(400e9, family="gpt2"),
            Plan(library="fsdp", batch_size=1),
            "too large for the host memory",
        ),
        (
            replace(TASKS["llama"], head=replace(TASKS["llama"].head, tied=True)),
            replace(DIVIDED["tensor"], delayed_parameter_initialization=True),
            "does not delay the initialization of the family 'llama' with a tied head",
        ),
    ],
)
def test_what_no_script_can_be_written_for_is_said_in_a_sentence(model, plan, sentence):
    with pytest.raises(ExportError, match=sentence) as raised:
        estimator_cell(model, TWO_NODES, job(plan), plan)
    assert str(raised.value).endswith("script= with your own script.")


def test_a_divided_script_stops_if_the_job_has_other_parameters(monkeypatch):
    plan = DIVIDED["tensor"]
    script = training_script(TASKS["llama"], TWO_NODES, job(plan), plan)
    check_launch = names_of(script, "WRITTEN_FOR", "check_launch", json=json, os=os)["check_launch"]
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", json.dumps(plan.parameters))
    check_launch(SimpleNamespace(batch_size=4))
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", json.dumps(plan.parameters | {"tensor_parallel_degree": 1}))
    with pytest.raises(SystemExit, match="generated for other parameters"):
        check_launch(SimpleNamespace(batch_size=4))


@pytest.mark.parametrize(
    ("library", "family", "option"),
    [("fsdp", "llama", "broadcast_from_rank0"), ("smp-v2", "olmo", "sync_module_states")],
)
def test_models_too_large_for_every_process_are_built_once(library, family, option):
    config = {"model_type": family, "tie_word_embeddings": False, "hidden_size": 8192, "num_hidden_layers": 64}
    model = Model.from_config(config | {"intermediate_size": 22016, "num_attention_heads": 64, "vocab_size": 32000})
    plan = Plan(library=library, batch_size=1)
    script = training_script(model, Cluster(P4D, 8), Job(sequence_length=32, precision="bf16"), plan)
    assert "    if dist.get_rank() > 0:\n" in script
    assert f"{option}=True" in script
    assert "for buffer in model.buffers():\n        dist.broadcast(buffer, 0)\n" in script
    assert formatted(script) == script


def test_a_tied_head_is_built_once_and_its_memory_is_not_delayed():
    """Memory that is given to each module apart would end the tie, in some of the processes."""
    model = replace(TASKS["llama"], head=replace(TASKS["llama"].head, tied=True))
    untied, tied = (
        training_script(each, TWO_NODES, job(PLANS["accumulation"]), DIVIDED["delayed"])
        for each in (TASKS["llama"], model)
    )
    assert ("init_empty_weights" in untied, "init_empty_weights" in tied) == (True, False)
    assert ".tie_weights()" in tied


@pytest.mark.parametrize(("name", "divides"), [("delayed", "    return model\n"), ("tensor", " = tsm.transform(")])
def test_processes_wait_for_the_weights_that_the_first_one_reads(name, divides):
    """The library distributes them by NCCL, which ends a job whose processes wait for ten minutes."""
    script = training_script(TASKS["llama"], TWO_NODES, job(PLANS["accumulation"]), DIVIDED[name])
    text = script.partition("def build_model(")[2]
    assert text.index("from_pretrained(WEIGHTS") < text.index("dist.barrier(group)") < text.index(divides)
    assert "wrap(build_model(config, checkpoints.group), device)" in script


def test_scripts_of_two_trainers_read_their_own_files_from_one_folder():
    settings = Job(sequence_length=32, precision="bf16", training="fine-tuning")
    first, second = (
        companions(writable(TASKS["llama"], TWO_NODES, settings, Plan(library="fsdp", batch_size=1), trainer=trainer))
        for trainer in ("plain", "trl")
    )
    shared = first.keys() & second.keys()
    assert shared == {"rows.py"}
    assert first["rows.py"] == second["rows.py"]


@pytest.mark.torch
def test_the_compilers_script_trains_and_its_model_is_the_start_of_another_job(tmp_path):
    """It starts from the weights of the channel `model`, and an epoch of the data is the length of the run."""
    (tmp_path / "script.py").write_text(script_of("compiler, Hugging Face, gpt2"))
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "tokens.npy", np.arange(32 * 13, dtype=np.uint16) % 128)
    environment = {"SM_CHANNEL_TRAIN": str(tmp_path / "data"), "CUDA_VISIBLE_DEVICES": ""}
    printed = []
    for start, place in ((None, "first"), ("first", "second")):
        (tmp_path / place).mkdir()
        own = {"SM_MODEL_DIR": str(tmp_path / place)} | ({"SM_CHANNEL_MODEL": str(tmp_path / start)} if start else {})
        options = ["--log_every", "1", "--learning_rate", "0.01", "--warmup_steps", "0"]
        output = run_forked(tmp_path / "script.py", *options, cwd=tmp_path, environment=environment | own)
        assert json.loads((tmp_path / place / "summary.json").read_text())["steps"] == 4
        printed.append([float(loss) for loss in re.findall(r"^step \S+ loss (\S+)", output, re.MULTILINE)])
    assert printed[1][0] < printed[0][0], "the second job continues with the weights of the first"
