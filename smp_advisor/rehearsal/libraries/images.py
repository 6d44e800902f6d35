"""torchvision, timm and diffusers: synthetic images of the true number, and the smallest networks.

And libraries that are not installed here: those that only report do nothing, and images are synthetic.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.rehearsal.libraries.rows import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.rehearsal.observer import Observer

_SHAPES = {
    "FASHIONMNIST": (1, 28, 10, 60_000), "MNIST": (1, 28, 10, 60_000), "CIFAR100": (3, 32, 100, 50_000),
    "CIFAR": (3, 32, 10, 50_000), "SVHN": (3, 32, 10, 73_257), "USPS": (1, 16, 10, 7_291), "": (3, 64, 10, 1_000),
}  # fmt: skip
"""Channels, side, labels and length of the data sets of images whose name has a part."""
_DIFFERENT = 256
_WITH_LABELS = (
    "MNIST", "FashionMNIST", "EMNIST", "KMNIST", "QMNIST", "USPS", "CIFAR10", "CIFAR100", "SVHN", "STL10", "ImageNet",
    "ImageFolder", "LSUN", "Flowers102", "Food101", "OxfordIIITPet", "StanfordCars", "Places365",
)  # fmt: skip
_TIMESTEPS = 4


class Images(torch.utils.data.Dataset[Any]):
    """Synthetic images with labels, as many as the data set has."""

    def __init__(
        self, name: str, *arguments: Any, transform: Any = None, target_transform: Any = None, train: bool = True,
        as_tensor: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        if arguments and isinstance(arguments[0], str | Path):
            self.root = str(arguments[0])
        channels, side, labels, length = next(shape for part, shape in _SHAPES.items() if part in name.upper())
        self._length = length if train else max(1, length // 6)
        self.transform = transform or next((entry for entry in arguments if callable(entry)), None)
        self.target_transform, self._as_tensor = target_transform, as_tensor
        generator = torch.Generator().manual_seed(1)
        shape = (_DIFFERENT, side, side) if channels == 1 else (_DIFFERENT, side, side, channels)
        self.data = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        self._labels = [row % labels for row in range(_DIFFERENT)]
        targets = [self._labels[row % _DIFFERENT] for row in range(self._length)]
        # Tensors in the data sets of digits, lists in those of CIFAR.
        self.targets: Any = targets
        if "MNIST" in name.upper():
            self.targets = torch.tensor(targets)
            self.data = self.data.repeat(-(-self._length // _DIFFERENT), 1, 1)[: self._length]
        self.classes = [str(number) for number in range(labels)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        pixels, label = self.data[index % _DIFFERENT], self._labels[index % _DIFFERENT]
        if self._as_tensor:
            image: Any = pixels[None].float() / 255 if pixels.dim() == 2 else pixels.permute(2, 0, 1).float() / 255
        else:
            from PIL import Image

            image = Image.fromarray(pixels.numpy())
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


def change(observer: Observer, module: Any) -> None:
    """Change a module after its import."""
    name = module.__name__
    if isinstance(module, Nothing):
        return
    if name == "torchvision.datasets":
        for kind in _WITH_LABELS:
            if hasattr(module, kind):
                setattr(module, kind, _data_set(observer, kind, getattr(module, kind)))
    elif name == "torchvision.models":
        load = getattr(module, "get_model", None)
        if load is not None:
            module.get_model = lambda which, **options: load(which, **{**options, "weights": None})
        for key, value in list(vars(module).items()):
            if callable(value) and key.islower() and key[0] != "_" and not isinstance(value, type):
                setattr(module, key, _without_weights(observer, value))
    elif name == "timm":
        _timm(observer, module)
    elif name.startswith("diffusers."):
        _diffusers(observer, module)


def _data_set(observer: Observer, name: str, original: Any) -> Any:
    @functools.wraps(original)
    def made(*arguments: Any, **options: Any) -> Any:
        root = options.get("root", arguments[0] if arguments else "")
        if name == "ImageFolder" and Path(str(root)).is_dir() and any(Path(str(root)).iterdir()):
            return original(*arguments, **options)
        observer.stand_in(f"{name}: synthetic images")
        options.setdefault("train", options.pop("split", "train") == "train")
        return Images(name, *arguments, **options)

    return made


def _without_weights(observer: Observer, function: Any) -> Any:
    @functools.wraps(function)
    def made(*arguments: Any, **options: Any) -> Any:
        for key in ("weights", "pretrained", "weights_backbone"):
            if options.get(key):
                observer.stand_in(f"{function.__name__}: random weights")
                options[key] = False if key == "pretrained" else None
        return function(*arguments, **options)

    return made


def _timm(observer: Observer, module: Any) -> None:
    create = module.create_model

    def create_model(name: Any, pretrained: Any = False, **options: Any) -> Any:
        del pretrained
        observer.stand_in(f"{name}: resnet10t with random weights")
        model_options = {key: value for key, value in options.items() if key in ("num_classes", "in_chans")}
        return create("resnet10t", pretrained=False, **model_options)

    module.create_model = create_model


def _diffusers(observer: Observer, module: Any) -> None:
    parts = module.__name__.split(".")
    for kind in list(vars(module).values()):
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        if parts[1] == "models" and "block_out_channels" in str(getattr(kind.__init__, "__doc__", "") or kind.__doc__):
            _narrow(observer, kind)
        if parts[1] == "schedulers" and hasattr(kind, "set_timesteps"):
            _short(observer, kind)


def _narrow(observer: Observer, kind: Any) -> None:
    create = kind.__init__

    @functools.wraps(create)
    def created(self: Any, *arguments: Any, **options: Any) -> None:
        if "block_out_channels" in options:
            options["block_out_channels"] = tuple(32 for _ in options["block_out_channels"])
        create(self, *arguments, **options)

    kind.__init__ = created

    def from_pretrained(cls: Any, name: Any, *_: Any, **__: Any) -> Any:
        observer.stand_in(f"{name}: random weights")
        return cls()

    kind.from_pretrained = classmethod(from_pretrained)


def _short(observer: Observer, kind: Any) -> None:
    original = kind.set_timesteps

    @functools.wraps(original)
    def set_timesteps(self: Any, num_inference_steps: Any = None, *arguments: Any, **options: Any) -> Any:
        if isinstance(num_inference_steps, int) and num_inference_steps > _TIMESTEPS:
            observer.stand_in(f"sampling: {_TIMESTEPS} steps")
            num_inference_steps = _TIMESTEPS
        return original(self, num_inference_steps, *arguments, **options)

    kind.set_timesteps = set_timesteps


_IMPORTING = ("<frozen importlib", str(Path(importlib.util.__file__).parent), str(Path(__file__).parent))
_SILENT = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "visdom", "matplotlib", "torchinfo", "torchsummary",
    "neptune", "aim", "swanlab", "clearml", "torchmetrics", "sagemaker_ssh_helper", "smdebug", "smexperiments",
    "seaborn", "gputil", "GPUtil", "pynvml", "codecarbon",
)  # fmt: skip
"""Libraries that only report: every call of theirs does nothing."""


class Nothing(types.ModuleType):
    """A module, class, function and value that does nothing."""

    def __init__(self, name: str = "nothing") -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Any:
        return iter((Nothing(), Nothing()))

    def __getitem__(self, key: object) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


def _transform(name: str) -> Any:
    """Return the transforms that change shapes or scales; all others return their image."""
    if name == "Compose":
        return lambda steps: lambda image: functools.reduce(lambda result, step: step(result), steps, image)
    if name in ("Resize", "CenterCrop", "RandomResizedCrop"):
        return lambda size, **_: (
            lambda image: nn.functional.interpolate(
                image[None], size=[min(64, side) for side in ((size, size) if isinstance(size, int) else size)]
            )[0]
        )
    if name == "Normalize":
        return lambda mean, std, **_: (
            lambda image: (image - torch.tensor(mean).reshape(-1, 1, 1)) / torch.tensor(std).reshape(-1, 1, 1)
        )
    return lambda *arguments, **_: arguments[0] if name == "Lambda" else lambda image: image


class _Network(nn.Module):
    """Two layers under the names that scripts replace."""

    def __init__(self, *_: Any, num_classes: int = 1000, **__: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2)
        self.layer1 = nn.Conv2d(64, 512, 1, stride=4)
        self.fc: nn.Module = nn.Linear(512, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the labels."""
        scores: torch.Tensor = self.fc(self.layer1(torch.relu(self.conv1(images))).mean((2, 3)))
        return scores


