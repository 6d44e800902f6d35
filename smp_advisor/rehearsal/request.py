"""The request of a rehearsal: a copy of the code, what its text shows, the channels, and the versions of libraries."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import symtable
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file, read_bytes, user_path
from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.source import read
from smp_advisor.review.scripts import check_script
from smp_advisor.sandbox.limits import GUARD_SECONDS, available_memory_bytes

if TYPE_CHECKING:
    from smp_advisor.rehearsal.contract import Job

_TABLES = data_file("rehearsal", "stand_ins")
STEPS, BATCHES, MOST = 6, 4, 40
_MOST_FILES, _MOST_FILE_BYTES = 2000, 5 * 2**20
_LEFT_OUT = ("__pycache__", ".git", ".ipynb_checkpoints", "node_modules", "wandb", "mlruns")
_VOCABULARY = 2_048
"""Size of vocabularies in the first run, unless what indexes them is larger."""
_SIZE_BYTES = 4 * 2**30
_CHANNEL = re.compile(r"environ\[\s*[\"']SM_CHANNEL_(\w+)")
"""Channels without which a script does not start; what it gets by ``get()`` may be absent."""
_IMPORTS_BY_NAME = re.compile(r"import_module|__import__|runpy|\binstantiate\b|\bexec\(")
_IMPORTS = re.compile(r"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_ROOTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_RELATIVE = re.compile(r"^[ \t]*from[ \t]+(\.+)", re.MULTILINE)
_PROVOKED = {"DDP612": "bad batch", "DDP613": "late", "DDP620": "uneven"}
"""Findings of the reading of two ranks, and the kind of defect that a stage then provokes."""


@dataclass(frozen=True, slots=True)
class Code:
    """The copied code, and what its text shows."""

    folder: Path
    script: str
    text: str
    name: str
    is_module: bool = False
    """Whether it starts as a module of its package."""


def channels_of(data: Any) -> dict[str, str]:
    if data is None:
        return {}
    places = data if isinstance(data, Mapping) else {"train": data}
    paths = {}
    for name, place in places.items():
        path = Path(os.fspath(place)).expanduser()
        if not path.exists():
            raise AdvisorError(f"The data of the channel {name!r} do not exist at {str(path)!r}.")
        paths[str(name)] = str(path.resolve())
    return paths


def copied(script: Any, extra: dict[str, Any], folder: Path, job: Job) -> Code:
    """Copy the script with the small files of its folder, or of that of its package, as a job uploads them."""
    source = read(script)
    folder.mkdir(parents=True)
    entry, home = source.file, None if source.file is None else source.file.parent
    if extra.get("source_dir") and home is not None:
        places = [folder / extra["source_dir"] for folder in (extra.get("folder", Path()), Path())]
        home = next((place.resolve() for place in places if place.is_dir()), home)
    if entry is None or home is None:
        (folder / "train.py").write_text(source.text, encoding="utf-8")
        return Code(folder, "train.py", source.text, "script")
    entry = entry.resolve()
    relative_imports = [len(dots) for dots in _RELATIVE.findall(source.text)]
    is_module = job.is_module or (bool(relative_imports) and not job.is_given)  # nothing else starts it
    home = top = home.resolve() if entry.is_relative_to(home.resolve()) else entry.parent
    in_command = Path(job.entry).parts
    if len(in_command) > 1 and entry.parts[-len(in_command) :] == in_command:
        home = top = entry.parents[len(in_command) - 1]
    elif not extra.get("source_dir"):
        spec = find_spec(home.name) if home.name in _ROOTS.findall(source.text) else None
        locations = [*map(Path, spec.submodule_search_locations or ())] if spec else [home]  # where its parent is
        own = home.name in _ROOTS.findall(source.text) and home in locations
        parts = max([int(is_module and (home / "__init__.py").is_file()), int(own), *relative_imports])
        while parts > 0:
            top, home = home, home.parent
            parts = max(parts - 1, int((home / "__init__.py").is_file()))
    count = 0
    for place, folders, files in os.walk(top):  # of a package, without its siblings
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        (folder / Path(place).relative_to(home)).mkdir(parents=True, exist_ok=True)
        for name in sorted(files):
            path = Path(place, name)
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_FILE_BYTES:
                continue
            count += 1
            if count > _MOST_FILES:
                break
            target = folder / path.relative_to(home)
            with suppress(OSError):  # of another account, or outside of the folders of a tool
                target.write_bytes(read_bytes(path, _MOST_FILE_BYTES))
    relative = entry.relative_to(home)
    target = folder / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.text, encoding="utf-8")
    return Code(folder, relative.as_posix(), source.text, entry.name, is_module)


def request_of(
    code: Code, job: Job, processes: int, channels: dict[str, str], allow_unconfined: bool, keep_half: bool
) -> dict[str, Any]:
    texts = _reached(code)
    code_text = "\n".join(texts)
    required = [name.lower() for name in _CHANNEL.findall(code_text)]
    places: dict[str, str | None] = dict.fromkeys(job.channels or required)
    try:
        tree = ast.parse(code.text)
    except SyntaxError as error:
        raise AdvisorError(f"{code.name} is no Python: {error.msg} at line {error.lineno}.") from None
    names = _undefined(code, tree)
    own = {path.stem for path in code.folder.rglob("*") if path.suffix in ("", ".py")}  # before libraries of its names
    # By its text: a caller may have files of its own folder only.
    read_ids = {finding.id for finding in check_script(f"{code.text}\n").findings}
    suspected = {kind for number, kind in _PROVOKED.items() if number in read_ids}
    suspected |= {kind for kind, words in _TABLES["suspected"].items() if re.search(words, code_text)}
    roots = set(_ROOTS.findall(code_text))
    roots |= {"transformers"} if roots & {"trl", "peft"} else set()
    is_mapped = re.search(r"\.(?:map|rename_column|select|train_test_split)\(", code.text) is not None
    needs_table = bool(names) and ("trl" in roots or is_mapped)
    is_open = not (job.launcher or re.search(r"environ\W+OMPI_", code_text))  # a script with these starts by mpirun
    return {
        "source": str(code.folder), "script": code.script, "channels": places | channels,
        "job": asdict(job) | ({"launcher": "torchrun"} if is_open and job.launches else {}),
        "is_module": code.is_module, "processes": processes, "steps": STEPS, "batches": BATCHES, "most": MOST,
        "stages": "all", "seconds": GUARD_SECONDS,
        "size_bytes": min(_SIZE_BYTES, max(2**28, available_memory_bytes() // 3)), "allow_unconfined": allow_unconfined,
        "imports": sorted(roots), "preloads": _preloads(texts, roots - own),
        "names": names, "one_label": "SequenceClassification" in code.text,
        "needs_table": needs_table, "texts_needed": '"text"' in code.text and needs_table,
        "vocabulary": _VOCABULARY, "named": re.findall(r"[\"'](\w+)[\"']", code_text),
        "columns": _columns(code.text), "keep_half": keep_half,
        "provoked": sorted(suspected), "full": [], "full_width": False, "small": [], "pins": {}, "left_out": [],
    }  # fmt: skip


def _reached(code: Code) -> list[str]:
    """Return the text of the script, and of each file of its folder whose name what it imports has."""
    files = {path: path.read_text("utf-8", "replace") for path in code.folder.rglob("*.py")}
    reached = [code.text]
    for text in reached:  # which grows
        names = set(re.findall(r"\w+", " ".join(_IMPORTS.findall(text))))
        own = [path for path in files if (path.parent.name if path.stem == "__init__" else path.stem) in names]
        own = [*files] if _IMPORTS_BY_NAME.search(text) else own
        reached += [files.pop(path) for path in own]
    return reached


def _preloads(texts: list[str], roots: set[str]) -> list[str]:
    """Imports of libraries, made once before the processes fork; names of lazy modules are imported as they are got."""
    statements = {f"import {root}" for root in roots.intersection(_TABLES["preloaded"])}
    if "transformers" in roots:
        statements |= {
            *_TABLES["models"],
            *["import transformers.trainer" for text in texts if re.search(r"Trainer\b", text)],
        }
    if any("torch.compile(" in text for text in texts):
        statements |= {*_TABLES["compiled"]}
    for text in texts:
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _TABLES["preloaded"]:
                    statements.add(ast.unparse(node))
    return sorted(statements, key=lambda statement: (statement.startswith("from"), statement))


def _undefined(code: Code, tree: ast.Module) -> dict[str, str]:
    """Return the names of data that a fragment takes from elsewhere, and whether they are called."""
    if re.search(r"import \*|\bexec\(|globals\(\)", code.text):
        return {}
    tables = [symtable.symtable(code.text, code.name, "exec")]
    for table in tables:  # which grow
        tables += table.get_children()
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    defined = {
        *dir(builtins), "__file__", "__name__", *(s.get_name() for s in symbols if s.is_local() or s.is_assigned()),
    }  # fmt: skip
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    names = sorted({symbol.get_name() for symbol in symbols if symbol.is_referenced()} - defined)
    return {name: "call" if name in calls else "value" for name in names if _OF_DATA.search(name)}


_OF_DATA = re.compile("row|data|train|test|eval|valid|held_?|example|sample")
_COLUMN = re.compile(
    r"\b(?:examples?|rows?|samples?|record|element|e|ex|x|item|batch|\w*data(?:set)?)"
    r"\[[\"'](?!train|test|val|dev|eval)(\w+)[\"']\]|"
    r"\b(?:dataset_text_field|text_column)\s*=\s*[\"'](\w+)"
)
_REMOVED = re.compile(r"\bremove_columns\s*=\s*\[([^\]]*)\]")


def _columns(text: str) -> list[str]:
    """Return the columns that the script reads of its rows."""
    columns = {name for pair in _COLUMN.findall(text) for name in pair}
    columns |= {name for listed in _REMOVED.findall(text) for name in re.findall(r"[\"'](\w+)[\"']", listed)}
    return sorted(columns.difference(_TABLES["no_columns"], [""]))


_LOOK = """
import sys, importlib.util
lacks = ["has no " + name for name in ("torch", "psutil") if not importlib.util.find_spec(name)]
print("".join(["is older than 3.11"][sys.version_info >= (3, 11):] or lacks[:1]))
"""
_PIN = re.compile(r"^[ \t]*([A-Za-z0-9_.-]+)(?:\[[^]\n]*\])?[ \t]*==[ \t]*([0-9][^\s;#,*]*)", re.MULTILINE)


def interpreter_of(environment: str | os.PathLike[str]) -> str:
    """Return the Python of an environment, which can run a rehearsal.

    Raises
    ------
    AdvisorError
        There is none, it is too old, or it lacks a library that a rehearsal needs.
    """
    place = user_path(environment, AdvisorError).absolute()
    python = next((path for path in (place, place / "bin/python") if path.is_file() and os.access(path, os.X_OK)), None)
    if python is None:
        raise AdvisorError(f"No Python is at {str(place)!r}: pass the folder of an environment, or its bin/python.")
    lacks = "is no Python that starts"
    with suppress(OSError, subprocess.CalledProcessError):  # no program, or none that ends well
        look = [str(python), "-I", "-c", _LOOK]
        lacks = subprocess.run(
            look, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True
        ).stdout.strip()
    if lacks:
        raise AdvisorError(f"{str(python)!r} {lacks}: a rehearsal runs with Python 3.11 or later, torch and psutil.")
    return str(python)


def pins_of(folder: Path, image: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Version, and its origin, of each library that the job pins: its image, and over it requirements.txt."""
    pins = {name: (str(version), "the image of the job has") for name, version in image.items()}
    for file in sorted(folder.rglob("requirements.txt"), key=lambda path: len(path.parts))[:1]:
        lines = _PIN.findall(file.read_text("utf-8", "replace"))
        pins |= {name.lower().replace("_", "-"): (version, "requirements.txt requires") for name, version in lines}
    return pins
