"""A real kernel, as JupyterLab would start it."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager

__all__ = ["Cell", "Kernel", "running_kernel"]


@dataclass
class Cell:
    """Result of running a cell."""

    status: str = ""
    error: str = ""
    """Name and text of the error."""
    shown: list[dict] = field(default_factory=list)
    """Mime bundles in order, updates included."""
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
def running_kernel(root: Path, folder: Path) -> Iterator[Kernel]:
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
