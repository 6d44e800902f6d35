"""Jobs for other launchers: valid by their own schemas, with the estimator's arguments, safe with any text."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from smp_advisor import advise
from smp_advisor.cluster import Cluster
from smp_advisor.errors import ExportError
from smp_advisor.export import FORMATS, exported, format_cell
from smp_advisor.export.script_parts import describe, library_name
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model
from tests.deferred import Deferred

jsonschema = Deferred("jsonschema")

SCHEMAS = Path(__file__).parent / "schemas"
PYTORCH_JOB = json.loads((SCHEMAS / "pytorchjob.json").read_text("utf-8"))
SBATCH = {
    # Options of sbatch that scripts may set: https://slurm.schedmd.com/sbatch.html, 2026-11-22.
    *("account", "array", "chdir", "comment", "constraint", "container", "cpus-per-gpu", "cpus-per-task", "dependency"),
    *("error", "exclude", "exclusive", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "hold", "input"),
    *("job-name", "mail-type", "mail-user", "mem", "mem-per-gpu", "nodelist", "nodes", "no-requeue", "ntasks"),
    *("ntasks-per-node", "open-mode", "output", "partition", "qos", "requeue", "reservation", "signal", "time", "wait"),
}
IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
MODEL = Model.from_shape(layers=16, hidden=2048, heads=16, kv_heads=8, vocab=128_256, family="llama")
JOB = Job(sequence_length=2048, tokens=1e9)
TWO, ONE = Cluster("ml.p4d.24xlarge", 2), Cluster("ml.p4d.24xlarge", 1)
OWN = Cluster.custom(
    name="lab\ntouch pwned",
    gpu="H100 80GB",
    usable_gpu_memory_gib=79.1,
    peak_tflops=989,
    gpus_per_node=8,
    nodes=4,
    intra_node_gb_per_s=900,
    inter_node_gbps=400,
    efa=False,
)
FSDP = Plan(library="fsdp", batch_size=2, activation_checkpointing="each")
SMP = Plan(library="smp-v2", hybrid_shard_degree=8)
HOSTILE = "'; touch pwned #\" $(touch pwned) `touch pwned` $HOME\n- x: {{ y }} !!python/object:os é"


def job_for(format, plan=FSDP, cluster=TWO, **options):  # noqa: A002
    image = {"image_uri": IMAGE} if format == "kubernetes" else {}
    return exported(MODEL, cluster, JOB, plan, format=format, **image, **options)


def manifests(text):
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("cluster", [ONE, TWO], ids=["one node", "two nodes"])
@pytest.mark.parametrize("script", [None, "/fsx/code/train.py"])
def test_a_kubernetes_job_is_valid_by_the_schema_of_its_kind(cluster, script):
    *config, job = manifests(job_for("kubernetes", cluster=cluster, script=script, data="/fsx/data"))
    jsonschema.validate(job, PYTORCH_JOB)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == cluster.nodes
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in replica["template"]["spec"]["volumes"]}
        assert {"name": "SM_CHANNEL_TRAIN", "value": "/fsx/data"} in container["env"]
    assert bool(config) == (script is None)
    if config:
        (name,) = (name for name in config[0]["data"] if name.startswith("train_"))
        compile(config[0]["data"][name], name, "exec")
        assert len(json.dumps(config[0])) < 2**20


@pytest.mark.parametrize("cluster", [ONE, TWO], ids=["one node", "two nodes"])
def test_a_slurm_job_has_options_of_sbatch_and_is_valid_bash(cluster):
    text = job_for("slurm", cluster=cluster, partition="gpu", time_limit_hours=7)
    lines = text.splitlines()
    assert lines[0].startswith("#!")
    directives = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines if line.startswith("#SBATCH")
    )
    assert set(directives) <= SBATCH
    assert (directives["nodes"], directives["gpus-per-node"]) == (str(cluster.nodes), "8")
    assert (directives["time"], directives["partition"]) == ("7:00:00", "gpu")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert f"# {describe(FSDP)}, {library_name(FSDP)}" in lines
    assert any(line.startswith(f"# {cluster.nodes} x ml.p4d.24xlarge ({cluster.gpus} GPUs, ") for line in lines)


def run_bash(text, folder, environment=None):
    """Run a script with programs that only write down their arguments."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("torchrun", "python"):
        program = programs / name
        program.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >>{folder}/{name}.arguments\n")
        program.chmod(0o755)
    (programs / "srun").write_text('#!/bin/bash\n"$@"\n')
    (programs / "scontrol").write_text("#!/bin/bash\necho node-1\necho node-2\n")
    for name in ("srun", "scontrol"):
        (programs / name).chmod(0o755)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_ID": "1"}
    subprocess.run(["bash"], input=text, text=True, check=True, cwd=folder, env=variables | (environment or {}))
    return (folder / "torchrun.arguments").read_text("utf-8").split("\0")[:-1]


