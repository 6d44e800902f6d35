"""Checks of the values that a user passes into a cell: names, numbers, hyperparameters, SageMaker limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import require_types
from smp_advisor.errors import ExportError
from smp_advisor.files import data_file
from smp_advisor.job_rules import JobTerms, job_faults

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster


_RESERVED = ("sagemaker_", "mp_parameters")


def option_names(what: str, options_class: type, options: Mapping[str, Any]) -> None:
    """Raise an error if an option is no field of the dataclass."""
    names = [field.name for field in fields(options_class)]
    unknown = sorted(options.keys() - set(names))
    if unknown:
        raise ExportError(f"{what} has no option {unknown[0]!r}; the options are {', '.join(names)}.")


def unscripted(problem: str, instead: str = "") -> ExportError:
    """The refusal of a job without a generated script, with what would help besides a script of the user."""
    return ExportError(f"{problem}: {f'{instead}, or ' if instead else ''}pass script= with your own script.")


def text(name: str, value: object) -> None:
    """Raise `ExportError` unless `value` is None or a string that is not blank."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ExportError(f"{name} must be a string, for example a path, not {value!r}.")


def sagemaker_instance(cluster: Cluster) -> None:
    """Raise `ExportError` for hardware that SageMaker does not have."""
    if cluster.instance.custom or not cluster.instance.name.startswith("ml."):
        raise ExportError(
            f"{cluster.instance.name!r} is not a SageMaker instance type: choose a type such as ml.p4d.24xlarge, or"
            " export a Slurm or Kubernetes job for your own hardware."
        )


def require_terms(terms: JobTerms) -> None:
    """Raise `ExportError` for terms of a job that `check_estimator` would report as an error."""
    for fault in job_faults(terms):
        if fault.severity == "error":
            raise ExportError(fault.sentence)


def base_job_name(name: object, model_name: str) -> str:
    """Prefix of the name of the job: the user's, or one derived from the name of the model."""
    longest = data_file("export", "launch")["limits"]["base_job_name_characters"]
    default = re.sub(r"[^A-Za-z0-9]+", "-", model_name)
    default = f"smp-{default.strip('-')}"[:longest].strip("-") if default.strip("-") else "smp-training"
    if name is None:
        return default
    if isinstance(name, str) and len(name) <= longest and re.fullmatch(r"[A-Za-z0-9](-*[A-Za-z0-9])*", name):
        return name
    raise ExportError(
        f"job_name must have up to {longest} letters, digits and inner dashes, for example {default!r}, not {name!r}."
    )


def integer(name: str, value: object, longest: int, *, seconds: str = "") -> None:
    """Raise `ExportError` unless a value is None or an integer from 1 to `longest`; of `seconds`, in words."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= longest):
        return
    kind, limit = (" of seconds", f"{longest} ({seconds})") if seconds else ("", longest)
    raise ExportError(f"{name} must be a whole number{kind} from 1 to {limit}, not {value!r}.")


def hyperparameters(
    own: Mapping[str, Any], extra: Mapping[str, Any] | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge the settings of the script with the hyperparameters of the user, and check the limits of SageMaker.

    `parameters` (``mp_parameters``) are one more hyperparameter for SageMaker, and count too.
    """
    added: dict[Any, Any] = dict(extra or {})
    for key, value in added.items():
        if not isinstance(key, str) or not key.strip():
            raise ExportError(f"The name of a hyperparameter must be a string, not {key!r}.")
        if key.startswith(_RESERVED):
            raise ExportError(f"The hyperparameter name {key!r} is reserved by SageMaker: choose another name.")
        if key in own and key not in _FREE:
            raise ExportError(f"The hyperparameter {key!r} is set by the plan ({own[key]!r}): change the plan instead.")
        if not _plain(value):
            raise ExportError(
                f"The hyperparameter {key!r} must be a string, a finite number, True or False, or lists and"
                f" dictionaries of these, not {value!r}."
            )
    merged = {**own, **added}
    limits = data_file("export", "launch")["limits"]
    # The SDK adds about a dozen hyperparameters.
    if len(merged) > limits["hyperparameters"] - 20:
        raise ExportError(
            f"SageMaker accepts {limits['hyperparameters']} hyperparameters, including those of the SDK: pass fewer."
        )
    for key, value in {**merged, "mp_parameters": dict(parameters)}.items():
        longest, longest_value = limits["key_characters"], limits["value_characters"]
        if len(key) > longest:
            name = f"The name of the hyperparameter {key[:40]!r}…"
            raise ExportError(f"{name} has more than {longest} characters: choose a shorter name.")
        if len(json.dumps(value)) > longest_value:
            long = f"more than {longest_value} characters as JSON"
            raise ExportError(f"The value of {key!r} has {long}: put it into a file.")
    return merged


_COUNTS = {"max_steps": 1, "checkpoint_every": 1, "warmup_steps": 0}
"""Numbers of steps in the settings of the script, with their smallest values."""

_FREE = frozenset({*_COUNTS, "learning_rate", "epochs"})
"""Settings of the script that the plan does not determine."""


def script_settings(extra: Mapping[str, Any] | None) -> None:
    """Raise `ExportError` for settings with which the generated script does not run as its cell states."""
    require_types({"extra_hyperparameters": (extra, (Mapping, type(None)))}, "cell")
    settings = extra or {}
    for name, least in _COUNTS.items():
        value = settings.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ExportError(f"The hyperparameter {name!r} must be a whole number of at least {least}, not {value!r}.")
    for name in ("learning_rate", "epochs"):
        value = settings.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ExportError(f"The hyperparameter {name!r} must be a positive number, not {value!r}.")


def _plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
