"""Our local run and the real `sagemaker-training` toolkit, given the same job."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from smp_advisor.profiling.local_run import run
from smp_advisor.profiling.local_run.container import prepare

DUMP = """
import json, os, sys
kept = {k: v for k, v in os.environ.items() if k.startswith(("SM_", "TRAINING_JOB", "SAGEMAKER_JOB", "CURRENT_HOST"))}
kept["PYTHONPATH"] = os.environ["PYTHONPATH"].split(os.pathsep)[0]
with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/dump.json", "w") as file:
    json.dump({"argv": sys.argv, "cwd": os.getcwd(), "environment": kept}, file)
"""
HYPERPARAMETERS = {
    "epochs": 1, "lr": 0.0005, "note": "hello world", "flag": True, "none": None, "list": [1, 2], "l": 3,
    "dash-key": "x", "quoted": 'a "b" $HOME', "mp_parameters": {"pipeline_parallel_degree": 2, "ddp": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def toolkit(root: Path) -> Path:
    """Python of an environment with the toolkit."""
    environment = root / ".venv-toolkit"
    subprocess.run([root / "scripts" / "toolkit.sh", environment], check=True)
    return environment / "bin" / "python"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "inner").mkdir(parents=True)
    (folder / "dump.py").write_text(DUMP)
    (folder / "inner" / "helper.py").write_text("")
    return folder


def dumped(base: Path) -> dict:
    """Environment recorded by the script, with the container's paths."""
    text = (base / "output" / "data" / "dump.json").read_text()
    recorded = json.loads(text.replace(str(base), "/opt/ml"))
    recorded["environment"]["SM_TRAINING_ENV"] = json.loads(recorded["environment"]["SM_TRAINING_ENV"])
    return recorded


@pytest.mark.slow  # the first time it installs the toolkit
def test_arguments_folder_and_variables_are_the_toolkits(toolkit, source, tmp_path):
    settings = {"hyperparameters": HYPERPARAMETERS, "channels": {"train": source, "validation": source}}
    run_here = run("dump.py", source_dir=source, folder=tmp_path / "ours", **settings)
    assert run_here.ok, run_here.error
    job = run_here.variables["TRAINING_JOB_NAME"]
    laid_out = prepare(Path("dump.py"), source_dir=source, folder=tmp_path / "theirs", job_name=job, **settings)
    environment = os.environ | {
        "SAGEMAKER_BASE_DIR": str(laid_out.base),
        "TRAINING_JOB_NAME": job,
        "SM_STUDIO_LOCAL_MODE": "True",  # or it looks for the host algo-1 for a quarter of an hour
        "AWS_DEFAULT_REGION": "us-west-2",
    }
    theirs = subprocess.run(
        [toolkit, "-m", "sagemaker_training.cli.train"],
        env=environment, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    expected = dumped(laid_out.base)
    expected["environment"].pop("SM_STUDIO_LOCAL_MODE")
    assert dumped(Path(run_here.folder)) == expected
