"""Files of a training in ``/opt/ml/model``: whether they load, are complete, and generate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TENSORS = (".pt", ".pth", ".bin", ".ckpt")
_MOST_FILES = 20


def look(folder: Path) -> list[dict[str, Any]]:
    """One entry for each file of tensors, and each folder with a configuration; called in a process of its own."""
    entries: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*"))[:500]:
        if len(entries) >= _MOST_FILES or "checkpoint-" in str(path) or path.is_symlink():
            continue
        if path.name == "config.json":
            entries.append(_pretrained(path.parent))
        elif path.suffix in _TENSORS or path.suffix == ".safetensors":
            entries.append(_file(path))
    return [entry for entry in entries if entry]


def _file(path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": str(path), "elements": 0, "names": [], "error": ""}
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            value: Any = load_file(str(path))
        else:
            import torch

            value = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # noqa: BLE001 - the result
        entry["error"] = f"{type(error).__name__}: {error}"[:300]
        return entry
    stack = [value]
    while stack:
        part = stack.pop()
        for name, item in part.items() if isinstance(part, dict) else ():
            if isinstance(item, dict):
                stack.append(item)
            elif hasattr(item, "numel"):
                entry["elements"] += int(item.numel())
                entry["names"].append(str(name))
    entry["names"] = entry["names"][:400]
    return entry


def _pretrained(folder: Path) -> dict[str, Any]:
    import json

    import torch
    import transformers

    entry: dict[str, Any] = {"path": str(folder), "pretrained": True, "error": "", "missing": 0}
    written = json.loads((folder / "config.json").read_text("utf-8"))
    if not any(os.scandir(folder)) or not (written.get("architectures") and list(folder.glob("*.safetensors"))):
        return {}
    kind: Any = getattr(transformers, written["architectures"][0], None)
    if kind is None:
        return {}
    try:
        model, report = kind.from_pretrained(str(folder), output_loading_info=True, local_files_only=True)
        entry["missing"] = len(report.get("missing_keys", ()))
        if written["architectures"][0].endswith(("ForCausalLM", "LMHeadModel")):
            with torch.no_grad():
                model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=2, do_sample=False)
    except Exception as error:  # noqa: BLE001 - the result
        entry["error"] = f"{type(error).__name__}: {error}"[:300]
    return entry
