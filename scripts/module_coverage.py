"""Profile one module of profiling_modules.toml by the default call, and compare it with real steps of the module.

`profiling_coverage.py --modules` runs it and writes the page.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import hashlib
import importlib
import multiprocessing
import os
import re
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
ROOT = LIST.parent.parent
sys.path.append(str(ROOT / "tests" / "profiling"))  # modules_of_users
BATCH, SEQUENCE = 2, 64
MEMORY_BYTES = 8 * 2**30
SECONDS = 400.0
STAGE_SECONDS = 300.0
"""Limit of each stage: that of the trace by default. The copy's is 120, which a machine shared with others exceeds."""
SAVED_TOLERANCE = 0.01
EXACT = 1e-6


def entries() -> list[dict[str, Any]]:
    """Entries of the list."""
    listed: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["modules"]
    return listed


def fingerprint() -> str:
    """Hash of the sources of the profiler: rows of this version have it."""
    sources = sorted((ROOT / "smp_advisor" / "profiling").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def title(entry: dict[str, Any]) -> str:
    """Name of a module: its library's call, or the name that the call gets."""
    model = entry.get("arguments", {}).get("model_name")
    return f"{entry['call'].split('.')[0].split(':')[0]}: {model}" if model else entry["call"].replace(":", ".")


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


def measured(entry: dict[str, Any], *, full: float) -> dict[str, Any]:
    """Results of the default call; for at most `full` parameters, also figures next to real steps at full size."""
    import torch

    import smp_advisor
    from smp_advisor.errors import AdvisorError

    torch.manual_seed(0)
    module = built(entry)
    count = sum(p.numel() for p in module.parameters())
    result: dict[str, Any] = {"parameters": count}
    begun = time.perf_counter()
    try:
        profile = smp_advisor.profile(module, seconds=STAGE_SECONDS)
    except AdvisorError as error:
        return result | {"outcome": "failed", "reason": str(error), "seconds": round(time.perf_counter() - begun, 1)}
    result["seconds"] = round(time.perf_counter() - begun, 1)
    method = next((source.method for source in profile.provenance if source.figure == "saved bytes"), "")
    reason = "" if method else " ".join([*profile.warnings, *profile.verdicts])
    result |= {"outcome": method or "failed", "reason": reason, "inputs": profile.inputs}
    result["uncounted"] = list(profile.uncounted)
    result["blocks"] = len(profile.blocks)
    copy = profile.scaled
    result["copy"] = "" if copy is None else "trained" if copy.ok else "; ".join(copy.problems)
    result["copied"] = [] if copy is None else [str(part) for part in copy.reductions]
    if copy is None:
        result["copy_reason"] = " ".join([*profile.warnings, *profile.verdicts])
    else:
        result["copy_parameters"] = copy.parameter_count
        result["copy_agrees"] = {part.figure: round(part.ratio, 6) for part in copy.comparisons}
        result["copy_notes"] = list(copy.notes)
    result["parameters_exact"] = profile.parameter_count == count
    if method and count <= full:
        try:
            result |= compared(module, profile)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            result["not_compared"] = f"{type(error).__name__}: {str(error)[:200]} ({frame.filename}:{frame.lineno})"
    return result


def compared(module: Any, default: Profile) -> dict[str, Any]:
    """Forward and total FLOPs, and saved bytes of the trace in fp32 without fusion, over those of a real step.

    FLOPs are those of torch's own counter; saved bytes are those of the storages that autograd packs. Attention has the
    form that is traced: torch counts no FLOPs of a processor's fused kernel, which saves other tensors, too. Dropout
    layers do nothing: on a processor, they save masks in fp32.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    import smp_advisor
    from smp_advisor.profiling.inputs import example_inputs, filled, valid_ids
    from smp_advisor.profiling.step import call_model, loss_of

    _disable_dropout(module)
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
    with counter, sdpa_kernel(SDPBackend.MATH):
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


def _disable_dropout(module: Any) -> None:
    """Set every probability of dropout, in layers and in attributes, to 0."""
    for layer in module.modules():
        is_dropout = "Dropout" in type(layer).__name__
        for name, value in list(vars(layer).items()):
            if isinstance(value, float) and ("drop" in name or (is_dropout and name == "p")):
                setattr(layer, name, 0.0)


def results(indices: Sequence[int], on_result: Callable[[dict[str, Any]], None], *, full: float = 0.0) -> None:
    """Measure the entries one by one, each in a fork of this process, which imports the libraries only once."""
    warnings.filterwarnings("ignore")
    import_without_extensions()
    listed = entries()
    for library in ("transformers", *sorted({listed[index]["call"].partition(":")[0] for index in indices})):
        with contextlib.suppress(Exception):
            importlib.import_module(library)
    context = multiprocessing.get_context("fork")
    code = fingerprint()
    for index in indices:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(listed[index], sender, full))
        process.start()
        sender.close()
        result: dict[str, Any] = {"outcome": "failed", "reason": f"it did not end within {SECONDS:g} seconds"}
        with contextlib.suppress(EOFError):
            if receiver.poll(SECONDS):
                result = receiver.recv()
        process.kill()
        process.join()
        day = dt.datetime.now(dt.UTC).date().isoformat()
        on_result(
            {
                "code": code,
                "day": day,
                "index": index,
                "title": title(listed[index]),
                "task": listed[index]["task"],
                **result,
            }
        )


def _child(entry: dict[str, Any], sender: Connection, full: float) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        result = measured(entry, full=full)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:300]} ({frame.filename}:{frame.lineno})"
        result = {"outcome": "not built", "reason": text}
    sender.send(result)


def section(results: Sequence[dict[str, Any]]) -> str:
    """Section of the page: counts, then one row per module."""
    profiled = [result for result in results if result["outcome"] not in {"failed", "not built"}]
    traced = [result for result in results if result["outcome"] == "traced"]
    trained = [result for result in results if result.get("copy") == "trained"]
    real = [result["copy_agrees"] for result in profiled if "saved bytes" in result.get("copy_agrees", {})]
    near = [ratios for ratios in real if abs(ratios["saved bytes"] - 1) <= SAVED_TOLERANCE]
    equal = [ratios for ratios in real if all(ratios[figure] == 1 for figure in ("forward FLOPs", "backward FLOPs"))]
    full = [result for result in profiled if result.get("flops_ratio")]
    exact = [result for result in full if abs(result["flops_ratio"] - 1) < EXACT]
    close = [result for result in full if abs((result["saved_ratio"] or 1) - 1) <= SAVED_TOLERANCE]
    versions = collections.Counter(result["code"] for result in results if "code" in result)
    code = versions.most_common(1)[0][0] if versions else fingerprint()
    day = max((result["day"] for result in results if result.get("code") == code), default="")
    current = [result for result in results if result.get("code") == code]
    newly = sum(result["outcome"] == "traced" for result in current)
    lines = [
        "## Modules of other libraries",
        "",
        f"`profile(module)` of {len(results)} of the {len(entries())} modules in `scripts/profiling_modules.toml`:",
        "the default call, without inputs. Libraries and versions: `scripts/profiling_modules.txt`, installed by",
        "`scripts/modules_environment.sh`; `modules_of_users` are in the styles of users' own scripts. Written by",
        f"`scripts/profiling_coverage.py --modules`, with {STAGE_SECONDS:g} seconds per stage on a shared machine.",
        f"{len(current)} rows are of one version of the profiler ({day}, sources {code}): {newly} are traced. Rows",
        "marked † are of other versions of the same day or earlier.",
        f"{len(entries()) - len(results)} modules have not been run.",
        "",
        f"- Traced: **{len(traced)} of {len(results)}**; profiled by any method: {len(profiled)}.",
        f"- Copied, and the copy trains: **{len(trained)} of {len(results)}**.",
        f"- Parameters equal to the module's: {sum(r['parameters_exact'] for r in profiled)} of {len(profiled)}.",
        f"- FLOPs of the copy's trace equal to its real steps: {len(equal)} of {len(real)}; saved bytes within 1 %:",
        f"  {len(near)} of {len(real)}.",
        "",
        "| library: module | task | parameters | trace | copy | saved bytes, trace / real | inputs or reason |",
        "| --- | --- | --: | --- | --- | --: | --- |",
    ]
    if full:
        lines[-3:-3] = [
            f"- At full size, FLOPs of the fp32 trace equal to torch's count: {len(exact)} of {len(full)}; saved bytes",
            f"  within 1 %: {len(close)} of {len(full)}, both without dropout. Larger modules were not run at",
            "  full size.",
        ]
    return "\n".join([*lines, *(_row(result, code) for result in results)]) + "\n"


def _row(result: dict[str, Any], code: str) -> str:
    ratio = result.get("saved_ratio") or result.get("copy_agrees", {}).get("saved bytes")
    count = result.get("parameters")
    cells = (
        f"`{result['title']}`{'' if result.get('code') == code else ' †'}",
        result["task"],
        f"{count / 1e6:.3g} M" if count else "",
        result["outcome"],
        result.get("copy") or _reason(result.get("copy_reason", "")),
        f"{ratio:.4f}" if ratio else "",
        _reason(result.get("reason", "")) or result.get("inputs", ""),
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _reason(text: str) -> str:
    """Reason without paths of this machine, in one short line."""
    text = text.rpartition("results were kept: ")[2]
    text = re.sub(r" at /\S+ \(`[^`]*`\)", "", text)
    text = re.sub(r"\S*/|`", "", " ".join(text.split()))[:180]
    return f"`{text}`" if text else ""
