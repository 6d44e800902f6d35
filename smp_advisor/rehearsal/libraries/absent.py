"""Libraries that are not installed here: those that only report do nothing.

Any other one is there as long as nothing depends on what it returns.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.core.files import data_file
from smp_advisor.rehearsal import loops
from smp_advisor.rehearsal.observer import Nothing, NotRehearsed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.rehearsal.observer import Observer

_IMPORTING = ("<frozen importlib", str(Path(importlib.util.__file__).parent), str(Path(__file__).parent))
_REPORTING, _TOOLKITS = (data_file("rehearsal", "stand_ins")[kind] for kind in ("reporting", "toolkits"))
_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class NotInstalled:
    """A class, function and value of a library that is not here; what depends on it is not rehearsed."""

    def __getattr__(self, name: str) -> Any:
        if name == "backward":
            self._refuse()
        if name.startswith("__"):
            raise AttributeError(name)
        return NotInstalled()

    def _refuse(self, *_: object) -> Any:
        raise NotRehearsed("NotInstalled")

    __eq__ = __bool__ = __len__ = __iter__ = __mro_entries__ = _refuse
    __hash__ = object.__hash__
    __enter__, __instancecheck__ = Nothing.__enter__, Nothing.__instancecheck__
    __exit__, __call__ = Nothing.__exit__, Nothing.__call__


class Module(types.ModuleType):
    """A module that makes its attributes by their names."""

    def __init__(self, name: str, make: Callable[[str], Any]) -> None:
        super().__init__(name)
        vars(self).update(__path__=[], make=make)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, vars(self)["make"](name))


EARLIER = {"AdamW": lambda p, lr=1e-3, weight_decay=0.0, **_: torch.optim.AdamW(p, lr, weight_decay=weight_decay),
           "load_metric": Nothing()}  # fmt: skip
"""Names of earlier versions of libraries."""


def _is_guarded(frame: Any) -> bool:
    """Return whether the script goes on without what it imports there."""
    nodes, line = ast.walk(ast.parse(Path(frame.f_code.co_filename).read_bytes())), frame.f_lineno
    tries = [n for n in nodes if isinstance(n, ast.Try) and n.lineno <= line <= (n.body[-1].end_lineno or 0)]
    kinds = [ast.unparse(handler.type) if handler.type else "Exception" for t in tries for handler in t.handlers]
    return any(guard in kind for kind in kinds for guard in _GUARDS)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        del path, target
        root = fullname.partition(".")[0]
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTING):
            if frame.f_globals["__name__"] == "importlib.util":
                return None  # the script looks whether it is there
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(self.observer.code):
            return None  # a library does without what is not installed
        is_there = root != fullname and not isinstance(sys.modules.get(root), Module)  # it lacks that part only
        if is_there or _is_guarded(frame):
            return None
        more = "" if root in (*_REPORTING, *_TOOLKITS) else ", and used for nothing that the training needs"
        self.observer.stand_in(f"{root}: not installed here{more}")
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if spec.name.partition(".")[0] in _TOOLKITS:
            environment = types.SimpleNamespace(**json.loads(os.environ["SM_TRAINING_ENV"]))
            read = type("Read", (), {"__call__": lambda _: environment, "__getattr__": lambda self, _: self})()
            return Module(spec.name, lambda _: read)  # a module, and its functions
        make = Nothing if spec.name.partition(".")[0] in _REPORTING else NotInstalled
        return Module(spec.name, lambda _: make())

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install(observer: Observer) -> None:
    """Answer for libraries that no finder before found, and for names that are not in the version that is here."""
    if importlib.util.find_spec("torch.utils.tensorboard") and not importlib.util.find_spec("tensorboard"):
        sys.modules["torch.utils.tensorboard"] = Module("torch.utils.tensorboard", lambda _: Nothing())
    sys.meta_path.append(_Finder(observer))
    for place, name in observer.options["left_out"]:
        if ":" not in place:
            module, _, kind = place.rpartition(".")
            settings = getattr(importlib.import_module(module), kind, None) if module else None
            if isinstance(settings, type):
                setattr(settings, name, property(attrgetter(loops.RENAMED[name])) if name in loops.RENAMED else None)
            else:
                setattr(importlib.import_module(place), name, EARLIER.get(name, lambda *_: False))
