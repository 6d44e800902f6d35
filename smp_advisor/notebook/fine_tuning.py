"""Options of magics for fine-tuning: ``--lora 16``, ``--qlora``, ``--full-finetune``."""

# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from IPython.core.magic_arguments import argument

from smp_advisor.errors import AdvisorError
from smp_advisor.notebook.arguments import whole_number
from smp_advisor.workload.adapter import Adapter, AdapterTargets

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["fine_tuning", "fine_tuning_options"]

_RANK = "16"
_MOST = 1024
"""A larger rank is the model of a line such as ``--lora 10B``."""
_OPTIONS = {"lora": "--lora", "qlora": "--qlora", "full_finetune": "--full-finetune"}


def fine_tuning_options(magic: Any) -> Any:
    """The same magic, with the options for fine-tuning."""
    arguments = (
        argument(
            "--lora",
            nargs="?",
            const=_RANK,
            metavar="RANK",
            help=f"Fine-tune with LoRA: an adapter of this rank over the frozen model; default rank {_RANK}.",
        ),
        argument(
            "--qlora",
            nargs="?",
            const=_RANK,
            metavar="RANK",
            help=f"Fine-tune with QLoRA: an adapter over the model in 4 bits; default rank {_RANK}.",
        ),
        argument("--full-finetune", action="store_true", help="Fine-tune all parameters, with batches of fine-tuning."),
        argument(
            "--adapter-targets",
            choices=get_args(AdapterTargets),
            help="Products with an adapter; default all-linear, as in AWS's recipes.",
        ),
    )
    for decorate in reversed(arguments):
        magic = decorate(magic)
    return magic


def fine_tuning(arguments: Namespace) -> dict[str, Any]:
    """Keywords of `advise` for the options; None for those that are not set.

    Raises
    ------
    AdvisorError
        Two of the options contradict each other.
    """
    chosen = [option for name, option in _OPTIONS.items() if getattr(arguments, name)]
    if len(chosen) > 1:
        raise AdvisorError(f"{' and '.join(chosen)} contradict each other: leave one of them out.")
    if arguments.adapter_targets and chosen not in (["--lora"], ["--qlora"]):
        raise AdvisorError("--adapter-targets needs an adapter: add --lora or --qlora.")
    if arguments.full_finetune:
        return {"training": "fine-tuning", "adapter": None}
    text = arguments.lora or arguments.qlora
    if text is None:
        return {"training": None, "adapter": None}
    quantized, rank = arguments.qlora is not None, whole_number(text)
    if rank > _MOST:
        raise AdvisorError(f"{chosen[0]} takes a rank of at most {_MOST:,}, not {text}: write the model before it.")
    adapter = Adapter(
        rank=rank,
        targets=arguments.adapter_targets or "all-linear",
        base_bits=4 if quantized else 16,
        double_quantization=quantized,
    )
    return {"training": None, "adapter": adapter}
