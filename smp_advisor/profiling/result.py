"""The profile of a model: every figure with the method that produced it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.arguments import require_whole
from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.tables import Shown, frame_of
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.parts import (
    Agreement,
    BlockProfile,
    ModuleProfile,
    OperatorProfile,
    PeakMemory,
    Provenance,
    Segment,
    hints,
    restored,
)
from smp_advisor.profiling.polynomial import Polynomial
from smp_advisor.profiling.precision import training_precision
from smp_advisor.profiling.scaled.result import ScaledRun  # noqa: TC001 (read from the annotation when restored)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd


@checked_class
@dataclass(frozen=True, kw_only=True, slots=True)
class Profile(Shown):
    """Measured properties of a model: parameters, and FLOPs and activation bytes as functions of batch and sequence.

    Examples
    --------
    >>> profile = smp_advisor.profile(model, job)  # doctest: +SKIP
    >>> profile.saved_bytes(batch=4, sequence=2048)  # doctest: +SKIP
    >>> smp_advisor.advise(profile, "ml.p4d.24xlarge", instance_count=16)  # doctest: +SKIP
    """

    name: str
    """Class of the model, or its common name."""
    source: Literal["module", "configuration", "count"]
    """Form of the profiled model. ``count``: a shape inferred from a parameter count; ``origin`` explains how."""
    origin: str = ""
    parameter_count: int = 0
    """Tied parameters count once."""
    trainable_parameter_count: int = 0
    buffer_bytes: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    """Groups of names of the same parameter."""
    precision: str
    """``fp32``, ``amp`` (autocast), ``bf16`` (pure), ``fp16`` (SMP v1's wrapper) or ``mixed`` (FSDP)."""
    attention: str
    """Traced attention kernel: ``fused`` or ``eager``."""
    attention_reason: str = ""
    """Why that kernel: the versions that the job installs, or the user's request."""
    fusible_attention: bool = True
    """False if the versions that the job installs have no fused attention for the model."""
    optimizer: str = "adam"
    batch: int
    """Samples per microbatch of the job. The polynomials are valid at any batch."""
    sequence: int
    """Tokens per sample of the job; 1 if the inputs have no sequence (images)."""
    has_sequence: bool = True
    vocab: int = 0
    outputs: int = 0
    """Last dimension of the logits; 0 if there are none."""
    inputs: str = ""
    """Inputs of the model as text, and whether they were supplied or inferred."""
    scales: bool = True
    """Whether a sample is one entry of the batch; if not, one sample stands for the supplied inputs together."""
    blocks: tuple[BlockProfile, ...] = ()
    """Every repeated block in execution order; equal blocks are the same object."""
    block_paths: tuple[str, ...] = ()
    """Path of each of them."""
    saved_bytes: Polynomial = field(default_factory=Polynomial)
    """Saved by autograd at the end of the forward pass, excluding parameters and buffers."""
    checkpointed_bytes: Polynomial | None = None
    """`saved_bytes` with every block checkpointed; None without blocks."""
    forward_flops: Polynomial = field(default_factory=Polynomial)
    backward_flops: Polynomial = field(default_factory=Polynomial)
    input_bytes: Polynomial = field(default_factory=Polynomial)
    """Bytes of the model's input tensors."""
    timeline: tuple[Segment, ...] = ()
    """Forward and backward pass in order, with gradients freed between steps."""
    gradient_bytes: int = 0
    """Gradients of all trainable parameters."""
    optimizer_rise_bytes: int = 0
    """Temporaries of the optimizer step, on top of resident memory."""
    provenance: tuple[Provenance, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    warnings: tuple[str, ...] = ()
    outside_operators: tuple[OperatorProfile, ...] = field(default=(), compare=False)
    """Every operator outside the blocks; with `BlockProfile.operators`, all operators of a step."""
    tree: Mapping[str, ModuleProfile] = field(default_factory=dict, compare=False)
    """Every module that runs operators, by path, in the order of its first operator; the sums are the model's."""
    autocast_ratios: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Saved bytes per sample of blocks and modules under autocast, relative to this precision, by path."""
    unreached: tuple[tuple[str, int], ...] = ()
    """Largest parts of the model that the inputs did not reach, with their parameters."""
    failures: tuple[str, ...] = ()
    """One sentence for each stage that failed, so that it has no result."""
    uncounted: tuple[str, ...] = ()
    """Operators that may multiply matrices and have no FLOP formula: the FLOPs are then a lower bound."""
    operations: int = 0
    """Operations of the traced steps."""
    config_json: str = "{}"
    """The transformers configuration; ``{}`` if there is none."""
    scaled: ScaledRun | None = None
    """Real steps of the scaled copy; None if not run."""

    def activation_bytes(self, batch: int, sequence: int = 1, *, checkpointing: bool = False) -> int:
        """Bytes saved by autograd for one microbatch at the end of its forward pass, on one GPU without parallelism."""
        for name, value in (("batch", batch), ("sequence", sequence)):
            require_whole(name, value, ProfileError)
        if checkpointing and self.checkpointed_bytes is not None:
            return self.checkpointed_bytes(batch, sequence)
        return self.saved_bytes(batch, sequence)

    def peak_memory(self, batch: int, sequence: int = 1) -> PeakMemory:
        """Return the peak memory of a steady-state training step on one GPU, with its parts.

        If gradients are freed between steps, the peak of a transformer with an fp32 loss is
        ``P + O + max(A + 8bsV, G + one block)``: at the start of the backward pass, with all activations, or at its
        end, with all gradients. The timeline covers every point in between.
        """
        precision = training_precision(self.precision)
        parameters = precision.parameter_bytes * self.parameter_count + self.buffer_bytes
        state = precision.state_bytes(self.optimizer) * self.trainable_parameter_count
        resident = parameters + state + self.input_bytes(batch, sequence)
        saved = self.activation_bytes(batch, sequence)
        phase: Literal["forward", "backward", "optimizer"] = "forward"
        live = highest = 0
        for segment in self.timeline:
            top = live + segment.rise_bytes(batch, sequence)
            if top > highest:
                highest, phase = top, segment.phase
            live += segment.change_bytes(batch, sequence)
        if not self.timeline:  # the timeline could not be fitted: use the closed form, without the loss
            highest, phase = saved, "backward"
        step = self.gradient_bytes + self.optimizer_rise_bytes
        return PeakMemory(
            phase="optimizer" if step > highest else phase,
            parameters_bytes=parameters,
            optimizer_state_bytes=state,
            gradients_bytes=self.gradient_bytes,
            activations_bytes=saved,
            peak_bytes=resident + max(step, highest),
        )

    def modules(self) -> pd.DataFrame:
        """Table of the modules: parameters, FLOPs, saved bytes and their share; the rows add up to the model.

        Raises
        ------
        ProfileError
            The model was not traced.
        """
        names = ("parameters", "forward_flops", "backward_flops", "saved_bytes")
        if not self.is_traced:
            raise ProfileError(f"{self.name} was not traced: run the trace stage of its profile.")

        def figures(part: Profile | BlockProfile, parameters: int) -> list[int]:
            costs = (part.forward_flops, part.backward_flops, part.saved_bytes)
            return [parameters, *(cost(self.batch, self.sequence) for cost in costs)]

        paths: dict[BlockProfile, list[str]] = {}
        for block, path in zip(self.blocks, self.block_paths, strict=True):
            paths.setdefault(block, []).append(path)
        model = figures(self, self.parameter_count)
        rows, outside = list[dict[str, object]](), model
        for block, of in paths.items():
            own = [len(of) * value for value in figures(block, block.parameters)]
            outside = [value - part for value, part in zip(outside, own, strict=True)]
            rows.append({"module": of[0], "kind": block.kind, "count": len(of), **dict(zip(names, own, strict=True))})
        last = {"module": "outside the blocks", "kind": "", "count": 1, **dict(zip(names, outside, strict=True))}
        table = frame_of([*rows, last]).set_index("module")
        table = table.astype({"forward_flops": float, "backward_flops": float})
        table["saved_share"] = table["saved_bytes"] / max(1, model[-1])
        return table

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain data, ready for JSON; equal parts are stored once."""
        result: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in {*_SHARED, "tree"}:
                parts = list(value.values()) if entry.name == "tree" else list(value)
                distinct = list(dict.fromkeys(parts))
                places = {part: place for place, part in enumerate(distinct)}
                paths = {"paths": list(value)} if entry.name == "tree" else {}
                order = [places[part] for part in parts]
                result[entry.name] = {**paths, "kinds": [_plain(part) for part in distinct], "order": order}
            else:
                result[entry.name] = _plain(value)
        result[_VERDICTS] = list(self.verdicts)
        return result

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """Inverse of `as_dict`, also after a JSON round trip."""
        missing = {"name", *_SHARED} - values.keys()
        if missing:
            raise ProfileError(f"values are no profile of as_dict(): {min(missing)!r} is missing.")
        own = {name: value for name, value in values.items() if name not in {*_SHARED, "tree", _VERDICTS}}
        kinds = hints(cls)  # type: ignore[arg-type]  # instances have a hash of their own
        parts = {name: restored(kinds[name], value) for name, value in own.items()}
        parts |= {name: _expanded(values[name], kind) for name, kind in _SHARED.items()}
        tree = values.get("tree") or {"paths": (), "kinds": (), "order": ()}
        parts["tree"] = dict(zip(tree["paths"], _expanded(tree, ModuleProfile), strict=True))
        return cls(**parts)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Findings of the stages, one sentence each: the warnings of advice built on this profile."""
        from smp_advisor.profiling.summary import verdicts

        return verdicts(self)

    def details(self) -> str:
        """Return every figure with its source, and the results of the stages, as text."""
        from smp_advisor.profiling.summary import details

        return details(self)

    @property
    def is_traced(self) -> bool:
        """Whether activations and FLOPs are known."""
        return any(source.figure == "saved bytes" for source in self.provenance)

    def _repr_html_(self) -> str:
        from smp_advisor.profiling.summary import summary_html

        return summary_html(self)

    def __str__(self) -> str:
        from smp_advisor.profiling.summary import summary

        return summary(self)


_SHARED: dict[str, Any] = {"blocks": BlockProfile, "timeline": Segment}
"""Fields whose entries are mostly equal, and the kind of these."""
_VERDICTS = "verdicts"
"""Derived from the other entries, for readers of the plain data."""


def _plain(value: Any) -> Any:
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Polynomial):
        return {"polynomial": value.as_list()}
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _expanded(shared: Mapping[str, Any], kind: Any) -> tuple[Any, ...]:
    kinds = [restored(kind, part) for part in shared["kinds"]]
    return tuple(kinds[place] for place in shared["order"])
