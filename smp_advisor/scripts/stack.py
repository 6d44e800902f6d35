"""The kind of training code, read out of a script: attention, compilation, fused kernels, optimizer, offloading."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from smp_advisor.reading.following import follow
from smp_advisor.reading.source import read
from smp_advisor.reading.values import Argument, Constant, options
from smp_advisor.scripts.names import is_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from smp_advisor.reading.trace import Call, Trace
    from smp_advisor.reading.values import Value

__all__ = ["ScriptStack", "read_stack"]

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


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((files("smp_advisor.scripts") / "data" / "stacks.toml").read_text(encoding="utf-8"))


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
    trace = follow(read(path_or_source)).trace
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
    offloads = trace.named(*_data()["offload"]["names"])
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
    data = _data()
    methods = [call for call in trace.methods("compile") if not call.name and _compiles_module(call)]
    for call in (*trace.named("torch.compile"), *([] if trace.imported("tensorflow", "keras") else methods)):
        yield _Evidence(_place(call), "compiles the model", {"stack": "torch-compile"})
    for keyword, stack in data["switches"].items():
        yield from _switched(trace, keyword, {True: {"stack": stack}})
    for entry in data["packages"]:
        if trace.requires(*entry["prefixes"]):
            _, node, name = trace.imported(*entry["prefixes"])[0]
            yield _Evidence(f"line {node.lineno}", f"imports {name}", {"stack": entry["stack"]})
    attentions = {value: {"stack": stack} for value, stack in data["attention"].items()}
    yield from _switched(trace, "attn_implementation", attentions)
    for call in trace.calls:
        if call.name in data["optimizers"]:
            yield _Evidence(_place(call), f"creates {call.called}", data["optimizers"][call.name])
        elif is_optimizer(call.name):
            yield from _forms(call)
    yield from _switched(trace, "optim", data["trainer"])


def _switched(trace: Trace, keyword: str, meanings: Mapping[Any, Mapping[str, Any]]) -> Iterator[_Evidence]:
    """Calls with a keyword, and the settings that its values mean."""
    for call in trace.calls:
        entry = call.passed.entries.get(keyword)
        if entry is None:
            continue
        value, certain = _value(entry.value)
        settings = meanings.get(value, {})
        if settings or not certain:
            yield _Evidence(_place(call), f"{keyword}={value!r}" if certain else keyword, settings, certain)


def _forms(call: Call) -> Iterator[_Evidence]:
    """Form of the optimizer step of PyTorch's optimizers."""
    for keyword, meanings in _FORMS.items():
        value, _ = _value(call.argument(keyword))
        if value in meanings:
            yield _Evidence(_place(call), f"sets {keyword}={value}", {"optimizer_step": meanings[value]})


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


def _compiles_module(call: Call) -> bool:
    """Whether a method ``compile`` is that of a PyTorch module: Keras's takes an optimizer or a loss."""
    return not {"optimizer", "loss", "metrics"} & set(call.passed.entries) and not call.arguments
