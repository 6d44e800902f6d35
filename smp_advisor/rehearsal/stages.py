"""The stages of a rehearsal, in one confined process that forks the ranks of each and follows what they record."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.metadata
import json
import math
import mmap
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.rehearsal import contract
from smp_advisor.rehearsal.contract import Job
from smp_advisor.rehearsal.report import PROVOCATIONS
from smp_advisor.sandbox import progress
from smp_advisor.sandbox.confinement import confined
from smp_advisor.sandbox.deadlock import Stillness

if TYPE_CHECKING:
    from collections.abc import Iterable

_GUARD_SECONDS = 900.0
"""Last guard of a stage. Counts of updates, batches and FLOPs end it before: one that it ends is not rehearsed."""
_PAUSE_SECONDS = 0.04
_STILL = 25
"""Observations in a row of processes that all sleep, after which none will go on."""
_LOG_LINES = 60
_OF_MODELS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp", ".pkl", ".npz", ".onnx")
_MOST_FLOPS = 5e11
"""Of the forward passes of one stage and rank: a minute of a processor."""
_LEVELS: tuple[dict[str, Any], ...] = (
    {"batch_most": 0, "most_flops": 5e10},
    {"batch_most": 2, "most_flops": 2e11},
    {"small": ("depth", "batch", "length"), "most_flops": _MOST_FLOPS, "steps": 3},
    {"batch_most": sys.maxsize, "small": ()},
)
"""Changes of a run that is too heavy: loaders of two rows, then small sizes in the settings of the script."""
_HEAVY, _FAILED = {0: 1, 1: 2}, {1: 3, 2: 3}
"""The level that follows on one that is too heavy, and on one that fails: it may need its own sizes."""
_OF_SIZES = ("ValueError", "RuntimeError", "AssertionError", "IndexError")
_SIZE = re.compile(r"(?i)size|shape|\bdims?\b|dimension|divisib|channel|elements|\bheads?\b|match|width|height")
"""Errors that may come of a smaller or other model than the script expects, and words in them."""
_FEW = 2
"""Updates of stages of which the first ones are compared."""
_OF_PROVOCATIONS: dict[str, Any] = {"order": {"steps": 30, "batches": 3}, "half": {"steps": _FEW, "keep_half": True}}
"""Ten epochs of the same three batches, after which a script whose loss never falls has stopped early, and others."""
SOURCE, CHANNELS = "/smp/source", "/smp/channels"


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Make all stages of a request in a confined process; the result is what the ranks recorded."""
    shown = {SOURCE: Path(request["source"])}
    for name, path in request["channels"].items():
        if path is not None:  # a file is in a folder, as an object is
            place = Path(path)
            shown[f"{CHANNELS}/{name}" if place.is_dir() else f"{CHANNELS}/{name}/{place.name}"] = place
    done = confined(
        lambda root: _Rehearsed(request, root).run(), shown=shown, size_bytes=request["size_bytes"],
        allow_unconfined=request["allow_unconfined"],
    )  # fmt: skip
    return {**done.result, "reachable": list(done.reachable)}


@dataclass
class _Rank:
    """A running rank, and what it has recorded."""

    pid: int
    events_file: int
    log_file: int
    events: list[dict[str, Any]] = field(default_factory=list)
    partial: bytes = b""
    place: int = 0
    end: int | None = None
    collectives: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """Those that another rank has not begun yet, or that this one has not ended."""
    done: set[tuple[str, int]] = field(default_factory=set)
    has_ended: bool = False
    """Whether its script has: the process of the first rank stays until the others have, since it has their store."""
    log_place: int = 0
    line: bytes = b""

    def read(self) -> bool:
        """Read new events; whether there were some."""
        data = os.pread(self.events_file, 1 << 20, self.place)
        self.place += len(data)
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._add(json.loads(line))
        return bool(data)

    def _add(self, event: dict[str, Any]) -> None:
        key = (event.get("group", ""), event.get("number", 0))
        if event["kind"] == "done":
            self.done.add(key)
            return
        if event["kind"] == "collective":
            self.collectives[key] = event
        self.has_ended = self.has_ended or event["kind"] == "end"
        self.events.append(event)

    def show(self, prefix: str) -> None:
        """Write new complete lines of the script to the live log."""
        data = os.pread(self.log_file, 1 << 20, self.log_place)
        self.log_place += len(data)
        *lines, self.line = (self.line + data).split(b"\n")
        for line in lines:
            print(prefix + line.decode("utf-8", "replace"), flush=True)  # noqa: T201 - the live log

    def waits_in(self) -> dict[str, Any] | None:
        """Return the collective that it has begun and not ended."""
        return next((event for key, event in self.collectives.items() if key not in self.done), None)


