"""Stand-ins for downloads, GPUs and long loops: a module per family of libraries, applied after its import."""

from __future__ import annotations

import importlib.abc
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from smp_advisor.rehearsal.observer import Observer

_HOOKS = {
    **dict.fromkeys(("transformers.", "safetensors.torch"), "huggingface"),
    **dict.fromkeys(("accelerate.", "lightning", "pytorch_lightning", "lightning_fabric"), "trainers"),
    **dict.fromkeys(("datasets", "evaluate", "tiktoken"), "rows"),
    **dict.fromkeys(("torchvision", "timm", "diffusers."), "images"),
}
"""Beginning of the name of a module, and the module here that changes it after its import."""


def install(observer: Observer, compiled: Callable[[str, str], CodeType]) -> None:
    """Change what is imported already and what will be, and compile the user's modules as the script is."""

    def change(module: Any) -> None:
        name = module.__name__
        if str(getattr(module, "__file__", "")).startswith(observer.code):
            return  # of the script, under a library's name
        for start, home in _HOOKS.items():
            if name.startswith(start):
                import_module(f"smp_advisor.rehearsal.libraries.{home}").change(observer, module)

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType:
            del fullname
            return compiled(self.get_data(self.path).decode("utf-8", "replace"), self.path)

    class Finder(importlib.abc.MetaPathFinder):
        """Finds with all others, and changes a library's module after its own code ran."""

        is_inside = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            # The other finders may import while they look.
            if self.is_inside:
                return None
            self.is_inside = True
            try:
                others = (f.find_spec(fullname, path, target) for f in sys.meta_path if f is not self)
                spec = next(filter(None, others), None)
            finally:
                self.is_inside = False
            loader: Any = getattr(spec, "loader", None)
            origin = (spec and spec.origin) or ""
            # The user's modules are compiled as the script; the libraries' are changed after their own code ran.
            if spec is not None and origin.startswith(observer.code):
                spec.loader = Loader(fullname, origin) if origin.endswith(".py") else loader
            elif fullname.startswith(tuple(_HOOKS)) and hasattr(loader, "exec_module"):
                execute = loader.exec_module

                def exec_module(module: Any) -> None:
                    execute(module)
                    change(module)

                with suppress(AttributeError):
                    loader.exec_module = exec_module
            return spec

    for name in sorted(sys.modules):
        module = sys.modules[name]
        if module is not None and name.startswith(tuple(_HOOKS)) and getattr(module, "__name__", "") == name:
            change(module)
    sys.meta_path.insert(0, Finder())
    import_module("smp_advisor.rehearsal.libraries.absent").install(observer)
