"""Write smp_advisor/review/scripts/data/arguments.csv: arguments of trainers by release, read from wheels only.

Download the releases first, one of each minor version (DeepSpeed has source archives only), then name their folder:

    pip download --no-deps -d wheels transformers==4.36.2 transformers==4.37.2 ... trl==0.7.11 ...
    python -m scripts.trainer_arguments wheels

Packages without a release in the folder keep their rows.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "smp_advisor" / "review" / "scripts" / "data" / "arguments.csv"
ANY = "**"
"""An argument of any name."""
_TRL = ("SFT", "DPO", "GRPO", "KTO", "ORPO", "RLOO", "Reward", "CPO", "OnlineDPO", "PPO", "BCO", "NashMD", "XPO", "GKD")
CALLABLES: dict[str, tuple[str, ...]] = {
    "transformers": (
        *("TrainingArguments", "Seq2SeqTrainingArguments", "Trainer", "Seq2SeqTrainer"),
        *("DataCollatorForLanguageModeling", "DataCollatorForSeq2Seq"),
    ),
    "trl": (*(f"{name}{kind}" for name in _TRL for kind in ("Config", "Trainer")), "DataCollatorForCompletionOnlyLM"),
    "peft": ("LoraConfig", "get_peft_model", "prepare_model_for_kbit_training", "prepare_model_for_int8_training"),
    "accelerate": (
        *("Accelerator", "FullyShardedDataParallelPlugin", "DeepSpeedPlugin", "DataLoaderConfiguration"),
        "ProjectConfiguration",
    ),
    "lightning": ("Trainer", "Fabric", "ModelCheckpoint", "EarlyStopping"),
    "datasets": ("split_dataset_by_node", "concatenate_datasets", "interleave_datasets"),
    "torch": (
        *("FullyShardedDataParallel", "fully_shard", "MixedPrecision", "MixedPrecisionPolicy", "CPUOffload"),
        *("DistributedDataParallel", "DistributedSampler", "DataLoader", "init_process_group"),
        *("init_device_mesh", "AdamW", "checkpoint_wrapper", "apply_activation_checkpointing", "StateDictOptions"),
    ),
    "liger-kernel": (
        *("LigerCrossEntropyLoss", "LigerFusedLinearCrossEntropyLoss", "AutoLigerKernelForCausalLM"),
        *(f"apply_liger_kernel_to_{name}" for name in ("llama", "mistral", "mixtral", "gemma", "gemma2", "qwen2")),
        *(f"apply_liger_kernel_to_{name}" for name in ("qwen2_vl", "qwen3", "phi3", "mllama", "gemma3", "llama4")),
    ),
    "deepspeed": ("initialize", "init_distributed", "DeepSpeedCPUAdam", "FusedAdam", "PipelineModule"),
}
_SUFFIX = {"lightning": ("lightning/pytorch/", "lightning/fabric/")}
_ELSEWHERE = ("TrainingArguments", "Trainer", "Seq2SeqTrainer", "KwargsHandler", "Protocol", "PushToHubMixin")


@dataclass(slots=True)
class Signature:
    """Arguments with their defaults (None without one that is a literal), and names that replace older ones."""

    arguments: dict[str, str] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    base: str = ""
    """A class of another package that adds its own."""


def release_of(wheel: Path) -> tuple[str, tuple[int, ...], str]:
    """Package, sortable release and its text in the name of a wheel."""
    name, version = wheel.name.removesuffix(".tar.gz").split("-")[:2]
    return name.replace("_", "-"), tuple(int(part) for part in re.findall(r"\d+", version)[:3]), version


def _sources(archive: Path) -> Iterator[tuple[str, str]]:
    """Python files of a wheel or source archive, without those of models."""
    if archive.suffix == ".gz":
        with tarfile.open(archive) as files:
            for member in files:
                name = member.name.partition("/")[2]
                if name.endswith(".py") and (file := files.extractfile(member)) is not None:
                    yield name, file.read().decode("utf-8", "replace")
        return
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py") and "/models/" not in name:
                yield name, wheel.read(name).decode("utf-8", "replace")


def signatures(wheel: Path, package: str) -> dict[str, Signature]:
    """Arguments that each callable of the package accepts in one release."""
    classes: dict[str, ast.ClassDef | ast.FunctionDef] = {}
    wanted = set(CALLABLES[package])
    folders = _SUFFIX.get(package, (f"{package.replace('-', '_')}/",))
    texts = {name: text for name, text in _sources(wheel) if name.startswith(folders) and "/experimental/" not in name}
    public = "\n".join(text for name, text in texts.items() if name.endswith("__init__.py"))
    for text in texts.values():
        if any(re.search(rf"(?:class|def) (?:{name}\b|_?\w*Config\b)", text) for name in wanted):
            for node in _top_level(ast.parse(text).body):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not _is_overload(node):
                    classes.setdefault(node.name, node)
    found = {}
    for name in wanted & classes.keys():
        if re.search(rf"\b{name}\b", public):
            found[name] = _signature(classes, name)
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also those under a condition: what needs a build with torch.distributed."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level([*node.body, *node.orelse])


def _is_overload(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def _signature(classes: dict[str, ast.ClassDef | ast.FunctionDef], name: str) -> Signature:
    node, signature = classes[name], Signature()
    if isinstance(node, ast.FunctionDef):
        _of_function(node, signature)
        return signature
    method = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if method is not None:
        _of_function(method, signature)
        return signature
    for base in node.bases:
        last = ast.unparse(base).rpartition(".")[2]
        if last in classes and last not in (name, "Trainer", "TrainingArguments"):
            inner = _signature(classes, last)
            signature.arguments |= inner.arguments
            signature.instead |= inner.instead
            signature.base = signature.base or inner.base
        elif last in ("Trainer", "TrainingArguments"):
            if last in classes:
                inner = _signature(classes, last)
                signature.arguments |= inner.arguments
            else:
                signature.base = f"transformers.{last}"
        elif last not in (*_ELSEWHERE, "object", "ABC", "Enum"):
            signature.arguments[ANY] = ""
    signature.arguments |= _fields(node)
    return signature


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """Fields of a dataclass with their defaults."""
    fields = {}
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            whole = ast.unparse(part)
            if "ClassVar" not in whole and "init=False" not in whole:
                fields[part.target.id] = _default(part.value)
    return fields


def _of_function(node: ast.FunctionDef, signature: Signature) -> None:
    spec = node.args
    positional = [argument for argument in (*spec.posonlyargs, *spec.args) if argument.arg not in ("self", "cls")]
    defaults = [None] * (len(positional) - len(spec.defaults)) + list(spec.defaults[-len(positional) :])
    for argument, default in zip(positional, defaults, strict=False):
        signature.arguments[argument.arg] = _default(default)
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        signature.arguments[argument.arg] = _default(default)
    if spec.kwarg is not None:
        signature.arguments[ANY] = ""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and "deprecate" in ast.unparse(decorator.func):
            literals = [arg.value for arg in decorator.args if isinstance(arg, ast.Constant)]
            texts = [text for text in literals if isinstance(text, str) and text.isidentifier()]
            words = {word.arg: word.value for word in decorator.keywords}
            older = [texts[0]] if texts else []
            if isinstance(listed := words.get("deprecated_args"), ast.List | ast.Set | ast.Tuple):
                older += [str(item.value) for item in listed.elts if isinstance(item, ast.Constant)]
            newer = words.get("new_name", decorator.args[2] if len(decorator.args) > 2 else None)
            for name in older:
                signature.arguments.setdefault(name, "")
                if isinstance(newer, ast.Constant):
                    signature.instead[name] = str(newer.value)


def _default(node: ast.expr | None) -> str:
    """A default that is a literal, as text; empty for others."""
    if isinstance(node, ast.Call):  # dataclasses.field
        node = next((word.value for word in node.keywords if word.arg == "default"), None)
    try:
        literal = ast.literal_eval(node) if node is not None else ...
        return "" if literal is ... else repr(literal)
    except ValueError:
        return ""


def rows(folder: Path) -> tuple[list[list[str]], list[str]]:
    """One row for each span of releases in which an argument has one default; and the releases that were read."""
    table: list[list[str]] = []
    read: list[str] = []
    lines = PAGE.read_text("utf-8").splitlines()
    heads = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    previous = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for package, names in CALLABLES.items():
        pattern = package.replace("-", "_")
        found = [*folder.glob(f"{pattern}-*.whl"), *folder.glob(f"{pattern}-*.tar.gz")]
        if not found:
            table += [list(row.values()) for row in previous if row["callable"].startswith(f"{package}.")]
            read += [line for line in heads if line.startswith(f"{package} ")]
            continue
        wheels = sorted(((*release_of(path), path) for path in found), key=lambda row: row[1])
        by_release = {text: signatures(path, package) for _, _, text, path in wheels}
        releases = list(by_release)
        read.append(f"{package} {releases[0]} to {releases[-1]} ({len(releases)} releases)")
        for name in names:
            several = [by_release[release].get(name) for release in releases]
            arguments = {"": ""} | {key: "" for found in several if found is not None for key in found.arguments}
            instead = {old: new for found in several if found is not None for old, new in found.instead.items()}
            base = next((found.base for found in several if found is not None and found.base), "")
            together: dict[tuple[str, ...], list[str]] = {}
            for argument in arguments:
                present = [_present(one, argument) for one in several]
                for start, stop, default in _spans(present):
                    since = releases[start] if start else ""
                    until = releases[stop] if stop < len(releases) else ""
                    extra = base if not argument else instead.get(argument, "")
                    alone = "" if argument else "itself"
                    together.setdefault((since, until, default, extra, alone), []).append(argument)
            table += [[f"{package}.{name}", " ".join(alike), *key[:4]] for key, alike in together.items()]
    return table, read


def _present(signature: Signature | None, argument: str) -> str | None:
    if signature is None:
        return None
    return signature.arguments.get(argument) if argument else ""


def _spans(present: list[str | None]) -> list[tuple[int, int, str]]:
    """Runs of equal defaults: first release, first one after, default."""
    spans: list[tuple[int, int, str]] = []
    for position, default in enumerate(present):
        if default is None:
            continue
        if spans and spans[-1][1] == position and spans[-1][2] == default:
            spans[-1] = (spans[-1][0], position + 1, default)
        else:
            spans.append((position, position + 1, default))
    return spans


def main() -> int:
    """Write the table."""
    table, read = rows(Path(sys.argv[1]))
    with PAGE.open("w", encoding="utf-8", newline="") as file:
        file.write("# Arguments of trainers by release. Written by scripts/trainer_arguments.py from wheels of:\n")
        file.write("".join(f"# {line}\n" for line in read))
        file.write(
            "# arguments: those with this default in these releases; since: the first release with them, empty if the\n"
            "# oldest one has them; until: the first one without.\n"
        )
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["callable", "arguments", "since", "until", "default", "instead"])
        writer.writerows(table)
    print(f"{len(table)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
