"""What comes out of a ``@smp.step`` function once a microbatch, and how it becomes one tensor again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, walk

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["FIELDS", "fields_read", "is_loss", "reduction"]

# Fields of the objects that models of transformers return.
FIELDS = frozenset(
    {"loss", "logits", "last_hidden_state", "pooler_output", "prediction_logits", "start_logits", "end_logits"}
)


def is_loss(survey: Survey, name: str, value: cst.CSTNode | None) -> bool:
    """Whether a value is one number for the batch: by its name, or made by a loss function."""
    last = name.rpartition(".")[2].lower()
    if "loss" in last or last in ("nll", "perplexity", "objective"):
        return True
    if isinstance(value, cst.Call):
        callee = survey.callee(value).rpartition(".")[2].lower()
        return (
            callee in ("criterion", "cross_entropy", "mse_loss", "nll_loss", "bce_loss", "mean", "sum")
            or "loss" in callee
        )
    return isinstance(value, cst.BinaryOperation) and is_loss(survey, "", value.left)


def reduction(*, loss: bool) -> str:
    """Losses are averaged over microbatches, batches put together again."""
    return ".reduce_mean()" if loss else ".concat()"


def fields_read(nodes: list[cst.CSTNode], name: str) -> tuple[list[str], bool]:
    """Fields of an output object that are read, by attribute or key, and whether it is read whole."""
    fields: list[str] = []
    whole = False
    for node in nodes:
        skip: set[int] = set()
        for inner in walk(node):
            found = None
            if isinstance(inner, cst.Attribute) and dotted(inner.value) == name and inner.attr.value in FIELDS:
                found = inner.attr.value
            elif isinstance(inner, cst.Subscript) and dotted(inner.value) == name:
                index = inner.slice[0].slice
                key = index.value if isinstance(index, cst.Index) else None
                if isinstance(key, cst.SimpleString) and key.evaluated_value in FIELDS:
                    found = str(key.evaluated_value)
            if found is not None:
                # The object's own name, first in what is below.
                skip.update(id(below) for below in walk(inner))
                if found not in fields:
                    fields.append(found)
            elif isinstance(inner, cst.Name) and inner.value == name and id(inner) not in skip:
                whole = True
    return fields, whole
