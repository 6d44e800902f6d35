"""A model from any description: a count, a name, a configuration, a module, a profile."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

from smp_advisor.arguments import shown
from smp_advisor.core.files import sentence
from smp_advisor.errors import AdvisorError, ModelError, UnknownFamilyError
from smp_advisor.workload import Job, Model
from smp_advisor.workload.counts import is_count
from smp_advisor.workload.from_config import config_values, configuration_to_trace, is_path, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Progress = Callable[[float, float, str], None]


def listed(names: Mapping[str, Any]) -> str:
    """Return names in alphabetical order, as text."""
    return ", ".join(sorted(names))


_TRACERS = ("torch", "transformers")


def read_model(
    model: Any,
    *,
    sequence_length: int,
    shape: Mapping[str, Any] | None = None,
    job: Job | None = None,
    library: str = "auto",
    on_progress: Progress | None = None,
) -> Model:
    """Convert any description of a model to a `Model`; a bare count as `Model.from_parameters` does."""
    if isinstance(model, Model):
        return model
    shape = dict(shape or {})
    job = job or Job(sequence_length=sequence_length)
    profiled = is_profile(model)
    is_module = callable(getattr(model, "named_parameters", None))
    if (profiled or is_module) and shape:
        raise AdvisorError(f"{listed(shape)} can only be given with a parameter count; this model is measured.")
    if profiled:
        return Model.from_profile(model)
    if is_module:
        return _of_module(model, job, library)
    if not isinstance(model, int | str) and isinstance(model, Real):
        model = float(model)  # NumPy's numbers
    if isinstance(model, int | float) or (isinstance(model, str) and is_count(model)):
        return Model.from_parameters(model, sequence_length=sequence_length, **shape)
    if shape:
        raise AdvisorError(
            f"{listed(shape)} can only be given with a parameter count; this model's configuration already has them."
        )
    config = configuration_to_trace(model) if is_named(model) else model
    if config is None and is_named(model):
        return Model.from_name(model)
    _require_description(config)
    try:
        return Model.from_config(config)
    except UnknownFamilyError as error:
        return _traced(config, job, library, on_progress, error)


def _require_description(model: object) -> None:
    """Refuse what is none of the descriptions of a model."""
    if model is None or isinstance(model, list | tuple | set | type | bytes):
        raise ModelError(sentence("advice", "no_model", shown=shown(model)))


def is_profile(model: object) -> bool:
    """Return whether a description of a model is a `Profile`; this does not import its room."""
    return hasattr(model, "provenance") and callable(getattr(model, "as_dict", None))


def is_named(model: object) -> TypeGuard[str]:
    """Return whether a description is the name of a published model, whose weights a job can start from."""
    return isinstance(model, str) and not is_count(model) and not is_path(model)


def _traced(config: Any, job: Job, library: str, on_progress: Progress | None, error: UnknownFamilyError) -> Model:
    """Model of a configuration whose family has no formulas, from a trace of transformers' own code."""
    values, source = config_values(config)
    family = values.get("model_type")
    missing = [name for name in _TRACERS if find_spec(name) is None]
    if missing:
        names = {"missing": " and ".join(missing), "packages": " ".join(missing)}
        raise ModelError(sentence("advice", "no_formulas", source=source, family=family, **names)) from error
    from smp_advisor.profiling import profile

    def printed(_: float, __: float, text: str) -> None:
        print(f"{family}, from transformers' own code: {text}", file=sys.stderr)  # noqa: T201 - may take a minute

    try:
        traced = profile(values, job, stages="trace", library=library, on_progress=on_progress or printed)
        model = Model.from_profile(traced)
    except AdvisorError as problem:
        raise ModelError(
            f"In {source}, the model type {family!r} has no formulas, and its trace failed: {problem}"
        ) from None
    note = f"traced on this machine, because the family {family} has no formulas; {model.note.partition('; ')[2]}"
    return replace(model, name=title_of(values, model.family, model.parameter_count), note=note)


def _of_module(module: Any, job: Job, library: str) -> Model:
    """Model of a module from its trace, or from its family's formulas if it cannot be traced."""
    from smp_advisor.profiling import profile

    try:
        return Model.from_profile(profile(module, job, stages="trace", library=library))
    except AdvisorError as untraced:
        try:
            return Model.from_module(module)
        except AdvisorError:
            raise untraced from None
