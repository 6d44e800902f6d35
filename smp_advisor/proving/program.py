"""The child process of a proof: runs a script several times, each in a fork of its own, and records its behavior."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import io
import json
import os
import runpy
import shutil
import socket
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox.deadlock import answer_in, ends_of

if TYPE_CHECKING:
    from smp_advisor.profiling.sandbox.deadlock import End

__all__ = ["UNENDED", "WAITED", "make_runs"]

UNENDED = "it did not end within"
"""Begin of the error of a run that the last guard ended."""
WAITED = "it waits for a process that has ended or that waits for it"
"""Begin of the error of a process whose partner does not come."""

_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
_SHOWN_CHARACTERS = 3000
_PRINTED_CHARACTERS = 200_000
_LARGE_BATCH = 128


def _without_network() -> bool:
    """Give this process a network of its own, with the loopback device only; whether that was possible."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER_AND_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(device.fileno(), 0x8914, up)  # SIOCSIFFLAGS
    return True


def _refuse_connections() -> None:
    """Refuse connections to other machines, where namespaces are not allowed."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise OSError("The proof runs without a network.")
        connect(self, address)

    socket.socket.connect = local  # type: ignore[method-assign, assignment]


def _run(request: dict[str, Any], run: dict[str, Any], rank: int, port: int, record: Path) -> None:
    """Run the script as one process of a run; never returns."""
    answer_in(record.with_suffix(".stack"))
    from smp_advisor.proving.conditions import (
        install_tsm,
        make_deterministic,
        make_small,
        stand_in_for_files,
        use_cpu,
    )
    from smp_advisor.proving.observer import Observer
    from smp_advisor.proving.smp_simulator import install_smp
    from smp_advisor.proving.stand_ins import install_stand_ins

    folder = Path(tempfile.mkdtemp(dir=record.parent))
    code = folder / "code"
    shutil.copytree(request["folder"], code)
    script = code / request["script"]
    script.write_text(run["source"], encoding="utf-8")
    world = run["processes"]
    if world:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
    os.environ |= {"HOME": str(folder), "TMPDIR": str(folder)}
    observer = Observer(script, request["steps"], request["losses"])
    use_cpu()
    make_deterministic()
    make_small(observer, divide=run["divide"], parts=run.get("parts", 1), most=request.get("most", 8))
    install_stand_ins(observer)
    stand_in_for_files(observer)
    if run["library"] == "smp-v1":
        install_smp(observer, run["microbatches"])
    elif run["library"] == "smp-v2":
        install_tsm()
    observer.install()
    os.chdir(script.parent)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *request["arguments"]]
    printed = io.StringIO()
    error = ""
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            error = "" if end.code in (None, 0) else f"SystemExit: {end.code}"
        except BaseException as failure:  # noqa: BLE001 - every exception of the script is reported
            lines = [f.lineno for f in traceback.extract_tb(failure.__traceback__) if f.filename == str(script)]
            text = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:_SHOWN_CHARACTERS]
            is_alone = "gloo" in text.lower() or "DistNetworkError" in text
            error = (WAITED if is_alone else text) + (f" (line {lines[-1]})" if lines else "")
    observer.write(record, error)
    record.with_suffix(".txt").write_text(printed.getvalue()[:_PRINTED_CHARACTERS], encoding="utf-8")
    os._exit(0)


def _record_end(record: Path, end: End | None, seconds: float) -> None:
    """Record a process that was ended or that crashed; None is the last guard."""
    if end is None:
        error = f"{UNENDED} {seconds:g} seconds, the last guard of a run"
    elif end.waited:
        error = WAITED + (f" (line {end.line.line})" if end.line else "")
    else:
        error = f"its process ended with {f'signal {-end.code}' if end.code < 0 else f'status {end.code}'}"
    empty = {"losses": [], "modes": [], "saves": [], "notes": [], "stopped": False}
    record.write_text(json.dumps({**empty, "error": error}), encoding="utf-8")
    record.with_suffix(".txt").touch()


def make_runs(request: dict[str, Any]) -> bool:
    """Make all runs of a request; each process writes ``<run>-<rank>.json``. Returns whether they had no network."""
    base = Path(request["base"])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    isolated = _without_network()
    if not isolated:
        _refuse_connections()
    import torch
    import torch._dynamo  # the first step of an optimizer imports it, in each process again
    import torch.distributed.fsdp
    import torch.nn.parallel

    if request["transformers"]:
        with contextlib.suppress(ImportError):
            import transformers  # noqa: F401 - before the stand-ins, for which it would look

    torch.set_num_threads(1)
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    for number, run in enumerate(request["runs"]):
        _start(request, run, base)
        if number == 0 and not _succeeded(base / f"{run['name']}-0.json"):
            # The script may have its batch size as a number in its loop.
            request["most"] = _LARGE_BATCH
            _start(request, run, base)
            if not _succeeded(base / f"{run['name']}-0.json"):
                break
        if run["divide"] and run["processes"] and not _succeeded(base / f"{run['name']}-0.json"):
            # A script that depends on its batch size fails with smaller batches before it is adapted too.
            half = {**request["runs"][0], "name": f"{run['name']} half", "parts": run["processes"]}
            _start(request, half, base)
    return isolated


def _start(request: dict[str, Any], run: dict[str, Any], base: Path) -> None:
    """Fork the processes of a run, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = {}
    for rank in range(max(1, run["processes"])):
        record = base / f"{run['name']}-{rank}.json"
        child = os.fork()
        if not child:
            try:
                _run(request, run, rank, port, record)
            finally:
                traceback.print_exc()
                os._exit(1)
        children[child] = record
    stacks = {child: record.with_suffix(".stack") for child, record in children.items()}
    ends = ends_of(stacks, seconds=request["seconds"])
    for child, record in children.items():
        if not record.exists():
            _record_end(record, None if ends is None else ends[child], request["seconds"])


def _succeeded(record: Path) -> bool:
    return record.exists() and not json.loads(record.read_text(encoding="utf-8"))["error"]
