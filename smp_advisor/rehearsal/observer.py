"""Records of a process of a rehearsal, one event per line, and the owner of the code that calls."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import opcode
import os
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TABLES = data_file("rehearsal", "stand_ins")
_HASHED = 64
"""Most tensors of one batch that are compared."""
_IDLE_LOOKS, _IDLE_SECONDS, _MOST_LOOKS = 100, 0.02, 1000
"""A late rank goes on after so many looks in a row in which its peers computed less than that: they poll for it."""
LOOKED_AT = 6
_DEVICE_OF_SCRIPT = "/site-packages/timm/"
OWN = str(Path(__file__).parent)
WAITS = 1
"""State of a rank in a collective, in the memory that the ranks share."""


class Ended(BaseException):
    """Ends a script whose loops nothing else leaves; no `except Exception` of the script keeps it."""


class NotRehearsed(Exception):  # noqa: N818 - the script's are errors
    """Ends a script that needs what a rehearsal does not have."""


class Nothing(float):
    """A class, function, context and figure that does nothing: of a library that only reports, or of a GPU."""

    settings: ClassVar[dict[str, Any]] = {}
    """Configuration that the script passes, and reads again."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return float.__new__(cls, 0.5)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __repr__(self) -> str:
        return "Nothing"

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        config = options.get("config")
        Nothing.settings.update(config if isinstance(config, dict) else getattr(config, "__dict__", {}))
        is_decorator = len(arguments) == 1 and isinstance(arguments[0], types.FunctionType)
        return arguments[0] if is_decorator else type(self)()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Any:
        code, place = (frame := sys._getframe(1)).f_code.co_code, frame.f_lasti
        takes = opcode.opname[code[place]].startswith("UNPACK_")  # as many as the script takes
        return iter([type(self)() for _ in range(code[place + 1] if takes else 0)])

    def __getitem__(self, key: object) -> Any:
        return self.settings.get(str(key), Nothing())

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (Nothing,) if len(bases) == 1 else ()

    def __instancecheck__(self, instance: object) -> bool:
        return False


def around(owner: Any, *names: str) -> Callable[[Any], Any]:
    """Replace functions of an owner, those of the names that it has, by one that gets the replaced one first.

    It hands its arguments on by ``original(...)``: what fails in that line fails for the script's reason.
    """

    def replace(function: Any) -> Any:
        for name in names:
            original = inspect.getattr_static(owner, name, None) if isinstance(owner, type) else None
            if isinstance(original, classmethod):
                setattr(owner, name, classmethod(bound(function, original.__func__)))
            elif (original := getattr(owner, name, None)) is not None:
                setattr(owner, name, bound(function, original))
        return function

    return replace


def bound(function: Any, original: Any) -> Any:
    """Return a function with the name and signature of another, which it gets first."""

    @functools.wraps(original, updated=())
    def replaced(*arguments: Any, **options: Any) -> Any:
        return function(original, *arguments, **options)

    return replaced


