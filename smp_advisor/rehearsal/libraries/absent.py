"""Libraries that are not installed here: those that only report do nothing, and images are synthetic."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.rehearsal.libraries.images import Images
from smp_advisor.rehearsal.libraries.rows import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.rehearsal.observer import Observer

_SILENT = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "visdom", "matplotlib", "torchinfo", "torchsummary",
    "neptune", "aim", "swanlab", "clearml", "torchmetrics", "sagemaker_ssh_helper", "smdebug", "smexperiments",
    "seaborn", "gputil", "GPUtil", "pynvml", "codecarbon",
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


def _transform(name: str) -> Any:
    """The transforms that change shapes or scales; all others return their image."""
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


class _Lazy(_Nothing):
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
        self.images = {f"torchvision.{name}": _Lazy(name, make) for name, make in parts.items()}
        vars(self.images["torchvision.models"]).update(dict.fromkeys(("resnet18", "resnet50", "vgg16"), _Network))
        self.images["torchvision.transforms.v2"] = self.images["torchvision.transforms"]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        del path, target
        root = fullname.partition(".")[0]
        is_installed = root != fullname and not isinstance(sys.modules.get(root), _Nothing)  # it lacks that part only
        is_absent = not is_installed and (root in ("torchvision", "evaluate") or root in _SILENT)
        if is_absent or fullname.startswith("torch.utils.tensorboard"):
            self.observer.stand_in(f"{'tensorboard' if root == 'torch' else root}: not installed here")
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if spec.name == "torchvision":
            return _Lazy(spec.name, lambda name: self.images.get(f"torchvision.{name}", _Nothing(name)))
        if spec.name == "evaluate":
            return _Lazy(spec.name, lambda _: lambda *_, **__: Metric())
        return self.images.get(spec.name, _Nothing(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install(observer: Observer) -> None:
    """Answer for libraries that no finder before found."""
    if importlib.util.find_spec("torch.utils.tensorboard") and not importlib.util.find_spec("tensorboard"):
        sys.modules["torch.utils.tensorboard"] = _Nothing("torch.utils.tensorboard")
    sys.meta_path.append(_Finder(observer))
