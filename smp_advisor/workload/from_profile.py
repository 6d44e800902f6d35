"""A model from a profile. Its blocks have the traced bytes and FLOPs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from fractions import Fraction
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import sentence
from smp_advisor.errors import ModelError
from smp_advisor.workload.block import Attention, Block, Kernels, Matmul, SavedActivations
from smp_advisor.workload.counts import format_count
from smp_advisor.workload.from_config import model_from_config
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape
from smp_advisor.workload.traced_kernels import with_traced_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REPLICATED_ELEMENTS = 5
"""Saved elements per element of the block's input that tensor parallelism does not divide: norm inputs, inputs of
column-parallel products, two dropout masks (Korthikanti et al. 2022: 10 of 34 bytes in half precision)."""
_CAST_BYTES = 2
_TRAFFIC_PER_SAVED = 2
"""Approximation: memory-bound operations write every saved element once and read it once."""
_LAUNCHES_PER_PRODUCT = 4.0
"""Approximation: transformers' own code of Llama has 30 kernels besides attention's core and 7 products, GPT-2's 14
besides 4 products (`smp_advisor.workload.layers`)."""

_TABLES = frozenset({"Embedding", "EmbeddingBag"})
"""Classes that look rows up: their parameters are neither multiplied nor repeated blocks."""
_PARTS = 16
"""Share of the parameters outside the blocks, as its inverse, that a part has at most if no layer is larger."""
_RESIDUE = 0.01
"""Least share of the FLOPs that is a part of its own next to the ends of a language model."""
_WEIGHTLESS_WIDTH = 256
"""Assumed width of products between activations."""

_ROUTERS = {"gate", "router", "shared_expert_gate"}
"""Names of the product that chooses a token's experts in the code of models."""

_BANDS = {"exact": 0.0, "high": 0.05, "low": 0.25}
"""Assumed relative error of activation memory, by a profile's confidence."""


def model_from_profile(profile: Any) -> Model:
    values = profile.as_dict() if callable(getattr(profile, "as_dict", None)) else profile
    if not isinstance(values, dict) or "parameter_count" not in values or "provenance" not in values:
        raise ModelError(sentence("workload", "no_profile", kind=type(profile).__name__))
    saved = next((entry for entry in values["provenance"] if entry["figure"] == "saved bytes"), None)
    if saved is None:
        failures = f" ({' '.join(values['failures'])})" if values.get("failures") else ""
        raise ModelError(sentence("workload", "no_trace", name=values["name"], failures=failures))
    measured = _Measured(values)
    formula = _formula_model(values)
    model = measured.corrected(formula) if formula is not None else measured.model()
    return dataclasses.replace(
        model,
        name=values["name"] if formula is None else formula.name,
        origin="inferred" if values["source"] == "count" else "measured",
        note=_note(values, saved),
        activation_band=_BANDS[saved["confidence"]],
        sample_is_call=not values.get("scales", True),
        verdicts=(*values.get("verdicts", ()), *model.verdicts),
    )