class Observer:
    """Events of one rank, and the counts that decide what it does."""

    def __init__(self, rank: int, world: int, events: int, code: Path, options: dict[str, Any], shared: Any) -> None:
        self.rank, self.world, self.options = rank, world, options
        self.code = f"{code}/"
        self._events = events
        self.shared = shared
        self.updates = self.backwards = self.all_backwards = 0
        self.passes = self.rows = 0
        """Forward passes and mapped rows since the last collective."""
        self.depth, self.folded, self.microbatched = 0, 1, False
        self.saved = 0
        self.has_tensor_parallel = self.takes = self.is_after_first = False
        self.fsdp_units: list[Any] = []
        self.loaded: list[Any] = []
        self.done = self.is_cut = False
        """Whether enough updates were seen: every loop that contains some is left."""
        self.flops = 0.0
        """FLOPs of the forward passes of layers."""
        self.host_elements = self.offloaded_elements = 0.0
        """Elements in fp32 that were loaded into host memory, and that were copied there since the last update."""
        self.is_placed = False
        self._noted: set[Any] = set()

    @property
    def looks(self) -> bool:
        """Whether figures are taken: in all updates, or in the first ones of a run that is watched."""
        return not self.options.get("live") or self.updates < LOOKED_AT

    def worked(self, flops: float, times: int = 1) -> None:
        """Count the FLOPs of a layer; a run that needs too many so many times ends here, on every machine alike."""
        self.flops += flops
        if self.flops * times > self.options["most_flops"]:
            text = f"its first updates need more than {self.options['most_flops']:.0e} FLOPs per process"
            self.once("heavy", text=f"{text}: pass job= with a command of smaller sizes")
            raise Ended

    def small(self, name: str, value: Any) -> Any:
        """Return a smaller value of a setting, in a run that is too heavy with the script's own."""
        for kind in self.options["small"]:
            pattern, most = _TABLES["small"][kind]
            if type(value) is int and value > most and re.search(pattern, name):
                self.stand_in(f"{name} {value}: {most}")
                return most
        return value

    def put(self, kind: str, **values: Any) -> None:
        """Record an event."""
        line = json.dumps({"kind": kind, "update": self.updates, **values}, default=str) + "\n"
        os.write(self._events, line.encode())

    def once(self, kind: str, **values: Any) -> None:
        """Record an event that is the same each time once."""
        key = (kind, *sorted((name, str(value)) for name, value in values.items()))
        if key not in self._noted:
            self._noted.add(key)
            self.put(kind, **values)

    def stand_in(self, what: str) -> None:
        """Record that something is not what the job will have."""
        self.once("stand-in", what=what)

    def microbatches(self, times: int) -> int:
        """Microbatches of an update: the script's, for which loaders give more batches, or a large one, if folded."""
        folds = bool(self.options.get("fold"))
        if times > 1 and not self.microbatched:
            self.microbatched = True
            self.put("accumulation", times=times)
            self.options["batches"] *= 1 if folds else times
        if times > 1 and folds:
            self.folded = self.options["batch_times"] = times
        return 1 if folds else times

    def site(self) -> str:
        """``file:line`` of the innermost frame of the user's code."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.code):
                return f"{frame.f_code.co_filename[len(self.code) :]}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def job_has(self, kind: Any, name: str) -> bool:
        """Return whether a class or function has an argument in the version of the job, and another one is here."""
        from smp_advisor.review.scripts import releases

        names = [f"{base.__module__}.{base.__name__}" for base in getattr(kind, "__mro__", (kind,))]
        pins = {package: releases.release(self.options["pins"][package][0]) for package in self.options["differing"]}
        tables = [(releases.callable_of(full), pins.get(full.partition(".")[0])) for full in names]
        accepts = [releases.accepts(full, name, version) for full, version in tables if full and version]
        return any(accepts) or (bool(accepts) and name in _TABLES["renamed"])

    def libraries(self) -> list[str]:
        """Names of the libraries through which the user's code calls."""
        frame, names = sys._getframe(1), list[str]()
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(self.code):
            names.append(str(frame.f_globals.get("__name__")).partition(".")[0].replace("_", "-"))
            frame = frame.f_back
        return sorted({*names})

    def is_called_by(self, names: tuple[str, ...]) -> bool:
        """Return whether a function of one of the names has called."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name not in names:
            frame = frame.f_back
        return frame is not None

    def is_asked_by_user(self, *through: str) -> bool:
        """Return whether the user's code calls, or a library that does not choose the device.

        Frames of this package, and of files whose name has a text of `through`, hand a call on.
        """
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.startswith(OWN) or any(part in frame.f_code.co_filename for part in through):
            frame = frame.f_back
        return frame.f_code.co_filename.startswith(self.code) or _DEVICE_OF_SCRIPT in frame.f_code.co_filename

    def holds(self, elements: float) -> None:
        """Count what this process loads into host memory, until its first module is on the GPU."""
        self.host_elements += 0 if self.is_placed else elements

    def await_others(self) -> None:
        """Be late: wait until every other rank waits for this one, has ended, or computes nothing any more."""
        import time

        import psutil

        peers = [rank for rank in range(self.world) if rank != self.rank]
        processes = [child for child in psutil.Process(os.getppid()).children() if child.pid != os.getpid()]
        idle, before = 0, 0.0
        for _ in range(_MOST_LOOKS):
            if idle >= _IDLE_LOOKS or all(self.shared[rank] for rank in peers):
                return
            time.sleep(0.03)
            used = 0.0
            for process in processes:
                with contextlib.suppress(psutil.Error):  # it has ended
                    used += sum(process.cpu_times()[:2])
            idle, before = (0, used) if used - before >= _IDLE_SECONDS else (idle + 1, before)


def local(value: Any) -> Any:
    """Return the part of a tensor on this rank."""
    return value.to_local() if hasattr(value, "placements") and hasattr(value, "to_local") else value


def tensors_in(value: Any, most: float = 10 * _HASHED) -> Iterator[torch.Tensor]:
    """Tensors of nested containers, in a stable order."""
    stack, count = [value], 0
    while stack and count < most:
        entry = stack.pop()
        count += 1
        if isinstance(entry, torch.Tensor):
            yield entry
        elif isinstance(entry, dict) or (hasattr(entry, "items") and hasattr(entry, "keys")):
            stack.extend(item for _, item in sorted(entry.items(), key=lambda pair: str(pair[0])))
        elif isinstance(entry, list | tuple):
            stack.extend(entry)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Content of a tensor."""
    flat = local(tensor).detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digest_of(batch: Any) -> tuple[str, int, int]:
    """Hash of a batch; the sum of the hashes of its samples, which no order changes; their number."""
    digest, total, count = hashlib.sha1(usedforsecurity=False), 0, 0
    tensors = [tensor for _, tensor in zip(range(_HASHED), tensors_in(batch), strict=False)]
    for tensor in tensors:
        digest.update(bytes_of(tensor))
    divided = [tensor for tensor in tensors if tensor.dim()]
    if divided:
        count = divided[0].shape[0]
        columns = [local(tensor).detach() for tensor in divided if tensor.shape[0] == count][:8]
        integers = [c for c in columns if c.dim() == 2 and not c.is_floating_point() and not c.is_complex()]
        masks = [
            c for c in integers if bool(((c == 0) | (c == 1)).all()) and [n.shape for n in integers].count(c.shape) > 1
        ]
        mask = max(masks, key=lambda c: int(c.sum()), default=None)
        for row in range(min(count, 4096)):
            content = b"".join(bytes_of(_unpadded(column, row, mask)) for column in columns)
            total = (total + int.from_bytes(hashlib.sha1(content, usedforsecurity=False).digest()[:7], "big")) % 2**56
    return digest.hexdigest()[:16], total, count


def _unpadded(column: torch.Tensor, number: int, mask: torch.Tensor | None) -> torch.Tensor:
    """A row without its padding, which is as long as the longest row of its batch needs: by its mask, or its end."""
    row = column[number]
    if row.dim() != 1 or row.is_floating_point() or row.is_complex() or not len(row):
        return row
    if mask is not None and mask.shape == column.shape:
        return row[mask[number].bool()]
    inner = (row != row[-1]).nonzero()
    return row[: int(inner[-1]) + 1 if len(inner) else 0] if int(row[-1]) in (0, -100) else row


def figures_of(tensors: Iterable[Any]) -> list[float]:
    """Sum, and sum of squares, of tensors on this rank."""
    total = squares = 0.0
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            values = local(tensor).detach()
            values = (values.coalesce().values() if values.is_sparse else values).double()
            total += float(values.sum())
            squares += float(values.square().sum())
    return [total, squares]
