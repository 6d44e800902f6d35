"""Candidate inputs of a module that no configuration describes, from its forward method, first layer and attributes."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import TYPE_CHECKING, Any

from torch import nn

from smp_advisor.profiling.argument_forms import forms_of_main_argument
from smp_advisor.profiling.argument_names import EDGES, LABELS
from smp_advisor.profiling.example import ExampleInputs
from smp_advisor.profiling.further_arguments import forms_of_argument
from smp_advisor.profiling.module_attributes import first_layer, longest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smp_advisor.profiling.form import Form

__all__ = ["forward_arguments", "module_candidates"]

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


def forward_arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    """Parameters of the forward method by name; empty if its signature is unknown."""
    try:
        return dict(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return {}


def module_candidates(model: nn.Module) -> list[ExampleInputs]:
    """Candidate inputs, the most likely first; empty if a required argument has an unknown meaning.

    Labels are passed if the module takes them; if no form of them works, the module is called without.
    """
    first = first_layer(model)
    positional = {
        name: parameter
        for name, parameter in forward_arguments(model).items()
        if parameter.kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    }
    if first is None or not positional:
        return []
    main, *following = positional
    required = [name for name in following if positional[name].default is inspect.Parameter.empty]
    labels = [name for name in following if name in LABELS and name not in required]
    conditions = [name for name in following if name in _CONDITIONS and name not in required]
    texts = [name for name in following if name in _TEXTS and name not in required]
    selections = [[*required, *texts, *labels], [*required, *labels], required, [*required, *conditions]]
    longest_tokens = longest(model)
    streams = [
        _of_arguments(model, first, main, selection, longest_tokens)
        for selection in (list(names) for names in dict.fromkeys(map(tuple, selections)))
    ]
    return list(itertools.islice(_alternated(streams), _MOST))


def _alternated(streams: Sequence[Iterator[ExampleInputs]]) -> Iterator[ExampleInputs]:
    """Three candidates of the first stream, then one of each in turn."""
    yield from itertools.islice(streams[0], 3) if streams else ()
    for row in itertools.zip_longest(*streams):
        yield from (candidate for candidate in row if candidate is not None)


def _of_arguments(
    model: nn.Module, first: nn.Module, main: str, names: Sequence[str], longest_tokens: int
) -> Iterator[ExampleInputs]:
    """Candidates with every form of the main argument, and with every form of the following ones."""
    is_language = isinstance(first, nn.Embedding)
    remaining: list[Iterator[ExampleInputs]] = []
    for form in dict.fromkeys(forms_of_main_argument(model, first, main)):
        options = [forms_of_argument(model, name, form, is_language=is_language) for name in names]
        shape = _as_nodes(form) if EDGES.intersection(names) else form
        candidates = iter(
            [
                _combined({main: shape} | dict(zip(names, parts, strict=True)), longest_tokens)
                for parts in _likeliest(options)
            ]
        )
        yield from itertools.islice(candidates, _LIKELY)
        remaining.append(candidates)
    for candidates in remaining[:_MAIN_FORMS]:
        yield from candidates


def _likeliest(options: Sequence[Sequence[Form]]) -> Iterator[tuple[Form, ...]]:
    """Combinations of one form per argument, those of the most likely forms first."""
    ranks = itertools.product(*(range(min(len(forms), 8)) for forms in options[:4]))
    for chosen in sorted(ranks, key=sum)[:_POSSIBLE]:
        picked = [forms[rank] for forms, rank in zip(options, chosen, strict=False)]
        yield (*picked, *(forms[0] for forms in options[len(picked) :]))


def _as_nodes(form: Form) -> Form:
    """Form of the features of all nodes of a graph, which has no batch dimension."""
    return dataclasses.replace(form, text="nodes", dims=tuple(size for size in form.dims if size), leading="rows")


def _combined(forms: Mapping[str, Form], longest_tokens: int) -> ExampleInputs:
    def make(batch: int, sequence: int) -> dict[str, Any]:
        return {name: form.tensor(batch, sequence) for name, form in forms.items()}

    main, *following = forms
    names = "".join(f", {name}{'=None' if forms[name].values == 'none' else ''}" for name in following)
    has_sequence = any(form.has_sequence for form in forms.values())
    return ExampleInputs(
        make=make,
        has_sequence=has_sequence,
        longest=longest_tokens if has_sequence else 0,
        description=f"{main}: {forms[main].text}{names} (inferred)",
    )
