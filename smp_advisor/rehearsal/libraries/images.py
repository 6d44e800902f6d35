"""torchvision, timm and diffusers: synthetic images of the true number, and the smallest networks."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.core.files import data_file
from smp_advisor.rehearsal.observer import NotRehearsed, around, bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.rehearsal.observer import Observer

_TABLES = data_file("rehearsal", "stand_ins")
_ANY = (3, 64, 2, 1_000, 200)
"""Channels, side, labels and lengths of a data set that is not in the table: no model has less than two labels."""
_HELD_BACK = ("test", "val", "valid")
_OTHERWISE = re.compile(
    "VisionDataset|FakeData|DatasetFolder|CelebA|LSUN|VOCSeg|Cityscapes|Coco|Flickr|SBU|Kitti|WIDER|VOCDet|LFWPairs|HMDB|UCF|Kinet"
)
"""Data sets of attributes, masks, captions, boxes, pairs and films, and those that have no files."""
_DIFFERENT = 256
_TIMESTEPS = 4


class Images(torch.utils.data.Dataset[Any]):
    """Synthetic images with labels, as many as the data set has, under the names in the source of its class."""

    def __init__(
        self, name: str, *arguments: Any, transform: Any = None, target_transform: Any = None, transforms: Any = None,
        train: bool = True, source: str = "", **options: Any,
    ) -> None:  # fmt: skip
        part = str(options.get("what") or options.get("split") or options.get("image_set") or "")
        channels, side, labels, *lengths = _TABLES["images"].get(f"{name} {part}", _TABLES["images"].get(name, _ANY))
        length = _TABLES["parts"].get(f"{name} {part}", lengths[not train or part in _HELD_BACK])
        self.transform = transform or next((entry for entry in arguments if callable(entry)), None)
        self.target_transform, self.transforms = target_transform, transforms
        generator = torch.Generator().manual_seed(1)
        shape = (_DIFFERENT, side, side) if channels == 1 else (_DIFFERENT, side, side, channels)
        self._pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        self._numbers = [row % _DIFFERENT % labels for row in range(length)]
        numbers = torch.tensor(self._numbers)
        self.classes = [str(number) for number in range(labels)]
        makers: dict[str, Callable[[], Any]] = {
            # Tensors in the data sets of digits, arrays in those of files of MATLAB, lists in all others.
            "targets": lambda: numbers if "MNIST" in name else self._numbers,
            "labels": lambda: numbers.numpy(), "_labels": lambda: self._numbers, "y": lambda: self._numbers,
            **dict.fromkeys(("samples", "imgs", "_samples"), lambda: [(f"{n}.jpg", n) for n in self._numbers]),
            "class_to_idx": lambda: {text: number for number, text in enumerate(self.classes)},
        }  # fmt: skip
        has = {key for key in makers if not source or re.search(rf"self\.{key}\b[^=\n]* = ", source)}
        vars(self).update({key: makers[key]() for key in has})

    @functools.cached_property
    def data(self) -> Any:
        """All images: a tensor of digits, an array of colors, with these first next to an array of labels."""
        times = (-(-len(self._numbers) // _DIFFERENT), *[1] * (self._pixels.dim() - 1))
        every = self._pixels.repeat(times)[: len(self._numbers)]
        if isinstance(getattr(self, "targets", None), torch.Tensor):
            return every
        return (every.permute(0, 3, 1, 2) if hasattr(self, "labels") and every.dim() == 4 else every).numpy()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        target = self._numbers[index]
        image: Any = Image.fromarray(self._pixels[index % _DIFFERENT].numpy())
        if self.transforms is not None:
            return self.transforms(image, target)
        image = image if self.transform is None else self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)


def change(observer: Observer, module: Any) -> None:
    """Change a module after its import."""
    name = module.__name__
    if name == "torchvision.datasets":
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, module.VisionDataset):
                _synthesize(observer, kind)
    elif name == "torchvision.datasets.utils":
        for key in ("download_url", "extract_archive", "download_and_extract_archive"):
            setattr(module, key, lambda *_, **__: observer.stand_in("archives of images: synthetic images"))
    elif re.fullmatch(r"torchvision\.models(?:\.segmentation|\.detection|\.video)?", name):
        for key, value in list(vars(module).items()):
            if inspect.isfunction(value) and key.islower() and key[0] != "_":
                setattr(module, key, _without_weights(observer, value))
        if builder := getattr(module, "get_model_builder", None):
            module.get_model = lambda name, **options: _without_weights(observer, builder(name))(**options)
    elif name.partition(".")[0] == "timm" and callable(vars(module).get("create_model")):
        _timm(observer, module)
    elif name.startswith("diffusers."):
        _diffusers(observer, module)


def _synthesize(observer: Observer, kind: Any) -> None:
    """Have a class of a data set, which other libraries and classes of the script may have too, make its images."""
    name, signature = kind.__name__, inspect.signature(kind.__init__)
    has_labels = not {"target_transform", "kwargs"}.isdisjoint(signature.parameters) and not _OTHERWISE.match(name)

    @around(kind, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        call = signature.bind(self, *arguments, **options)
        call.apply_defaults()
        values = {"train": True, **call.arguments, **call.arguments.get("kwargs", {})}
        root, values = values.get("root"), {key: values[key] for key in values.keys() - {"self", "root", "kwargs"}}
        is_kept = root is None or name in ("ImageFolder", "DatasetFolder") or "/opt/ml/input/data/" in str(root)
        if (
            is_kept and (root is None or (Path(root).is_dir() and any(Path(root).iterdir())))
        ) or name == "VisionDataset":
            original(self, *arguments, **options)
            return
        if not has_labels or "segmentation" in (values.get("target_types") or ""):
            raise NotRehearsed(f"the images of {name} have no stand-in: pass data={{channel: folder}}")
        observer.stand_in(f"{name}: synthetic images")
        source = "".join(inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("torchvision."))
        names = {f"{before}{key}": value for key, value in values.items() for before in ("", "_")}  # for its text
        vars(self).update(names | {"root": str(root)} | vars(Images(name, source=source, **values)))

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
        makers = sys.modules["timm.models._registry"]._model_entrypoints
        is_own = getattr(makers.get(name), "__code__", _timm.__code__).co_filename.startswith(observer.code)
        if is_own or observer.options.get("full_width"):
            return original(name, pretrained=False, **options)
        observer.once("shrunk")
        observer.stand_in(f"{name}: resnet10t with random weights")
        model_options = {key: value for key, value in options.items() if key in ("num_classes", "in_chans")}
        return original("resnet10t", pretrained=False, **model_options)


def _diffusers(observer: Observer, module: Any) -> None:
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        default = inspect.signature(original).parameters.get("block_out_channels")
        if widths := options.get("block_out_channels", default and default.default):
            options["block_out_channels"] = tuple(64 for _ in widths)  # two channels per group
        original(self, *arguments, **options)

    def from_pretrained(original: Any, cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(name), options.get("subfolder") or "", cls.config_name).is_file():
            return original(cls, name, *arguments, **options)
        observer.stand_in(f"{name}: the default {cls.__name__}")
        return cls(**_TABLES["geometry"].get(cls.__name__, {}))

    def set_timesteps(original: Any, self: Any, number: Any = None, *arguments: Any, **options: Any) -> Any:
        number = options.pop("num_inference_steps", number)
        if isinstance(number, int) and number > _TIMESTEPS:
            observer.stand_in(f"sampling: {_TIMESTEPS} steps")
            number = _TIMESTEPS
        return original(self, number, *arguments, **options)

    part = module.__name__.split(".")[1]
    classes = [entry for entry in vars(module).values() if isinstance(entry, type)]
    for kind in [entry for entry in classes if entry.__module__ == module.__name__]:  # others may not be installed
        is_scheduler = part == "schedulers" and hasattr(kind, "set_timesteps")
        texts = (getattr(kind.__init__, "__doc__", "") or kind.__doc__) if part == "models" else ""
        if is_scheduler or "block_out_channels" in str(texts):
            around(kind, "__init__")(created)
            around(kind, "from_pretrained")(from_pretrained)
            around(kind, "set_timesteps")(set_timesteps)
