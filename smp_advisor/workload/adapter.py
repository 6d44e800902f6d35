"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685) over a frozen, possibly quantized model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import require_whole
from smp_advisor.errors import JobError
from smp_advisor.workload.block import Kernels

if TYPE_CHECKING:
    from smp_advisor.workload.block import Block, Matmul
    from smp_advisor.workload.model import Model

AdapterTargets = Literal["query-value", "attention", "all-linear"]

_BASE_BYTES = {16: 2.0, 8: 1.0, 4: 0.5}
_SCALE_BYTES = {16: 0.0, 8: 0.0, 4: 4 / 64}
"""QLoRA (Dettmers et al. 2023, arXiv 2305.14314, section 3): one fp32 scale per 64 values; LLM.int8: one per row."""
_DOUBLE_QUANTIZED_SCALE_BYTES = 1 / 64 + 4 / (64 * 256)
"""The scales themselves in 8 bits, with one fp32 scale per 256 of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """LoRA: each adapted product gets an additional trained product of low rank. Everything else is frozen.

    Examples
    --------
    >>> from smp_advisor.workload import Model
    >>> Adapter(rank=8, targets="query-value").parameter_count(Model.from_name("llama-2-7b"))
    4194304
    """

    rank: int = 16
    """Inner dimension of the trained products."""
    targets: AdapterTargets = "all-linear"
    """``query-value`` (PEFT's default for most families), ``attention`` (all four projections), or ``all-linear``
    (every product of a block). The defaults are those of AWS's recipes."""
    base_bits: Literal[16, 8, 4] = 16
    """Bits per weight of frozen products: 16 (LoRA), 8 (LLM.int8) or 4 (QLoRA). Embedding, norms and head have 16."""
    double_quantization: bool = False
    """Whether the scales of a 4-bit base are quantized as well."""
    alpha: int | None = None
    """``lora_alpha``; twice the rank if None, as in AWS's recipes."""
    dropout: bool = True
    """Whether the adapter's input passes through dropout, which saves a copy and a mask."""
    upcast: bool = False
    """Whether the script calls PEFT's ``prepare_model_for_kbit_training``, as TRL does, which casts all parameters that
    are not quantized to fp32. The values between the blocks are then fp32, too, and checkpointed inputs twice as
    large."""

    def __post_init__(self) -> None:
        require_whole("The adapter's rank", self.rank, JobError)
        if self.alpha is not None:
            require_whole("The adapter's alpha", self.alpha, JobError)
        for name, allowed in (("targets", ("query-value", "attention", "all-linear")), ("base_bits", (16, 8, 4))):
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(value) for value in allowed)
                raise JobError(f"The adapter's {name} must be one of {choices}, not {getattr(self, name)!r}.")
        for name in ("double_quantization", "dropout", "upcast"):
            if not isinstance(getattr(self, name), bool):
                raise JobError(f"The adapter's {name} must be True or False, not {getattr(self, name)!r}.")
        if self.double_quantization and self.base_bits != 4:
            raise JobError("double_quantization requires a 4-bit base: set base_bits=4 as well.")
        if self.upcast and not self.quantized:
            raise JobError("upcast requires a quantized base: set base_bits to 4 or 8 as well.")

    @property
    def quantized(self) -> bool:
        """Whether the frozen products have fewer than 16 bits per weight."""
        return self.base_bits < 16

    @property
    def module_names(self) -> frozenset[str]:
        """Names of adapted modules in the code of models; empty for all linear ones."""
        roles = {"query-value": ("query", "value", "joint"), "attention": tuple(_MODULE_NAMES), "all-linear": ()}
        return frozenset().union(*(_MODULE_NAMES[role] for role in roles[self.targets]))

    @property
    def base_bytes_per_parameter(self) -> float:
        """Bytes per weight of the frozen products, scales included."""
        scales = _DOUBLE_QUANTIZED_SCALE_BYTES if self.double_quantization else _SCALE_BYTES[self.base_bits]
        return _BASE_BYTES[self.base_bits] + scales

    def applied_to(self, model: Model) -> Model:
        """The model with frozen blocks that carry the adapter's parameters."""
        return _applied(self, model)

    def parameter_count(self, model: Model) -> int:
        """Number of trained parameters."""
        return sum(group.count * group.block.adapter_parameters for group in self.applied_to(model).groups)


_ATTENTION, _ENCODER = "attention", "encoder"


@lru_cache(maxsize=256)
def _applied(adapter: Adapter, model: Model) -> Model:
    groups = tuple(replace(group, block=_adapted(adapter, group.block)) for group in model.groups)
    return replace(model, groups=groups)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One adapted product, with trained matrices of inputs x rank and rank x outputs."""

    inputs: int
    outputs: int
    copies: int
    """Experts, each with its own pair."""
    experts_per_token: int
    source: str
    """The tensor that the product reads. Products of one norm's output share it."""


