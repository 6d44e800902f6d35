"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685) over a frozen, possibly quantized model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import require_whole
from smp_advisor.arguments.signatures import checked_methods
from smp_advisor.core.files import data_file
from smp_advisor.errors import JobError
from smp_advisor.workload.block import Kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.workload.block import Attention, Block, Matmul
    from smp_advisor.workload.model import Model

AdapterTargets = Literal["query-value", "attention", "all-linear"]

_BASE_BYTES = {16: 2.0, 8: 1.0, 4: 0.5}
_SCALE_BYTES = {16: 0.0, 8: 0.0, 4: 4 / 64}
"""QLoRA (Dettmers et al. 2023, arXiv 2305.14314, section 3): one fp32 scale per 64 values; LLM.int8: one per row."""
_DOUBLE_QUANTIZED_SCALE_BYTES = 1 / 64 + 4 / (64 * 256)
"""The scales themselves in 8 bits, with one fp32 scale per 256 of them."""


@checked_methods
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
    (every linear module of a block, and what PEFT adapts in the experts of some mixtures). The defaults are those of
    AWS's recipes."""
    base_bits: Literal[16, 8, 4] = 16
    """Bits per weight of frozen linear modules: 16 (LoRA), 8 (LLM.int8) or 4 (QLoRA). Embedding, norms, head and the
    stacked experts of a mixture have 16."""
    double_quantization: bool = False
    """Whether the scales of a 4-bit base are quantized as well."""
    alpha: int | None = None
    """``lora_alpha``; twice the rank if None, as in AWS's recipes."""
    dropout: bool = True
    """Whether the adapter's input passes through dropout, which saves a copy and a mask. Not in experts."""
    upcast: bool = False
    """Whether the script calls PEFT's ``prepare_model_for_kbit_training``, as TRL does, which casts all parameters that
    are not quantized to fp32. The values between the blocks are then fp32, too, and checkpointed inputs twice as
    large."""

    before_transformers_5: bool = False
    """Whether the code is older than transformers 5: experts of a mixture are linear modules, which are quantized; a
    quantized product saves its input, once in its own type and once cast (published QLoRA runs of 2023 and 2024)."""

    def __post_init__(self) -> None:
        require_whole("The adapter's rank", self.rank, JobError)
        if self.alpha is not None:
            require_whole("The adapter's alpha", self.alpha, JobError)
        for name, allowed in (("targets", ("query-value", "attention", "all-linear")), ("base_bits", (16, 8, 4))):
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(value) for value in allowed)
                raise JobError(f"The adapter's {name} must be one of {choices}, not {getattr(self, name)!r}.")
        for name in ("double_quantization", "dropout", "upcast", "before_transformers_5"):
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
        return _BASE_BYTES[self.base_bits] + self.scale_bytes_per_parameter

    @property
    def scale_bytes_per_parameter(self) -> float:
        """Bytes of scales per weight of the frozen products. FSDP shards the weights only."""
        return _DOUBLE_QUANTIZED_SCALE_BYTES if self.double_quantization else _SCALE_BYTES[self.base_bits]

    def applied_to(self, model: Model) -> Model:
        """Return the model with frozen blocks that carry the adapter's parameters."""
        return _applied(self, model)

    def parameter_count(self, model: Model) -> int:
        """Return the number of trained parameters."""
        return sum(group.count * group.block.adapter_parameters for group in self.applied_to(model).groups)

    def adapts_experts(self, model: Model) -> bool:
        """Return whether the stacked experts of a mixture carry adapters. PEFT has no dropout there."""
        return self.targets == "all-linear" and model.family in _rules()["adapted_experts"]

    def instead(self, model: Model) -> str:
        """Return the remedy where TRL and PEFT do not train the adapted modules of a family; empty where they do."""
        rules, everything = _rules(), self.targets == "all-linear"
        if everything and model.family in rules["attention_only"]:
            return "set targets='attention' in the adapter"
        names = rules["without_loss_in_parts"] + rules["refused"] * everything
        return "train all weights" if model.family in names else ""

    def base_bytes(self, model: Model) -> float:
        """Return the bytes of the frozen parameters as they are loaded: what is not quantized has 16 bits."""
        blocks = [(group.block, group.count) for group in self.applied_to(model).groups]
        packed = sum(count * (block.parameters - block.unpacked_parameters) for block, count in blocks)
        fp32 = sum(count * fp32_parameters(block, model.family) for block, count in blocks)
        return 2 * (model.parameter_count - packed + fp32) + self.base_bytes_per_parameter * packed


