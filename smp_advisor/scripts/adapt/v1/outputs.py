"""Outputs of ``@smp.step`` functions, one per microbatch, and how they are combined into one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.known_names import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["FIELDS", "fields_read", "is_loss", "reduction"]

FIELDS = known_names("output_fields")
"""Fields of the output objects of transformers models."""


def is_loss(survey: Survey, name: str, value: cst.CSTNode | None) -> bool:
    """Whether a value is a loss, judging by its name or by the function that computes it."""
    last = name.rpartition(".")[2].lower()
    if "loss" in last or last in ("nll", "perplexity", "objective"):
        return True
    if isinstance(value, cst.Call):
        method = value.func.attr.value if isinstance(value.func, cst.Attribute) else ""
        callee = (survey.callee(value).rpartition(".")[2] or method).lower()
        of_module = survey.callee(value).startswith("torch.")
        if callee in ("sum", "mean"):
            return len(value.args) == int(of_module)  # a sum over some axes has values for each sample
        return callee in ("criterion", "cross_entropy", "mse_loss", "nll_loss", "bce_loss") or "loss" in callee
    if isinstance(value, cst.UnaryOperation):
        return is_loss(survey, "", value.expression)
    return isinstance(value, cst.BinaryOperation) and (
        is_loss(survey, "", value.left) or is_loss(survey, "", value.right)
    )


def reduction(*, loss: bool) -> str:
    """Method call that combines an output over the microbatches: the mean of a loss, or the concatenated batch."""
    return ".reduce_mean()" if loss else ".concat()"


def fields_read(nodes: list[cst.CSTNode], name: str) -> tuple[list[str], bool]:
    """Fields read from an output object, by attribute or key, and whether the object itself is used as well."""
    fields: list[str] = []
    as_object = False
    for node in nodes:
        skip: set[int] = set()
        for inner in walk(node):
            field = None
            if isinstance(inner, cst.Attribute) and dotted(inner.value) == name and inner.attr.value in FIELDS:
                field = inner.attr.value
            elif isinstance(inner, cst.Subscript) and dotted(inner.value) == name:
                index = inner.slice[0].slice
                key = index.value if isinstance(index, cst.Index) else None
                if isinstance(key, cst.SimpleString) and key.evaluated_value in FIELDS:
                    field = str(key.evaluated_value)
            if field is not None:
                # The name of the object inside this node is not a use of the object itself.
                skip.update(id(below) for below in walk(inner))
                if field not in fields:
                    fields.append(field)
            elif isinstance(inner, cst.Name) and inner.value == name and id(inner) not in skip:
                as_object = True
    return fields, as_object