def _pairs(adapter: Adapter, block: Block) -> tuple[_Pair, ...]:
    """Adapted products. A joint product (queries, keys and values; gate and up) has one pair per part."""
    pairs: list[_Pair] = []
    everything, queries_values = adapter.targets == "all-linear", adapter.targets == "query-value"
    attentions = iter(block.attentions)
    for product in block.matmuls:
        widths, source = [product.outputs], "attention norm"
        match product.name:
            case "qkv":
                attention = next(attentions)
                keys = attention.kv_heads * attention.head_dim
                widths = [attention.heads * attention.head_dim, keys, *([] if queries_values else [keys])]
            case "cross-attention query":
                next(attentions)
                source = "cross-attention norm"
            case "cross-attention key and value":
                widths, source = [product.outputs // 2] * (1 if queries_values else 2), _ENCODER
            case "attention output" | "cross-attention output":
                widths, source = ([] if queries_values else widths), _ATTENTION
            case _ if product.gate_outputs:
                gate = product.gate_outputs
                widths, source = ([gate, product.outputs - gate] if everything else []), "mlp norm"
            case "mlp up" | "mlp down" | "expert down":
                widths, source = (widths if everything else []), product.name
            case _:
                widths, source = _widths_by_module_name(adapter, product)
        pairs += [_Pair(product.inputs, width, product.experts, product.weights_per_token, source) for width in widths]
    return tuple(pairs)


_MODULE_NAMES = {
    "query": {"q_proj", "q_lin", "query", "query_proj", "to_q", "wq"},
    "key": {"k_proj", "k_lin", "key", "key_proj", "to_k", "wk"},
    "value": {"v_proj", "v_lin", "value", "value_proj", "to_v", "wv"},
    "joint": {"Wqkv", "c_attn", "qkv_proj", "query_key_value"},
    "output": {"o_proj", "out_lin", "out_proj", "wo"},
}
"""Names of the attention projections in the code of models."""


def _widths_by_module_name(adapter: Adapter, product: Matmul) -> tuple[list[int], str]:
    """(widths, source) of a product of a measured block; routers, which nothing splits, are never adapted."""
    if product.split == "none":
        return [], product.name
    role = next((role for role, names in _MODULE_NAMES.items() if product.name in names), "")
    adapted_roles = {
        "query-value": {"query", "value", "joint"},
        "attention": set(_MODULE_NAMES),
        "all-linear": {*_MODULE_NAMES, ""},
    }
    source = {"": product.name, "output": _ATTENTION}.get(role, "attention norm")
    return ([product.outputs] if role in adapted_roles[adapter.targets] else []), source


def _adapted(adapter: Adapter, block: Block) -> Block:
    """The block with frozen weights, whose inputs are not saved, and a trained adapter, whose inputs are."""
    saved, pairs = block.saved, _pairs(adapter, block)
    # A quantized product is a separate autograd function. It saves its input although no weight needs it, and casts the
    # input to its compute type: published QLoRA runs save every input twice, LoRA runs save none.
    inputs = 1.0 if adapter.quantized else -1.0
    replicated = saved.replicated_elements + inputs * saved.weight_replicated_elements
    split = saved.split_elements + inputs * saved.weight_split_elements
    split += sum(adapter.rank * pair.experts_per_token for pair in pairs)
    # With dropout, every pair saves its own tensor. Without it, pairs share their input, and a tensor that the fused
    # attention or the encoder saves anyway costs nothing.
    saved_inputs = pairs if adapter.dropout else tuple({pair.source: pair for pair in pairs}.values())
    masks = 0.0
    for pair in saved_inputs:
        elements = pair.inputs * pair.experts_per_token
        if adapter.dropout:
            masks += elements
        elif pair.source in {_ATTENTION, _ENCODER}:
            continue
        if pair.source in {_ATTENTION, "mlp down", "expert down"}:
            split += elements
        else:
            replicated += elements
    # A cast, two products, a scale and a sum (PEFT, LoraLayer.forward), and unpacking. Where the
    # code of the adapter is fused, too, cast and dropout are one kernel, and so are scale and sum.
    read = sum(pair.inputs * pair.experts_per_token for pair in pairs)
    written = sum(pair.outputs * pair.experts_per_token for pair in pairs)
    own = Kernels(
        split_elements=(3 + (2.5 if adapter.dropout else 0)) * read + 5 * written,
        launches=len(pairs) * (5 + adapter.dropout + adapter.quantized),
    )
    fused = Kernels(
        split_elements=(1 + (1 if adapter.dropout else 0)) * read + 3 * written,
        launches=len(pairs) * (3 + adapter.dropout + adapter.quantized),
    )
    return replace(
        block,
        separate=block.separate + own,
        fused=block.fused + own,
        with_fused_adapter=block.fused + fused,
        saved=replace(
            saved,
            split_elements=split,
            replicated_elements=replicated,
            replicated_bytes=saved.replicated_bytes + masks,
            weight_split_elements=0.0,
            weight_replicated_elements=0.0,
        ),
        adapter_products=2 * sum(pair.copies for pair in pairs),
        adapter_parameters=sum(adapter.rank * (pair.inputs + pair.outputs) * pair.copies for pair in pairs),
    )
