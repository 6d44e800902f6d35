"""Modules that are imported when a test first uses them, since collecting the tests is to import no PyTorch."""

import importlib
from typing import Any


class Deferred:
    """A module, or a function or class of it."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def _imported(self) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for fixtures and mocks in every name of a module
            raise AttributeError(attribute)
        return getattr(self._imported(), attribute)

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        return self._imported()(*arguments, **keywords)


def deferred(module: str, *names: str) -> tuple[Deferred, ...]:
    """Functions and classes of a module: ``a, b = deferred("module", "a", "b")``."""
    return tuple(Deferred(module, name) for name in names)
