"""Systems without /proc, fork and signals of POSIX: macOS and Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HIDDEN = """
import os, pathlib, signal, subprocess, sys
import psutil, torch  # on this system, they need what is hidden below
for name in ("resource", "fcntl"):
    sys.modules[name] = None
if {windows}:
    {{delattr(os, name) for name in ("fork", "waitid", "register_at_fork") if hasattr(os, name)}}
    {{delattr(signal, name) for name in ("SIGUSR1", "SIGRTMIN", "SIGHUP", "SIGCHLD", "SIGPIPE")}}
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path, **options: not str(path).startswith("/proc") and exists(path, **options)
import smp_advisor as smpa
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
try:
    smpa.profile(Block(), sequence_length=64, inputs=batch, stages=("trace",), memory_bytes=10_000_000)
except smpa.errors.ProfileError as error:
    assert "needed more than" in str(error), error
else:
    raise AssertionError("the limit of memory was not kept")
print("done")
"""


@pytest.mark.parametrize("windows", [False, True], ids=["macos", "windows"])
def test_a_module_is_traced_without_proc(windows):
    run = subprocess.run(
        [sys.executable, "-c", HIDDEN.format(windows=windows) + RUN],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.stdout.endswith("done\n"), run.stdout + run.stderr
