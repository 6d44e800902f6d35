"""What a script is started with: arguments and variables as the toolkit of version 2 and the driver of version 3."""

from __future__ import annotations

import json

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
    assert (second["RANK"], second["LOCAL_RANK"], second["GROUP_RANK"], second["LOCAL_WORLD_SIZE"]) == (
        "1",
        "0",
        "1",
        "1",
    )
    assert job_of({"hyperparameters": {}, "input_mode": "FastFile"})[0] == Job(is_given=True, input_mode="FastFile")
