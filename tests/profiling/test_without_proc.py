"""Systems without /proc, fork and signals of POSIX: macOS and Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `tests/sandbox/test_portable.py` has the child without forks, `tests/sandbox` its limits.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.release]

HIDDEN = """
import os, pathlib, signal, subprocess, sys
import anywidget, filelock, psutil, torch  # on this system, they need what is hidden below
for name in ("resource", "fcntl"):
    sys.modules[name] = None
if {windows}:
    {{delattr(os, name) for name in ("fork", "waitid", "register_at_fork") if hasattr(os, name)}}
    {{delattr(signal, name) for name in ("SIGUSR1", "SIGRTMIN", "SIGHUP", "SIGCHLD", "SIGPIPE")}}
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path, **options: not str(path).startswith("/proc") and exists(path, **options)
import smp_advisor as smpa
from smp_advisor.sandbox import Limits, run_isolated
"""
RUN = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
batch = {"x": torch.zeros(8, 64)}
lines = []
profile = smpa.profile(Block(), sequence_length=64, inputs=batch, stages=("trace",), on_line=lines.append)
assert profile.parameter_count == 4 * 65 * 64, profile.parameter_count
advice = smpa.advise(profile, "ml.p4d.24xlarge", library="ddp")
assert advice.estimate.fits
assert smpa.check_script("import torch\\n") is not None
job = smpa.advise("1.3B", "ml.p4d.24xlarge", instance_count=2, library="fsdp")
assert not smpa.check_estimator(job.cell()).of("error")
assert job.script_cell() and "#SBATCH" in job.export("slurm")
smpa.save(job.plan, "plan.json")
job.save("advice.json")
assert smpa.load("advice.json").plan == job.plan
widget = smpa.Advisor(job)
widget.set_state({"_request": {"id": "a:1", "settings": {**job.controls.settings, "batch_size": 2}}})
assert job.plan.batch_size == 2
job.calibrate(step_seconds=5.0, accept=True).job.calibration.save("calibration.json")
pathlib.Path("a.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\\n")
assert smpa.watch("a.log").step == 7
try:
    run_isolated("time:sleep", 600, limits=Limits(memory_bytes=5_000_000))
except smpa.errors.ProfileError as error:
    assert "needed more than" in str(error), error
else:
    raise AssertionError("the limit of memory was not kept")
print("done")
"""


@pytest.mark.parametrize("windows", [False, True], ids=["macos", "windows"])
def test_all_but_the_rehearsal_runs_without_proc(windows, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(windows=windows) + RUN],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert run.stdout.endswith("done\n"), run.stdout + run.stderr
