"""Whatever a model does while it is profiled, the notebook's kernel goes on as before."""

import os
import queue
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import pytest
from jupyter_client.manager import KernelManager

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import isolated, run_isolated, supervisor
from smp_advisor.sandbox.limits import Limits
from tests.rows import rows

pytestmark = pytest.mark.torch


@dataclass
class Cell:
    """Result of running a cell."""

    status: str = ""
    error: str = ""
    shown: list[dict] = field(default_factory=list)
    printed: str = ""

    @property
    def text(self) -> str:
        """Everything that a person could read."""
        return "\n".join([self.printed, self.error, *(str(bundle.get("text/plain", "")) for bundle in self.shown)])


class Kernel:
    """Runs cells, one at a time."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=280)

    def run(self, code: str, *, interrupt_at: str = "", timeout: float = 280) -> Cell:
        """Run a cell to its end; with `interrupt_at`, interrupt it once that text is shown."""
        cell = Cell()
        request = self.client.execute(code, store_history=True)
        end = time.monotonic() + timeout
        interrupted = not interrupt_at
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.printed += content["text"]
            elif kind in {"display_data", "update_display_data", "execute_result"}:
                cell.shown.append(content["data"])
            elif kind == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                cell.status = self.client.get_shell_msg(timeout=280)["content"]["status"]
                return cell
            if not interrupted and interrupt_at in cell.text:
                self.manager.interrupt_kernel()
                interrupted = True
        raise TimeoutError(f"the cell did not end:\n{cell.text[-2000:]}")

    def value(self, expression: str) -> str:
        """Printed value of an expression."""
        return self.run(f"print({expression})").printed.strip()

    def children(self) -> list[int]:
        """Processes below the kernel's."""
        below = psutil.Process(self.manager.provisioner.pid).children(recursive=True)
        return [child.pid for child in below if child.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def running_kernel(root, folder):
    """A kernel of this Python with the package of the tree."""
    manager = KernelManager(kernel_name="python3")
    environment = os.environ | {"PYTHONPATH": str(root), "IPYTHONDIR": str(folder)}
    manager.start_kernel(env=environment, cwd=str(folder))
    kernel = Kernel(manager)
    try:
        yield kernel
    finally:
        kernel.client.stop_channels()
        manager.shutdown_kernel(now=True)


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


@pytest.fixture(autouse=True)
def untouched(request):
    """The kernel has no child processes and the same model afterwards."""
    if "kernel" not in request.fixturenames:
        yield
        return
    kernel = request.getfixturevalue("kernel")
    pid = kernel.value("os.getpid()")
    yield
    assert kernel.children() == []
    assert kernel.value(UNTOUCHED) == pid


# Upon these signals a child writes where it is, and ends.
LATE = """
from signal import SIG_BLOCK, SIG_UNBLOCK, SIGRTMIN, SIGUSR1, pthread_sigmask, sigpending
pthread_sigmask(SIG_BLOCK, [SIGUSR1, SIGRTMIN])
while SIGUSR1 not in sigpending():
    print('flood' * 100)
time.sleep(1)
pthread_sigmask(SIG_UNBLOCK, [SIGUSR1, SIGRTMIN])
time.sleep(60)
"""
HALF = "more than the 0.5 GiB"
HARMS = {
    "out of memory": (
        "held = []\nwhile True:\n    held.append(b'x' * 2**24)", "--memory 0.5", ["line 4 of cell [", HALF]
    ),
    "one large tensor": ("return torch.empty(2**40)", "--memory 0.5", ["line 2 of cell [", HALF]),
    "segfault": ("ctypes.string_at(0)", "", ["SIGSEGV", "line 2 of cell ["]),
    "killed": ("os.kill(os.getpid(), 9)", "", ["killed (SIGKILL), probably by", "memory_bytes"]),
    "abort": ("os.abort()", "", ["SIGABRT", "line 2 of cell ["]),
    "sys.exit": ("sys.exit(3)", "", ["sys.exit(3)", "line 2 of cell ["]),
    "os._exit": ("os._exit(4)", "", ["status 4"]),
    "fork bomb": (
        "for _ in range(7):\n    os.fork()\ntime.sleep(60)", "", ["more than 64 processes", "of cell ["]
    ),
    "output flood": (
        "while True:\n    print('flood' * 100)", "", ["more than 16 MiB of output", "line 3 of cell ["]
    ),
    "flood without a line's end": ("while True:\n    print('flood' * 100, end='')", "", ["16 MiB"]),
    "a signal that comes late, as on a busy machine": (LATE, "", ["more than 16 MiB of output", "of cell ["]),
    "error": ("raise RuntimeError('broken <b>')", "", ["RuntimeError: broken <b>", "line 2 of cell ["]),
    "process that goes on": (
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nraise KeyError('gone')", "", ["KeyError"]
    ),
}  # fmt: skip


def harm(kernel, body):
    kernel.run("def harm():\n    " + body.strip().replace("\n", "\n    "))


# Other ends by a signal, by an exit, at the limit of memory and of output.
@pytest.mark.parametrize("name", rows(HARMS, "abort", "sys.exit", "one large tensor", "flood without a line's end"))
def test_kernel_survives(kernel, name):
    body, options, parts = HARMS[name]
    harm(kernel, body)
    cell = kernel.run(f"{PROFILE} {options}")
    assert cell.error.startswith("RefusalError: The scaled copy of Model ")
    for part in parts:
        assert part in cell.error
    assert "Traceback" not in cell.text
    assert "forward began" in cell.text  # the live log, up to where it ended
    assert not any("<b>" in bundle.get("text/html", "") for bundle in cell.shown)


def test_kernel_survives_an_endless_loop(kernel):
    harm(kernel, "while True:\n    pass")
    for seconds in (1, 10, 100):  # until the child gets as far as the loop
        cell = kernel.run(f"{PROFILE} --seconds {seconds}")
        if "forward began" in cell.text:
            break
    assert cell.error.startswith("RefusalError: The scaled copy of Model was stopped at line")
    assert "of cell [" in cell.error
    assert f"did not end within {seconds} seconds" in cell.error


def test_interrupt_ends_the_child(kernel):
    harm(kernel, "time.sleep(600)")
    cell = kernel.run(PROFILE, interrupt_at="forward began")
    assert "interrupted; all its processes have ended" in cell.error


def test_a_model_that_does_no_harm_trains_and_stays_as_it_was(kernel):
    kernel.run("harm = None")
    cell = kernel.run(f"{PROFILE}\nprofile.scaled")
    assert cell.status == "ok", cell.text
    assert "A copy of Model" in cell.shown[-1]["text/html"]
    assert kernel.value("profile.scaled.finite and not profile.scaled.without_gradient") == "True"


def test_the_sdk_is_not_imported_and_a_script_runs_from_its_cell(kernel):
    cell = kernel.run("%%smp_local --processes 2\nimport os\nprint('rank', os.environ['RANK'], 'loss 0.5')")
    assert cell.status == "ok", cell.text
    assert "[rank1]: rank 1 loss 0.5" in cell.text
    assert "ran to the end" in cell.shown[-1]["text/html"]
    assert kernel.value("'sagemaker' in sys.modules") == "False"


def test_a_kernel_that_is_killed_leaves_nothing_behind(root, tmp_path):
    with running_kernel(root, tmp_path) as kernel:
        kernel.run("from smp_advisor.sandbox import run_isolated\nimport os, time")
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
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return False


def test_a_request_to_stop_in_the_first_moment_counts_where_it_is_ignored(monkeypatch):
    """A server that was started with nohup ignores SIGHUP, with which the children are asked to end."""
    fork, before = supervisor._fork, signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def asked() -> int:
        if number := fork():
            os.kill(number, signal.SIGHUP)
        else:
            time.sleep(0.5)  # it is asked before it can prepare for that
        return number

    monkeypatch.setattr(supervisor, "_fork", asked)
    try:
        report = supervisor.run_monitored(lambda *_: time.sleep(60), Limits(), forked=True, stack_signals=())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert report.end["breach"] == "abandoned"


def test_a_child_is_not_ended_while_it_writes_where_it_is():
    """A cell that is slow to show the log holds up the child, which can write no more until the log is read."""
    asked_out, asked_in = os.pipe()

    def fill_the_log_and_fork():
        print(os.getpid(), flush=True)
        os.read(asked_out, 1)
        os.set_blocking(1, False)
        with suppress(BlockingIOError):
            while True:
                os.write(1, b".\n")
        os.set_blocking(1, True)
        for _ in range(3):
            os.fork()
        time.sleep(600)

    def slow(line):
        if line.isdigit():
            os.write(asked_in, b" ")
            child, until = int(line), time.monotonic() + 140
            while is_running(child) and not supervisor.is_handling(child, signal.SIGUSR1) and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.5)  # whoever believes the child has answered ends it now

    try:
        with pytest.raises(ProfileError, match=r"stopped at .*test_kernel_survives\.py:\d+ .*than 4 processes"):
            run_isolated(fill_the_log_and_fork, what="a", limits=Limits(processes=4), on_line=slow)
    finally:
        os.close(asked_out)
        os.close(asked_in)


