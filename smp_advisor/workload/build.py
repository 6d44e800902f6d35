"""A model from the values of a configuration."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ModelError
from smp_advisor.workload.families import build
from smp_advisor.workload.family import family
from smp_advisor.workload.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.workload.model import Model

__all__ = ["model_from_values"]


_LEFT_OUT = ("_name_or_path", "auto_map", "transformers_version")
"""A path on the machine that wrote the file, a pointer to code outside transformers, and the version that wrote it."""


def model_from_values(values: Mapping[str, Any], *, source: str, name: str | None = None) -> Model:
    """Model of a configuration that is a mapping with its ``model_type``.

    `Model.config_json` holds the values with the defaults filled in. A later release of transformers with other
    defaults therefore still builds the same model.
    """
    settings = Settings(values, family(values.get("model_type"), source=source), source)
    model = build(settings)
    portable = {key: value for key, value in settings.as_dict().items() if key not in _LEFT_OUT}
    try:
        config_json = json.dumps(portable, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ModelError(f"In {source}, a value cannot be written as JSON ({error}): pass plain values.") from None
    return dataclasses.replace(model, name=name or model.name, config_json=config_json)
