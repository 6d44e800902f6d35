"""Whatever a model does while it is profiled, the notebook's kernel goes on as before."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from .kernel import running_kernel

pytestmark = pytest.mark.torch

SETUP = """
%load_ext smp_advisor
import ctypes, os, sys, time, torch, torch._dynamo
from torch import nn

harm = None

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        print("forward began", flush=True)
        if harm is not None:
            harm()
        return self.head(self.table(tokens))

model = Model()
model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
"""
UNTOUCHED = (
    "all(torch.equal(p, old) and torch.equal(p.grad, grad) for p, (old, grad) in zip(model.parameters(), before))"
    " and os.getpid()"
)
PROFILE = "profile = %smp_profile model --stage copy --precision fp32 --sequence-length 8"


@pytest.fixture(scope="module")
def kernel(root, tmp_path_factory):
    with running_kernel(root, tmp_path_factory.mktemp("kernel")) as running:
        assert running.run(SETUP).status == "ok"
        yield running


def survives(kernel, pid: int) -> None:
    assert kernel.children() == []
    assert kernel.value(UNTOUCHED) == str(pid)


# Upon this signal a child writes where it is.
LATE = """
def harm():
    from signal import SIG_BLOCK, SIG_UNBLOCK, SIGUSR1, pthread_sigmask, sigpending
    pthread_sigmask(SIG_BLOCK, [SIGUSR1])
    while SIGUSR1 not in sigpending():
        print('flood' * 100)
    time.sleep(1)
    pthread_sigmask(SIG_UNBLOCK, [SIGUSR1])
    time.sleep(60)
"""
HARMS = {
    "out of memory": (
        "def harm():\n    held = []\n    while True:\n        held.append(b'x' * 2**24)",
        "--memory 0.5",
        ["line 4 of cell [", "more than the 0.5 GiB"],
    ),
    "one large tensor": (
        "def harm():\n    return torch.empty(2**40)",
        "--memory 0.5",
        ["line 2 of cell [", "more than the 0.5 GiB"],
    ),
    "segfault": ("def harm():\n    ctypes.string_at(0)", "", ["SIGSEGV", "line 2 of cell ["]),
    "killed": (
        "def harm():\n    os.kill(os.getpid(), 9)",
        "",
        ["killed (SIGKILL), probably by", "memory_bytes"],
    ),
    "abort": ("def harm():\n    os.abort()", "", ["SIGABRT", "line 2 of cell ["]),
    "sys.exit": ("def harm():\n    sys.exit(3)", "", ["sys.exit(3)", "line 2 of cell ["]),
    "os._exit": ("def harm():\n    os._exit(4)", "", ["status 4"]),
    "fork bomb": (
        "def harm():\n    for _ in range(7):\n        os.fork()\n    time.sleep(60)",
        "",
        ["more than 64 processes", "of cell ["],
    ),
    "output flood": (
        "def harm():\n    while True:\n        print('flood' * 100)",
        "",
        ["more than 16 MiB of output", "line 3 of cell ["],
    ),
    "flood without a line's end": (
        "def harm():\n    while True:\n        print('flood' * 100, end='')",
        "",
        ["16 MiB"],
    ),
    "a signal that comes late, as on a busy machine": (LATE, "", ["more than 16 MiB of output", "of cell ["]),
    "error": (
        "def harm():\n    raise RuntimeError('broken <b>')",
        "",
        ["RuntimeError: broken <b>", "line 2 of cell ["],
    ),
    "process that goes on": (
        "def harm():\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n    raise KeyError('gone')",
        "",
        ["KeyError"],
    ),
}


@pytest.mark.parametrize("name", HARMS)
def test_kernel_survives(kernel, name):
    code, options, parts = HARMS[name]
    pid = int(kernel.value("os.getpid()"))
    kernel.run(code)
    cell = kernel.run(f"{PROFILE} {options}")
    assert "UsageError: The scaled copy of Model " in cell.printed
    for part in parts:
        assert part in cell.printed
    assert "Traceback" not in cell.printed
    assert "forward began" in cell.text  # the live log, up to where it ended
    assert not any("<b>" in bundle.get("text/html", "") for bundle in cell.shown)
    survives(kernel, pid)


def test_kernel_survives_an_endless_loop(kernel):
    pid = int(kernel.value("os.getpid()"))
    kernel.run("def harm():\n    while True:\n        pass")
    for seconds in (3, 20, 100):  # until the child gets as far as the loop
        cell = kernel.run(f"{PROFILE} --seconds {seconds}")
        if "forward began" in cell.text:
            break
    assert "UsageError: The scaled copy of Model was stopped at line" in cell.printed
    assert "of cell [" in cell.printed
    assert f"did not end within {seconds} seconds" in cell.printed
    survives(kernel, pid)


def test_interrupt_ends_the_child(kernel):
    pid = int(kernel.value("os.getpid()"))
    kernel.run("def harm():\n    time.sleep(600)")
    cell = kernel.run(PROFILE, interrupt_at="forward began")
    assert "interrupted; all its processes have ended" in cell.printed
    survives(kernel, pid)


def test_a_model_that_does_no_harm_trains_and_stays_as_it_was(kernel):
    pid = int(kernel.value("os.getpid()"))
    kernel.run("harm = None")
    cell = kernel.run(f"{PROFILE}\nprofile.scaled")
    assert cell.status == "ok", cell.text
    assert "A copy of Model" in cell.shown[-1]["text/html"]
    assert kernel.value("profile.scaled.finite and not profile.scaled.without_gradient") == "True"
    survives(kernel, pid)


def test_the_sdk_is_not_imported_and_a_script_runs_from_its_cell(kernel):
    cell = kernel.run("%%smp_local --processes 2\nimport os\nprint('rank', os.environ['RANK'], 'loss 0.5')")
    assert cell.status == "ok", cell.text
    assert "rank 1 loss 0.5" in cell.text
    assert "SM_MODEL_DIR" in cell.shown[-1]["text/html"]
    assert kernel.value("'sagemaker' in sys.modules") == "False"


def test_a_kernel_that_is_killed_leaves_nothing_behind(root, tmp_path):
    with running_kernel(root, tmp_path) as kernel:
        kernel.run("from smp_advisor.profiling.sandbox import run_isolated\nimport os, time")
        kernel.run("def work():\n    print('began', flush=True)\n    os.fork()\n    time.sleep(600)")
        kernel.client.execute("run_isolated(work)")
        until = time.monotonic() + 140
        while len(children := kernel.children()) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(children) == 3  # a supervisor, its child and that one's own
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        until = time.monotonic() + 140
        while any(map(is_running, children)) and time.monotonic() < until:
            time.sleep(0.05)
        assert [pid for pid in children if is_running(pid)] == []


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended may wait for long until whoever has it now collects it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
