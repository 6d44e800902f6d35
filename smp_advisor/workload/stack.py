"""The kind of code that trains, and the settings of a training script that change its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.files import data_file
from smp_advisor.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Mapping


AUTO = "auto"
"""Value of `Job.stack` for the script that the advisor exports for the plan's library."""

Attentions = Literal["eager", "fused"]


@checked_class
@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One kind of training code. The data are in ``data/stacks.toml``, each with source and date.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> smpa.stacks()["torch-compile"].title
    'torch.compile'
    """

    name: str
    title: str
    summary: str
    """One sentence."""
    source: str
    date: str
    implies: Attentions | Literal[""] = ""
    """Attention that the code always has; empty if both kinds exist."""
    eager: Literal["separate", "fused-softmax"] = "separate"
    """Kernels of attention that stores scores."""
    fp32_softmax: bool = False
    """Whether a softmax in one kernel is stored in fp32 under autocast."""
    fused: Literal["flash-1", "flash-2", "flash-3", "cudnn"] = "flash-2"
    """Kernel of attention that stores no scores."""
    elementwise: Literal["separate", "fused"] = "separate"
    """Whether norms, rotations, activation functions and residuals run as the model's code writes them, or as one
    kernel per group."""
    launch_share: float = 1.0
    """Host time per kernel relative to eager PyTorch."""
    module_share: float = 0.0
    """Host time of modules, hooks and autograd functions per block beyond its kernels, relative to Megatron's."""
    step_share: float = 1.0
    """Host time of a step outside its passes and update, relative to that of Megatron, DeepSpeed and Trainer."""
    unit_share: float = 1.0
    """Host time of sharded data parallelism per gathered unit relative to PyTorch's FSDP."""
    casts: Literal["library", "parameters"] = "library"
    """Whether parameters are cast instead of autocast, whatever the library does (Apex O2, Megatron)."""
    logit_bytes: float = 0.0
    """Bytes of a logit and its loss at their peak, if they are not those of the library's code."""
    loss: Literal["plain", "fused"] = "plain"
    """Whether softmax and loss of the logits are separate operations or one kernel."""
    optimizer: Literal["loop", "foreach", "fused"] = "foreach"
    """Form of the optimizer step where the job names none: a loop over the parameters, each operation for many
    parameters at once, or one kernel."""
    accumulation: Literal["separate", "fused"] = "separate"
    """Whether the product of a weight's gradient adds to the accumulated fp32 gradient itself."""
    fuses_adapters: bool = False
    """Whether operations of an adapter share kernels, too; otherwise they are PEFT's."""
    overlaps_exchange: bool = False
    """Whether the exchanges of tensor and sequence parallelism run next to the products that need them."""
    experts: Literal["loop", "grouped"] = "loop"
    """Whether experts run one by one or in one call per product."""
    fp8_weight_bytes: float = 0.0
    """Bytes per weight of copies in fp8 that stay in memory next to the weights, with fp8 products."""
    collectives: Literal["nccl", "host"] = "nccl"
    """Whether the hosts coordinate every exchange (SMP v1)."""
    families: tuple[str, ...] = ()
    """Model types whose code it replaces; empty for all. Others run as transformers with SDPA."""
    divided_by: str = ""
    """Stack of the blocks that tensor parallelism divides; empty for the same."""

    @property
    def divided(self) -> Stack:
        """Stack of the blocks that tensor parallelism divides."""
        return stack(self.divided_by) if self.divided_by else self


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every kind of code by its name.

    Examples
    --------
    >>> stacks()["hf-flash-2"].implies
    'fused'
    """
    return MappingProxyType(
        {
            name: Stack(name=name, **entry | {"families": tuple(entry.get("families", ()))})
            for name, entry in data_file("workload", "stacks").items()
        }
    )


def stack(name: object) -> Stack:
    if not isinstance(name, str) or name not in stacks():
        raise JobError(f"stack must be one of {', '.join([AUTO, *stacks()])}, not {name!r}.")
    return stacks()[name]


def stack_on(name: str, family: str) -> str:
    """Kind of code that a model of a family really has: what a stack does not replace stays transformers' own."""
    replaced = () if name == AUTO else stack(name).families
    return "hf-sdpa" if replaced and family and family not in replaced else name


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetting:
    name: str
    title: str
    doc: str
    """Purpose and cost."""
    values: Mapping[str, str]
    """Effect of each value, with the default first; empty for a flag."""
    source: str
    date: str
    phrase: str = ""
    """The default, as a phrase; empty for a flag."""
    price: str = ""
    """Cost of another value than the default, besides time and memory."""

    @property
    def default(self) -> str | bool:
        """Value of a job that does not set it."""
        return next(iter(self.values), False)

    @property
    def help(self) -> str:
        return " ".join([self.doc, *(f"{value}: {effect}." for value, effect in self.values.items())])


@cache
def training_settings() -> Mapping[str, TrainingSetting]:
    settings = [
        TrainingSetting(**{"values": {}} | entry) for entry in data_file("workload", "training_settings")["setting"]
    ]
    return MappingProxyType({setting.name: setting for setting in settings})


def kernel_of(family: str) -> dict[str, Any] | None:
    """Return the packages of the kernels that a model type's recurrence needs; None for other model types."""
    table = data_file("workload", "kernels")["kernel"]
    return next((entry for entry in table if family.lower().startswith(tuple(entry["families"]))), None)
