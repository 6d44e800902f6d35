"""Profile one module of profiling_modules.toml by the default call, and compare it with real steps of the module.

``python scripts/module_coverage.py FILE INDEX...`` appends one line of JSON per module; `profiling_coverage.py` writes
the page.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
import tomllib
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from smp_advisor.profiling.result import Profile

LIST = Path(__file__).resolve().with_name("profiling_modules.toml")
BATCH, SEQUENCE = 2, 64
MEMORY_BYTES = 8 * 2**30
SECONDS = 400.0
MOST_PARAMETERS = 4e8
"""Larger modules are not run in full: a step would need over 6 GiB."""


def entries() -> list[dict[str, Any]]:
    """Entries of the list."""
    listed: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["modules"]
    return listed


def title(entry: dict[str, Any]) -> str:
    """Name of a module: its library's call, or the name that the call gets."""
    path, _, name = entry["call"].partition(":")
    model = entry.get("arguments", {}).get("model_name")
    return f"{path.split('.')[0]}: {model or name.split('.')[0]}"


def built(entry: dict[str, Any]) -> Any:
    """Call the entry's class or function with its arguments."""
    path, _, name = entry["call"].partition(":")
    target: Any = importlib.import_module(path)
    if "config" in entry:
        return getattr(target, name)(getattr(target, entry["config"])())
    for part in name.split("."):
        target = getattr(target, part)
    return target(**{key: _value(value) for key, value in entry.get("arguments", {}).items()})


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return built(value)
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    return None if value == "none" else value


def import_without_extensions() -> None:
    """Declare the operators of torchvision's compiled extension, which is built for CUDA on PyPI, to import without."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import_without_extensions.library = library  # type: ignore[attr-defined] # it is undefined when it is collected


def measured(entry: dict[str, Any]) -> dict[str, Any]:
    """Results of the default call, and figures next to real steps."""
    import torch

    import smp_advisor
    from smp_advisor.errors import AdvisorError

    torch.manual_seed(0)
    module = built(entry)
    count = sum(p.numel() for p in module.parameters())
    result: dict[str, Any] = {"parameters": count}
    begun = time.perf_counter()
    try:
        profile = smp_advisor.profile(module)
    except AdvisorError as error:
        return result | {"outcome": "failed", "reason": str(error), "seconds": round(time.perf_counter() - begun, 1)}
    result["seconds"] = round(time.perf_counter() - begun, 1)
    method = next((source.method for source in profile.provenance if source.figure == "saved bytes"), "")
    reason = "" if method else " ".join(profile.warnings)
    result |= {"outcome": method or "failed", "reason": reason, "inputs": profile.inputs}
    result["uncounted"] = list(profile.uncounted)
    result["blocks"] = len(profile.blocks)
    copy = profile.scaled
    result["copy"] = "" if copy is None else "trained" if copy.ok else "; ".join(copy.problems)
    result["copied"] = [] if copy is None else [str(part) for part in copy.reductions]
    if copy is None:
        result["copy_reason"] = " ".join(profile.warnings)
    else:
        result["copy_parameters"] = copy.parameter_count
        result["copy_agrees"] = {part.figure: round(part.ratio, 6) for part in copy.comparisons}
        result["copy_notes"] = list(copy.notes)
    result["parameters_exact"] = profile.parameter_count == count
    if method and count <= MOST_PARAMETERS and not os.environ.get("QUICK"):
        try:
            result |= compared(module, profile)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            result["not_compared"] = f"{type(error).__name__}: {str(error)[:200]} ({frame.filename}:{frame.lineno})"
    return result


def compared(module: Any, default: Profile) -> dict[str, Any]:
    """Forward and total FLOPs, and saved bytes of the trace in fp32 without fusion, over those of a real step.

    FLOPs are those of torch's own counter; saved bytes are those of the storages that autograd packs.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import smp_advisor
    from smp_advisor.profiling.inputs import example_inputs, filled, valid_ids
    from smp_advisor.profiling.step import call_model, loss_of

    trace = smp_advisor.profile(module, stages=("trace",), precision="fp32", attention="eager")
    example = example_inputs(module)
    sequence = min(SEQUENCE, example.longest or SEQUENCE)
    inputs = filled(example.make(BATCH, sequence), valid_ids(module))
    module.train()
    state = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        with contextlib.suppress(NotImplementedError, RuntimeError):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in state:
                saved.setdefault(storage.data_ptr(), storage)
        return tensor

    counter = FlopCounterMode(display=False)
    with counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(call_model(module, inputs))
        forward = counter.get_total_flops()
        real_bytes = sum(storage.nbytes() for storage in saved.values())
        saved.clear()
        loss.backward()
    total = counter.get_total_flops()
    size = (BATCH, sequence)
    traced_total = trace.forward_flops(*size) + trace.backward_flops(*size)
    return {
        "size": size,
        "default_forward_ratio": default.forward_flops(*size) / forward if forward else None,
        "forward_ratio": trace.forward_flops(*size) / forward if forward else None,
        "flops_ratio": traced_total / total if total else None,
        "saved_ratio": trace.saved_bytes(*size) / real_bytes if real_bytes else None,
    }


def results(indices: Sequence[int], on_result: Callable[[dict[str, Any]], None]) -> None:
    """Measure the entries one by one, each in a fork of this process, which imports the libraries only once."""
    warnings.filterwarnings("ignore")
    import_without_extensions()
    listed = entries()
    for library in ("transformers", *sorted({listed[index]["call"].partition(":")[0] for index in indices})):
        with contextlib.suppress(Exception):
            importlib.import_module(library)
    context = multiprocessing.get_context("fork")
    for index in indices:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(listed[index], sender))
        process.start()
        sender.close()
        result: dict[str, Any] = {"outcome": "failed", "reason": f"it did not end within {SECONDS:g} seconds"}
        with contextlib.suppress(EOFError):
            if receiver.poll(SECONDS):
                result = receiver.recv()
        process.kill()
        process.join()
        on_result({"index": index, "title": title(listed[index]), "task": listed[index]["task"], **result})


def _child(entry: dict[str, Any], sender: Connection) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        result = measured(entry)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:300]} ({frame.filename}:{frame.lineno})"
        result = {"outcome": "not built", "reason": text}
    sender.send(result)


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        results(
            [int(text) for text in sys.argv[2:]] or range(len(entries())),
            lambda result: print(json.dumps(result), file=file, flush=True),
        )