def _note(values: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    if values["source"] == "count":
        return f"{values['origin']}; traced at that shape"
    precision = "16-bit mixed precision" if values["precision"] == "mixed" else values["precision"]
    uncounted = values.get("uncounted", ())
    missing = f"; FLOPs and times exclude {', '.join(uncounted[:3])}, which have no FLOP formula" if uncounted else ""
    sample = "" if values.get("scales", True) else "; a sample is one call with the inputs"
    supplied = values.get("inputs", "")
    sample = f"; inputs: {supplied.removesuffix(' (supplied)')}" if "inferred" in supplied else sample
    eager = "" if values.get("fusible_attention", True) else values.get("attention_reason", "")
    values = {**values, "precision": f"{precision} ({eager})" if eager else precision}
    method = saved["method"].replace("real steps", "extrapolated from real steps")
    count = format_count(values["parameter_count"])
    return sentence("workload", "measured", count=count, method=method, saved=saved, profile=values) + missing + sample


def _formula_model(values: Mapping[str, Any]) -> Model | None:
    """The same model by its family's formulas. None where their parameters or blocks differ from the measured ones."""
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
    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        # A function of inputs has a sequence length, which not every module reads.
        rows = (*values["saved_bytes"]["polynomial"], *values["forward_flops"]["polynomial"])
        self.power = int(values["has_sequence"] and any(Fraction(value) != 0 for row in rows for value in row[1:]))
        self.sequence = values["sequence"] if self.power else 1
        self.element = 4 if values["precision"] == "fp32" else 2
        self.kinds: Sequence[Mapping[str, Any]] = values["blocks"]["kinds"]
        tables = {place for place, kind in enumerate(self.kinds) if kind["kind"] in _TABLES}
        self.order: Sequence[int] = [place for place in values["blocks"]["order"] if place not in tables]
        self.fusible = bool(values.get("fusible_attention", True))

    def per_token(self, polynomial: Mapping[str, Any]) -> float:
        """Coefficient of batch x sequence (of batch without a sequence)."""
        return self._factor(polynomial, self.power)

    @staticmethod
    def _factor(polynomial: Mapping[str, Any], power: int) -> float:
        rows = polynomial["polynomial"]
        row = rows[1] if len(rows) > 1 else ()
        return float(Fraction(row[power])) if power < len(row) else 0.0

    def saved_per_token(self, kind: Mapping[str, Any], attentions: Sequence[Attention]) -> float:
        """Saved bytes per token of one block, without the attention terms of the cost model."""
        saved = kind["saved_bytes"]
        total = self.all_per_token(saved)
        # Saved once per microbatch. Counted per sample, so that larger microbatches are not underestimated.
        once = float(sum(Fraction(value) * self.sequence**j for j, value in enumerate(saved["polynomial"][0])))
        if self.values["precision"] == "amp":  # 16-bit copies of weights, which the cost model counts as parameters
            once = max(0.0, once - _CAST_BYTES * kind["parameters"])
        total += once / self.sequence
        if not self.ran_eagerly(attentions):
            return total - sum(4.0 * attention.heads for attention in attentions)
        return total - sum((attention.score_bytes or 0.0) * attention.heads * self.sequence for attention in attentions)

    @staticmethod
    def per_pair(polynomial: Mapping[str, Any]) -> float:
        """Coefficient of the square of the batch: samples are compared with each other."""
        rows = polynomial["polynomial"]
        return max(0.0, float(Fraction(rows[2][0]))) if len(rows) > 2 else 0.0

    def all_per_token(self, polynomial: Mapping[str, Any]) -> float:
        """Terms that grow with the batch, per token at the profile's sequence."""
        total = self.per_token(polynomial)
        if self.power:
            total += self._factor(polynomial, 0) / self.sequence + self._factor(polynomial, 2) * self.sequence
        return total

    def ran_eagerly(self, attentions: Sequence[Attention]) -> bool:
        """Return whether scores were saved: with eager attention, or because the model's code has no fused form."""
        return self.values["attention"] == "eager" or not all(attention.fusible for attention in attentions)

    def measured_scores(self, attentions: Sequence[Attention], kind: Mapping[str, Any]) -> tuple[Attention, ...]:
        heads = sum(attention.heads for attention in attentions)
        if not self.fusible:
            attentions = [dataclasses.replace(attention, fusible=False) for attention in attentions]
        if not self.ran_eagerly(attentions) or not heads or not self.power:
            return tuple(attentions)
        score_bytes = self._factor(kind["saved_bytes"], 2) / heads
        return tuple(dataclasses.replace(attention, score_bytes=score_bytes) for attention in attentions)

    def corrected(self, formula: Model) -> Model:
        """Return the family's model with saved bytes scaled to the measured ones."""
        groups: list[BlockGroup] = []
        place = 0
        for group in formula.groups:
            kinds = [self.kinds[kind] for kind in self.order[place : place + group.count]]
            place += group.count
            groups.append(BlockGroup(block=self._scaled(group.block, kinds, formula), count=group.count))
        return dataclasses.replace(formula, groups=tuple(groups))

    def _scaled(self, block: Block, kinds: Sequence[Mapping[str, Any]], formula: Model) -> Block:
        """Return one block of a group, with the mean saved bytes of the group's blocks."""
        if self.values["precision"] == "amp":  # the formulas include autocast's own copies
            return block
        if not any(matmul.experts > 1 for matmul in block.matmuls):  # releases differ in how experts run
            tokens = formula.fixed_sequence_length or 1
            kernels = self._traced(block.separate, kinds[-1], block.attentions, tokens=tokens)
            block = dataclasses.replace(block, separate=kernels)
        # The last block is typical; the first may save tensors from before it.
        attentions = self.measured_scores(block.attentions, kinds[-1])
        measured = sum(self.saved_per_token(kind, attentions) for kind in kinds) / len(kinds)
        if formula.fixed_sequence_length:  # traced as one sample, counted as its tokens
            tokens = formula.fixed_sequence_length
            lse = 0.0 if self.ran_eagerly(attentions) else sum(4.0 * attention.heads for attention in attentions)
            scores = sum(
                attention.eager_score_bytes(self.element) * attention.heads * attention.keys_per_query(tokens)
                for attention in block.attentions
            )
            measured = (measured + lse) / tokens - (lse or scores)
        # Bytes per token by the cost model's formula, without the scores, on one GPU.
        saved = block.saved
        predicted = (
            self.element * (saved.split_elements + saved.replicated_elements + saved.unfused_split_elements)
            + saved.split_bytes
            + saved.replicated_bytes
        )
        if self.element == 2:
            predicted += saved.half_replicated_bytes
        if self.ran_eagerly(block.attentions):
            predicted += self.element * saved.eager_split_elements
        if predicted <= 0 or measured <= 0:
            return block
        ratio = measured / predicted
        fields = {field.name: getattr(block.saved, field.name) * ratio for field in dataclasses.fields(block.saved)}
        return dataclasses.replace(block, attentions=attentions, saved=SavedActivations(**fields))

    def _traced(
        self, kernels: Kernels, kind: Mapping[str, Any], attentions: Sequence[Attention], *, tokens: int = 1
    ) -> Kernels:
        """Kernels of the model's own code, with the traced traffic and launches."""
        is_amp = self.values["precision"] == "amp"  # the cost model adds autocast's casts
        # Without a sequence, operators on scores cannot be distinguished.
        if is_amp or (attentions and not self.power and self.ran_eagerly(attentions)):
            return kernels
        return with_traced_kernels(
            kernels,
            kind.get("operators", ()),
            element_bytes=self.element,
            sequence=self.sequence,
            has_sequence=bool(self.power),
            has_attention=bool(attentions),
            tokens=tokens,
        )

    def model(self) -> Model:
        """Return a model of the measured blocks, and of the other parts of the module in the order of execution."""
        values, kinds = self.values, {place: self._block(self.kinds[place]) for place in dict.fromkeys(self.order)}
        blocks = [kinds[place] for place in self.order]
        in_blocks = sum(block.parameters for block in blocks)
        verdicts: tuple[str, ...] = ()
        # Blocks that share parameters hold their part of them each.
        if in_blocks > values["parameter_count"]:
            verdicts = (sentence("workload", "shared_parameters", name=values["name"]),)
            share = Fraction(values["parameter_count"], in_blocks)
            kinds = {place: _with_share(block, share) for place, block in kinds.items()}
            blocks = [kinds[place] for place in self.order]
        outside = values["parameter_count"] - sum(block.parameters for block in blocks)
        vocab, outputs = values["vocab"], values["outputs"]
        head, embedding, table = Head(kind="none", outputs=0, parameters=0, tied=False), 0, 0
        width, elements = self._width(kinds), 0.0
        # A language model has known ends; of other modules the order of execution shows what is where.
        if blocks and vocab and self.power and outputs in {0, vocab}:
            table = min(vocab * width, outside)
            tied = bool(values["tied"]) or outside < 2 * table
            head = Head(kind="language-model", outputs=vocab, parameters=0 if tied else table, tied=tied)
            head, residue, elements = self._beside_ends(head, width)
            embedding = outside - head.parameters
            blocks = [*residue, *blocks]
        else:
            blocks, embedding = self._in_order(blocks, outside)
            table = embedding
        # The shape that is shown is that of the blocks with most of the parameters.
        main = max(blocks, key=lambda block: blocks.count(block) * block.parameters)
        attention = next((block.attentions[0] for block in (main, *blocks) if block.attentions), None)
        return Model(
            name=values["name"],
            family=json.loads(values["config_json"]).get("model_type") or values["name"],
            origin="measured",
            shape=Shape(
                layers=len(blocks),
                hidden=width or main.hidden,
                heads=attention.heads if attention else 1,
                kv_heads=attention.kv_heads if attention else 1,
                ffn=max((matmul.outputs for matmul in main.matmuls), default=main.hidden),
                vocab=vocab if head.kind == "language-model" else 0,
                experts=max((matmul.experts for matmul in main.matmuls), default=1),
                experts_per_token=max((m.weights_per_token for m in main.matmuls if m.experts > 1), default=1),
            ),
            groups=tuple(BlockGroup(block=block, count=len(list(run))) for block, run in groupby(blocks)),
            embedding_parameters=embedding,
            token_embedding_parameters=min(table, embedding),
            final_parameters=values["parameter_count"]
            - embedding
            - head.parameters
            - sum(block.parameters for block in blocks),
            head=head,
            outside_elements=elements,
            fixed_sequence_length=None if self.power and vocab else self.sequence,
            config_json=values["config_json"],
            verdicts=verdicts,
        )

    def _width(self, kinds: Mapping[int, Block]) -> int:
        """Width of the blocks with most of the parameters; 0 without blocks."""
        if not kinds:
            return 0
        place = max(kinds, key=lambda place: self.order.count(place) * kinds[place].parameters)
        return int(self.kinds[place]["hidden"]) or kinds[place].hidden

    def _beside_ends(self, head: Head, hidden: int) -> tuple[Head, list[Block], float]:
        """The head of a language model in the type of its loss, and what is neither block nor embedding nor head."""
        saved, forward_flops = (self.all_per_token(self.values[name]) for name in ("saved_bytes", "forward_flops"))
        flops = forward_flops
        for place in self.order:
            saved -= self.all_per_token(self.kinds[place]["saved_bytes"])
            flops -= self.all_per_token(self.kinds[place]["forward_flops"])
        # The mask of the embedding's dropout, and the inputs of the final norm and of the head.
        saved -= (1 + 2 * self.element) * hidden
        in_fp32 = self.element == 4 or self.values["precision"] == "amp" or saved > 3.0 * head.outputs
        saved -= (4.0 if in_fp32 else 2.0) * head.outputs
        flops -= 2.0 * hidden * head.outputs
        layers = [self._part("other layers", 0, 0.0, _square_products([(0, flops)]), (), 0.0)]
        head = dataclasses.replace(head, loss_in_fp32=in_fp32)
        return head, layers if flops > _RESIDUE * forward_flops else [], max(0.0, saved) / self.element

    def _in_order(self, blocks: Sequence[Block], remainder: int) -> tuple[list[Block], int]:
        """Return the blocks and the parts between them in the order of execution, and parameters of tables."""
        tree = self.values.get("tree") or {"paths": (), "kinds": (), "order": ()}
        rows = {path: tree["kinds"][place] for path, place in zip(tree["paths"], tree["order"], strict=True)}
        names = [self.kinds[place]["name"] for place in self.order]
        numbered = [re.escape(name.rstrip("0123456789")) + r"\d*(\.|$)" for name in dict.fromkeys(names)]
        repeated = re.compile("|".join(numbered) or "(?!)")
        index = {path: place for place, path in enumerate(rows)}
        start = [min((index[path] for path in rows if f"{path}.".startswith(f"{name}.")), default=0) for name in names]
        placed = list(zip(accumulate(start, max), blocks, strict=True))
        outside = {path: row for path, row in rows.items() if not repeated.match(path)}
        total = sum(row["parameters"] for row in outside.values())
        if not rows or total > remainder:  # without a tree, or with blocks whose parameters it counts elsewhere
            return [self._rest(remainder), *blocks], 0
        tables = sum(row["parameters"] for row in outside.values() if row["kind"] in _TABLES)
        limit = (total - tables) / _PARTS
        parts: dict[str, dict[str, Mapping[str, Any]]] = {}
        part = ""
        for path, row in outside.items():
            own = _part_of(path, outside, limit)
            if row["parameters"] or own in parts or not parts:
                part = own
            parts.setdefault(part, {})[path] = row
        before = [self.values["input_bytes"], *(row["crossing_bytes"] for row in rows.values())]
        for name, modules in parts.items():
            first = index[next(iter(modules))]
            placed.append((first, self._of_modules(name, modules, self.all_per_token(before[first]))))
        return [block for _, block in sorted(placed, key=lambda entry: entry[0])], tables

    def _rest(self, parameters: int) -> Block:
        """Everything outside the blocks as one part, where no tree of modules is known."""
        saved, flops = (
            self.all_per_token(self.values[name])
            - sum(self.all_per_token(self.kinds[place][name]) for place in self.order)
            for name in ("saved_bytes", "forward_flops")
        )
        return self._part(self.values["name"], parameters, saved, _square_products([(parameters, flops)]), (), 0.0)

    def _of_modules(self, name: str, modules: Mapping[str, Mapping[str, Any]], entering: float) -> Block:
        """Return one part of the tree. `entering`: bytes per sample that cross the cut before it."""
        saved, cast, pairs = 0.0, 0.0, 0.0
        for path, row in modules.items():
            of_module = self.all_per_token(row["saved_bytes"])
            saved, cast = saved + of_module, cast + of_module * self._more_under_autocast(path)
            pairs += self.per_pair(row["saved_bytes"])
        products = _square_products(
            [(row["parameters"], self.all_per_token(row["forward_flops"])) for row in modules.values()]
        )
        operators = [row for row in self.values.get("outside_operators", ()) if row["module"] in modules]
        parameters = sum(row["parameters"] for row in modules.values() if row["kind"] not in _TABLES)
        return self._part(name or self.values["name"], parameters, saved, products, operators, entering, cast, pairs)

    def _part(
        self,
        kind: str,
        parameters: int,
        saved: float,
        matmuls: tuple[Matmul, ...],
        operators: Sequence[Mapping[str, Any]],
        entering: float,
        cast: float = 0.0,
        pairs: float = 0.0,
    ) -> Block:
        """A part that tensor parallelism does not divide; `cast` are further bytes that it saves under autocast."""
        elements = max(0.0, saved / self.element)
        products = len(matmuls)
        kernels = Kernels(
            elements=_TRAFFIC_PER_SAVED * elements,
            products=products,
            launches=_LAUNCHES_PER_PRODUCT * products,
            autocast_traffic=1.0 + cast / saved if saved > 0 else 1.0,
        )
        return Block(
            kind=kind,
            # A checkpoint keeps what the part reads: never more than the part would save.
            hidden=max(1, round(min(entering, saved) / self.element)),
            parameters=parameters,
            replicated_parameters=parameters,
            matmuls=matmuls,
            attentions=(),
            saved=SavedActivations(replicated_elements=elements, autocast_replicated_bytes=cast, pair_bytes=pairs),
            separate=self._traced(kernels, {"operators": operators}, ()),
            fused=dataclasses.replace(kernels, elements=elements, launches=products),
            all_reduces=0,
        )

    def _more_under_autocast(self, path: str) -> float:
        """Share that a block or module saves in addition under autocast; 0 where it was not traced."""
        return max(0.0, float(self.values.get("autocast_ratios", {}).get(path, 1.0)) - 1.0)

    def _block(self, kind: Mapping[str, Any]) -> Block:
        input_elements = max(1, round(self.per_token(kind["input_bytes"]) / self.element))
        # The entire input of an image's block is the width of its single token. A decoder's block may read several
        # tensors of its width.
        tensors = input_elements // kind["hidden"] if self.power and kind["hidden"] else 1
        hidden = input_elements // tensors if tensors and input_elements % tensors == 0 else input_elements
        tensors = input_elements // hidden
        matmuls = tuple(
            matmul for product in kind["products"] if (matmul := self._matmul(product, kind["hidden"])) is not None
        )
        attentions = self.measured_scores(self._attentions(kind), kind)
        if not matmuls:
            matmuls = _square_products([(kind["parameters"], self.per_token(kind["forward_flops"]))])
        square = [place for place, one in enumerate(matmuls) if one.inputs == one.outputs == kind["hidden"]]
        if attentions and square:  # next to an attention, the last one is the output projection, split by rows
            last = square[-1]
            matmuls = (*matmuls[:last], dataclasses.replace(matmuls[last], split="row"), *matmuls[last + 1 :])
        if not self.power:
            matmuls += self._attention_products(kind)
        elements = max(0.0, self.saved_per_token(kind, attentions) / self.element)
        replicated = min(elements, float(_REPLICATED_ELEMENTS * input_elements))
        # Routers are replicated in addition to norms and biases.
        routers = sum(matmul.inputs * matmul.outputs for matmul in matmuls if matmul.split == "none" and self.power)
        return Block(
            kind=kind["kind"],
            hidden=hidden,
            input_tensors=tensors,
            parameters=kind["parameters"],
            replicated_parameters=min(kind["parameters"], kind["one_dimensional_parameters"] + routers),
            matmuls=matmuls,
            attentions=attentions,
            saved=SavedActivations(
                split_elements=elements - replicated,
                replicated_elements=replicated,
                pair_bytes=self.per_pair(kind["saved_bytes"]),
                autocast_replicated_bytes=self.all_per_token(kind["saved_bytes"])
                * self._more_under_autocast(kind["name"]),
            ),
            separate=self._traced(
                Kernels(
                    autocast_traffic=2.0 if self.power else 1.0,
                    elements=_TRAFFIC_PER_SAVED * replicated,
                    split_elements=_TRAFFIC_PER_SAVED * (elements - replicated),
                    products=len(matmuls),
                    launches=_LAUNCHES_PER_PRODUCT * len(matmuls),
                ),
                kind,
                attentions,
            ),
            # Every saved tensor is written once and read once at least.
            fused=Kernels(
                elements=replicated, split_elements=elements - replicated, products=len(matmuls), launches=len(matmuls)
            ),
        )

    def _matmul(self, product: Mapping[str, Any], hidden: int) -> Matmul | None:
        inputs, outputs, experts = product["inputs"], product["outputs"], product["experts"]
        flops = self.per_token(product["flops"])
        if flops <= 0:
            return None
        uses, rows = 1, 1.0
        if experts > 1:
            uses = max(1, min(experts, round(flops / (2 * inputs * outputs))))
        elif abs(flops - 2 * inputs * outputs) > 1e-6 * flops:  # a convolution, or a product whose rows are not tokens
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
        """The attention of an image's patches, as a product with the same FLOPs. The number of patches is unknown."""
        flops, hidden = self.per_token(kind["attention_flops"]), kind["hidden"]
        if flops <= 0 or not hidden:
            return ()
        rows = flops / (2 * hidden * hidden)
        return (Matmul(name="attention scores", inputs=hidden, outputs=hidden, rows_per_token=rows),)

    def _attentions(self, kind: Mapping[str, Any]) -> tuple[Attention, ...]:
        if not self.power:
            return ()
        if kind["attentions"]:
            return tuple(
                Attention(
                    heads=traced["heads"],
                    kv_heads=traced["kv_heads"] if traced["heads"] % traced["kv_heads"] == 0 else traced["heads"],
                    # Queries and keys may be wider than values (DeepSeek's latent attention).
                    head_dim=round((traced["head_dim"] + traced["value_dim"]) / 2),
                    causal=traced["causal"],
                    dropout=traced["dropout"],
                    scores_in_fp32=True,
                )
                for traced in kind["attentions"]
            )
        width = self._factor(kind["attention_flops"], 2) / 4  # 4 heads x head_dim x s FLOPs per token
        if width < 1:
            return ()
        config = json.loads(self.values["config_json"])
        heads = next((config[key] for key in ("num_attention_heads", "n_head", "num_heads") if config.get(key)), 0)
        heads = heads if heads and round(width) % heads == 0 else max(1, round(width) // 64)
        saved = self._factor(kind["saved_bytes"], 2)
        dropout, head_dim = saved > (self.element + 4.5) * heads, max(1, round(width / heads))
        return (Attention(heads=heads, kv_heads=heads, head_dim=head_dim, dropout=dropout, scores_in_fp32=True),)


def _with_share(block: Block, share: Fraction) -> Block:
    """Return the block with its share of parameters that several blocks have in common."""
    parameters, replicated = (int(count * share) for count in (block.parameters, block.replicated_parameters))
    return dataclasses.replace(block, parameters=parameters, replicated_parameters=replicated)


def _part_of(path: str, rows: Mapping[str, Mapping[str, Any]], limit: float) -> str:
    """Return the outermost module around a path whose parameters are within the limit, else the path itself."""
    names = path.split(".")
    for length in range(1, len(names)):
        part = ".".join(names[:length])
        inside = (row["parameters"] for name, row in rows.items() if f"{name}.".startswith(f"{part}."))
        if sum(inside) <= limit:
            return part
    return path


def _square_products(layers: Sequence[tuple[int, float]]) -> tuple[Matmul, ...]:
    """Products with the FLOPs of layers, each over a square weight of the layer's size: (parameters, FLOPs)."""
    products = []
    for parameters, flops in layers:
        side = max(1, round(math.sqrt(parameters))) if parameters else _WEIGHTLESS_WIDTH
        if flops > 0:
            rows = flops / (2 * side * side)
            products.append(Matmul(name="layer", inputs=side, outputs=side, rows_per_token=rows))
    return tuple(products)
