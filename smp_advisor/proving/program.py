"""The child process of a proof: runs a script several times, each in a fork of its own, and records its behavior."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import shutil
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.proving.confinement import confined
from smp_advisor.sandbox.deadlock import answer_in, ends_of

if TYPE_CHECKING:
    from smp_advisor.sandbox.deadlock import End

UNENDED = "it did not end within"
"""Begin of the error of a run that the last guard ended."""
WAITED = "it waits for a process that has ended or that waits for it"
"""Begin of the error of a process whose partner does not come."""

_SHOWN_CHARACTERS = 3000
_PRINTED_CHARACTERS = 200_000
_LARGE_BATCH = 128


def _run(request: dict[str, Any], run: dict[str, Any], rank: int, port: int, record: Path) -> None:
    """Run the script as one process of a run; never returns."""
    answer_in(record.with_suffix(".stack"))
    from smp_advisor.proving import conditions, preparation
    from smp_advisor.proving.observer import Observer
    from smp_advisor.proving.smp_simulator import install_smp
    from smp_advisor.proving.stand_ins import install_stand_ins

    script = record.parent / f"{run['name']} code" / request["script"]
    world, accumulation = run["processes"], run.get("accumulation", 1)
    if world:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
            "ACCELERATE_USE_CPU": "true", "TORCH_DIST_INIT_BARRIER": "1",  # no rank ends before all are connected
        }  # fmt: skip
    observer = Observer(script, request["steps"], request["losses"])
    conditions.follow_settings(observer)
    conditions.use_cpu()
    conditions.make_deterministic()
    conditions.make_small(
        observer, divide=run["divide"], parts=run.get("parts", 1), accumulation=accumulation, most=request["most"],
        entire=request["entire"],
    )  # fmt: skip
    install_stand_ins(observer, shrink=request["shrink"])
    conditions.stand_in_for_files(observer)
    conditions.install_tsm()
    if run["microbatches"]:
        install_smp(observer, run["microbatches"])
    observer.install()
    if request["shrink"]:
        preparation.shrink_options()
    os.chdir(script.parent)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *request["arguments"]]
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    printed = io.StringIO()
    error = ""
    with contextlib.redirect_stdout(printed):
        try:
            code = preparation.instrumented(
                run["source"], str(script), shrink=request["shrink"], accumulation=accumulation
            )
            exec(code, main.__dict__)  # noqa: S102 - the script
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
    record.write_text(json.dumps({"error": error}), encoding="utf-8")
    record.with_suffix(".txt").touch()


def make_runs(request: dict[str, Any]) -> list[str]:
    """Make all runs of a request; each process writes ``<run>-<rank>.json``. Returns what the code could reach."""
    return confined(Path(request["base"]), lambda: _make_runs(request))


def _make_runs(request: dict[str, Any]) -> None:  # noqa: C901 - the runs in their order
    base = Path(request["base"])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    import torch
    import torch._dynamo  # the first step of an optimizer imports it, in each process again
    import torch.distributed.algorithms._checkpoint.checkpoint_wrapper
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.optim  # compiles functions of PyTorch, which are replaced later
    import torch.nn.parallel

    from smp_advisor.proving import conditions, observer, smp_simulator, stand_ins  # noqa: F401 - for the forks

    for name in request["libraries"]:
        with contextlib.suppress(ImportError):
            __import__(name)  # before the stand-ins, for which it would look
    torch.set_num_threads(1)
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    for number, run in enumerate(request["runs"]):
        _start(request, run, base)
        if number == 0:
            # The script may have sizes that belong together, or its batch size as a number in its loop.
            retries: list[dict[str, Any]] = [{"entire": False}] if request["entire"] else []
            for changed in (*retries, {"shrink": False}, {"most": _LARGE_BATCH, "entire": True}):
                if not _succeeded(base, run):
                    request |= changed
                    _start(request, run, base)
            if not _succeeded(base, run):
                break
            # An adaptation that accumulates more often than the original gets smaller batches, as many for an update.
            updates = json.loads((base / f"{run['name']}-0.json").read_text(encoding="utf-8"))["updates"]
            own = updates[0]["losses"] if updates else 1
            times = request["accumulation"] // own if own and request["accumulation"] % own == 0 else 1
            if times > 1:
                request |= {"most": max(request["most"], 2 * times), "entire": True}
                for later in request["runs"]:
                    later["accumulation"] = times if later["adapted"] else 1
                _start(request, run, base)
        if run["divide"] and run["processes"] and not _succeeded(base, run):
            # A script that depends on its batch size fails with smaller batches before it is adapted too.
            half = {**request["runs"][0], "name": "half", "parts": run["processes"]}
            _start(request, half, base)
    # Both scripts run again with the files that they saved, if changed lines did not run, such as those that load.
    paths = [path for name in ("repeated", "divided") for path in base.glob(f"{name}-?.json")]
    records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    hits = {line for record in records for line in record.get("hits", ())}
    if not set(request["changed"]) <= hits and any(record.get("saves") for record in records):
        for run in (request["runs"][0], request["runs"][2]):
            name = "original resumed" if run is request["runs"][0] else "resumed"
            _start(request, {**run, "name": name}, base, folder=base / f"{run['name']} code")


def _start(request: dict[str, Any], run: dict[str, Any], base: Path, *, folder: Path | None = None) -> None:
    """Fork the processes of a run in a copy of the folder, and wait for them."""
    code = base / f"{run['name']} code"
    shutil.rmtree(code, ignore_errors=True)
    shutil.copytree(folder or request["folder"], code)  # the processes of a run share their files
    (code / request["script"]).parent.mkdir(parents=True, exist_ok=True)
    (code / request["script"]).write_text(run["source"], encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = {}
    for rank in range(max(1, run["processes"])):
        record = base / f"{run['name']}-{rank}.json"
        record.unlink(missing_ok=True)
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


def _succeeded(base: Path, run: dict[str, Any]) -> bool:
    records = [base / f"{run['name']}-{rank}.json" for rank in range(max(1, run["processes"]))]
    return all(record.exists() and not json.loads(record.read_text(encoding="utf-8"))["error"] for record in records)
