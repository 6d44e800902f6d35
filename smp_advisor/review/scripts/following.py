"""Follow a script: which libraries it is written for, and which kind of training code it has."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.review.reading.following import follow as read_through
from smp_advisor.review.reading.run import TooLongError
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import Argument, Class, Constant, External, Instance, Result, options
from smp_advisor.review.scripts.conditions import BACK_ENDS, Conditions
from smp_advisor.review.scripts.context import Context, Libraries
from smp_advisor.review.scripts.queries import is_optimizer
from smp_advisor.review.scripts.settings import Settings, with_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from smp_advisor.review.reading.run import Run
    from smp_advisor.review.reading.source import Source
    from smp_advisor.review.reading.trace import Call, Trace
    from smp_advisor.review.reading.values import Function, Value


_LAUNCHES = re.compile(
    r"\b(?:PyTorch|TensorFlow|HuggingFace|ModelTrainer|TrainingCompilerConfig|create_training_job)\("
    r"|\bsagemaker\.(?:pytorch|tensorflow|huggingface|training_compiler|estimator|modules\.train|train)\b"
)
"""Text that starts a training job: its values are computed, as for `smp_advisor.check_estimator`."""


_TRAINING = frozenset(["backward", "fit", "training_step", "apply_gradients", "wait_for_everyone", "barrier"])
"""Methods that train, or in which ranks that train meet."""
_TRAINS = re.compile(rf"\.\s*(?:{'|'.join(sorted(_TRAINING))})\b")
_MOST_SIBLINGS = 100
_CONCERNS = re.compile(
    r"smdistributed|torch_xla|torch\.sagemaker|\b(?:smp|tsm|xm)\b"  # libraries decide which checks apply
    r"|^(?:for|while|with|if (?!__name__|TYPE_CHECKING))\b.*:\s*(?:#.*)?$"  # blocks that run at once
    r"|^[A-Za-z_][\w.\[\]]*(?:, *[\w.]+)* *(?:=|\().*"  # statements that run at once
    r"(?:[Dd]istributed|DataLoader|Sampler|backward|[Oo]ptim|[Aa]ccelerator|[Ff]sdp|FSDP|[Tt]rain|save|load|seed"
    r"|set_device|environ|parse|barrier|keras|\bfit\b|main\()",
    re.MULTILINE,
)
"""Text of modules that act when they are imported. Others wait until a script uses a name of them."""


def follow(
    source: Source,
    settings: Settings,
    variables: Mapping[str, Any] | None = None,
) -> Context:
    """Input of the checks."""
    run = _followed(source, variables)
    settings = with_script(settings, run.trace)
    libraries = _libraries(run.trace, settings)
    return Context(run.trace, settings, libraries, run.unresolved, followed=run.followed.keys())


def _followed(source: Source, variables: Mapping[str, Any] | None) -> Run:
    if _LAUNCHES.search(source.text) is not None:
        try:
            return read_through(source, computes=True, variables=variables, is_entry=_is_entry)
        except TooLongError:
            pass  # the text also trains: each loop is followed once
    return read_through(source, variables=variables, is_entry=_is_entry, can_wait=_can_wait, completes=True)


@lru_cache(maxsize=256)  # scripts of a project import the same modules
def _can_wait(text: str) -> bool:
    return _CONCERNS.search(text) is None


def _is_entry(run: Run) -> bool:
    """Whether other code calls functions of the file: it trains only in them, and no file next to it imports it."""
    calls = [call for call in run.trace.calls if call.reached]
    if any(call.method in _TRAINING or getattr(call.function, "step", None) is not None for call in calls):
        return False
    # Most modules of a project do not contain the words: walking their trees takes longer than reading them.
    modules = [module for module in run.trace.modules if _TRAINS.search(module.source.text) is not None]
    trains = any(node.attr in _TRAINING for module in modules for node in module.all(ast.Attribute))
    return trains and not _imported_nearby(run.trace.modules[0].source)


_SUITE = re.compile(r"\b(?:CLI|auto_cli|Fire)\(")
"""A file that offers the functions of others as commands, which are the entries of these files."""


def _imported_nearby(source: Source) -> bool:
    """Return whether a file of the same folder imports this one, so that it is a module and not a script."""
    if source.file is None or source.file.suffix != ".py":
        return False
    siblings = sorted(path for path in source.file.parent.glob("*.py") if path.name != source.file.name)
    for path in siblings[:_MOST_SIBLINGS]:
        try:
            text = read(path).text
            lines = [line for line in text.split("\n") if source.file.stem in line]
            if any(_imports(line, source.file.stem) for line in lines) and not _SUITE.search(text):
                return True
        except AdvisorError:
            continue
    return len(siblings) > _MOST_SIBLINGS or source.file.stem == "__init__"


def _imports(line: str, module: str) -> bool:
    return re.match(rf"[ \t\f]*(?:from|import)[ \t]+[\w., ]*\b{re.escape(module)}\b", line) is not None


def _libraries(trace: Trace, settings: Settings) -> Libraries:
    """Return which checks apply: by the script's imports, and by the plan where those are not decisive."""
    record = get_library(settings.library) if settings.library in LIBRARIES else None
    shards = record is not None and record.divides_model and record.launcher == "torchrun"
    # Back ends that the plan requires: by its library, or by parameters that only one library has.
    of_v1 = (settings.microbatches, settings.prescaled_batch, settings.sharded_data_parallel_degree)
    of_v2 = (settings.hybrid_shard_degree, settings.sm_activation_offloading)
    own = record is not None and record.smdistributed
    planned = set[str]()
    if any(value is not None for value in of_v1) or (own and not shards):
        planned = {"smp_torch", "smp_tensorflow"}
    elif any(value is not None for value in of_v2) or (own and shards):
        planned = {"smp_v2"}
    elif record is not None and record.compiles:
        planned = {"xla"}
    # The names of v1 in a script for v2 are one defect of their own: SMP305.
    v1 = "smp_torch" in planned or not ("smp_v2" in planned or trace.requires("torch.sagemaker"))
    return Libraries(
        optional=frozenset(
            name
            for name, back_end in BACK_ENDS.items()
            if name not in planned and trace.imported(*back_end.packages) and not trace.requires(*back_end.packages)
        ),
        smp_torch=v1 and bool(trace.imported("smdistributed.modelparallel.torch")),
        smp_tensorflow=bool(trace.imported("smdistributed.modelparallel.tensorflow")),
        smp_v2=bool(trace.imported("torch.sagemaker")) or (shards and record is not None and record.smdistributed),
        xla=record.compiles if record and not trace.requires("torch_xla") else bool(trace.imported("torch_xla")),
        fsdp=shards and record is not None and not record.smdistributed,
    )