def passed(arguments):
    start = next(place for place, part in enumerate(arguments) if part.startswith("--batch_size"))
    return dict(zip(arguments[start::2], arguments[start + 1 :: 2], strict=True))


@pytest.mark.parametrize("format", ["slurm", "kubernetes"])
@pytest.mark.parametrize("text", [HOSTILE, "$$(x)", "%j", "a b", ""])
def test_any_text_arrives_as_it_is(format, text, tmp_path):  # noqa: A002
    shared = tmp_path / "shared dir"
    options = {"extra_hyperparameters": {"note": text, "more": [1, text]}, "shared_directory": str(shared)}
    written = job_for(format, **options, environment={"NOTE": text})
    if format == "kubernetes":
        container = manifests(written)[-1]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
        assert {"name": "NOTE", "value": text.replace("$(", "$$(")} in container["env"]
        command = container["command"][2].replace("$$(", "$(")
        arguments = run_bash(command, tmp_path, {"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    else:
        arguments = run_bash(written, tmp_path)
        assert (shared / "smp-advisor").is_dir()
    settings = passed(arguments)
    assert settings["--note"] == text
    assert json.loads(settings["--more"]) == [1, text]
    assert settings["--sharding_strategy"] == "full_shard"
    assert not list(tmp_path.rglob("pwned"))


TOO_LARGE = Model.from_parameters(70e9, family="gpt2")


def test_a_plan_that_does_not_fit_does_not_start_by_itself(tmp_path):
    parts = TOO_LARGE, ONE, Job(sequence_length=2048), FSDP
    own = {"script": "/fsx/train.py"}
    slurm = exported(*parts, format="slurm", shared_directory=str(tmp_path), **own)
    stopped = subprocess.run(["bash"], input=slurm, text=True, capture_output=True, check=False)
    assert stopped.returncode == 1
    assert "GiB per GPU" in stopped.stderr
    *_, job = manifests(exported(*parts, format="kubernetes", image_uri=IMAGE, **own))
    assert job["spec"]["runPolicy"]["suspend"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"format": "yarn"}, "format must be one of kubernetes, slurm"),
        ({"format": "kubernetes"}, "requires a container image"),
        ({"format": "slurm", "plan": SMP}, "is not documented by AWS"),
        ({"format": "slurm", "spot": True}, "no option 'spot'"),
        ({"format": "slurm", "data": "s3://bucket"}, "data must be an absolute path"),
        ({"format": "slurm", "job_name": "A b"}, "job_name must be text such as 'run-1'"),
        ({"format": "kubernetes", "job_name": "7b-run"}, "job_name must be text such as 'run-1', a letter"),
        ({"format": "slurm", "partition": "a b"}, "partition must be text such as 'gpu'"),
        ({"format": "slurm", "image_uri": "x y"}, "image_uri must be text such as"),
        ({"format": "slurm", "environment": {"a b": "c"}}, "environment must map"),
        ({"format": "slurm", "time_limit_hours": 0}, "time_limit_hours"),
    ],
)
def test_what_a_format_cannot_express_is_refused(arguments, sentence):
    plan, cluster = arguments.pop("plan", FSDP), arguments.pop("cluster", TWO)
    with pytest.raises(ExportError, match=sentence):
        exported(MODEL, cluster, JOB, plan, **arguments)


def test_hardware_of_the_user_gets_jobs_of_its_own_launchers():
    text = job_for("slurm", cluster=OWN)
    assert "#SBATCH --nodes=4\n" in text
    assert "\ntouch pwned" not in text
    for options, selector in (({}, None), ({"node_type": "lab"}, {"node.kubernetes.io/instance-type": "lab"})):
        job = manifests(job_for("kubernetes", cluster=OWN, **options))[-1]
        jsonschema.validate(job, PYTORCH_JOB)
        assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"].get("nodeSelector") == selector


def test_advice_exports_every_format():
    advice = advise("1B", "ml.p4d.24xlarge", instance_count=1, library="ddp", sequence_length=512)
    assert advice.export("slurm").startswith("#!/usr/bin/env bash\n")
    assert format_cell(advice.export("slurm"), "slurm").startswith("%%writefile job.sbatch\n#!")
    assert "kind: PyTorchJob" in advice.export("kubernetes", image_uri=IMAGE)
    assert set(FORMATS) == {"kubernetes", "slurm"}
