"""Stand-ins for libraries that download data or report to services; only a child process of a proof imports them."""

from __future__ import annotations

import functools
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.proving.preparation import shrink_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smp_advisor.proving.observer import Observer

_SILENT = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "visdom", "matplotlib", "torchinfo", "torchsummary",
    "neptune", "aim", "psutil",
)  # fmt: skip
"""Libraries that only report: every call of theirs does nothing."""
_VOCABULARY = 128
_WORDS = ("the", "model", "reads", "one", "short", "line", "of", "text", "and", "predicts", "its", "next", "word")


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


_SHAPES = {"MNIST": (1, 28, 10), "CIFAR100": (3, 32, 100), "CIFAR": (3, 32, 10), "SVHN": (3, 32, 10), "": (3, 64, 10)}
"""Channels, side and labels of the data sets of images whose name has a part."""
_SAMPLES = 256


class _Images(torch.utils.data.Dataset[Any]):
    """Synthetic images with labels."""

    def __init__(
        self, name: str, *arguments: Any, transform: Any = None, target_transform: Any = None, **_: Any
    ) -> None:
        if arguments and isinstance(arguments[0], str | Path):
            Path(arguments[0]).mkdir(parents=True, exist_ok=True)
        channels, side, labels = next(shape for part, shape in _SHAPES.items() if part in name.upper())
        self.transform = transform or next((a for a in arguments if callable(a)), None)
        self.target_transform = target_transform
        generator = torch.Generator().manual_seed(1)
        shape = (_SAMPLES, side, side) if channels == 1 else (_SAMPLES, channels, side, side)
        self.data = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        targets = torch.randint(0, labels, (_SAMPLES,), generator=generator)
        # torchvision keeps the labels of MNIST as a tensor, and those of CIFAR as a list.
        self.targets = targets if channels == 1 else targets.tolist()
        self.classes = [str(number) for number in range(labels)]

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index].float() / 255, int(self.targets[index])
        image = image[None] if image.dim() == 2 else image
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


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
            "datasets": lambda name: functools.partial(_Images, name), "transforms": _transform,
            "models": lambda _: _Network,
        }  # fmt: skip
        self.images = {f"torchvision.{name}": _Lazy(name, make) for name, make in parts.items()}
        # Scripts look up some names in the dictionary of the module.
        vars(self.images["torchvision.models"]).update(dict.fromkeys(("resnet18", "resnet50", "vgg16"), _Network))
        self.images["torchvision.transforms.v2"] = self.images["torchvision.transforms"]

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        del path, target
        root = name.partition(".")[0]
        if root == "torchvision" or root in _SILENT or name.startswith("torch.utils.tensorboard"):
            self.observer.notes.add(f"stand-in: {'tensorboard' if root == 'torch' else root}")
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if spec.name == "torchvision":
            return _Lazy(spec.name, lambda name: self.images.get(f"torchvision.{name}", _Nothing(name)))
        return self.images.get(spec.name, _Nothing(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def install_stand_ins(observer: Observer, *, shrink: bool) -> None:
    """Import the stand-ins instead of the libraries; transformers, if it is imported already, looks for them before."""
    if "transformers" in sys.modules:
        _patch_transformers(observer, shrink=shrink)
    if "datasets" in sys.modules:
        _patch_datasets(observer)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"torchvision", *_SILENT}]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(observer))


def _patch_datasets(observer: Observer) -> None:
    """Give every data set of Hugging Face the same few rows, in the tables of the library itself."""
    import datasets  # type: ignore[import-untyped]

    lines = [" ".join(_WORDS[(7 * row + k) % len(_WORDS)] for k in range(8 + row % 3)) for row in range(48)]
    columns = ("text", "sentence", "sentence1", "sentence2", "question", "content", "instruction", "response")

    def load_dataset(name: Any = "data", *_: Any, split: Any = None, **__: Any) -> Any:
        observer.notes.add(f"stand-in: data set {name}")
        rows = {"idx": list(range(48)), "label": [row % 2 for row in range(48)], **dict.fromkeys(columns, lines)}
        table = datasets.Dataset.from_dict(rows)
        return table if split is not None else datasets.DatasetDict(train=table, validation=table, test=table)

    datasets.load_dataset = load_dataset


def _patch_transformers(observer: Observer, *, shrink: bool) -> None:
    """Give every class of transformers small random models, without downloads from the hub."""
    import transformers

    def tokenizer(*_: Any, **__: Any) -> Any:
        """A tokenizer of the library, with the words of the rows."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        observer.notes.add("stand-in: tokenizer")
        words = {word: number for number, word in enumerate(("<e>", "<mask>", *_WORDS))}
        inner = Tokenizer(models.WordLevel(words, "<mask>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        ends = dict.fromkeys(("pad_token", "eos_token", "bos_token", "sep_token", "cls_token"), "<e>")
        others = dict.fromkeys(("mask_token", "unk_token"), "<mask>")
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, model_max_length=_VOCABULARY, **ends, **others
        )

    def config(name: Any, *_: Any, **options: Any) -> Any:
        observer.notes.add(f"stand-in: configuration of {name}")
        return _config(str(name), options)

    transformers.AutoTokenizer.from_pretrained = staticmethod(tokenizer)
    transformers.AutoConfig.from_pretrained = staticmethod(config)

    def model_of(cls: Any, name: Any, *_: Any, **options: Any) -> Any:
        observer.notes.add(f"stand-in: weights of {name}")
        small = options.get("config") or _config(str(name), options)
        return cls.from_config(small) if hasattr(cls, "from_config") else cls(small)

    if shrink:
        create: Any = transformers.PreTrainedModel.__init__

        def create_small(model: Any, config: Any, *arguments: Any, **options: Any) -> None:
            shrink_config(config)
            create(model, config, *arguments, **options)

        transformers.PreTrainedModel.__init__ = create_small
    auto = transformers.models.auto.auto_factory._BaseAutoModelClass  # noqa: SLF001 - base of the AutoModel classes
    for kind in (auto, *auto.__subclasses__()):  # each has a copy of the method
        kind.from_pretrained = classmethod(model_of)
    transformers.PreTrainedModel.from_pretrained = classmethod(model_of)


def _config(name: str, options: dict[str, Any]) -> Any:
    import transformers

    small = {"vocab_size": _VOCABULARY, "num_labels": options.get("num_labels", 2)}
    if any(word in name.lower() for word in ("gpt", "opt", "causal")):
        return transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=128, **small)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if any(word in name.lower() for word in ("llama", "mistral", "qwen")):
        return transformers.LlamaConfig(**sizes, **small)
    return transformers.BertConfig(**sizes, max_position_embeddings=128, **small)
