"""Scripts run as their container would run them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.lib.pretty import pretty

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.local_run import run
from smp_advisor.profiling.local_run.container import prepare
from smp_advisor.sandbox.failure import last_error_in_log

SCRIPT = """
import argparse, os
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--mp_parameters")
arguments = parser.parse_args()
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    dist.init_process_group("gloo")
    total = torch.ones(())
    dist.all_reduce(total)
    print("ranks", int(total))
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
x = torch.randn(32, 4)
for step in range(1000):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
torch.save(model.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt")
"""


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


@pytest.mark.torch
def test_processes_talk_over_gloo_and_stop_after_the_steps_asked_for(write, tmp_path):
    done = run(
        write(SCRIPT), hyperparameters={"lr": 0.1}, parameters={"microbatches": 4, "ddp": True},
        processes=2, steps=5, folder=tmp_path / "run",
    )  # fmt: skip
    assert done.ok, done.error
    assert done.arguments == ("--lr", "0.1", "--mp_parameters", "ddp=True,microbatches=4")
    assert sum("ranks 2" in line for line in done.log) == 2
    assert len(done.losses) == 2 * 4  # of five steps the last ends the script before it prints
    assert done.losses[-1] < done.losses[0]
    assert "not in SageMaker's container" in str(done)
    assert not (tmp_path / "run/opt/ml/model/model.pt").exists()


def test_a_failing_script_names_its_line_and_keeps_its_log(write, tmp_path):
    done = run(write("print('before <script>')\nvalue = {}['<b>lost']\n"), folder=tmp_path / "run")
    assert not done.ok
    assert "train.py:2" in done.error.partition("\n")[0]
    assert "KeyError" in done.error
    assert "before" in (tmp_path / "run/opt/ml/output/failure").read_text()
    assert "<script" not in done.as_html()
    assert "<b>" not in done.as_html()


def test_a_script_that_needs_the_library_is_told_what_would_do(write, tmp_path):
    done = run(write("import smdistributed.modelparallel.torch as smp\n"), folder=tmp_path / "run")
    assert "only in SageMaker's containers" in done.error


def endless(write, tmp_path):
    """The run of a script that does not end, given the time to start that this machine needs, and that time."""
    script = write("import time\nprint('started')\nwhile True:\n    time.sleep(0.01)\n")
    for seconds in (1.5, 10, 60):
        done = run(script, seconds=seconds, folder=tmp_path / f"run-{seconds}")
        if "started" in done.log:
            return done, seconds
    raise AssertionError(f"the script did not start within a minute: {done.error}")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_script_that_does_not_end_is_ended_where_it_is(write, tmp_path, ignored):
    # A shell has what it starts in the background ignore SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        done, seconds = endless(write, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before or signal.getsignal(signal.SIGINT))
    assert f"did not end within {seconds} seconds" in done.error
    assert "train.py:" in done.error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"script": "nowhere.py"}, "does not exist at"),
        ({"processes": 0}, "processes must be"),
        ({"steps": True}, "steps must be"),
        ({"channels": {"train": "/nowhere"}}, "channel 'train'"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(write, settings, message):
    with pytest.raises(ProfileError, match=message) as caught:
        run(**({"script": write("pass")} | settings))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_rank_that_fails_names_its_line(write, tmp_path):
    text = "import os\nprint('began')\nif os.environ['RANK'] == '1':\n    raise KeyError('of one rank')\n"
    done = run(write(text), processes=2, folder=tmp_path / "run")
    assert not done.ok
    assert "train.py:4 (`raise KeyError('of one rank')`)" in done.error


def test_a_whole_run_leaves_its_files_where_the_variables_of_the_container_name(write, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.txt").write_text("42")
    script = """
import os, tempfile
from pathlib import Path

Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"), "weights").write_text("w")
print("x" * 3000)
print("channel", Path(os.environ["SM_CHANNEL_TRAIN"], "rows.txt").read_text())
with tempfile.NamedTemporaryFile(delete=False) as file:
    print("temporary", file.name)
"""
    done = run(write(script), channels={"train": data}, folder=tmp_path / "run")
    assert done.ok, done.error
    assert (tmp_path / "run/opt/ml/model/weights").read_text() == "w"
    assert "channel 42" in done.log
    (temporary,) = (line.split()[1] for line in done.log if line.startswith("temporary"))
    assert not Path(temporary).parent.exists()
    assert not done.notices
    assert pretty(done) == str(done)
    assert len(pretty(done)) < 500


def test_a_path_of_the_container_is_named_with_the_variable_to_use(write, tmp_path):
    path = "/opt/ml/input/data/train-set/rows.txt"
    done = run(write(f"open({path!r})"), folder=tmp_path / "run")
    first, rest = done.error.split("\n", 1)
    assert first.startswith(f"{path} exists only in SageMaker's container")
    assert 'use os.environ["SM_CHANNEL_TRAIN_SET"]' in first
    assert "FileNotFoundError" in rest
    assert done.notices == (first,)
    unrelated = run(write(f"model = {path!r}\n1 / 0"), folder=tmp_path / "other")
    assert "exists only" not in unrelated.error, "the script's own folder is no path of the container"


def test_a_program_that_does_not_answer_is_not_reported_as_missing(monkeypatch, tmp_path, write):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)

    def unanswered(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", unanswered)
    with pytest.raises(ProfileError, match="nvidia-smi did not answer within 120 seconds"):
        run(write("pass"), folder=tmp_path / "run")


def test_a_run_without_a_result_leaves_no_folder(write, tmp_path, monkeypatch):
    def stop(line: str) -> None:
        raise KeyboardInterrupt(line)

    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(KeyboardInterrupt):
        run(write("print('started', flush=True)\n"), on_line=stop)
    with pytest.raises(ProfileError, match="does not exist"):
        run(tmp_path / "missing.py")
    assert not list(folder.iterdir())


HEAD = "Traceback (most recent call last):"
LIBRARY = f'  File "{dataclasses.__file__}", line 433, in _create_fn'


def test_code_that_a_library_made_up_is_not_the_users():
    log = [HEAD, LIBRARY, '  File "<string>", line 0, in <module>', "KeyboardInterrupt"]
    assert last_error_in_log(log) is None
    mine = '  File "/home/me/train.py", line 7, in main'
    assert str(last_error_in_log([HEAD, mine, *log[1:]]).source_line) == "/home/me/train.py:7"
    # A program given as text is the user's.
    error = last_error_in_log([HEAD, '  File "<string>", line 3, in <module>', "KeyError: 1"])
    assert (error.source_line.line, error.exception) == (3, "KeyError: 1")
    assert sys.executable not in str(error.source_line)


# The same job in the real `sagemaker-training` toolkit.
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


def dumped(base: Path) -> dict:
    """Environment recorded by the script, with the container's paths."""
    text = (base / "output" / "data" / "dump.json").read_text()
    recorded = json.loads(text.replace(str(base), "/opt/ml"))
    recorded["environment"]["SM_TRAINING_ENV"] = json.loads(recorded["environment"]["SM_TRAINING_ENV"])
    return recorded


@pytest.mark.slow  # the first time it installs the toolkit
def test_arguments_folder_and_variables_are_the_toolkits(root, tmp_path):
    environment, source = root / ".venv-toolkit", tmp_path / "source"
    subprocess.run([root / "scripts" / "toolkit.sh", environment], check=True)
    (source / "inner").mkdir(parents=True)
    (source / "dump.py").write_text(DUMP)
    (source / "inner" / "helper.py").write_text("")
    settings = {"hyperparameters": HYPERPARAMETERS, "channels": {"train": source, "validation": source}}
    run_here = run("dump.py", source_dir=source, folder=tmp_path / "ours", **settings)
    assert run_here.ok, run_here.error
    job = run_here.variables["TRAINING_JOB_NAME"]
    laid_out = prepare(Path("dump.py"), source_dir=source, folder=tmp_path / "theirs", job_name=job, **settings)
    variables = os.environ | {
        "SAGEMAKER_BASE_DIR": str(laid_out.base),
        "TRAINING_JOB_NAME": job,
        "SM_STUDIO_LOCAL_MODE": "True",  # or it looks for the host algo-1 for a quarter of an hour
        "AWS_DEFAULT_REGION": "us-west-2",
    }
    theirs = subprocess.run(
        [environment / "bin" / "python", "-m", "sagemaker_training.cli.train"],
        env=variables, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stderr[-2000:]
    expected = dumped(laid_out.base)
    expected["environment"].pop("SM_STUDIO_LOCAL_MODE")
    assert dumped(Path(run_here.folder)) == expected