class _Rehearsed:
    """All stages in a file system with a root."""

    def __init__(self, request: dict[str, Any], root: Path) -> None:
        self.request, self.root = {"batch_most": 0, "most_flops": _MOST_FLOPS, **request}, root
        self.base = root / "opt/ml"
        self.job = Job(**request["job"])
        self.code = self.base / ("code" if self.job.sdk == 2 else "input/data/code")
        self.channels = {
            name: None if path is None else self._shown(f"{CHANNELS}/{name}")
            for name, path in request["channels"].items()
        }
        self.stages: list[dict[str, Any]] = []
        self.differing: dict[str, str] = {}  # a sentence for each library that the job has in another version
        self.processes, self.level = int(request["processes"]), 0

    def _shown(self, target: str) -> Path:
        return self.root / target.lstrip("/")

    def run(self) -> dict[str, Any]:
        """Return the stages in their order, until one fails."""
        begun = time.process_time()
        self._import()
        pins, names = self.request["pins"], dict.fromkeys(("torch", *self.request["imports"]))
        versions = {"python": ".".join(map(str, sys.version_info[:3]))} | _versions_here(names)
        self.differing = contract.differing(_versions_here(pins), pins)
        about = {"import_seconds": time.process_time() - begun, "versions": versions, "differing": self.differing}
        if isinstance(self.request["stages"], list):  # those of a program that compares what they record
            for stage_options in self.request["stages"]:
                stage = self._stage(**stage_options)
                stage["loaded"] = self._saved_files(stage)
            return {"stages": self.stages, **about}
        live = self.request["stages"] == "live"
        self.request |= _LEVELS[0]
        options: dict[str, Any] = {"live": live, "keeps_state": not live and self.processes > 1}
        first = self._stage("several processes", **options)
        while self._is_changed_for(first):
            self.stages.remove(first)
            first = self._stage("several processes", **options)
        self.request["most_flops"] = _MOST_FLOPS
        recorded = {event["kind"]: event for event in first["ranks"][0]["events"]}
        if not first["failed"] and "step" in recorded and self.request["stages"] == "all":
            self._further(first)
        return {"stages": self.stages, **about}

    def _is_changed_for(self, first: dict[str, Any]) -> bool:
        """Return whether the request now has what the script misses: smaller batches, a column, the end of loops."""
        is_heavy = (first["verdict"] or {}).get("code") == "heavy"
        following = _HEAVY if is_heavy else _FAILED if first["failed"] else {}
        if level := following.get(self.level):
            self.level = level
            self.request |= _LEVELS[level]
            return True
        column = _missing_column(first)
        if column and column not in self.request["columns"]:
            self.request["columns"].append(column)
            return True
        events = [event for rank in first["ranks"] for event in rank["events"]]
        loops = sorted({event["key"] for event in events if event["kind"] == "loop"})
        if any(event.get("cut") for event in events) and not self.request["full"] and self.request["stages"] != "live":
            self.request |= {"full": loops, "batches": self.request["most"]}
            return bool(loops)
        errors = [event for event in events if event["kind"] == "error"]
        if self.request["vocabulary"] and any(re.search("out of (?:range|bounds)", event["text"]) for event in errors):
            self.request["vocabulary"] = None
            return True
        error = next((event for event in errors if not event["update"]), None)
        lacked = [event["lacked"] for event in errors[:1] if event["lacked"] not in ([], *self.request["left_out"])]
        if lacked:
            self.request["left_out"] += lacked
            return True
        if error and not self.request["full_width"] and any(event["kind"] == "shrunk" for event in events):
            is_of_size = error["name"] in _OF_SIZES and _SIZE.search(error["text"]) is not None
            self.request["full_width"] = is_of_size or error["name"] == "AttributeError"
            return bool(self.request["full_width"])
        return False

    def _further(self, first: dict[str, Any]) -> None:
        world = self.processes
        first["loaded"] = self._saved_files(first)
        if world > 1:
            self._stage("one process", world=1, batch_times=world, steps=_FEW)
        accumulates = any(event["kind"] == "accumulation" for event in first["ranks"][0]["events"])
        if accumulates:
            self._stage("accumulation folded", fold=True, steps=_FEW)
        if world > 1:
            self._stage("nodes of one GPU", nodes=world, steps=_FEW)
        leaves = any(event["kind"] == "loop" and event["leaves"] for event in first["ranks"][0]["events"])
        evaluated, evaluated_last = (
            {(event["site"], event["digest"]) for event in rank["events"] if event["kind"] == "evaluation"}
            for rank in (first["ranks"][0], first["ranks"][-1])
        )
        apart = sorted({site for site, _ in evaluated ^ evaluated_last})  # from the same inputs ranks decide the same
        for kind, name in PROVOCATIONS.items():
            if kind in self.request["provoked"] and world > 1 and (leaves or kind != "order"):
                settings = _OF_PROVOCATIONS.get(kind, {"steps": _FEW + 1})
                self._stage(name, provokes=kind, apart=apart, **settings)
        saves = any(event["kind"] == "save" for event in first["ranks"][0]["events"])
        if saves or self.job.keeps_checkpoints:
            # It saves after some updates, so that the run with a kill lasts until it does.
            longer = {} if first["checkpoints"] or not self.job.keeps_checkpoints else {"steps": self.request["most"]}
            killed = self._stage("killed after a save", kill_after=2, **longer)
            was_killed = any(event["kind"] == "killed" for rank in killed["ranks"] for event in rank["events"])
            if killed["checkpoints"] and (was_killed or not killed["failed"]):
                self._stage("resumed" if was_killed else "started again after its end", keeps=True, steps=_FEW)

    def _import(self) -> None:
        os.environ |= {
            "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled",
            "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
            "HF_HOME": f"{self.root}/tmp/hub", "MPLCONFIGDIR": f"{self.root}/tmp", "PYTHONDONTWRITEBYTECODE": "1",
            "ACCELERATE_LOG_LEVEL": "error", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        import torch
        import torch.distributed.checkpoint.state_dict
        import torch.distributed.device_mesh
        import torch.distributed.fsdp
        import torch.distributed.optim
        import torch.nn.parallel

        from smp_advisor.rehearsal.loops import with_names_here

        # Parts of libraries compile as they are imported, for which a compiler would be imported, too.
        compiles: Any = torch.compile
        vars(torch)["compile"] = lambda model=None, **_: model or (lambda function: function)
        if "bitsandbytes" not in self.request["imports"]:  # by libraries, which need it for its kernels only
            sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
        for statement in self.request["preloads"]:
            progress(0, 1, statement)
            with contextlib.suppress(Exception):
                exec(with_names_here(statement), {})  # noqa: S102 - an import of the script's
        torch.compile = compiles
        torch.set_num_threads(1)
        gc.freeze()  # a collection in a fork would copy the pages of all that was imported

    def _stage(
        self, name: str, *, world: int | None = None, nodes: int = 1, keeps: bool = False, **options: Any
    ) -> dict[str, Any]:
        world = self.processes if world is None else world
        progress(len(self.stages), 8, name)
        print(f"rehearsal: {name}", flush=True)  # noqa: T201 - the live log
        self._fresh(nodes, keeps=keeps)
        per_node = world // nodes
        # Settings of every rank of this stage; the stage's own options win.
        settings = {
            **self.request, "local_world": per_node, "nodes": nodes, "keeps": keeps,
            "differing": [*self.differing],
            **({"most_flops": math.inf} if options.get("live") else {}), "state": str(self._shown("/tmp/first")),
            "sources": [str(p) for p in self.channels.values() if p],
            "empty": {str(self.base / "input/data" / name): name for name, p in self.channels.items() if not p},
            **options,
        }  # fmt: skip
        # A free port: two rehearsals may run at once.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = mmap.mmap(-1, max(world, 1))
        ranks = []
        # Each rank gets its own environment, as on its own GPU of its own node.
        for rank in range(world):
            is_shorter = options.get("provokes") == "uneven" and rank == world - 1
            values = {
                "options": settings | {"steps": settings["steps"] - is_shorter}, "code": str(self.code),
                "world": world,
                "is_started_as_module": self.job.is_module,
                "arguments": [*self.job.words(), *options.get("arguments", ())],
                "variables": contract.variables(
                    self.base, self.job, self.request["script"], self.channels, host=rank // per_node, hosts=nodes,
                    gpus=per_node,
                ) | (contract.of_launcher(self.job, rank, world, per_node, port) if self.job.launches else {})
                | options.get("environment", {}),
            }  # fmt: skip
            ranks.append(_start(rank, shared, values))
        live = bool(options.get("live"))
        verdict, seconds = self._follow(
            ranks, shows=not self.stages, guard=self.request["seconds"] if live else _GUARD_SECONDS
        )
        stage = {
            "name": name, "verdict": verdict, "seconds": seconds, "world": world, "nodes": nodes,
            "ranks": [{"end": rank.end, "events": rank.events, "log": _tail(rank.log_file)} for rank in ranks],
            "failed": bool(verdict) or any(rank.end not in (0, None) for rank in ranks),
            "checkpoints": _files(self.base / "checkpoints"), "model": _files(self.base / "model"),
            "left": self._left(), "failure": (self.base / "output/failure").is_file(),
        }  # fmt: skip
        for ended in ranks:
            os.close(ended.events_file)
            os.close(ended.log_file)
        self.stages.append(stage)
        return stage

    def _left(self) -> list[str]:
        """Return the files of models that the script wrote to the folder of the code, which ends with the job."""
        before = self._shown(SOURCE)
        places = [path.relative_to(self.code) for path in sorted(self.code.rglob("*")) if path.suffix in _OF_MODELS]
        return [str(place) for place in places if not (before / place).exists()][:20]

    def _fresh(self, hosts: int, *, keeps: bool) -> None:
        backup = self.base.with_name("kept")
        shutil.rmtree(backup, ignore_errors=True)
        if keeps:
            (self.base / "checkpoints").rename(backup)
        shutil.rmtree(self.base, ignore_errors=True)
        contract.make_folders(self.base, self.job, self.channels, hosts)
        shutil.copytree(self._shown(SOURCE), self.code, symlinks=False, dirs_exist_ok=True)
        for folder in (self.code, *self.code.rglob("*")):
            if not folder.is_symlink():
                folder.chmod(folder.stat().st_mode | 0o600)
        if keeps:
            shutil.rmtree(self.base / "checkpoints")
            backup.rename(self.base / "checkpoints")

    def _follow(self, ranks: list[_Rank], *, shows: bool, guard: float) -> tuple[dict[str, Any] | None, float]:
        begun, used, verdict = time.monotonic(), 0.0, None
        still, meetings = Stillness(), _Meetings(ranks)
        while any(rank.end is None for rank in ranks):
            # Reports from before the end of a rank are still in the pipes.
            for rank in ranks:
                if rank.end is None:
                    pid, status, usage = os.wait4(rank.pid, os.WNOHANG)
                    if pid:
                        rank.end, rank.has_ended = os.waitstatus_to_exitcode(status), True
                        used += usage.ru_utime + usage.ru_stime
                        still = Stillness()
            # Ranks report over pipes: read all, or a full pipe would stop a rank.
            moved = [rank.read() for rank in ranks]
            for number, rank in enumerate(ranks if shows else ()):
                rank.show(f"[rank{number}]: " if number else "")
            alive = [rank for rank in ranks if not rank.has_ended]
            if not alive:
                used += _end([rank for rank in ranks if rank.end is None])
                break
            # A mismatch, an ended peer, too much work: certain at once, without waiting.
            verdict = meetings.mismatch() or _waits_for_ended(ranks) or _heavy(ranks)
            # No report and no processor time of any rank: they wait for each other.
            if verdict is None and not any(moved) and still.observe([rank.pid for rank in alive]) >= _STILL:
                if any(event["kind"] == "killed" for rank in ranks for event in rank.events):
                    used += _end([rank for rank in ranks if rank.end is None])
                    break
                verdict = _asleep(ranks)
            if verdict is None and time.monotonic() - begun > guard:
                verdict = {"code": "guard", "text": f"the guard of {guard:.0f} seconds struck"}
            if verdict is not None:
                used += _end([rank for rank in ranks if rank.end is None])
                break
            time.sleep(_PAUSE_SECONDS)
        for rank in ranks:
            while rank.read():
                pass
        aborts = any(rank.end == -signal.SIGABRT for rank in ranks)
        verdict = verdict or meetings.mismatch() or _heavy(ranks) or (meetings.uneven if aborts else None)
        if verdict is not None:
            verdict["parted"], place = meetings.parted
            verdict["site"] = place or verdict.get("site", "")
        return verdict, used

    def _saved_files(self, first: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the files in ``/opt/ml/model``, loaded by a fork in which nothing is replaced."""
        if not first["model"]:
            return []
        from smp_advisor.rehearsal.saved import look

        file = os.memfd_create("saved")
        pid = os.fork()
        if not pid:
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                os.write(file, json.dumps(look(self.base / "model")).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        data = os.pread(file, 1 << 24, 0)
        os.close(file)
        return json.loads(data) if data else []


def _versions_here(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            versions[name.replace("_", "-")] = importlib.metadata.version(name)
    return versions


def _missing_column(stage: dict[str, Any]) -> str:
    """Return a column that the script reads, and that the stand-in of its data set lacks."""
    for rank in stage["ranks"]:
        events = {event["kind"]: event for event in rank["events"]}
        error, has_rows = events.get("error"), any(
            event["kind"] == "stand-in" and event["what"].startswith("data set ") for event in rank["events"]
        )  # fmt: skip
        if error and has_rows and error["update"] == 0 and error["name"] in ("KeyError", "ValueError"):
            match = re.match(r"'(\w+)'$", error["text"]) or re.search(r"[Cc]olumn[^'\[]*\[?'(\w+)'", error["text"])
            return match[1] if match else ""
    return ""


def record_file(name: str) -> int:
    """Return a file in memory for several threads: without O_APPEND, Linux lets them write over each other."""
    file = os.memfd_create(name)
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    return file


def _start(rank: int, shared: Any, values: dict[str, Any]) -> _Rank:
    files = [record_file(name) for name in ("events", "log")]
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            from smp_advisor.rehearsal.process import run as run_rank

            run_rank(rank, files[0], files[1], shared, values)
        except BaseException:  # noqa: BLE001 - a fork never returns
            traceback.print_exc()
        finally:
            os._exit(9)
    return _Rank(pid, files[0], files[1])


def _tail(file: int) -> list[str]:
    size = os.fstat(file).st_size
    data = os.pread(file, 1 << 16, max(0, size - (1 << 16)))
    return data.decode("utf-8", "replace").splitlines()[-_LOG_LINES:]


def _files(folder: Path) -> list[list[Any]]:
    """Return the paths below a folder with their sizes, without links."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [[str(path.relative_to(folder)), path.stat().st_size] for path in paths[:500]]


def _end(ranks: list[_Rank]) -> float:
    """End ranks with all their processes; stopped before any is ended, so that none sees the end of another."""
    used = 0.0
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, number)
    for rank in ranks:
        _, status, usage = os.wait4(rank.pid, 0)
        used += usage.ru_utime + usage.ru_stime
        ended = next((event["status"] for event in rank.events if event["kind"] == "end"), None)
        rank.end = os.waitstatus_to_exitcode(status) if ended is None else ended
    return used


_ANY_SIZE = ("gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "allgather", "barrier")


def _shown(rank: int, event: dict[str, Any]) -> str:
    return f"rank {rank} is in {event['operation']} of {event['elements']:,} elements at {event['site']}"


class _Meetings:
    """Collectives of all ranks, compared by group and number as they are recorded."""

    def __init__(self, ranks: list[_Rank]) -> None:
        self._ranks = ranks
        self.parted = ("", "")
        """The first collective at which ranks were at different lines, and the line of the first rank."""
        self.uneven: dict[str, Any] | None = None
        """The first gather of other sizes, which some are meant to be; gloo aborts those that do not fit."""

    def mismatch(self) -> dict[str, Any] | None:
        """Return the first collective that ranks do not share; those that all have ended are forgotten."""
        first, *peers = self._ranks
        for key, event in list(first.collectives.items()):
            if event["ranks"] != len(self._ranks):
                continue
            partners = [rank.collectives.get(key) for rank in peers]
            for number, partner in enumerate(partners, 1):
                if partner is None or partner["ranks"] != len(self._ranks):
                    continue
                if event["site"] != partner["site"] and not self.parted[0]:
                    self.parted = f"rank 0 at {event['site']}, rank {number} at {partner['site']}", event["site"]
                same = event["operation"] == partner["operation"]
                if same and event["elements"] == partner["elements"]:
                    continue
                text = f"{_shown(0, event)}, while {_shown(number, partner)}"
                verdict = {"code": "order", "text": text, "site": event["site"]}
                if not (same and event["operation"] in _ANY_SIZE):
                    return verdict
                self.uneven = self.uneven or verdict
            if all(partners) and all(key in rank.done for rank in self._ranks):
                for rank in self._ranks:
                    del rank.collectives[key]
        return None


def _heavy(ranks: list[_Rank]) -> dict[str, Any] | None:
    heavy = next((event for rank in ranks for event in rank.events if event["kind"] == "heavy"), None)
    return heavy and {"code": "heavy", "text": heavy["text"]}


def _waits_for_ended(ranks: list[_Rank]) -> dict[str, Any] | None:
    for number, rank in enumerate(ranks):
        event = None if rank.has_ended else rank.waits_in()
        if event is None or event["ranks"] != len(ranks):
            continue
        key = (event["group"], event["number"])
        for peer, ended in enumerate(ranks):
            while ended.has_ended and ended.read():
                pass
            if ended.has_ended and key not in ended.collectives:
                text = (
                    f"rank {number} waits in {event['operation']} at {event['site']} for rank {peer}, which has ended"
                )
                error = next((entry for entry in ended.events if entry["kind"] == "error"), None)
                text += f" by {error['name']}: {error['text'][:160]}" if error else ""
                return {"code": "ended", "text": text, "site": event["site"]}
    return None


def _asleep(ranks: list[_Rank]) -> dict[str, Any]:
    waits = [None if rank.has_ended else rank.waits_in() for rank in ranks]
    texts = [
        f"rank {number} has ended" if rank.has_ended
        else f"rank {number} waits in {event['operation']} at {event['site']}" if event
        else f"rank {number} waits outside of a collective"
        for number, (rank, event) in enumerate(zip(ranks, waits, strict=True))
    ]  # fmt: skip
    site = next((event["site"] for event in waits if event), "")
    return {"code": "asleep", "text": f"no process computes: {', '.join(texts)}", "site": site}
