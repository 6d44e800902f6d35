"""Stand-ins for libraries that download data or report to services; only a child process of a proof imports them."""

from __future__ import annotations

import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from smp_advisor.proving.stand_ins import text, vision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.proving.observer import Observer

__all__ = ["install_stand_ins"]

_SILENT = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "visdom", "matplotlib", "torchinfo", "torchsummary",
    "neptune", "aim", "psutil",
)  # fmt: skip
"""Libraries that only report: every call of theirs does nothing."""


class _Nothing(types.ModuleType):
    """A module, class, function and value that does nothing."""

    def __init__(self, name: str = "nothing") -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Any:
        return iter((_Nothing(), _Nothing()))

    def __getitem__(self, key: object) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


class _Finder(MetaPathFinder, Loader):
    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        del path, target
        root = name.partition(".")[0]
        if root in _TABLES or root in _SILENT or name.startswith("torch.utils.tensorboard"):
            self.observer.notes.add(f"stand-in: {'tensorboard' if root == 'torch' else root}")
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        table = _TABLES.get(spec.name.partition(".")[0])
        return _Nothing(spec.name) if table is None else table()[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


_TABLES: dict[str, Callable[[], dict[str, types.ModuleType]]] = {
    "torchvision": vision.modules,
    "datasets": text.modules,
    "evaluate": text.modules,
    "tiktoken": text.modules,
}


def install_stand_ins(observer: Observer) -> None:
    """Import the stand-ins instead of the libraries; transformers, if it is imported already, looks for them before."""
    if "transformers" in sys.modules:
        from smp_advisor.proving.stand_ins.hub import patch_transformers

        patch_transformers(observer)
    sys.meta_path.insert(0, _Finder(observer))