_ATTENTION, _ENCODER = "attention", "encoder"


def _rules() -> dict[str, list[str]]:
    """Rules of PEFT and bitsandbytes for the modules of families of transformers."""
    return data_file("workload", "adapters")


NAMED_ADAPTERS = {"lora": Adapter(), "qlora": Adapter(base_bits=4, double_quantization=True)}
"""Adapters by the names of their methods: those of ``--lora`` and ``--qlora``."""


@lru_cache(maxsize=256)
def _applied(adapter: Adapter, model: Model) -> Model:
    blocks = (_adapted(adapter, group.block, model.family) for group in model.groups)
    groups = tuple(replace(group, block=block) for group, block in zip(model.groups, blocks, strict=True))
    return replace(model, groups=groups)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One adapted product, with trained matrices of inputs x rank and rank x outputs."""

    inputs: int
    outputs: int
    source: str
    """The tensor that the product reads. Products of one norm's output share it."""
    experts: int = 0
    """Experts of a stack, each with its own pair, which are merged with their weights in each pass."""
    ranks: int = 1
    """Multiple of the adapter's rank."""


def _pairs(adapter: Adapter, block: Block, family: str) -> tuple[_Pair, ...]:
    """Adapted products: one pair for each module, of which a joint product may have several."""
    rules = _rules()
    pairs: list[_Pair] = []
    attentions = iter(block.attentions)
    experts = adapter.targets == "all-linear" and family in rules["adapted_experts"]
    routers = _routers(block)
    for product in block.matmuls:
        stacked = product.experts > 1
        if stacked and experts:
            # The first two projections are one parameter, with twice the rank.
            joint = not any(pair.experts > 1 for pair in pairs)
            pairs.append(_Pair(product.inputs, product.outputs, product.name, product.experts, 1 + joint))
        elif product.name in routers and adapter.targets == "all-linear":
            if experts:
                pairs.append(_Pair(product.inputs, product.outputs, product.name, int(experts)))
            if family in rules["shared_gate"]:
                pairs.append(_Pair(product.inputs, 1, "mlp norm"))
        elif not (stacked or product.name in routers or (experts and product.name in rules["left_out"])):
            widths, source = _widths(adapter, product, attentions, family)
            pairs += [_Pair(product.inputs, width, source) for width in widths]
    return tuple(pairs)


def _routers(block: Block) -> tuple[str, ...]:
    """Names of the product that chooses a token's experts; dense blocks may have a linear module of that name."""
    return ("router", "gate") if any(product.experts > 1 for product in block.matmuls) else ()


