"""Candidate inputs of a module that no configuration describes, from its forward method, first layer and attributes."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smp_advisor.profiling.argument_forms import forms_of_argument, forms_of_main_argument
from smp_advisor.profiling.example import EDGES, LABELS, ExampleInputs
from smp_advisor.profiling.forward_source import call_forms, forward_arguments, reading_layer
from smp_advisor.profiling.module_attributes import first_layer, longest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smp_advisor.profiling.example import Form
    from smp_advisor.profiling.forward_source import CallForm, Leaf

__all__ = ["detection_inputs", "module_candidates"]

_MOST = 240
"""Candidates to try at most; the time for trials ends most of them earlier."""
_LIKELY, _POSSIBLE, _MAIN_FORMS = 6, 48, 4
"""Combinations of further arguments: the likely ones with every form of the first argument, then more with a few."""
_CONDITIONS = frozenset(
    {
        "timestep", "timesteps", "encoder_hidden_states", "pooled_projections", "class_labels", "img_ids", "txt_ids",
        "lengths", "input_lengths",
    }
)  # fmt: skip
"""Optional arguments that many forward methods require nevertheless."""
_TEXTS = frozenset({"text", "texts", "tokens", "captions", "caption"})
"""Optional arguments of a model of images with text."""


def module_candidates(model: nn.Module) -> list[ExampleInputs]:
    """Candidate inputs, the most likely first; empty if the forward method takes no argument.

    Labels are passed if the module takes them; if no form of them works, the module is called without.
    """
    first = first_layer(model)
    if first is None:
        return []
    longest_tokens = longest(model)
    forms = call_forms(model)
    candidates = [itertools.islice(_of_form(model, first, form, longest_tokens), _MOST // len(forms)) for form in forms]
    return list(_alternated(candidates))


def _of_form(model: nn.Module, first: nn.Module, call: CallForm, longest_tokens: int) -> Iterator[ExampleInputs]:
    """Candidates of one form of call, with several selections of its optional arguments."""
    _, *following = call.leaves
    required = [leaf for leaf in following if leaf.required]
    labels, conditions, texts = (
        [leaf for leaf in following if leaf.name in names and not leaf.required]
        for names in (LABELS, _CONDITIONS, _TEXTS)
    )
    selections = [[*required, *texts, *labels], [*required, *labels], required, [*required, *conditions]]
    streams = [
        _of_arguments(model, first, call, selection, longest_tokens)
        for selection in (list(leaves) for leaves in dict.fromkeys(map(tuple, selections)))
    ]
    yield from itertools.islice(_alternated(streams), _MOST)


def _alternated(streams: Sequence[Iterator[ExampleInputs]]) -> Iterator[ExampleInputs]:
    """Three candidates of the first stream, then one of each in turn."""
    yield from itertools.islice(streams[0], 3) if streams else ()
    for row in itertools.zip_longest(*streams):
        yield from (candidate for candidate in row if candidate is not None)


def _of_arguments(
    model: nn.Module, first: nn.Module, call: CallForm, leaves: Sequence[Leaf], longest_tokens: int
) -> Iterator[ExampleInputs]:
    """Candidates with every form of the main argument, and with every form of the following ones."""
    main = call.leaves[0]
    first = _reader(model, main) or first
    is_language = isinstance(first, nn.Embedding)
    remaining: list[Iterator[ExampleInputs]] = []
    readers = {leaf: _reader(model, leaf) for leaf in leaves}
    for form in dict.fromkeys(forms_of_main_argument(model, first, main.name)):
        options = [
            forms_of_argument(model, leaf.name, form, is_language=is_language, reader=readers[leaf]) for leaf in leaves
        ]
        shape = _as_nodes(form) if any(leaf.name in EDGES for leaf in leaves) else form
        candidates = iter(
            [
                _combined(call, {main: shape} | dict(zip(leaves, parts, strict=True)), longest_tokens)
                for parts in _likeliest(options)
            ]
        )
        yield from itertools.islice(candidates, _LIKELY)
        remaining.append(candidates)
    for candidates in remaining[:_MAIN_FORMS]:
        yield from candidates


def _reader(model: nn.Module, leaf: Leaf) -> nn.Module | None:
    """The layer that reads the argument first, if the source shows it."""
    module = reading_layer(model, leaf.argument, leaf.name)
    return None if module is None else first_layer(module)


def _likeliest(options: Sequence[Sequence[Form]]) -> Iterator[tuple[Form, ...]]:
    """Combinations of one form per argument, those of the most likely forms first."""
    ranks = itertools.product(*(range(min(len(forms), 8)) for forms in options[:4]))
    for chosen in sorted(ranks, key=sum)[:_POSSIBLE]:
        picked = [forms[rank] for forms, rank in zip(options, chosen, strict=False)]
        yield (*picked, *(forms[0] for forms in options[len(picked) :]))


def _as_nodes(form: Form) -> Form:
    """Form of the features of all nodes of a graph, which has no batch dimension."""
    return dataclasses.replace(form, text="nodes", dims=tuple(size for size in form.dims if size), leading="rows")


def _combined(call: CallForm, forms: Mapping[Leaf, Form], longest_tokens: int) -> ExampleInputs:
    def make(batch: int, sequence: int) -> Any:
        return call.inputs({leaf: form.tensor(batch, sequence) for leaf, form in forms.items()})

    main, *following = forms
    names = "".join(f", {leaf.text}{'=None' if forms[leaf].values == 'none' else ''}" for leaf in following)
    has_sequence = any(form.has_sequence for form in forms.values())
    return ExampleInputs(
        make=make,
        has_sequence=has_sequence,
        longest=longest_tokens if has_sequence else 0,
        description=f"{main.text}: {forms[main].text}{names} (inferred)",
    )


_IMAGE_SIZE = 256
_BOX = (64.0, 64.0, 192.0, 192.0)
"""Left, top, right and bottom of the box of each image, in pixels."""
_KEYPOINTS = 17
"""Those of a person in COCO."""


def detection_inputs(model: nn.Module) -> ExampleInputs | None:
    """Images with boxes if the forward method reads ``images`` and the boxes of ``targets``; None if not."""
    if list(forward_arguments(model))[:2] != ["images", "targets"] or not _reads_boxes(model):
        return None

    def make(batch: int, _: int) -> dict[str, Any]:
        images = [torch.empty(3, _IMAGE_SIZE, _IMAGE_SIZE, device="meta") for _ in range(batch)]
        return {"images": images, "targets": [_target() for _ in range(batch)]}

    description = f"images: a list of images of {_IMAGE_SIZE} x {_IMAGE_SIZE}, targets: one box per image (inferred)"
    return ExampleInputs(make=make, has_sequence=False, longest=0, description=description)


def _reads_boxes(model: nn.Module) -> bool:
    try:
        return '["boxes"]' in inspect.getsource(type(model).forward).replace("'", '"')
    except (OSError, TypeError):
        return False


def _target() -> dict[str, torch.Tensor]:
    points = torch.tensor([(_BOX[0] + 4 * i, _BOX[1] + 4 * i, 1.0) for i in range(_KEYPOINTS)])
    mask = torch.zeros(1, _IMAGE_SIZE, _IMAGE_SIZE, dtype=torch.uint8)
    left, top, right, bottom = map(int, _BOX)
    mask[:, top:bottom, left:right] = 1
    return {
        "boxes": torch.tensor([_BOX]),
        "labels": torch.ones(1, dtype=torch.int64),
        "masks": mask,
        "keypoints": points[None],
    }