_DEFAULT = "hf-sdpa"
"""Attention of transformers where a script names none (since release 4.36, for models that support it)."""


_OFFLOADING = (
    "Copies of saved activations to host memory can take far more time than estimated: AWS's FSDP example with 7 to 8"
    " billion parameters on 4 ml.p5.48xlarge took 2.1 and 3.1 s per step, several times the estimate, for reasons that"
    " are not all known."
)
"""Measured: logs of 2025-04-07 and 2025-06-17 in 3.test_cases/pytorch/FSDP/slurm/README.md, aws-samples'
awsome-distributed-training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptStack:
    """Settings of a job that its script determines, with the places that show them."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Job` by name: ``stack``, ``optimizer``, ``optimizer_step``, ``paged_optimizer``."""
    offloads_activations: bool = False
    """Whether the script copies saved activations to host memory."""
    because: tuple[str, ...] = ()
    """Reason for each setting, with its line."""
    undecided: tuple[str, ...] = ()
    """Settings that depend on values which the text does not show."""

    @property
    def stack(self) -> str:
        """Kind of code (`Job.stack`); ``auto`` if the text shows none."""
        return str(self.settings.get("stack", "auto"))

    @property
    def summary(self) -> str:
        """The settings and their places, in one or two sentences; empty without any."""
        if not self.because and not self.undecided:
            return ""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items()) or "no setting"
        text = f"Your script determines {settings} ({'; '.join((*self.because, *self.undecided))})."
        return f"{text} {_OFFLOADING}" if self.offloads_activations else text


def _stacks() -> dict[str, Any]:
    return table("smp_advisor.review.scripts", "data/stacks.toml")