def _widths(adapter: Adapter, product: Matmul, attentions: Iterator[Attention], family: str) -> tuple[list[int], str]:
    """Return the outputs of a product's adapted modules, and the tensor that they read."""
    everything, queries_values = adapter.targets == "all-linear", adapter.targets == "query-value"
    widths, source = [product.outputs], "attention norm"
    match product.name:
        case "qkv":
            attention = next(attentions)
            keys = attention.kv_heads * attention.head_dim
            if family not in _rules()["joint_attention"]:
                widths = [attention.heads * attention.head_dim, keys, *([] if queries_values else [keys])]
        case "cross-attention query":
            next(attentions)
            source = "cross-attention norm"
        case "cross-attention key and value":
            widths, source = [product.outputs // 2] * (1 if queries_values else 2), _ENCODER
        case "attention output" | "cross-attention output":
            widths, source = ([] if queries_values else widths), _ATTENTION
        case _ if product.gate_outputs:
            gate, source = product.gate_outputs, "mlp norm"
            separate = widths if family in _rules()["joint_gate"] else [gate, product.outputs - gate]
            widths = separate if everything else []
        case "mlp up" | "mlp down":
            widths, source = (widths if everything else []), product.name
        case _:
            widths, source = _widths_by_module_name(adapter, product)
    return widths, source


_MODULE_NAMES = {
    "query": {"q_proj", "q_lin", "query", "query_proj", "to_q", "wq", "q_a_proj", "q_b_proj"},
    "key": {"k_proj", "k_lin", "key", "key_proj", "to_k", "wk"},
    "value": {"v_proj", "v_lin", "value", "value_proj", "to_v", "wv"},
    "joint": {"Wqkv", "c_attn", "qkv_proj", "query_key_value", "kv_a_proj_with_mqa", "kv_b_proj"},
    "output": {"o_proj", "out_lin", "out_proj", "wo"},
}
"""Names of the attention projections in the code of models."""
_LATENT = {"query latent": "query", "key and value latent": "joint", "key and value": "joint"}
"""Roles of the products of latent attention."""


def _widths_by_module_name(adapter: Adapter, product: Matmul) -> tuple[list[int], str]:
    """Return the outputs and source of a product with the name of a module, or of latent attention."""
    if product.name in _rules()["not_linear"]:
        return [], product.name
    roles = (role for role, names in _MODULE_NAMES.items() if product.name in names)
    role = _LATENT.get(product.name) or next(roles, "")
    adapted_roles = {
        "query-value": {"query", "value", "joint"},
        "attention": set(_MODULE_NAMES),
        "all-linear": {*_MODULE_NAMES, ""},
    }
    inner = product.name in ("query", "key and value", "q_b_proj", "kv_b_proj")
    source = product.name if inner or not role else _ATTENTION if role == "output" else "attention norm"
    return ([product.outputs] if role in adapted_roles[adapter.targets] else []), source


def _unpacked_parameters(adapter: Adapter, block: Block, family: str) -> int:
    """Return the parameters of a block that stay in 16 bits: bitsandbytes packs the weights of linear modules only."""
    rules = _rules()
    if adapter.quantized and family in rules["unpacked"]:
        return block.parameters
    left_out = {*rules["not_linear"], *_routers(block)}
    stacked = adapter.quantized and not adapter.before_transformers_5
    products = [m for m in block.matmuls if m.name not in left_out and not (stacked and m.experts > 1)]
    linear = sum(m.inputs * m.outputs * m.experts for m in products)
    gates = block.hidden * bool(_routers(block) and family in rules["shared_gate"])
    return max(0, block.parameters - linear - gates)


def fp32_parameters(block: Block, family: str) -> int:
    """Parameters of a block that stay in fp32 in a model that is loaded in 16 bits: routers, with their biases."""
    routers = [m for m in block.matmuls if m.name in _routers(block)] if family in _rules()["fp32_router"] else []
    return sum(m.inputs * m.outputs + m.outputs for m in routers)


def _adapted(adapter: Adapter, block: Block, family: str) -> Block:
    """Return the block with frozen weights, whose inputs are not saved, and a trained adapter, whose inputs are."""
    saved, pairs = block.saved, _pairs(adapter, block, family)
    stacked, modules = (tuple(p for p in pairs if bool(p.experts) is side) for side in (True, False))
    dropout = adapter.dropout and not stacked
    # A quantized product saves no input either (bitsandbytes, MatMul4Bit), but published runs that cast the other
    # parameters to fp32 save every input twice.
    inputs = 1.0 if adapter.upcast or (adapter.quantized and adapter.before_transformers_5) else -1.0
    replicated = saved.replicated_elements + inputs * saved.weight_replicated_elements
    split = saved.split_elements + inputs * saved.weight_split_elements + adapter.rank * len(modules)
    # With dropout, every pair saves its own tensor. Without it, pairs share their input, and a tensor that the fused
    # attention or the encoder saves anyway costs nothing.
    saved_inputs = modules if dropout else tuple({pair.source: pair for pair in modules}.values())
    masks = 0.0
    for pair in saved_inputs:
        if dropout:
            masks += pair.inputs
        elif pair.source in {_ATTENTION, _ENCODER}:
            continue
        if pair.source in {_ATTENTION, "mlp down"}:
            split += pair.inputs
        else:
            replicated += pair.inputs
    # A cast, two products, a scale and a sum (PEFT, LoraLayer.forward), and unpacking. Where the
    # code of the adapter is fused, too, cast and dropout are one kernel, and so are scale and sum.
    read, written = sum(pair.inputs for pair in modules), sum(pair.outputs for pair in modules)
    own = Kernels(
        split_elements=(3 + (2.5 if dropout else 0)) * read + 5 * written,
        launches=len(pairs) * (5 + dropout + adapter.quantized),
    )
    fused = Kernels(
        split_elements=(1 + (1 if dropout else 0)) * read + 3 * written,
        launches=len(pairs) * (3 + dropout + adapter.quantized),
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
            merged_elements=sum(pair.inputs * pair.outputs * pair.experts for pair in stacked),
        ),
        adapter_products=2 * len(pairs),
        adapter_parameters=sum(
            pair.ranks * adapter.rank * (pair.inputs + pair.outputs) * max(1, pair.experts) for pair in pairs
        ),
        unpacked_parameters=_unpacked_parameters(adapter, block, family),
    )