KEPT = bytearray()


def hold_too_much():
    held = b"x" * 2**27
    while held:
        time.sleep(0.01)


def copy_pages_of_the_kernel():
    for page in range(0, len(KEPT), 4096):
        KEPT[page] = 1
    while KEPT:
        time.sleep(0.01)


def run_out():
    raise MemoryError


LIBRARY = compile(
    """
def describe(error):
    if not held:
        held.append(b"x" * 2**27)
        while True:
            time.sleep(0.01)
    return describe_exception(error)
""",
    "<library>",
    "exec",
)


@pytest.mark.parametrize(
    ("work", "late"),
    [(hold_too_much, False), (copy_pages_of_the_kernel, False), (run_out, False), (run_out, True)],
    ids=["stopped", "copies", "raised", "stopped while its error is described"],
)
def test_memory_runs_out_at_a_line_whoever_notices_it_first(monkeypatch, work, late):
    monkeypatch.setitem(globals(), "KEPT", bytearray(b"x") * 2**27)
    if late:  # when the user's lines are no longer on the stack
        names = {"held": [], "describe_exception": isolated.describe_exception, "time": time}
        exec(LIBRARY, names)
        monkeypatch.setattr(isolated, "describe_exception", names["describe"])
    message = r"was stopped at .*test_kernel_survives\.py:\d+ \(`[^`]+`\): it needed more than the 0\.0625 GiB"
    with pytest.raises(ProfileError, match=message):
        run_isolated(work, limits=Limits(memory_bytes=2**26))