@checked
def read_stack(path_or_source: str | Path) -> ScriptStack:
    r"""Read the kind of training code out of a script. The script is never run.

    Parameters
    ----------
    path_or_source
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules next to a file are followed.

    Raises
    ------
    AdvisorError
        The file does not exist, is not text, or is not Python 3.

    Examples
    --------
    >>> read_stack("import torch\nmodel = torch.compile(torch.nn.Linear(2, 2))\n").stack
    'torch-compile'
    """
    return stack_shown(read_through(read(path_or_source)).trace)


def trainer_optimizer(name: object) -> Mapping[str, Any]:
    """Return the fields of `Job` for a value of TrainingArguments' ``optim``."""
    settings: Mapping[str, Any] = _stacks()["trainer"].get(str(name), {})
    return settings


def stack_shown(trace: Trace) -> ScriptStack:
    """Return the kind of training code of a script that was followed."""
    settings: dict[str, Any] = {}
    because: list[str] = []
    undecided: list[str] = []
    for evidence in _evidence(trace):
        if not evidence.certain:
            undecided.append(f"{evidence.place}: {evidence.text} depends on a value that the text does not show")
        fresh = {name: value for name, value in evidence.settings.items() if name not in settings}
        if fresh:
            settings |= fresh
            because.append(f"{evidence.place} {evidence.text}")
    if "stack" not in settings and not undecided and trace.requires("transformers"):
        settings["stack"] = _DEFAULT
        because.append("the script uses transformers and names no attention, so SDPA runs")
    offloads = trace.named(*_stacks()["offload"]["names"])
    if offloads:
        because.append(f"{_place(offloads[0])} copies saved activations to host memory")
    return ScriptStack(
        settings=settings, offloads_activations=bool(offloads), because=tuple(because), undecided=tuple(undecided)
    )


@dataclass(frozen=True, slots=True)
class _Evidence:
    """A place in the text and the settings that it shows."""

    place: str
    text: str
    settings: Mapping[str, Any]
    certain: bool = True


def _evidence(trace: Trace) -> Iterator[_Evidence]:
    """All places, those first that decide over later ones: compilation, switches, packages, attention, optimizer."""
    data = _stacks()
    for line in _compiled(trace):
        yield _Evidence(f"line {line}", "compiles the model", {"stack": "torch-compile"})
    for keyword, stack in data["switches"].items():
        yield from _switched(trace, keyword, {True: {"stack": stack}})
    for entry in data["packages"]:
        if trace.requires(*entry["prefixes"]):
            _, node, name = trace.imported(*entry["prefixes"])[0]
            yield _Evidence(f"line {node.lineno}", f"imports {name}", {"stack": entry["stack"]})
    attentions = {value: {"stack": stack} for value, stack in data["attention"].items()}
    yield from _switched(trace, "attn_implementation", attentions)
    for call in trace.calls:
        if call.name == "torch.optim.SGD":
            momentum, _ = _value(call.argument("momentum"))
            yield _Evidence(_place(call), f"creates {call.called}", {"optimizer": "sgd" if momentum else "plain-sgd"})
        if call.name in data["optimizers"]:
            yield _Evidence(_place(call), f"creates {call.called}", data["optimizers"][call.name])
        for keyword, meanings in _FORMS.items() if is_optimizer(call.name) else ():
            value, _ = _value(call.argument(keyword))
            if call.name not in data["optimizers"] and value in meanings:
                yield _Evidence(_place(call), f"sets {keyword}={value}", {"optimizer_step": meanings[value]})
    yield from _switched(trace, "optim", data["trainer"])


def _switched(trace: Trace, keyword: str, meanings: Mapping[Any, Mapping[str, Any]]) -> Iterator[_Evidence]:
    """Yield the calls with a keyword, and the settings that its values mean."""
    for call in trace.calls:
        entry = call.passed.entries.get(keyword)
        if entry is None:
            continue
        value, certain = _value(entry.value)
        settings = meanings.get(value, {})
        if settings or not certain:
            yield _Evidence(_place(call), f"{keyword}={value!r}" if certain else keyword, settings, certain)


