"""torchvision, timm and diffusers: synthetic images of the true number, and the smallest networks.

And libraries that are not installed here: those that only report do nothing, and images are synthetic.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import types
from functools import partialmethod
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.rehearsal.libraries.rows import Metric
from smp_advisor.rehearsal.observer import around, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.rehearsal.observer import Observer

_DIGITS = (1, 28, 10, 60_000)
_DATA_SETS = {
    "MNIST": _DIGITS, "FashionMNIST": _DIGITS, "KMNIST": _DIGITS, "QMNIST": _DIGITS, "EMNIST": (1, 28, 47, 112_800),
    "USPS": (1, 16, 10, 7_291), "CIFAR10": (3, 32, 10, 50_000), "CIFAR100": (3, 32, 100, 50_000),
    "SVHN": (3, 32, 10, 73_257), "STL10": (3, 96, 10, 5_000), "ImageFolder": (3, 64, 10, 1_000),
    "ImageNet": (3, 64, 1000, 1_281_167), "Places365": (3, 64, 365, 1_803_460), "Flowers102": (3, 64, 102, 1_020),
    "Food101": (3, 64, 101, 75_750), "StanfordCars": (3, 64, 196, 8_144), "OxfordIIITPet": (3, 64, 37, 3_680),
    "CelebA": (3, 64, 10_177, 162_770), "VOCSegmentation": (3, 64, 21, 1_464),
}  # fmt: skip
"""Channels, side, labels and length of data sets of images."""
_EMNIST = {
    "byclass": (62, 697_932), "bymerge": (47, 697_932), "letters": (27, 124_800), "digits": (10, 240_000),
    "mnist": (10, 60_000),
}  # fmt: skip
"""Labels and length of the splits of EMNIST that are not balanced; letters have no label of zero."""
_HELD_BACK = ("test", "val", "valid")
_DIFFERENT = 256
_TIMESTEPS = 4


class Images(torch.utils.data.Dataset[Any]):
    """Synthetic images with labels, as many as the data set has."""

    def __init__(
        self, name: str, *arguments: Any, transform: Any = None, target_transform: Any = None, transforms: Any = None,
        train: bool = True, split: str = "", as_tensor: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        if arguments and isinstance(arguments[0], str | Path):
            self.root = str(arguments[0])
        channels, side, labels, length = _DATA_SETS.get(name, _DATA_SETS["ImageFolder"])
        labels, length = _EMNIST.get(split, (labels, length)) if name == "EMNIST" else (labels, length)
        is_held_back = not train or split in _HELD_BACK or options.get("image_set") in _HELD_BACK
        length = max(1, length // 6) if is_held_back else length
        self.transform = transform or next((entry for entry in arguments if callable(entry)), None)
        self.target_transform, self.transforms, self._as_tensor = target_transform, transforms, as_tensor
        default = {"CelebA": "attr", "VOCSegmentation": "segmentation"}.get(name, "category")
        kinds = options.get("target_type") or options.get("target_types") or default
        self._kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        self._values = range(1, 4) if name == "OxfordIIITPet" else range(labels)  # of a pixel's label
        generator = torch.Generator().manual_seed(1)
        shape = (_DIFFERENT, side, side) if channels == 1 else (_DIFFERENT, side, side, channels)
        self._pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        first = int(split == "letters")
        targets = [first + row % _DIFFERENT % (labels - first) for row in range(length)]
        # Tensors in the data sets of digits, lists in those of CIFAR.
        self.targets: Any = torch.tensor(targets) if "MNIST" in name else targets
        self.labels = self._labels = self.targets
        self.classes = [str(number) for number in range(labels)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    @functools.cached_property
    def data(self) -> Any:
        """All images: a tensor of digits, an array of colors."""
        times = (-(-len(self.targets) // _DIFFERENT), *[1] * (self._pixels.dim() - 1))
        every = self._pixels.repeat(times)[: len(self.targets)]
        return every if isinstance(self.targets, torch.Tensor) else every.numpy()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        image = self._pixels[index % _DIFFERENT]
        parts = [Images._target(self, kind, index, image) for kind in self._kinds]
        target = parts[0] if len(parts) == 1 else tuple(parts)
        if self._as_tensor:
            image = image[None].float() / 255 if image.dim() == 2 else image.permute(2, 0, 1).float() / 255
        else:
            from PIL import Image

            image = Image.fromarray(image.numpy())
        if self.transforms is not None:
            return self.transforms(image, target)
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def _target(self, kind: str, index: int, image: torch.Tensor) -> Any:
        label = int(self.targets[index])
        if kind == "attr":
            return (torch.arange(40) + label) % 2
        if kind != "segmentation":
            return label % 2 if kind == "binary-category" else label
        mask = self._values.start + image.reshape(*image.shape[:2], -1)[..., 0] % len(self._values)
        if self._as_tensor:
            return mask
        from PIL import Image

        return Image.fromarray(mask.numpy())


def change(observer: Observer, module: Any) -> None:
    """Change a module after its import."""
    name = module.__name__
    if isinstance(module, Nothing):
        return
    if name == "torchvision.datasets":
        for kind in _DATA_SETS:
            if hasattr(module, kind):
                _synthesize(observer, kind, getattr(module, kind))
    elif name in _NETWORKS:
        for key, value in list(vars(module).items()):
            if inspect.isfunction(value) and key.islower() and key[0] != "_":
                setattr(module, key, _without_weights(observer, value))
        if builder := getattr(module, "get_model_builder", None):
            module.get_model = lambda name, **options: _without_weights(observer, builder(name))(**options)
    elif name.partition(".")[0] == "timm" and callable(vars(module).get("create_model")):
        _timm(observer, module)
    elif name.startswith("diffusers."):
        _diffusers(observer, module)


_NETWORKS = tuple(f"torchvision.models{part}" for part in ("", ".segmentation", ".detection", ".video"))


def _synthesize(observer: Observer, name: str, kind: Any) -> None:
    """Have a class of a data set, which other libraries and classes of the script may have too, make its images."""
    signature = inspect.signature(kind.__init__)

    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        call = signature.bind(self, *arguments, **options)
        call.apply_defaults()
        values = {"train": True, **call.arguments, **call.arguments.get("kwargs", {})}
        root, values = values.get("root", ""), {key: values[key] for key in values.keys() - {"self", "root", "kwargs"}}
        if name == "ImageFolder" and Path(str(root)).is_dir() and any(Path(str(root)).iterdir()):
            original(self, *arguments, **options)
            return
        observer.stand_in(f"{name}: synthetic images")
        names = {f"{before}{key}": value for key, value in values.items() for before in ("", "_")}  # for its text
        vars(self).update(names | vars(Images(name, str(root), **values)))

    data = functools.cached_property(Images.data.func)  # type: ignore[attr-defined]
    data.__set_name__(kind, "data")
    kind.data = data

    @around(kind, "__getitem__", "__len__")
    def taken(original: Any, self: Any, *arguments: Any) -> Any:
        is_stand_in = "_pixels" in vars(self)
        return getattr(Images, original.__name__)(self, *arguments) if is_stand_in else original(self, *arguments)


def _without_weights(observer: Observer, function: Any) -> Any:
    """Return a function that makes a network, which then has random weights."""
    names = {key: value.default for key, value in inspect.signature(function).parameters.items()}

    def made(original: Any, *arguments: Any, **options: Any) -> Any:
        for key in ("weights", "pretrained", "weights_backbone", "pretrained_backbone"):
            if options.get(key, names.get(key)):
                observer.stand_in(f"{function.__name__}: random weights")
                options[key] = False if key.startswith("pretrained") else None
        return original(*arguments[arguments[:1] == (True,) :], **options)  # `resnet18(True)` is pretrained

    return bound(made, function)


def _timm(observer: Observer, module: Any) -> None:
    if hasattr(module.create_model, "__wrapped__"):
        return  # by the module from which this one has it

    @around(module, "create_model")
    def create_model(original: Any, name: Any, pretrained: Any = False, **options: Any) -> Any:
        del pretrained
        observer.stand_in(f"{name}: resnet10t with random weights")
        model_options = {key: value for key, value in options.items() if key in ("num_classes", "in_chans")}
        return original("resnet10t", pretrained=False, **model_options)


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
    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        if "block_out_channels" in options:
            options["block_out_channels"] = tuple(32 for _ in options["block_out_channels"])
        original(self, *arguments, **options)

    @around(kind, "from_pretrained")
    def from_pretrained(original: Any, cls: Any, name: Any, *_: Any, **__: Any) -> Any:
        del original
        observer.stand_in(f"{name}: random weights")
        return cls()


def _short(observer: Observer, kind: Any) -> None:
    @around(kind, "set_timesteps")
    def set_timesteps(
        original: Any, self: Any, num_inference_steps: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        if isinstance(num_inference_steps, int) and num_inference_steps > _TIMESTEPS:
            observer.stand_in(f"sampling: {_TIMESTEPS} steps")
            num_inference_steps = _TIMESTEPS
        return original(self, num_inference_steps, *arguments, **options)


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
        create: Any = Images.__init__
        parts: dict[str, Callable[[str], Any]] = {
            "datasets": lambda name: type(name, (Images,), {"__init__": partialmethod(create, name, as_tensor=True)}),
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
