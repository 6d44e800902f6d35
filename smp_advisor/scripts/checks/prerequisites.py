"""Calls that every script of a library needs: whether it uses the library at all, and all that it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smp_advisor.scripts.back_ends import BACK_ENDS
from smp_advisor.scripts.checks.replicas import ACCELERATORS
from smp_advisor.scripts.checks.sharding import FSDP
from smp_advisor.scripts.context import Context, Hit, check
from smp_advisor.scripts.names import is_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A call that scripts of a library need."""

    text: str
    names: tuple[str, ...]
    reported_by: str
    """The check that reports it if the script shows where it belongs."""


_PIPELINE_STEP = "@smp.step around the forward and backward pass"
_OF_V1 = (
    Need(text="smp.init()", names=("smp.init",), reported_by="SMP101"),
    Need(
        text="torch.cuda.set_device(smp.local_rank())",
        names=("torch.cuda.set_device", "torch.cuda.device", "torch.set_default_device"),
        reported_by="SMP108",
    ),
    Need(text="smp.DistributedModel", names=("smp.DistributedModel",), reported_by="SMP102"),
    Need(text="smp.DistributedOptimizer", names=("smp.DistributedOptimizer",), reported_by="SMP103"),
    Need(text=_PIPELINE_STEP, names=("smp.step",), reported_by="SMP105"),
)
_OF_V2 = (
    Need(text="tsm.init()", names=("tsm.init",), reported_by="SMP301"),
    Need(text="FSDP around the model", names=FSDP, reported_by="SMP303"),
)
_OF_FSDP = (Need(text="FullyShardedDataParallel or fully_shard", names=FSDP, reported_by=""),)
_TITLES = {"smp-v1": "SMP v1", "smp-v2": "SMP v2", "training-compiler": "Training Compiler", "fsdp": "FSDP"}
_PACKAGES = {
    "smp-v1": ("smdistributed.modelparallel",),
    "smp-v2": ("torch.sagemaker",),
    "training-compiler": ("torch_xla",),
    "fsdp": ("torch.distributed.fsdp", "torch.distributed._composable.fsdp", "accelerate", "lightning", "torchtitan"),
}
_IMPORTS = {
    "smp-v1": "import smdistributed.modelparallel.torch as smp",
    "smp-v2": "import torch.sagemaker as tsm",
    "training-compiler": "import torch_xla.core.xla_model as xm",
    "fsdp": "from torch.distributed.fsdp import FullyShardedDataParallel",
}


@check("SMP001")
def _uses_the_library(context: Context) -> Iterator[Hit]:
    library = _library(context)
    if not library or not _trains(context) or _by_trainer(context):
        return
    if context.trace.imported(*_PACKAGES[library], *(("pytorch_lightning",) if library == "fsdp" else ())):
        return
    if library == "training-compiler" and _tensorflow(context):
        return  # the image compiles
    missing = [f"`{_IMPORTS[library]}`", *(need.text for need in _needs(library, tensorflow=_tensorflow(context)))]
    module = context.trace.modules[0]
    if module.tree.body:
        yield Hit(module, module.tree.body[0], {"library": _TITLES[library], "missing": _listed(missing)})


@check("SMP002")
def _has_what_it_needs(context: Context) -> Iterator[Hit]:
    # A part of a script has no optimizer of its own.
    makes_optimizer = any(is_optimizer(call.name) and call.reached for call in context.trace.calls)
    if not makes_optimizer or not _trains(context) or _by_trainer(context):
        return
    for library, name in (("smp-v1", "smp_torch"), ("smp-v2", "smp_v2")):
        imports = context.trace.imported(*BACK_ENDS[name].packages)
        optional = name in context.libraries.optional or context.trace.requires("torch_xla")
        if not getattr(context.libraries, name) or optional or not imports:
            continue
        missing = [need for need in _needs(library) if not _there(context, need)]
        if missing:
            module, node, _ = imports[0]
            reported_by = frozenset(need.reported_by for need in missing)
            values: dict[str, object] = {
                "library": _TITLES[library],
                "missing": _listed([need.text for need in missing]),
            }
            yield Hit(module, node, values, reported_by=reported_by)


def _library(context: Context) -> str:
    """The library that the plan determines; empty if none."""
    if context.settings.library:
        return context.settings.library if context.settings.library in _TITLES else ""
    of_v1 = (context.settings.microbatches, context.settings.prescaled_batch)
    return "smp-v1" if any(value is not None for value in of_v1) else ""


def _needs(library: str, *, tensorflow: bool = False) -> tuple[Need, ...]:
    needs = {"smp-v1": _OF_V1, "smp-v2": _OF_V2, "fsdp": _OF_FSDP}.get(library, ())
    return () if tensorflow else needs


def _there(context: Context, need: Need) -> bool:
    if need.text == _PIPELINE_STEP:
        steps = any(function.step is not None for function in context.trace.functions)
        return steps or not (context.settings.microbatches or 2) > 1
    return bool(context.trace.named(*need.names))


def _tensorflow(context: Context) -> bool:
    return bool(context.trace.imported("tensorflow")) and not context.trace.imported("torch")


def _trains(context: Context) -> bool:
    """Whether the file trains anywhere, reached or not."""
    in_step = any(call.step is not None for call in context.trace.calls)
    return in_step or bool(context.trace.methods("backward", "apply_gradients"))


def _by_trainer(context: Context) -> bool:
    """Whether a framework trains, which starts the library itself."""
    frameworks = ("accelerate", "lightning", "pytorch_lightning", "torch.distributed._tensor")
    return context.trainer or bool(context.trace.imported(*frameworks)) or bool(context.trace.named(*ACCELERATORS))


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