_FORMS: dict[str, dict[Any, str]] = {"fused": {True: "fused"}, "foreach": {True: "foreach", False: "loop"}}
"""Values of ``Job.optimizer_step`` by keyword and value."""


def _place(call: Call) -> str:
    return f"line {call.node.lineno}"


def _value(argument: Value | None) -> tuple[Any, bool]:
    """(value, whether it is certain). The default of a command-line option is not certain."""
    certain = True
    values: list[Any] = []
    for option in options(argument):
        if isinstance(option, Argument):
            certain = False
            values += [default.value for default in options(option.default) if isinstance(default, Constant)]
        elif isinstance(option, Constant):
            values.append(option.value)
        else:
            certain = False
    values = [value for value in values if value is not None]
    return (values[0] if values else None), certain and len(values) <= 1


_PART_OF_A_STEP = re.compile(
    r"step|zero_grad|gelu|rope|(?:apply_)?rotary\w*|embed|embeddings?|clip_grad\w*|(?:ref|reference|teacher)(?:_model)?"
    r"|\w*(?:loss|norm)"
    r"|(?:\w*_)?(?:head|loss|criterion|entropy|attention|attn|mask|optimizer|optim|update|norm)"
    r"(?:_fn|_func|_function)?",
    re.IGNORECASE,
)
"""Names of what is compiled next to a model, or alone in it: an update, a loss, a kernel, a layer, another model."""
_PART_OF_TORCH = re.compile(
    r"torch\.nn\.(?:functional|utils|attention)\.|torch\.nn\.\w*(?:Loss|Norm|Embedding)$|torch\.optim\."
)
_MODEL = re.compile(r"(?:\w*_)?(?:model|net|network|module|transformer|backbone|unet|vit|forward)\d*", re.IGNORECASE)


def _compiled(trace: Trace) -> Iterator[int]:
    """Yield the lines that compile a model, or a function that calls it."""
    for call in filter(_runs, trace.named("torch.compile")):
        if call.node.args and _is_model(call.node.args[0], call.arguments[0] if call.arguments else None):
            yield call.node.lineno
    methods = [] if trace.imported("tensorflow", "keras") else trace.methods("compile")
    for call in methods:
        owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        of_model = owner is not None and not call.name and _compiles_module(call) and _is_model(owner, call.receiver)
        if of_model and _runs(call):
            yield call.node.lineno
    definitions: list[Function | Class] = [*trace.functions, *trace.classes]
    for decorated in definitions:
        for decorator in getattr(decorated.node, "decorator_list", ()):
            name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name == "torch.compile" and (isinstance(decorated, Class) or _calls_model(decorated.node)):
                yield decorator.lineno


def _runs(call: Call) -> bool:
    """Return whether a call runs by the defaults of the options, and with a PyTorch of today."""
    older = any(
        "__version__" in (text := ast.unparse(guard.test)) and ("<" in text) is guard.holds for guard in call.guards
    )
    return not older and not Conditions(Settings(), defaults=True).off(call)


def _is_model(target: ast.expr, value: Value | None) -> bool:
    """Return whether what is compiled is a model, or a function that may call it."""
    if isinstance(target, ast.Lambda):
        return _calls_model(target)
    for option in options(value):
        path = option.path if isinstance(option, External) else option.call.name if isinstance(option, Result) else ""
        if _PART_OF_TORCH.match(path) or (isinstance(option, Instance) and _has_no_parts(option.cls)):
            return False
    if isinstance(target, ast.Call):
        target = target.func
    return _PART_OF_A_STEP.fullmatch(_last_name(target)) is None


def _calls_model(node: ast.AST) -> bool:
    calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return any(_MODEL.fullmatch(_last_name(function)) for function in calls)


def _has_no_parts(cls: Class) -> bool:
    """Return whether a module has only a forward pass, as a loss has."""
    of_torch = all(isinstance(base, External) and base.path == "torch.nn.Module" for base in cls.bases)
    return of_torch and "__init__" not in cls.members


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _compiles_module(call: Call) -> bool:
    """Return whether a method ``compile`` is that of a PyTorch module: Keras's takes an optimizer or a loss."""
    return not {"optimizer", "loss", "metrics"} & set(call.passed.entries) and not call.arguments
