"""The number of samples of a dataset, from the script or the dataset's name."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from smp_advisor.reading.values import Collection, Function, Instance, Result, Value
from smp_advisor.scripts.queries import constant, origins

__all__ = ["samples"]

_TORCHVISION = "torchvision.datasets."
_FILLED = ("torch.randn", "torch.rand", "torch.zeros", "torch.ones", "torch.empty")
_FAKE_SIZE = 1000
"""Default size of torchvision's FakeData."""


def samples(dataset: Value | None) -> list[int | None]:
    """Number of samples for each possible value of `dataset`; None if unknown."""
    return [_samples(origin) for origin in origins(dataset)] if dataset is not None else [None]


def _samples(value: Value) -> int | None:
    if isinstance(value, Collection):
        return len(value.items)
    if isinstance(value, Instance):
        return _of_class(value)
    if not isinstance(value, Result):
        return None
    call = value.call
    if call.name.startswith(_TORCHVISION):
        return _of_torchvision(value)
    if call.name == "torch.utils.data.TensorDataset" and call.arguments:
        return next((_first_dimension(origin) for origin in origins(call.arguments[0])), None)
    if call.name == "range" and len(call.arguments) == 1:
        return _whole(constant(call.arguments[0]))
    return None


def _of_torchvision(value: Result) -> int | None:
    call = value.call
    name = call.name.removeprefix(_TORCHVISION)
    if name == "FakeData":
        argument = call.argument("size", 0)
        return _FAKE_SIZE if argument is None else _whole(constant(argument))
    sizes = _sizes()
    if name in sizes["train_or_test"]:
        argument = call.argument("train", 1)
        train = True if argument is None else constant(argument)
        return int(sizes["train_or_test"][name][0 if train else 1]) if isinstance(train, bool) else None
    if name in sizes["by_split"]:
        split = call.argument("split", 1)
        return sizes["by_split"][name].get("train" if split is None else constant(split))  # type: ignore[no-any-return]
    return None


def _of_class(instance: Instance) -> int | None:
    """The literal that ``__len__`` returns."""
    length = instance.cls.find("__len__")
    if not isinstance(length, Function) or not isinstance(length.node.body, list) or len(length.node.body) != 1:
        return None
    returned = getattr(length.node.body[0], "value", None)
    return _whole(getattr(returned, "value", None))


def _first_dimension(value: Value) -> int | None:
    if not isinstance(value, Result) or value.call.name not in _FILLED or not value.call.arguments:
        return None
    first = value.call.arguments[0]
    if isinstance(first, Collection) and first.items:
        first = first.items[0]
    return _whole(constant(first))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@lru_cache(maxsize=1)
def _sizes() -> dict[str, Any]:
    return tomllib.loads(files("smp_advisor.scripts").joinpath("data/dataset_sizes.toml").read_text("utf-8"))
