"""A model from what a profile measured: its blocks carry the traced bytes and FLOPs."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload.block import Attention, Block, Matmul, SavedActivations
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.from_config import model_from_config
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["model_from_profile"]

_REPLICATED_ELEMENTS = 5
"""Of each value of the block's input, what tensor parallelism leaves whole: norm inputs, inputs of column-parallel
products, two dropout masks (Korthikanti et al. 2022: 10 of 34 bytes in half precision)."""
_TRAFFIC_PER_SAVED = 2
"""A saved element is written once and read once by a memory-bound operation, roughly."""


_ROUTERS = {"gate", "router", "shared_expert_gate"}
"""What models call the product that chooses a token's experts."""

_OBTAINED = {"guided trace": "by a guided trace", "real steps": "extrapolated from real steps"}
_BANDS = {"exact": 0.0, "high": 0.05, "low": 0.25}
"""Relative error that activation memory is taken to have, by a profile's confidence."""


def model_from_profile(profile: Any) -> Model:
    """Model of a profile; see `Model.from_profile`."""
    values = profile.as_dict() if callable(getattr(profile, "as_dict", None)) else profile
    if not isinstance(values, dict) or "parameter_count" not in values or "provenance" not in values:
        raise ModelError(
            f"A profile is what smp_advisor.profile returns, or its as_dict(), not {type(profile).__name__}."
        )
    if not any(one["figure"] == "saved bytes" for one in values["provenance"]) or not values["blocks"]["order"]:
        raise ModelError(
            f"The profile of {values['name']} holds no repeated blocks with traced activations: run its trace "
            'stage (stages=("trace",)), or describe the model with Model.from_config or Model.from_shape.'
        )
    measured = _Measured(values)
    known = _known(values)
    model = measured.corrected(known) if known is not None else measured.model()
    saved = next(one for one in values["provenance"] if one["figure"] == "saved bytes")
    return dataclasses.replace(
        model,
        name=values["name"] if known is None else known.name,
        origin=_origin(values),
        note=_note(values),
        activation_band=_BANDS[saved["confidence"]],
    )


def _origin(values: Mapping[str, Any]) -> Any:
    return "inferred" if values["source"] == "count" else "measured"


def _note(values: Mapping[str, Any]) -> str:
    """How the figures came about, for people."""
    if values["source"] == "count":
        return f"{values['origin']}; traced at that shape"
    saved = next(one for one in values["provenance"] if one["figure"] == "saved bytes")
    return (
        f"measured on your model; {format_count(values['parameter_count'])} parameters counted, activations "
        f"{_OBTAINED.get(saved['method'], saved['method'])} (confidence {saved['confidence']}) with "
        f"{values['attention']} attention in {values['precision']}"
    )


def _known(values: Mapping[str, Any]) -> Model | None:
    """The same model by its family's formulas, where they count as many parameters and blocks as were measured."""
    config = json.loads(values["config_json"])
    if not config.get("model_type"):
        return None
    try:
        model = model_from_config(config)
    except ModelError:
        return None
    same = model.parameter_count == values["parameter_count"] and model.layer_count == len(values["blocks"]["order"])
    return model if same else None