class _Lazy(Nothing):
    """A module that makes its attributes by their names."""

    def __init__(self, name: str, make: Callable[[str], Any]) -> None:
        super().__init__(name)
        vars(self).update(make=make)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, vars(self)["make"](name))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        parts: dict[str, Callable[[str], Any]] = {
            "datasets": lambda name: functools.partial(Images, name, as_tensor=True),
            "transforms": _transform,
            "models": lambda _: _Network,
        }
        self.images = {(full := f"torchvision.{name}"): _Lazy(full, make) for name, make in parts.items()}
        vars(self.images["torchvision.models"]).update(dict.fromkeys(("resnet18", "resnet50", "vgg16"), _Network))
        self.images["torchvision.transforms.v2"] = self.images["torchvision.transforms"]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        del path, target
        root = fullname.partition(".")[0]
        is_installed = root != fullname and not isinstance(sys.modules.get(root), Nothing)  # it lacks that part only
        is_absent = not is_installed and (root in ("torchvision", "evaluate") or root in _SILENT)
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTING):
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(self.observer.code):
            return None  # a library does without what is not installed
        if is_absent or fullname.startswith("torch.utils.tensorboard"):
            self.observer.stand_in(f"{'tensorboard' if root == 'torch' else root}: not installed here")
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if spec.name == "torchvision":
            return _Lazy(spec.name, lambda name: self.images.get(f"torchvision.{name}", Nothing(name)))
        if spec.name == "evaluate":
            return _Lazy(spec.name, lambda _: lambda *_, **__: Metric())
        return self.images.get(spec.name, Nothing(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install(observer: Observer) -> None:
    """Answer for libraries that no finder before found."""
    if importlib.util.find_spec("torch.utils.tensorboard") and not importlib.util.find_spec("tensorboard"):
        sys.modules["torch.utils.tensorboard"] = Nothing("torch.utils.tensorboard")
    sys.meta_path.append(_Finder(observer))
