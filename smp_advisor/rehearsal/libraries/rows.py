"""Data sets: the user's own where they are given, and otherwise a few rows with the columns that the script reads."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file
from smp_advisor.rehearsal.observer import Nothing, around

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.rehearsal.observer import Observer

WORDS = [
    "the", "model", "reads", "one", "short", "line", "of", "text", "and", "predicts", "its", "next", "word",
    "user", "assistant", "system", "answer", "question",
]  # fmt: skip
_ROWS = 256
_TOKENIZED = 4096
_OWN_ROWS = 50
_TABLES = data_file("rehearsal", "stand_ins")
_FILES = ("json", "csv", "parquet", "text", "arrow", "pandas", "imagefolder")


def change(observer: Observer, module: Any) -> None:
    """Change a module after its import."""
    if module.__name__ == "evaluate":
        module.load = Nothing()
    elif module.__name__ == "datasets":
        _datasets(observer, module)
    elif module.__name__ == "tiktoken":
        module.get_encoding = module.encoding_for_model = functools.partial(_encoding, observer, module)


def _encoding(observer: Observer, module: Any, name: str = "gpt2") -> Any:
    """Return an encoding of bytes, with the numbers of a published one at its end."""
    observer.stand_in(f"{name}: an encoding of bytes")
    end = next((number for part, number in _TABLES["ends"].items() if part in name), 50_256)
    ranks = {bytes([number]): number for number in range(256)}
    return module.Encoding(name, pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})


def lines() -> list[str]:
    """Return the texts of 8 to 10 words, no two alike."""
    return [
        " ".join(WORDS[(7 * row + k * (1 + row % 5)) % len(WORDS)] for k in range(8 + row % 3)) for row in range(_ROWS)
    ]


def tokenized(*, one_label: bool) -> list[dict[str, Any]]:
    """Return tokenized rows, as the stand-in of a name that a script does not define."""
    import torch

    rows = torch.randint(4, 20, (_TOKENIZED, 16), generator=torch.Generator().manual_seed(0))
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": torch.tensor(n % 2) if one_label else row}
        for n, row in enumerate(rows)
    ]


def columns_for(name: str, observer: Observer) -> dict[str, list[Any]]:
    """Return the columns of the stand-in of a data set, by what its name and the script show."""
    named, columns, texts = observer.options["named"], observer.options["columns"], lines()
    names = next((names for pattern, names in _TABLES["rows"].items() if re.search(pattern, name.lower())), None)
    if names is None:
        of_script = [column for column in _TABLES["texts"] if column in named]
        names = of_script or ([] if columns else ["text"])
    if {"messages", "chosen", "prompt"}.isdisjoint([*names, *columns]):
        has_label = "label" in named or "labels" not in named  # which a script makes itself of other columns
        columns = [*columns, *(["label"] if has_label else []), *(["idx"] if "idx" in named else [])]
    return {column: _values(column, texts) for column in [*names, *columns]}


def _values(column: str, texts: list[str]) -> list[Any]:
    """Return the values of a column, of the type that its name shows."""
    kind = next((kind for pattern, kind in _TABLES["cells"].items() if re.search(pattern, column)), "text")
    if kind == "picture":
        return _pictures()
    makers: dict[str, Callable[[int, str], Any]] = {
        "text": lambda _, text: text,
        "reversed": lambda row, _: texts[-1 - row],
        "messages": lambda row, text: [
            {"role": "user", "content": text}, {"role": "assistant", "content": texts[-1 - row]}
        ],
        "audio": lambda row, _: {"array": [0.1, row / _ROWS] * 800, "sampling_rate": 16_000},
        "translation": lambda _, text: dict.fromkeys(("en", "de", "fr", "ro", "es"), text),
        "answers": lambda _, text: {"text": [text.split()[0]], "answer_start": [0]},
        "words": lambda _, text: text.split(),
        "tags": lambda _, text: [number % 2 for number, _ in enumerate(text.split())],
        "label": lambda row, _: row % 2,
        "number": lambda row, _: row,
    }  # fmt: skip
    return [makers[kind](row, text) for row, text in enumerate(texts)]


def _pictures() -> list[Any]:
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(1)
    return [Image.fromarray(generator.integers(0, 255, (40, 40, 3), dtype=np.uint8)) for _ in range(_ROWS)]


def _datasets(observer: Observer, module: Any) -> None:
    load, from_disk, is_short = module.load_dataset, module.load_from_disk, False

    def stand_in(name: Any, split: Any, *, streaming: bool) -> Any:
        nonlocal is_short
        is_short = True
        observer.stand_in(f"data set {name}: {_ROWS} rows")
        observer.once("short", rows=_ROWS)
        table = module.Dataset.from_dict(columns_for(str(name), observer))
        if streaming:
            table = table.to_iterable_dataset(num_shards=4)
        if split is not None:
            return [table] * len(split) if isinstance(split, list) else table
        of_splits = module.IterableDatasetDict if streaming else module.DatasetDict
        return of_splits(dict.fromkeys(("train", "validation", "test"), table))

    def is_given(path: Any, options: dict[str, Any]) -> bool:
        places = options.get("data_files") or options.get("data_dir") or path
        places = list(places.values()) if isinstance(places, dict) else places
        places = places if isinstance(places, list | tuple) else [places]
        flat = [item for place in places for item in (place if isinstance(place, list) else [place])]
        return bool(flat) and all(Path(str(place).partition("*")[0]).exists() for place in flat)

    def first(loaded: Any) -> Any:
        """Return the first rows of real data, or all in a run that is watched."""
        nonlocal is_short
        if observer.options.get("live"):
            return loaded
        if isinstance(loaded, dict):
            for key in list(loaded):
                loaded[key] = first(loaded[key])
        elif hasattr(loaded, "select") and len(loaded) > _OWN_ROWS:
            loaded, is_short = loaded.select(range(_OWN_ROWS)), True
            observer.once("short", rows=_OWN_ROWS)
        return loaded

    def load_dataset(path: Any = "data", name: Any = None, *arguments: Any, split: Any = None, **options: Any) -> Any:
        if (path in _FILES or Path(str(path)).exists()) and is_given(None if path in _FILES else path, options):
            has_files = not any(Path(str(options.get("data_dir", "/x"))).glob("*")) and options.get("data_dir")
            if not has_files:
                options.pop("num_proc", None)
                return first(load(path, name, *arguments, split=split, **options))
        return stand_in(name if path in _FILES and name else path, split, streaming=bool(options.get("streaming")))

    def load_from_disk(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(path)).is_dir() and any(Path(str(path)).iterdir()):
            return first(from_disk(path, *arguments, **options))
        return stand_in(path, "train", streaming=False)

    module.load_dataset, module.load_from_disk = load_dataset, load_from_disk
    cache = Path(tempfile.gettempdir(), "rows")  # of all ranks, as that of rows which are loaded from files
    cache.mkdir(exist_ok=True)
    for owner in (module.fingerprint, module.arrow_dataset):
        owner.get_temporary_cache_files_directory = lambda: str(cache)

    @around(module.Dataset, "map")
    def mapped(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        is_kept = not options.get("cache_file_name")  # which others read
        options.update(num_proc=None, keep_in_memory=is_kept, load_from_cache_file=False)
        if observer.is_asked_by_user("/datasets/"):  # a library maps on one rank by itself
            observer.rows += len(self)
        return original(self, *arguments, **options)

    @around(module.Dataset, "select")
    def selected(original: Any, self: Any, indices: Any, *arguments: Any, **options: Any) -> Any:
        if is_short and len(self) <= _ROWS:  # of the rows that are not here
            indices = [int(index) % len(self) for index in indices]
        return original(self, indices, *arguments, **options)

    @around(module.Dataset, "train_test_split")
    def divided(original: Any, self: Any, test_size: Any = None, train_size: Any = None, **options: Any) -> Any:
        sizes = [size for size in (test_size, train_size) if isinstance(size, int)]
        if is_short and len(self) <= _ROWS and sum(sizes) >= len(self):
            test_size = train_size = None
        return original(self, test_size, train_size, **options)
