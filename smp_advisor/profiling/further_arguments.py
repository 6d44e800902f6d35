"""Forms that a further argument of a forward method may have, by its name or, if it is unknown, by trial."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

from smp_advisor.profiling.argument_forms import forms_of_layer, forms_of_name
from smp_advisor.profiling.argument_names import (
    ADJACENCY,
    CONTEXT_TOKENS,
    CONTEXT_WIDTHS,
    CONTEXTS,
    EDGES,
    INTEGERS,
    LABELS,
    MASKS,
    SECOND_TOKENS,
    STATES,
    TIMES,
    TOKENS,
)
from smp_advisor.profiling.form import Form, tokens_form
from smp_advisor.profiling.module_attributes import attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forms_of_argument"]

_WIDTHS = 4
"""Widths of linear layers that an argument of unknown meaning is tried with."""
_READ = 4
"""Forms that the layer accepts which is called with an argument."""
_NOTHING = Form(text="nothing", dims=(), values="none")


def forms_of_argument(  # noqa: C901, PLR0912 - one case per meaning
    model: nn.Module, name: str, main: Form, *, is_language: bool, reader: nn.Module | None = None
) -> list[Form]:
    """Forms of a further argument, the most likely first; every usual one if its name has no usual meaning.

    Parameters
    ----------
    main
        Form of the first argument.
    is_language
        Whether the first layer is an embedding.
    reader
        The layer that is called with the argument, if it is known.
    """
    ids = Form(text="classes", dims=(), dtype=torch.long)
    if name in LABELS:
        values = Form(text="numbers", dims=(1,))
        same = Form(text="numbers", dims=main.dims, dtype=main.dtype)
        is_text = is_language or main.text == "sound"
        options = [tokens_form("labels"), ids, values] if is_text else [ids, tokens_form("labels"), values]
        return [*options, *([] if is_language or not main.dims else [same])]
    if name in MASKS or name.endswith(("_mask", "mask")):
        return list(_masks(main, is_language=is_language))
    if STATES.match(name):
        return [_NOTHING, *_states(model), *_unknown(model, main)]
    if ADJACENCY.match(name):
        return [Form(text="a matrix", dims=(None, None)), Form(text="a matrix", dims=(None, None), leading="none")]
    if name in TIMES:
        return [ids, Form(text="times", dims=()), Form(text="times", dims=(1,))]
    if name in SECOND_TOKENS:
        return [tokens_form("tokens")]
    if name in EDGES:
        return [Form(text="edges", dims=(), dtype=torch.long, leading="edge ends")]
    if name in {"edge_attr", "edge_weight", "edge_features", "edge_type"}:
        return list(_of_edges(model))
    if name == "batch":  # the graph of each node
        graphs = Form(text="graphs of nodes", dims=(), dtype=torch.long, leading="rows", values="zeros")
        return [graphs, *_unknown(model, main)]
    if name.endswith("lengths") or name in {"lens", "input_length"}:
        return [Form(text="lengths", dims=(), dtype=torch.long, values="tokens")]
    if name in {"class_labels", "classes", "class_ids"}:
        return [ids]
    if name == "pooled_projections":
        return [Form(text="numbers", dims=(attribute(model, "pooled_projection_dim") or 768,))]
    if name in {"img_ids", "txt_ids"}:
        tokens = None if name == "img_ids" else CONTEXT_TOKENS
        return [Form(text="positions", dims=(tokens, 3), leading="none")]
    if name in CONTEXTS:
        widths = [value for key in CONTEXT_WIDTHS if isinstance(value := attribute(model, key), int) and value]
        tokens = attribute(model, "max_text_seq_length") or CONTEXT_TOKENS
        return [Form(text="a text's states", dims=(tokens, width)) for width in dict.fromkeys([*widths, 768])]
    usual = [tokens_form("tokens")] if name in TOKENS else list(forms_of_name(model, name))
    if usual:
        return usual
    read = [] if reader is None else list(itertools.islice(forms_of_layer(model, reader, name), _READ))
    return list(dict.fromkeys([*(_integers(model) if INTEGERS.search(name) else []), *read, *_unknown(model, main)]))


def _states(model: nn.Module) -> Iterator[Form]:
    """States of the first recurrent layer, with the batch or the sequence as the second dimension."""
    layer = next((module for module in model.modules() if isinstance(module, nn.RNNBase)), None)
    if layer is not None:
        layers = layer.num_layers * (2 if layer.bidirectional else 1)
        yield Form(text="states", dims=(layers, layer.hidden_size), leading="states")
        yield Form(text="states", dims=(layers, None, layer.hidden_size), leading="none")


def _masks(main: Form, *, is_language: bool) -> Iterator[Form]:
    """A mask of the tokens; none, which most models accept; masks of pairs of tokens."""
    if main.has_sequence or is_language:
        yield Form(text="a mask", dims=(None,), dtype=torch.bool)
    yield _NOTHING
    yield Form(text="a mask", dims=(None, None), leading="none")
    yield Form(text="a mask", dims=(1, None), dtype=torch.bool)
    yield Form(text="a mask", dims=(None, None), dtype=torch.bool)
    yield Form(text="a mask", dims=(1, None, None), dtype=torch.bool)
    if len(main.dims) > 1 and not main.has_sequence:
        yield Form(text="a mask", dims=(1, *main.dims[1:]))
    yield dataclasses.replace(main, text="a mask", dtype=torch.float32, values="any")


def _of_edges(model: nn.Module) -> Iterator[Form]:
    """Features, weights and types of the edges of a graph."""
    width = attribute(model, "edge_dim", "edge_features", "edge_in_channels", "num_edge_features")
    if width:
        yield Form(text="features of edges", dims=(width,), leading="edges")
    yield Form(text="weights of edges", dims=(), leading="edges")
    yield Form(text="types of edges", dims=(), dtype=torch.long, leading="edges", values="zeros")
    yield _NOTHING


def _integers(model: nn.Module) -> list[Form]:
    """Ids: one per sample, one per embedding table, or tokens. The tables of a model may differ in size."""
    tables = sum(isinstance(module, nn.Embedding) for module in model.modules())
    counts = dict.fromkeys(count for count in (tables, tables - 1) if count > 1)
    columns = [Form(text="categories", dims=(count,), dtype=torch.long, values="zeros") for count in counts]
    single = Form(text="ids", dims=(), dtype=torch.long, values="zeros")
    tokens = Form(text="ids", dims=(None,), dtype=torch.long, values="zeros")
    return [*columns, single, tokens] if columns else [single, tokens]


def _unknown(model: nn.Module, main: Form) -> list[Form]:
    """Every usual form of an argument whose name has no usual meaning."""
    same = dataclasses.replace(main, values="any")
    widths = list(dict.fromkeys(module.in_features for module in model.modules() if isinstance(module, nn.Linear)))[
        :_WIDTHS
    ]
    rows = [Form(text="numbers", dims=(width,)) for width in widths]
    sequences = [Form(text="numbers", dims=(None, width)) for width in widths]
    return list(
        dict.fromkeys(
            [same, _NOTHING, *rows[:2], Form(text="numbers", dims=()), *_integers(model), *sequences, *rows[2:]]
        )
    )