class _Measured:
    """Reads a profile's plain data."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.sequence = values["sequence"] if values["has_sequence"] else 1
        self.power = 1 if values["has_sequence"] else 0
        self.element = 4 if values["precision"] == "fp32" else 2
        self.kinds: Sequence[Mapping[str, Any]] = values["blocks"]["kinds"]
        self.order: Sequence[int] = values["blocks"]["order"]

    def per_token(self, polynomial: Mapping[str, Any], power: int | None = None) -> float:
        """Factor of batch x sequence (of batch alone where there is no sequence)."""
        return self._factor(polynomial, self.power if power is None else power)

    @staticmethod
    def _factor(polynomial: Mapping[str, Any], power: int) -> float:
        rows = polynomial["polynomial"]
        row = rows[1] if len(rows) > 1 else ()
        return float(Fraction(row[power])) if power < len(row) else 0.0

    def kept_per_token(self, kind: Mapping[str, Any], attentions: Sequence[Attention]) -> float:
        """Bytes a token of one block without what the cost model adds for attention itself.

        What grows with the square of the sequence beyond that (masks, attention that has no fused form) is taken at the
        profile's sequence.
        """
        saved = kind["saved_bytes"]
        total = self.all_per_token(saved)
        # Kept once a microbatch whatever its samples: counted for each, so that more than one is not underestimated.
        total += float(sum(Fraction(value) * self.sequence**j for j, value in enumerate(saved["polynomial"][0]))) / (
            self.sequence
        )
        if not self.ran_eagerly(attentions):
            return total - sum(4.0 * attention.heads for attention in attentions)
        return total - sum((one.score_bytes or 0.0) * one.heads * self.sequence for one in attentions)

    def all_per_token(self, polynomial: Mapping[str, Any]) -> float:
        """What grows with the batch, of one token at the profile's sequence."""
        total = self.per_token(polynomial)
        if self.power:
            total += self._factor(polynomial, 0) / self.sequence + self._factor(polynomial, 2) * self.sequence
        return total

    def ran_eagerly(self, attentions: Sequence[Attention]) -> bool:
        """Whether scores were kept: asked for, or because the model's code has no fused form."""
        return self.values["attention"] == "eager" or not all(attention.fusible for attention in attentions)

    def measured_scores(self, attentions: Sequence[Attention], kind: Mapping[str, Any]) -> tuple[Attention, ...]:
        """Attentions with the bytes a score that eager attention was seen to keep."""
        heads = sum(attention.heads for attention in attentions)
        if not self.ran_eagerly(attentions) or not heads or not self.power:
            return tuple(attentions)
        each = self._factor(kind["saved_bytes"], 2) / heads
        return tuple(dataclasses.replace(attention, score_bytes=each) for attention in attentions)

    def corrected(self, known: Model) -> Model:
        """The family's model, its saved bytes scaled to the measured ones."""
        groups: list[BlockGroup] = []
        place = 0
        for group in known.groups:
            kinds = [self.kinds[kind] for kind in self.order[place : place + group.count]]
            place += group.count
            groups.append(BlockGroup(block=self._scaled(group.block, kinds, known), count=group.count))
        return dataclasses.replace(known, groups=tuple(groups))

    def _scaled(self, block: Block, kinds: Sequence[Mapping[str, Any]], known: Model) -> Block:
        """One block of a group, with the mean of what the group's blocks keep."""
        if self.values["precision"] == "amp":  # the formulas hold autocast's own copies
            return block
        # The last of a group is like most: the first may keep what comes before it.
        attentions = self.measured_scores(block.attentions, kinds[-1])
        wanted = sum(self.kept_per_token(kind, attentions) for kind in kinds) / len(kinds)
        if known.fixed_sequence_length:  # traced as one sample, counted as its tokens
            tokens = known.fixed_sequence_length
            lse = 0.0 if self.ran_eagerly(attentions) else sum(4.0 * attention.heads for attention in attentions)
            wanted = (wanted + lse) / tokens - (lse or self._scores(block.attentions, tokens))
        predicted = self._elements(block)
        if predicted <= 0 or wanted <= 0:
            return block
        ratio = wanted / predicted
        fields = {one.name: getattr(block.saved, one.name) * ratio for one in dataclasses.fields(block.saved)}
        return dataclasses.replace(block, attentions=attentions, saved=SavedActivations(**fields))

    def _elements(self, block: Block) -> float:
        """Bytes a token by the cost model's formula without the scores, on one GPU."""
        saved = block.saved
        total = (
            self.element * (saved.split_elements + saved.replicated_elements + saved.unfused_split_elements)
            + saved.split_bytes
            + saved.replicated_bytes
        )
        if self.element == 2:
            total += saved.half_replicated_bytes
        if self.ran_eagerly(block.attentions):
            total += self.element * saved.eager_split_elements
        return total

    def _scores(self, attentions: Sequence[Attention], tokens: int) -> float:
        """Bytes a token that the cost model takes for eager attention by formula."""
        return sum(
            attention.eager_score_bytes(self.element) * attention.heads * attention.keys_per_query(tokens)
            for attention in attentions
        )

    def model(self) -> Model:
        """A model of the measured blocks alone."""
        values = self.values
        blocks = [self._block(kind) for kind in self.kinds]
        groups = tuple(BlockGroup(block=blocks[place], count=len(list(run))) for place, run in groupby(self.order))
        largest = max(range(len(blocks)), key=lambda place: self.order.count(place) * blocks[place].parameters)
        main, width = blocks[largest], self.kinds[largest]["hidden"] or blocks[largest].hidden
        attention = main.attentions[0] if main.attentions else None
        outside = values["parameter_count"] - sum(group.block.parameters * group.count for group in groups)
        if outside < 0:
            raise ModelError(
                f"The blocks of {values['name']} share parameters with one another, which the cost model cannot place: "
                "describe the model with Model.from_shape."
            )
        head, embedding, tokens = self._ends(outside, width)
        head, around_bytes, around_flops = self._around(head, width)
        config = json.loads(values["config_json"])
        return Model(
            name=values["name"],
            family=config.get("model_type") or values["name"],
            origin="measured",
            shape=Shape(
                layers=len(self.order),
                hidden=width,
                heads=attention.heads if attention else 1,
                kv_heads=attention.kv_heads if attention else 1,
                ffn=max((matmul.outputs for matmul in main.matmuls), default=main.hidden),
                vocab=values["vocab"],
                experts=max((matmul.experts for matmul in main.matmuls), default=1),
                experts_per_token=max((m.weights_per_token for m in main.matmuls if m.experts > 1), default=1),
            ),
            groups=groups,
            embedding_parameters=embedding,
            token_embedding_parameters=tokens,
            final_parameters=outside - embedding - head.parameters,
            head=head,
            fixed_sequence_length=None if values["has_sequence"] else 1,
            around_elements=around_bytes / self.element,
            around_flops=around_flops,
            config_json=values["config_json"],
        )

    def _ends(self, outside: int, hidden: int) -> tuple[Head, int, int]:
        """Head, and parameters of the embedding and of its token table, of those outside the blocks."""
        vocab, outputs = self.values["vocab"], self.values["outputs"]
        language = bool(vocab) and self.values["has_sequence"] and outputs in {0, vocab}
        table = min(vocab * hidden, outside)
        if language:
            tied = bool(self.values["tied"]) or outside < 2 * table
            own = 0 if tied else table
            rest = outside - own
            return Head(kind="language-model", outputs=vocab, parameters=own, tied=tied), rest, min(table, rest)
        if not outputs:
            return Head(kind="none", outputs=0, parameters=0, tied=False), outside, table
        own = min(outputs * hidden, outside - table) if self.values["has_sequence"] else 0
        head = Head(kind="classification", outputs=outputs, parameters=own, tied=False, per_token=False)
        return head, outside - own, min(table, outside - own)

    def _around(self, head: Head, hidden: int) -> tuple[Head, float, float]:
        """(head, bytes kept, forward FLOPs) a token outside the blocks, without what the cost model adds for any model.

        Stems of convolutions, stages too short to repeat, pooling: all that is no block and neither embedding, final
        norm nor head as transformers have them. The head learns in which type its loss keeps the logits.
        """
        kept, flops = (self.all_per_token(self.values[name]) for name in ("saved_bytes", "forward_flops"))
        for place in self.order:
            kept -= self.all_per_token(self.kinds[place]["saved_bytes"])
            flops -= self.all_per_token(self.kinds[place]["forward_flops"])
        # A mask of the embedding's dropout, the final norm's input and the head's.
        kept -= (1 + 2 * self.element) * hidden
        if head.kind != "none":
            rows = 1.0 if head.per_token else 1 / self.sequence
            in_fp32 = self.element == 4 or self.values["precision"] == "amp" or kept > 3.0 * head.outputs * rows
            head = dataclasses.replace(head, loss_in_fp32=in_fp32)
            kept -= (4.0 if in_fp32 else 2.0) * head.outputs * rows
            flops -= 2.0 * hidden * head.outputs * rows
        return head, max(0.0, kept), max(0.0, flops)

    def _block(self, kind: Mapping[str, Any]) -> Block:
        input_elements = max(1, round(self.per_token(kind["input_bytes"]) / self.element))
        # Of an image's block the whole input counts as the width of its one token; a decoder's block may read more than
        # one tensor of its width.
        tensors = input_elements // kind["hidden"] if self.power and kind["hidden"] else 1
        hidden = input_elements // tensors if tensors and input_elements % tensors == 0 else input_elements
        tensors = input_elements // hidden
        matmuls = tuple(
            matmul for product in kind["products"] if (matmul := self._matmul(product, kind["hidden"])) is not None
        )
        attentions = self.measured_scores(self._attentions(kind), kind)
        if not matmuls:
            matmuls = self._one_product(kind, input_elements)
        if attentions:
            matmuls = _with_output_projection(matmuls, kind["hidden"])
        if not self.power:
            matmuls += self._attention_products(kind)
        elements = max(0.0, self.kept_per_token(kind, attentions) / self.element)
        replicated = min(elements, float(_REPLICATED_ELEMENTS * input_elements))
        # Routers and the like stay whole beside norms and biases.
        whole = sum(matmul.inputs * matmul.outputs for matmul in matmuls if matmul.split == "none" and self.power)
        return Block(
            kind=kind["kind"],
            hidden=hidden,
            input_tensors=tensors,
            parameters=kind["parameters"],
            replicated_parameters=min(kind["parameters"], kind["one_dimensional_parameters"] + whole),
            matmuls=matmuls,
            attentions=attentions,
            saved=SavedActivations(split_elements=elements - replicated, replicated_elements=replicated),
            traffic_elements=_TRAFFIC_PER_SAVED * replicated,
            split_traffic_elements=_TRAFFIC_PER_SAVED * (elements - replicated),
        )

    def _matmul(self, product: Mapping[str, Any], hidden: int) -> Matmul | None:
        """A product with as many FLOPs a token as were counted."""
        inputs, outputs, experts = product["inputs"], product["outputs"], product["experts"]
        flops = self.per_token(product["flops"])
        if flops <= 0:
            return None
        uses, rows = 1, 1.0
        if experts > 1:
            uses = max(1, min(experts, round(flops / (2 * inputs * outputs))))
        elif abs(flops - 2 * inputs * outputs) > 1e-6 * flops:  # a convolution, or a product of other rows than tokens
            rows = flops / (2 * inputs * outputs)
        split = "column" if inputs == hidden else "row" if outputs == hidden else "none"
        name = product["name"].rsplit(".", 2)[-2] if "." in product["name"] else product["name"]
        if name in _ROUTERS or (experts == 1 and outputs < 64 and outputs != hidden):
            split = "none"
        return Matmul(
            name=name,
            inputs=inputs,
            outputs=outputs,
            split=split,  # type: ignore[arg-type]
            experts=experts,
            weights_per_token=uses,
            rows_per_token=rows,
        )

    def _attention_products(self, kind: Mapping[str, Any]) -> tuple[Matmul, ...]:
        """The attention of an image's patches, whose number is not known, as a product with as many FLOPs."""
        flops, hidden = self.per_token(kind["attention_flops"]), kind["hidden"]
        if flops <= 0 or not hidden:
            return ()
        rows = flops / (2 * hidden * hidden)
        return (Matmul(name="attention scores", inputs=hidden, outputs=hidden, rows_per_token=rows),)

    def _one_product(self, kind: Mapping[str, Any], width: int) -> tuple[Matmul, ...]:
        """All of a block's FLOPs as one product, where its weights were not told apart."""
        flops = self.per_token(kind["forward_flops"])
        if flops <= 0:
            return ()
        return (Matmul(name="block", inputs=width, outputs=max(1, round(flops / (2 * width)))),)

    def _attentions(self, kind: Mapping[str, Any]) -> tuple[Attention, ...]:
        if not self.power:
            return ()
        if kind["attentions"]:
            return tuple(
                Attention(
                    heads=one["heads"],
                    kv_heads=one["kv_heads"] if one["heads"] % one["kv_heads"] == 0 else one["heads"],
                    # Queries and keys may be wider than values (DeepSeek's latent attention).
                    head_dim=round((one["head_dim"] + one["value_dim"]) / 2),
                    causal=one["causal"],
                    dropout=one["dropout"],
                    scores_in_fp32=True,
                )
                for one in kind["attentions"]
            )
        width = self._factor(kind["attention_flops"], 2) / 4  # 4 heads x head_dim x s FLOPs a token
        if width < 1:
            return ()
        config = json.loads(self.values["config_json"])
        heads = next((config[key] for key in ("num_attention_heads", "n_head", "num_heads") if config.get(key)), 0)
        heads = heads if heads and round(width) % heads == 0 else max(1, round(width) // 64)
        saved = self._factor(kind["saved_bytes"], 2)
        dropout = saved > (self.element + 4.5) * heads
        return (
            Attention(
                heads=heads,
                kv_heads=heads,
                head_dim=max(1, round(width / heads)),
                dropout=dropout,
                scores_in_fp32=True,
            ),
        )


def _with_output_projection(matmuls: tuple[Matmul, ...], hidden: int) -> tuple[Matmul, ...]:
    """Of the square products beside an attention, the last is its output projection, whose input is divided."""
    square = [place for place, one in enumerate(matmuls) if one.inputs == one.outputs == hidden]
    if not square:
        return matmuls
    last = square[-1]
    return (*matmuls[:last], dataclasses.replace(matmuls[last], split="row"), *matmuls[last + 1 :])
