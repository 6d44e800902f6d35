"""EST512: an adapter with the library's model, or with degrees that only that model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.estimators.checks.case import Case, Change, Hit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["adapter"]

_DEGREES = ("tensor_parallel_degree", "expert_parallel_degree")


def adapter(case: Case) -> Iterator[Hit]:
    """EST512: AWS's training adapter trains adapters on the model of transformers only."""
    configuration = case.configuration
    if configuration.form != "recipe" or "adapter" not in configuration.settings:
        return
    replaced = configuration.settings.get("replaces_model")
    if replaced is not None and replaced.value is True:
        changes = () if replaced.table is None else (Change(replaced.table, replaced.key, value=False),)
        yield Hit(id="EST512", span=replaced.span, variant="model", changes=changes)
    for name in _DEGREES:
        degree = case.parameter(name)
        if degree is not None and degree > 1:
            setting = configuration.parameters[name]
            values = {"key": setting.key, "degree": degree}
            yield Hit(id="EST512", span=setting.span, variant="degree", values=values, changes=case.change(name, 1))
