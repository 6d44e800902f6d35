"""torchvision: images of the right shape and label range, transforms of tensors, and a small network for each model."""

from __future__ import annotations

import types
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["modules"]

_SHAPES = {"MNIST": (1, 28, 28, 10), "CIFAR100": (3, 32, 32, 100), "CIFAR": (3, 32, 32, 10), "SVHN": (3, 32, 32, 10)}
_SAMPLES = 256
_MODELS = (
    "alexnet", "densenet121", "efficientnet_b0", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101",
    "squeezenet1_0", "vgg11", "vgg16", "vgg19", "vit_b_16",
)  # fmt: skip
"""Names that scripts look up in the module's dictionary; all others are found as attributes."""


class _Images(torch.utils.data.Dataset[Any]):
    """Synthetic images with labels."""

    channels, height, width, labels = 3, 64, 64, 10

    def __init__(self, *arguments: Any, transform: Any = None, target_transform: Any = None, **options: Any) -> None:
        if arguments and isinstance(arguments[0], str | Path):
            Path(arguments[0]).mkdir(parents=True, exist_ok=True)
        callables = [a for a in arguments if callable(a)]
        self.transform = transform or (callables[0] if callables else None)
        self.target_transform = target_transform
        generator = torch.Generator().manual_seed(1 + int(bool(options.get("train", True))))
        gray = self.channels == 1
        shape = (_SAMPLES, self.height, self.width) if gray else (_SAMPLES, self.channels, self.height, self.width)
        self.data = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, self.labels, (_SAMPLES,), generator=generator)
        # torchvision keeps the labels of MNIST as a tensor, and those of CIFAR as a list.
        self.targets = labels if gray else labels.tolist()
        self.classes = [str(number) for number in range(self.labels)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.imgs = self.samples = [(f"{n}.png", label) for n, label in enumerate(labels.tolist())]

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index].float() / 255, int(self.targets[index])
        image = image[None] if self.channels == 1 else image
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


def _dataset(name: str) -> type:
    kind = next((shape for part, shape in _SHAPES.items() if part in name.upper()), (3, 64, 64, 10))
    names = ("channels", "height", "width", "labels")
    return type(name, (_Images,), dict(zip(names, kind, strict=True)))


class _Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class _Resize:
    def __init__(self, size: Any, **_: Any) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        size = tuple(min(64, side) for side in self.size)
        return nn.functional.interpolate(image[None], size=size)[0]


class _Normalize:
    def __init__(self, mean: Any, std: Any, **_: Any) -> None:
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float32).reshape(-1, 1, 1) for v in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self.mean) / self.std


class _Function:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)


class _Identity:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, image: Any) -> Any:
        return image


_TRANSFORMS: dict[str, type] = {
    "Compose": _Compose, "Resize": _Resize, "CenterCrop": _Resize, "RandomResizedCrop": _Resize,
    "Normalize": _Normalize, "Lambda": _Function,
}  # fmt: skip


class _Network(nn.Module):
    """Two layers under the names that scripts replace."""

    def __init__(self, num_classes: int = 1000, **_: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2)
        self.layer1 = nn.Conv2d(64, 512, 1, stride=4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc: nn.Module = nn.Linear(512, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the labels."""
        scores: torch.Tensor = self.fc(torch.flatten(self.avgpool(self.layer1(torch.relu(self.conv1(images)))), 1))
        return scores


def _network(*_: Any, **options: Any) -> nn.Module:
    return _Network(**{key: value for key, value in options.items() if key == "num_classes"})


def _lazy(name: str, make: Any, **attributes: Any) -> types.ModuleType:
    class Lazy(types.ModuleType):
        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            value = make(attribute)
            setattr(self, attribute, value)
            return value

    module: Any = Lazy(name)
    module.__path__ = []
    for key, value in attributes.items():
        setattr(module, key, value)
    return module  # type: ignore[no-any-return]


@cache
def modules() -> dict[str, types.ModuleType]:
    """The modules by name."""
    functions = {"save_image": lambda *_, **__: None, "make_grid": lambda images, *_, **__: images[0]}
    table = {
        "torchvision.datasets": _lazy("torchvision.datasets", _dataset),
        "torchvision.transforms": _lazy("torchvision.transforms", lambda name: _TRANSFORMS.get(name, _Identity)),
        "torchvision.transforms.v2": _lazy("torchvision.transforms.v2", lambda name: _TRANSFORMS.get(name, _Identity)),
        "torchvision.models": _lazy("torchvision.models", lambda _: _network, **dict.fromkeys(_MODELS, _network)),
        "torchvision.utils": _lazy("torchvision.utils", lambda _: lambda *a, **__: a[0] if a else None, **functions),
    }
    root: Any = types.ModuleType("torchvision")
    for name, module in table.items():
        if name.count(".") == 1:
            setattr(root, name.rpartition(".")[2], module)
    table["torchvision.transforms"].v2 = table["torchvision.transforms.v2"]  # type: ignore[attr-defined]
    return {"torchvision": root, **table}
