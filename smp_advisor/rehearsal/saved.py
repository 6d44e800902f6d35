"""Files of a training in ``/opt/ml/model``: whether they load, are complete, and generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TENSORS = (".pt", ".pth", ".bin", ".ckpt")
_MOST_FILES = 20


def look(folder: Path) -> list[dict[str, Any]]:
    """One entry for each file of tensors, and each folder with a configuration; called in a process of its own."""
    entries: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*"))[:500]:
        if len(entries) >= _MOST_FILES or "checkpoint-" in str(path) or path.is_symlink():
            continue
        if path.name in ("config.json", "adapter_config.json"):
            entries.append(_pretrained(path.parent, path.name))
        elif path.suffix in _TENSORS or path.suffix == ".safetensors":
            entries.append(_file(path))
    return [entry for entry in entries if entry]


def _file(path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": str(path), "names": [], "error": ""}
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
                entry["names"].append(str(name))
    entry["names"] = entry["names"][:400]
    return entry


def _pretrained(folder: Path, config: str) -> dict[str, Any]:
    """A model, or an adapter with its base, where that is a folder."""
    import json

    import torch
    import transformers

    entry: dict[str, Any] = {"path": str(folder), "pretrained": True, "error": "", "missing": 0}
    written, base = json.loads((folder / config).read_text("utf-8")), folder
    if "base_model_name_or_path" in written:
        base = Path(written["base_model_name_or_path"] or "")  # none of a module that is no model of transformers
        if not (base.name and (base / "config.json").is_file()):
            return {}
        written = json.loads((base / "config.json").read_text("utf-8"))
    if not (written.get("architectures") and list(base.glob("*.safetensors"))):
        return {}
    kind: Any = getattr(transformers, written["architectures"][0], None)
    if kind is None:
        return {}
    try:
        model, report = kind.from_pretrained(str(base), output_loading_info=True, local_files_only=True)
        entry["missing"] = len(report.get("missing_keys", ()))
        if base != folder:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(folder))
        if written["architectures"][0].endswith(("ForCausalLM", "LMHeadModel")):
            with torch.no_grad():
                model.generate(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=2, do_sample=False)
    except Exception as error:  # noqa: BLE001 - the result
        entry["error"] = f"{type(error).__name__}: {error}"[:300]
    return entry
