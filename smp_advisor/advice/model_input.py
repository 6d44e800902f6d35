"""The model of a request, from any description: a count, a name, a configuration, a profile, a module."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from numbers import Real
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, ModelError, UnknownFamilyError
from smp_advisor.workload.counts import is_count
from smp_advisor.workload.from_config import config_values, is_path, title_of
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Progress = Callable[[float, float, str], None]

__all__ = ["has_formulas", "is_profile", "read_model"]

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
    """Convert any description of a model to a `Model`.

    Parameters
    ----------
    model
        A `Model`; a parameter count (``10e9``, ``"10B"``); the name of a published model (``"llama-3-70b"``); a
        transformers config (object, dict, path of a ``config.json``), which is traced in a child process if its family
        has no formulas; a `Profile`; a ``torch.nn.Module``, which is traced, too.
    sequence_length
        Positions that an inferred shape needs at least.
    shape
        Fixed values for a shape that is inferred from a count: `family`, `layers`, `hidden`, `heads`, `vocab`,
        `activation`.
    job, library
        Job and library for a trace.
    on_progress
        Called with the done and the total part of a trace, and its step.

    Raises
    ------
    ModelError
        The description is wrong, or its family has no formulas and torch or transformers is not installed.
    """
    if isinstance(model, Model):
        return model
    shape = dict(shape or {})
    job = job or Job(sequence_length=sequence_length)
    profiled = is_profile(model)
    is_module = callable(getattr(model, "named_parameters", None))
    if (profiled or is_module) and shape:
        raise AdvisorError(f"{_names(shape)} can only be given with a parameter count; this model is measured.")
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
            f"{_names(shape)} can only be given with a parameter count; this model's configuration already has them."
        )
    if isinstance(model, str) and not is_path(model):
        return Model.from_name(model)
    try:
        return Model.from_config(model)
    except UnknownFamilyError as error:
        return _traced(model, job, library, on_progress, error)


def is_profile(model: object) -> bool:
    """Whether a description of a model is a `Profile`; this does not import its room."""
    return hasattr(model, "provenance") and callable(getattr(model, "as_dict", None))


def has_formulas(model: Any) -> bool:
    """Whether `read_model` needs no trace for a configuration. True for any other description."""
    if not isinstance(model, str | dict) and not callable(getattr(model, "to_dict", None)):
        return True
    if isinstance(model, str) and (is_count(model) or not is_path(model)):
        return True
    try:
        Model.from_config(model)
    except UnknownFamilyError:
        return False
    except AdvisorError:
        pass
    return True


def _traced(config: Any, job: Job, library: str, on_progress: Progress | None, error: UnknownFamilyError) -> Model:
    """Model of a configuration whose family has no formulas, from a trace of transformers' own code."""
    values, source = config_values(config)
    family = values.get("model_type")
    missing = [name for name in _TRACERS if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"In {source}, the model type {family!r} has no formulas: install {' and '.join(missing)} (pip install"
            f" {' '.join(missing)}), and it is traced automatically."
        ) from error
    from smp_advisor.profiling import profile

    try:
        traced = profile(values, job, stages=("trace",), library=library, on_progress=on_progress)
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
        return Model.from_profile(profile(module, job, stages=("trace",), library=library))
    except AdvisorError as untraced:
        try:
            return Model.from_module(module)
        except AdvisorError:
            raise untraced from None


def _names(settings: Mapping[str, Any]) -> str:
    return ", ".join(sorted(settings))
