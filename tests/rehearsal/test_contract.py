"""What a script is started with: arguments and variables as the toolkit of version 2 and the driver of version 3."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from smp_advisor.rehearsal.contract import Job, arguments, make_folders, of_launcher, unexportable, variables
from smp_advisor.rehearsal.jobs import job_of

VALUES = {
    "epochs": 1, "lr": 0.0005, "flag": True, "none": None, "l": 3, "dash-key": "x",
    "mp_parameters": {"pipeline_parallel_degree": 2, "ddp": True}, "sagemaker_region": "here",
}  # fmt: skip


def test_arguments_are_those_of_both_versions():
    second = ["--dash-key", "x", "--epochs", "1", "--flag", "True", "-l", "3", "--lr", "0.0005"]
    second += ["--mp_parameters", "ddp=True,pipeline_parallel_degree=2", "--none", ""]
    assert arguments(VALUES) == second
    third = arguments(VALUES, 3)
    assert third[:8] == ["--epochs", "1", "--lr", "0.0005", "--flag", "true", "--none", "null"]
    assert third[-1] == '{"pipeline_parallel_degree": 2, "ddp": true}'
    assert unexportable({"a.b": 1, "c-d": 2}, 3) == ["a.b"]
    assert unexportable({"a.b": 1}, 2) == []


def test_folders_and_variables_name_the_channels_and_their_mode(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    cell = """
estimator = PyTorch(entry_point="train.py", hyperparameters={"lr": 0.1}, distribution={"torch_distributed": {}})
estimator.fit({"train": TrainingInput("s3://bucket/rows", input_mode="FastFile")})
"""
    job, extra = job_of(cell)
    assert (job.input_mode, job.launches, extra["script"]) == ("FastFile", True, "train.py")
    make_folders(tmp_path / "ml", job, {"train": rows}, 2)
    shown = variables(tmp_path / "ml", job, "train.py", {"train": rows}, host=1, hosts=2, gpus=1)
    assert shown["SM_CHANNEL_TRAIN"] == str(tmp_path / "ml/input/data/train")
    assert json.loads(shown["SM_INPUT_DATA_CONFIG"]) == {"train": {"TrainingInputMode": "FastFile"}}
    assert json.loads(shown["SM_HOSTS"]) == ["algo-1", "algo-2"]
    assert (shown["SM_CURRENT_HOST"], shown["SM_HP_LR"], shown["SM_NUM_GPUS"]) == ("algo-2", "0.1", "1")
    config = tmp_path / "ml/input/config"
    assert json.loads((config / "hyperparameters.json").read_text()) == {"lr": "0.1"}
    assert json.loads((config / "resourceconfig.json").read_text())["current_host"] == "algo-1"
    second = of_launcher(1, 2, 1, 29_500)
    ranks = [second[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")]
    assert ranks == ["1", "0", "1", "1"]
    assert job_of({"hyperparameters": {}, "input_mode": "FastFile"})[0] == Job(is_given=True, input_mode="FastFile")


DUMP = """
import json, os, sys
kept = {k: v for k, v in os.environ.items() if k.startswith(("SM_", "TRAINING_JOB", "CURRENT_HOST"))}
with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/dump.json", "w") as file:
    json.dump([sys.argv[1:], kept], file)
"""


@pytest.mark.slow  # the first time it installs the toolkit
def test_arguments_and_variables_are_those_of_the_real_toolkit(root, tmp_path):
    environment, rows, code = root / ".venv-toolkit", tmp_path / "rows", tmp_path / "ml/code"
    subprocess.run([root / "scripts" / "toolkit.sh", environment], check=True)
    own = {"sagemaker_program": "dump.py", "sagemaker_submit_directory": str(code), "sagemaker_instance_type": "local"}
    values = VALUES | {"quoted": 'a "b" $HOME', "list": [1, 2]} | own
    del values["sagemaker_region"]
    job, channels = Job(hyperparameters=values), {"train": rows, "validation": rows}
    rows.mkdir()
    make_folders(tmp_path / "ml", job, channels, 1)
    code.mkdir(exist_ok=True)
    (code / "dump.py").write_text(DUMP)
    shown = {"SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), "TRAINING_JOB_NAME": "rehearsal",
             "SM_STUDIO_LOCAL_MODE": "True",  # or it looks for the host algo-1 for a quarter of an hour
             "AWS_DEFAULT_REGION": "us-west-2"}  # fmt: skip
    command = [environment / "bin" / "python", "-m", "sagemaker_training.cli.train"]
    done = subprocess.run(command, env=os.environ | shown, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    received, theirs = json.loads((tmp_path / "ml/output/data/dump.json").read_text())
    assert received == arguments(values)
    ours = variables(tmp_path / "ml", job, "dump.py", channels, host=0, hosts=1, gpus=0)
    ours = {name: value for name, value in ours.items() if name.startswith(("SM_", "TRAINING_JOB", "CURRENT_HOST"))}
    texts = [json.loads(values.pop("SM_TRAINING_ENV")) for values in (theirs, ours)]
    assert texts[0] == texts[1]
    machine = {"SM_STUDIO_LOCAL_MODE", "SM_NUM_CPUS"}
    assert {k: v for k, v in theirs.items() if k not in machine} == {k: v for k, v in ours.items() if k not in machine}
