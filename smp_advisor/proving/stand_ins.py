"""Stand-ins for libraries that download data or report to services; only a child process of a proof imports them."""

from __future__ import annotations

import functools
import sys
import types
import zlib
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

__all__ = ["install_stand_ins"]

_SILENT = (
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "visdom", "matplotlib", "torchinfo", "torchsummary",
    "neptune", "aim", "psutil",
)  # fmt: skip
"""Libraries that only report: every call of theirs does nothing."""
_VOCABULARY = 128


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


def _compose(steps: Any) -> Any:
    return lambda image: functools.reduce(lambda result, step: step(result), steps, image)


def _resize(size: Any, **_: Any) -> Any:
    sides = [min(64, side) for side in ((size, size) if isinstance(size, int) else size)]
    return lambda image: nn.functional.interpolate(image[None], size=sides)[0]


def _normalize(mean: Any, std: Any, **_: Any) -> Any:
    center, scale = (torch.as_tensor(v, dtype=torch.float32).reshape(-1, 1, 1) for v in (mean, std))
    return lambda image: (image - center) / scale


_TRANSFORMS = {
    "Compose": _compose, "Resize": _resize, "CenterCrop": _resize, "RandomResizedCrop": _resize,
    "Normalize": _normalize, "Lambda": lambda function: function,
}  # fmt: skip


def _transform(name: str) -> Any:
    return _TRANSFORMS.get(name, lambda *_, **__: lambda image: image)


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


@functools.cache
def _vision() -> dict[str, types.ModuleType]:
    """The modules by name."""
    functions = {"save_image": lambda *_, **__: None, "make_grid": lambda images, *_, **__: images[0]}
    table = {
        "torchvision.datasets": _lazy("torchvision.datasets", _dataset),
        "torchvision.transforms": _lazy("torchvision.transforms", _transform),
        "torchvision.transforms.v2": _lazy("torchvision.transforms.v2", _transform),
        "torchvision.models": _lazy("torchvision.models", lambda _: _network, **dict.fromkeys(_MODELS, _network)),
        "torchvision.utils": _lazy("torchvision.utils", lambda _: lambda *a, **__: a[0] if a else None, **functions),
    }
    root: Any = types.ModuleType("torchvision")
    for name, module in table.items():
        if name.count(".") == 1:
            setattr(root, name.rpartition(".")[2], module)
    table["torchvision.transforms"].v2 = table["torchvision.transforms.v2"]  # type: ignore[attr-defined]
    return {"torchvision": root, **table}


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
    "torchvision": _vision,
}


def install_stand_ins(observer: Observer, *, shrink: bool) -> None:
    """Import the stand-ins instead of the libraries; transformers, if it is imported already, looks for them before."""
    if "transformers" in sys.modules:
        _patch_transformers(observer, shrink=shrink)
    if "datasets" in sys.modules:
        _patch_datasets(observer)
    for name in [name for name in sys.modules if name.partition(".")[0] in {*_TABLES, *_SILENT}]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(observer))


def _patch_datasets(observer: Observer) -> None:
    """Give every data set of Hugging Face the same few rows, in the tables of the library itself."""
    import datasets  # type: ignore[import-untyped]

    words = ("the", "model", "reads", "one", "short", "line", "of", "text", "and", "predicts", "its", "next", "word")
    lines = [" ".join(words[(7 * row + k) % len(words)] for k in range(8 + row % 3)) for row in range(48)]
    columns = ("text", "sentence", "sentence1", "sentence2", "question", "content", "instruction", "response")

    def load_dataset(name: Any = "data", *_: Any, split: Any = None, **__: Any) -> Any:
        observer.notes.add(f"stand-in: data set {name}")
        rows = {"idx": list(range(48)), "label": [row % 2 for row in range(48)], **dict.fromkeys(columns, lines)}
        table = datasets.Dataset.from_dict(rows)
        return table if split is not None else datasets.DatasetDict(train=table, validation=table, test=table)

    datasets.load_dataset = load_dataset


class _Tokenizer:
    """A tokenizer of words by their hash."""

    pad_token_id = 0
    eos_token_id = bos_token_id = 1
    mask_token_id = 2
    vocab_size = model_max_length = _VOCABULARY
    pad_token = eos_token = "<e>"  # noqa: S105 - a word
    is_fast = True

    def __len__(self) -> int:
        return _VOCABULARY

    def _ids(self, text: str) -> list[int]:
        return [1, *(3 + zlib.crc32(word.encode()) % (_VOCABULARY - 3) for word in text.split()), 1]

    def __call__(
        self,
        text: Any,
        pair: Any = None,
        *,
        padding: Any = False,
        max_length: int | None = None,
        return_tensors: Any = None,
        **_: Any,
    ) -> Any:
        from transformers import BatchEncoding

        single = isinstance(text, str)
        texts = [text] if single else list(text)
        pairs = [None] * len(texts) if pair is None else [pair] if single else list(pair)
        ids = [self._ids(t if p is None else f"{t} {p}")[: max_length or 64] for t, p in zip(texts, pairs, strict=True)]
        rows = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
        batch = self._padded(rows, max_length if padding == "max_length" else None) if padding else rows
        if return_tensors:
            return BatchEncoding({key: torch.tensor(value) for key, value in batch.items()})
        return BatchEncoding({key: value[0] for key, value in batch.items()} if single else batch)

    def _padded(self, rows: dict[str, list[list[int]]], length: int | None) -> dict[str, list[list[int]]]:
        length = length or max(len(row) for row in rows["input_ids"])
        return {key: [list(row) + [0] * (length - len(row)) for row in value] for key, value in rows.items()}

    def pad(self, examples: Any, *_: Any, return_tensors: Any = None, **__: Any) -> Any:
        from transformers import BatchEncoding

        rows = examples if isinstance(examples, dict) else {k: [e[k] for e in examples] for k in examples[0]}
        columns = {k: rows[k] for k in ("input_ids", "attention_mask") if k in rows}
        padded = {**{k: v for k, v in rows.items() if k not in columns}, **self._padded(columns, None)}
        if not return_tensors:
            return BatchEncoding(padded)
        return BatchEncoding({k: torch.as_tensor(v) for k, v in padded.items()})

    def decode(self, tokens: Any, **_: Any) -> str:
        return " ".join(str(int(token)) for token in tokens)

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        """Save nothing."""


def _patch_transformers(observer: Observer, *, shrink: bool) -> None:
    """Give every class of transformers small random models, without downloads from the hub."""
    import transformers

    def tokenizer(*_: Any, **__: Any) -> _Tokenizer:
        observer.notes.add("stand-in: tokenizer")
        return _Tokenizer()

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
