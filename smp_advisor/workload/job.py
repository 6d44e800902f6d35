"""Settings of one training run that depend on neither the model nor the cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import brief, options_of, shown
from smp_advisor.arguments.signatures import checked_methods
from smp_advisor.core.files import sentence
from smp_advisor.errors import AdvisorError, JobError
from smp_advisor.workload.adapter import NAMED_ADAPTERS, Adapter
from smp_advisor.workload.calibration import Calibration
from smp_advisor.workload.stack import AUTO, Stack, stack, stacks, training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


OptimizerName = Literal[
    "adam", "adam-8bit", "trainer-adam-8bit", "adam-4bit", "lion", "muon", "galore", "sgd", "plain-sgd", "adafactor"
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    label: str
    moments: int
    """State values per parameter."""
    quantized_bytes: float = 0.0
    """Bytes of each value, in any training precision; 0 for those of the precision of the states."""
    outside_moments: int = 0
    """Further values per parameter outside the blocks (embedding and head), which another optimizer updates."""
    embedding_bytes: float = 0.0
    """Further bytes of state per parameter of the token embedding."""
    steps: tuple[Literal["foreach", "fused"], ...] = ()
    """Forms of ``torch.optim`` that update many parameters together (PyTorch 2.5)."""
    paged: bool = False
    """Whether bitsandbytes has a form with pageable state."""

    def moment_bytes(self, element_bytes: float = 4.0) -> float:
        """Return the bytes of state per parameter, where an unquantized value takes `element_bytes`."""
        return self.moments * (self.quantized_bytes or element_bytes)


OPTIMIZERS: Mapping[OptimizerName, Optimizer] = MappingProxyType(
    {
        "adam": Optimizer(label="Adam", moments=2, steps=("foreach", "fused"), paged=True),
        # bitsandbytes 0.50.2 and torchao: one fp32 scale per 256 values. Tensors under 4,096 values stay in fp32
        # (`min_8bit_size`): 0.1 % of GPT-2's parameters, fewer of larger models. They are not counted apart.
        "adam-8bit": Optimizer(label="Adam with 8-bit state", moments=2, quantized_bytes=1 + 4 / 256, paged=True),
        # transformers 5.23, Trainer.create_optimizer: embeddings keep fp32 states.
        "trainer-adam-8bit": Optimizer(
            label="Trainer's Adam with 8-bit state",
            moments=2,
            quantized_bytes=1 + 4 / 256,
            embedding_bytes=6 - 8 / 256,
            paged=True,
        ),
        # torchao 0.17, AdamW4bit: two values in 4 bits each, and a scale per 128.
        "adam-4bit": Optimizer(label="Adam with 4-bit state", moments=2, quantized_bytes=0.535),
        # Chen et al. 2023, arXiv 2302.06675: momentum only.
        "lion": Optimizer(label="Lion", moments=1, paged=True),
        # torch.optim.Muon: momentum of matrices of blocks; Adam for the embedding and the head.
        "muon": Optimizer(label="Muon", moments=1, outside_moments=1),
        # Zhao et al. 2024, arXiv 2403.03507: moments of projected gradients, 1.65 bytes per parameter at rank 8.
        "galore": Optimizer(label="GaLore", moments=2, quantized_bytes=0.825),
        "sgd": Optimizer(label="SGD with momentum", moments=1, steps=("foreach", "fused")),
        "plain-sgd": Optimizer(label="SGD without momentum", moments=0, steps=("foreach", "fused")),
        # Shazeer and Stern 2018, arXiv 1804.04235: a row and a column per matrix, less than a thousandth of its size.
        "adafactor": Optimizer(label="Adafactor", moments=0, steps=("foreach",)),
    }
)


OVERHEADS = ("checkpoints", "restarts", "startup", "data_loading", "evaluation")
"""Parts of a run besides its training steps."""

CheckpointStorage = Literal["local", "fsx", "s3"]
_STORAGES = ("local", "fsx", "s3")
_LEAST_MINUTES = 0.001
_MOST_COPIES = 100
_MOST_MINUTES = 28 * 24 * 60
"""The longest training job of SageMaker."""


def _are_copies(entry: object) -> bool:
    """Return whether an object is an entry of `Overheads.host_copies`."""
    if not isinstance(entry, tuple) or len(entry) != 3 or entry[0] not in ("load", "save"):
        return False
    numbers = [number for number in entry[1:] if isinstance(number, int | float) and not isinstance(number, bool)]
    return len(numbers) == 2 and 0 <= min(numbers) <= max(numbers) <= _MOST_COPIES


@checked_methods
@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """Parts of a run besides its training steps, and how it saves checkpoints.

    Examples
    --------
    >>> Overheads.of("none").parts
    ()
    >>> Overheads.of("restarts, checkpoints").parts
    ('checkpoints', 'restarts')
    """

    parts: tuple[str, ...] = OVERHEADS
    """Counted parts, in the order of `OVERHEADS`."""
    storage: CheckpointStorage = "local"
    """Where processes write checkpoints: ``local`` (the instance's storage, from which SageMaker copies them to S3 in
    the background, like the exported script), ``fsx`` (FSx for Lustre) or ``s3`` (directly)."""
    asynchronous: bool = False
    """Whether training continues while a checkpoint is written."""
    checkpoint_minutes: float | None = None
    """Minutes between checkpoints. None: the interval that loses the least time (Daly 2006)."""
    host_copies: tuple[tuple[str, float, float], ...] = ()
    """``load`` or ``save``, and the copies of the fp32 model that the first process of a node and each other one have
    in host memory then, as `Rehearsal.copies` has them. Empty: as the exported script loads and saves."""

    def __post_init__(self) -> None:
        parts: object = self.parts  # a notebook may pass other types despite the annotations
        if not isinstance(parts, tuple) or any(part not in OVERHEADS for part in parts):
            raise JobError(f"overheads must be 'all', 'none', or some of {', '.join(OVERHEADS)}, not {parts!r}.")
        object.__setattr__(self, "parts", tuple(name for name in OVERHEADS if name in parts))
        if self.storage not in _STORAGES:
            raise JobError(f"The storage of checkpoints must be one of {', '.join(_STORAGES)}, not {self.storage!r}.")
        if not isinstance(self.asynchronous, bool):
            raise JobError(f"asynchronous must be True or False, not {self.asynchronous!r}.")
        counts: object = self.host_copies
        valid = isinstance(counts, tuple) and all(map(_are_copies, counts))
        if not valid or len({phase for phase, *_ in self.host_copies}) < len(self.host_copies):
            must = "(('load', 1.0, 0.0), ('save', 1.0, 0.0)): each phase at most once, with two numbers from 0 to 100"
            raise JobError(f"host_copies must be such as {must}, not {counts!r:.80}.")
        minutes: object = self.checkpoint_minutes
        if minutes is None:
            return
        is_number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
        if not is_number or not _LEAST_MINUTES <= minutes <= _MOST_MINUTES:  # type: ignore[operator]
            least, most = _LEAST_MINUTES, _MOST_MINUTES
            raise JobError(f"checkpoint_minutes must be between {least} and {most:,}, not {minutes!r:.80}.")

    @classmethod
    def of(cls, value: object) -> Overheads:
        """Overheads of ``all``, ``none``, names of parts (``checkpoints,restarts``, a list) or an `Overheads` itself.

        Raises
        ------
        JobError
            The value is none of these.
        """
        if isinstance(value, Overheads):
            return value
        if isinstance(value, str):
            names = tuple(part.strip() for part in value.split(","))
            return cls(parts={"all": OVERHEADS, "none": ()}.get(value, names))
        # Anything else becomes a name, which is refused in a sentence.
        return cls(parts=tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (str(value),))


ALL_OVERHEADS = Overheads()
"""All parts, with checkpoints as the exported script saves them."""


Precision = Literal["fp16", "bf16", "fp32"]
Loss = Literal["plain", "chunked", "fused"]
StatePrecision = Literal["mixed", "16-bit"]
Training = Literal["auto", "pretraining", "fine-tuning", "dpo"]
AttentionKernel = Literal["auto", "flash-1", "flash-2", "flash-3", "cudnn", "memory-efficient"]
OptimizerStep = Literal["auto", "loop", "foreach", "fused", "backward"]
GradientReduction = Literal["auto", "fp32", "16-bit"]

DEFAULT_SEQUENCE_LENGTH = 2048
MAX_TOKENS_PER_STEP = 2**22

_EXPORTED = Stack(name=AUTO, title="", summary="", source="", date="")
_OPTIONAL = {"decoder_length", "global_batch_size", "tokens"}
_OF_OTHER_TYPES = {"overheads", "calibration", "adapter"}


@checked_methods
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Job:
    """Settings of a training run.

    Examples
    --------
    >>> Job(sequence_length=512, precision="fp16").optimizer
    'adam'
    """

    sequence_length: int = DEFAULT_SEQUENCE_LENGTH
    """Tokens per sample."""
    decoder_length: int | None = None
    """Tokens per sample of the decoder of an encoder-decoder (T5). None: `sequence_length`, as the exported script."""
    precision: Precision = "fp16"
    """``fp16`` and ``bf16`` have fp32 master copies (20 bytes per parameter with Adam). ``fp32`` takes 16."""
    fp8: bool = False
    """Whether matrix products run in fp8 (H100 and later) and everything else in ``bf16``."""
    fp8_weights: bool = False
    """Whether weights of `fp8` products are stored in fp8 alone, without a copy in bf16 (NeMo's ``fp8_params``): 1 byte
    per frozen weight, 2 with the transposed copy of a trained one."""
    optimizer: OptimizerName = "adam"
    """With its bytes of state per parameter: ``adam`` (8), ``adam-8bit`` (2), ``trainer-adam-8bit`` (2, and 8 of
    the token embedding: ``optim="adamw_bnb_8bit"`` of transformers' Trainer), ``adam-4bit`` (1), ``lion`` (4), ``muon``
    (4), ``galore`` (1.65 at rank 8), ``sgd`` with momentum (4), ``plain-sgd`` without (0), ``adafactor`` (rows and
    columns only). Schedule-free Adam is ``adam``."""
    optimizer_step: OptimizerStep = "auto"
    """How the optimizer updates parameters, with its temporary bytes per updated parameter: ``loop`` (0), ``fused``
    (0), ``foreach`` (4 with Adam), ``backward`` (0, and no stored gradients). ``auto`` is ``foreach`` for DDP and
    ``loop`` for sharded parameters. Source: documentation of ``torch.optim.AdamW``."""
    paged_optimizer: bool = False
    """Whether the optimizer state is in pageable memory, which counts as host memory (bitsandbytes)."""
    state_precision: StatePrecision = "mixed"
    """``16-bit`` trains with parameters, gradients and optimizer state in `precision`: 8 bytes per parameter with Adam
    instead of 16 to 20."""
    loss: Loss = "plain"
    """Computation of the loss, with its bytes per logit in half precision: ``plain`` (12, or 16 under autocast),
    ``chunked`` over parts of the tokens (2), ``fused`` into one kernel (4)."""
    unsharded_accumulation: bool = False
    """Whether gradients of sharded parameters stay unsharded until the last accumulated batch (``no_sync``), in the
    type of their reduction: 2 or 4 more bytes per parameter in half precision."""
    gradient_reduction: GradientReduction = "auto"
    """Type in which gradients of sharded parameters are summed over GPUs. ``auto`` is ``fp32`` in the exported script
    with mixed-precision states, and ``16-bit`` in other code."""
    separate_embeddings: bool = False
    """Whether embedding and output layer are sharded as units of their own instead of in FSDP's root, whose parameters
    stay gathered from the forward to the backward pass."""
    adapter: Adapter | None = None
    """Low-rank adapter to train over the frozen model; ``"lora"`` and ``"qlora"`` are those of rank 16. None: train
    all parameters."""
    training: Training = "auto"
    """``fine-tuning`` trains a pretrained model on samples of a task, ``dpo`` on pairs of preferences with two samples
    each: their batches are smaller. ``auto`` is ``pretraining``. An `adapter` has batches of its own."""
    attention: Literal["auto", "eager", "fused"] = "auto"
    """``eager`` stores the attention scores (PyTorch 1.x and so SMP v1); ``fused`` does not (FlashAttention). ``auto``
    becomes the attention that `stack` implies, or ``eager`` if `stack` is ``auto``."""
    attention_kernel: AttentionKernel = "auto"
    """Kernel of fused attention: ``flash-2``, ``flash-3``, ``cudnn``, ``memory-efficient`` (PyTorch's other one) or
    ``flash-1``. ``auto`` is that of `stack`. At long sequences, it decides the step time."""
    autocast: Literal["auto", "on", "off"] = "auto"
    """Whether half precision is autocast's over fp32 parameters (``on``), or parameters are cast (``off``: FSDP's and
    DeepSpeed's mixed precision, Apex O2). ``auto`` is that of the library and `stack`."""
    expert_dispatch: Literal["auto", "all-to-all", "per-node"] = "auto"
    """How tokens reach the experts of other GPUs: ``all-to-all`` with a copy for each expert, or ``per-node`` with one
    copy for each node, next to compute (DeepEP). ``auto`` is ``all-to-all``."""
    stack: str = AUTO
    """Kind of training code: ``hf-sdpa``, ``torch-compile``, ``megatron`` and others of `smp_advisor.stacks`. ``auto``
    is the script that the advisor exports for the plan's library."""
    global_batch_size: int | None = None
    """Samples per optimizer step over the cluster. None lets the search choose."""
    max_tokens_per_step: int = MAX_TOKENS_PER_STEP
    """Upper limit of the global batch in tokens when `global_batch_size` is None. `advise` replaces the default by the
    limit of the model's size and kind of training."""
    tokens: float | None = None
    """Tokens to train on, for days and total cost. None: rates only."""
    overheads: Overheads = ALL_OVERHEADS
    """Parts of the run besides its training steps that days and cost count: ``"all"``, ``"none"``, names of parts, or
    `Overheads` with the way checkpoints are saved."""
    calibration: Calibration | None = None
    """Your measured runs, from which every estimate learns. None: published runs only."""

    def __post_init__(self) -> None:
        for option in options_of("job"):
            value = getattr(self, option.name)
            if option.name in _OF_OTHER_TYPES or (value is None and option.name in _OPTIONAL):
                continue
            try:
                checked = option.checked(value)
            except AdvisorError as problem:
                raise JobError(str(problem)) from None
            if isinstance(value, str):  # as people write it: 300B, 4k, bfloat16
                object.__setattr__(self, option.name, checked)
        for name, setting in training_settings().items():
            value, allowed = getattr(self, name), tuple(setting.values)
            if allowed and (not isinstance(value, str) or value not in allowed):
                raise JobError(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}.")
            if not allowed and not isinstance(value, bool):
                raise JobError(f"{name} must be True or False, not {shown(value)}.")
        object.__setattr__(self, "overheads", Overheads.of(self.overheads))
        self._resolve_attention()
        self._check_training()
        self._check_optimizer()
        calibration: object = self.calibration
        if calibration is not None and not isinstance(calibration, Calibration):
            raise JobError(f"calibration must be a Calibration, from load_calibration(path), not {calibration!r:.80}.")

    def _resolve_attention(self) -> None:
        """Set the attention that the stack implies. A stack and another attention contradict each other."""
        if self.stack == AUTO:
            implied, usual = "", "eager" if self.attention_kernel == "auto" else "fused"
        else:
            implied = stack(self.stack).implies
            usual = implied or "fused"
        if self.attention == "auto":
            object.__setattr__(self, "attention", usual)
        elif implied and self.attention != implied:
            raise JobError(sentence("workload", "two_attentions", job=self, implied=implied))
        if self.attention == "eager" and self.attention_kernel != "auto":
            raise JobError(sentence("workload", "eager_kernel", job=self))

    def _check_training(self) -> None:
        """Refuse conflicting settings of fp8, adapter and precision."""
        if self.fp8 and self.precision != "bf16":
            raise JobError(f"fp8 requires precision='bf16', not {self.precision!r}.")
        if self.fp8_weights and not self.fp8:
            raise JobError("fp8_weights stores the weights of products in fp8: set fp8=True, or leave it out.")
        adapter: object = self.adapter  # a notebook may pass another type despite the annotation
        if isinstance(adapter, str) and (usual := NAMED_ADAPTERS.get(adapter.strip().lower())):
            adapter = usual
            object.__setattr__(self, "adapter", usual)
        if adapter is None:
            return
        if not isinstance(adapter, Adapter):
            raise JobError(f"adapter must be 'lora', 'qlora' or an Adapter, such as Adapter(rank=8), not {adapter!r}.")
        if self.precision == "fp32" and adapter.quantized:
            raise JobError("An adapter over a quantized base trains in 16 bits: set precision to bf16 or fp16.")

    def _check_optimizer(self) -> None:
        if self.state_precision == "16-bit" and self.precision == "fp32":
            raise JobError("state_precision='16-bit' requires precision='bf16' or 'fp16', not 'fp32'.")
        forms = OPTIMIZERS[self.optimizer].steps
        if self.optimizer_step not in ("auto", "loop", "backward", *forms):
            remedy = f"use {' or '.join(map(repr, forms))}, or leave it out" if forms else "leave it out"
            raise JobError(f"The optimizer {self.optimizer!r} has no {self.optimizer_step} step: {remedy}.")
        if self.paged_optimizer and not OPTIMIZERS[self.optimizer].paged:
            paged = " or ".join(repr(name) for name, optimizer in OPTIMIZERS.items() if optimizer.paged)
            raise JobError(f"The optimizer {self.optimizer!r} has no paged form: use {paged}.")

    @property
    def tunes(self) -> bool:
        """Whether the run starts from a pretrained model."""
        return self.adapter is not None or self.training in ("fine-tuning", "dpo")

    @property
    def moment_bytes(self) -> float:
        """Bytes of optimizer state per parameter."""
        return OPTIMIZERS[self.optimizer].moment_bytes(2.0 if self.state_precision == "16-bit" else 4.0)

    @property
    def outside_moment_bytes(self) -> float:
        """Further bytes of optimizer state per parameter outside the blocks."""
        return OPTIMIZERS[self.optimizer].outside_moments * (2.0 if self.state_precision == "16-bit" else 4.0)

    @property
    def embedding_moment_bytes(self) -> float:
        """Further bytes of optimizer state on the GPU per parameter of the token embedding."""
        return 0.0 if self.paged_optimizer else OPTIMIZERS[self.optimizer].embedding_bytes

    @property
    def stack_record(self) -> Stack:
        """The kind of code that `stack` names; one without settings of its own for the exported script."""
        return _EXPORTED if self.stack == AUTO else stacks()[self.stack]

    def __repr__(self) -> str:
        usual = self.defaulted()
        own = [f.name for f in fields(self) if f.name not in usual or f.name in ("sequence_length", "precision")]
        return brief("Job", [f"{name}={getattr(self, name)!r}" for name in own])

    def training_settings(self) -> dict[str, object]:
        """Return the settings of the training script (``training_settings.toml``) that differ from their defaults."""
        values = {name: getattr(self, name) for name in training_settings()}
        return {name: value for name, value in values.items() if value != training_settings()[name].default}

    def defaulted(self) -> tuple[str, ...]:
        """Return the names of the settings that have their default value."""
        return _defaulted(self)


@lru_cache(maxsize=256)
def _defaulted(job: Job) -> tuple[str, ...]:
    resolved = {"attention": replace(job, attention="auto").attention}
    return tuple(f.name for f in fields(job) if getattr(job, f.name) == resolved.get(f.name, f.default))
