"""What a user may pass into a cell: names, URIs, hyperparameters within SageMaker's limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError
from smp_advisor.export.facts import launch_facts

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster

__all__ = ["base_job_name", "hyperparameters", "sagemaker_instance", "seconds", "text", "whole"]

_RESERVED = ("sagemaker_", "mp_parameters")


def text(name: str, value: object) -> str:
    """`value` if it is text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise ExportError(f"{name} must be text, for example a path, not {value!r}.")
    return value


def sagemaker_instance(cluster: Cluster) -> None:
    """Refuse hardware that SageMaker does not have."""
    if cluster.instance.custom or not cluster.instance.name.startswith("ml."):
        raise ExportError(
            f"{cluster.instance.name!r} is no SageMaker instance type, so no job can be started on it: choose one such"
            " as ml.p4d.24xlarge."
        )


def base_job_name(given: object, model_name: str) -> str:
    """Name that SageMaker's job name begins with: the user's, or one made from the model's."""
    longest = launch_facts()["limits"]["base_job_name_characters"]
    made = re.sub(r"[^A-Za-z0-9]+", "-", model_name)
    made = f"smp-{made.strip('-')}"[:longest].strip("-") if made.strip("-") else "smp-training"
    if given is None:
        return made
    if isinstance(given, str) and len(given) <= longest and re.fullmatch(r"[A-Za-z0-9](-*[A-Za-z0-9])*", given):
        return given
    raise ExportError(
        f"job_name must be up to {longest} letters, digits and inner dashes, for example {made!r}, not {given!r}."
    )


def seconds(name: str, value: object, longest: int, in_words: str) -> None:
    """Refuse a time that is no whole number of seconds up to the longest."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= longest:
        raise ExportError(f"{name} must be a whole number of seconds from 1 to {longest} ({in_words}), not {value!r}.")


def whole(name: str, value: object, longest: int) -> None:
    """Refuse what is no whole number from 1 to `longest`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= longest:
        raise ExportError(f"{name} must be a whole number from 1 to {longest}, not {value!r}.")


def hyperparameters(
    own: Mapping[str, Any], extra: Mapping[str, Any] | None, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The script's settings with the user's added, all within SageMaker's limits.

    `parameters` (``mp_parameters``) are a hyperparameter to SageMaker as well and count.
    """
    added: dict[Any, Any] = dict(extra or {})
    for key, value in added.items():
        if not isinstance(key, str) or not key.strip():
            raise ExportError(f"A hyperparameter's name must be text, not {key!r}.")
        if key.startswith(_RESERVED):
            raise ExportError(f"The hyperparameter {key!r} is SageMaker's own: choose another name.")
        if key in own and key not in _FREE:
            raise ExportError(
                f"The hyperparameter {key!r} follows from the plan ({own[key]!r}): change the plan instead."
            )
        if not _plain(value):
            raise ExportError(
                f"The hyperparameter {key!r} must be text, a finite number, True or False, or lists and dictionaries of"
                f" these, not {value!r}."
            )
    merged = {**own, **added}
    limits = launch_facts()["limits"]
    # The SDK adds its own to these: about a dozen.
    if len(merged) > limits["hyperparameters"] - 20:
        raise ExportError(
            f"SageMaker takes {limits['hyperparameters']} hyperparameters, the SDK's own included: pass fewer."
        )
    for key, value in {**merged, "mp_parameters": dict(parameters)}.items():
        if len(key) > limits["key_characters"]:
            raise ExportError(
                f"The hyperparameter {key[:40]!r}… has a name of over {limits['key_characters']} characters."
            )
        if len(json.dumps(value)) > limits["value_characters"]:
            raise ExportError(
                f"The value of {key!r} takes over {limits['value_characters']} characters as JSON: put it into a file."
            )
    return merged


_FREE = frozenset({"max_steps", "checkpoint_every", "learning_rate"})
"""Settings of the script that follow from no plan."""


def _plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
