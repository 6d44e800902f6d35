"""Stand-ins for downloads, GPUs and long loops: a module per family of libraries, applied after its import."""

from __future__ import annotations

import importlib.abc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer

_HOOKS = {
    "transformers.": "huggingface",
    "accelerate.": "trainers",
    "datasets": "rows",
    "evaluate": "rows",
    "lightning": "trainers",
    "pytorch_lightning": "trainers",
    "lightning_fabric": "trainers",
    "torchvision": "images",
    "timm": "images",
    "diffusers.": "images",
    "safetensors.torch": "huggingface",
}
"""Beginning of the name of a module, and the module here that changes it after its import."""


def install(observer: Observer) -> None:
    """Change what is imported already, and what will be."""

    def change(module: Any) -> None:
        name = module.__name__
        if str(getattr(module, "__file__", "")).startswith(observer.code):
            return  # of the script, under a library's name
        for start, home in _HOOKS.items():
            if name.startswith(start):
                import_module(f"smp_advisor.rehearsal.libraries.{home}").change(observer, module)

    class Finder(importlib.abc.MetaPathFinder):
        """Finds with all others, and changes the module after its own code ran."""

        is_inside = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if self.is_inside or not fullname.startswith(tuple(_HOOKS)):
                return None
            self.is_inside = True
            try:
                spec = next(
                    (s for f in sys.meta_path if f is not self and (s := f.find_spec(fullname, path, target))), None
                )
            finally:
                self.is_inside = False
            loader: Any = getattr(spec, "loader", None)
            if loader is not None and hasattr(loader, "exec_module"):
                execute = loader.exec_module

                def exec_module(module: Any) -> None:
                    execute(module)
                    change(module)

                try:
                    loader.exec_module = exec_module
                except AttributeError:
                    return spec
            return spec

    for name in sorted(sys.modules):
        module = sys.modules[name]
        if module is not None and name.startswith(tuple(_HOOKS)) and getattr(module, "__name__", "") == name:
            change(module)
    sys.meta_path.insert(0, Finder())
    import_module("smp_advisor.rehearsal.libraries.images").install(observer)
