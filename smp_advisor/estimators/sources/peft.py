"""Adapter of a HyperPod recipe: its table ``peft``, with the defaults of AWS's training adapter.

Source: aws/sagemaker-hyperpod-training-adapter-for-nemo 1.4.0, ``conf/config_schemas.py`` (BaseModelPeftConfig) and
``collections/model/sagemaker_base_model.py`` (get_lora_config, get_quantization_config). Read on 2026-11-22.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.estimators.configuration import Gap, Setting, why_not
from smp_advisor.reading.values import Collection, Constant, Mapping
from smp_advisor.workload.adapter import Adapter

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration
    from smp_advisor.workload.adapter import AdapterTargets

__all__ = ["adapter_of", "read_peft"]

_RANK, _DROPOUT = 32, 0.1
_NAMES = {"rank": "adapter_rank", "dropout": "adapter_dropout"}
_ATTENTION = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_QUERY_VALUE = frozenset({"q_proj", "v_proj"})


def read_peft(configuration: Configuration, model: Mapping) -> None:
    """Add the settings of the table ``peft``: `adapter`, `adapter_rank`, `adapter_dropout`, `adapter_targets`."""
    peft = model.get("peft")
    kind = peft.get("peft_type") if isinstance(peft, Mapping) else None
    if not isinstance(peft, Mapping) or not isinstance(kind, Constant) or kind.value is None:
        return
    configuration.settings["adapter"] = Setting(str(kind.value), peft.entries["peft_type"].span, peft, "peft_type")
    for key, name in _NAMES.items():
        entry = peft.entries.get(key)
        if entry is None:
            continue
        if isinstance(entry.value, Constant):
            if entry.value.value is not None:
                configuration.settings[name] = Setting(entry.value.value, entry.span, peft, key)
        else:
            configuration.gaps.append(Gap(name, why_not(entry.value, "it is not a single value"), entry.span))
    targets = peft.entries.get("target_modules")
    if targets is not None and isinstance(targets.value, Collection):
        names = [item.value for item in targets.value.items if isinstance(item, Constant)]
        configuration.settings["adapter_targets"] = Setting(
            " ".join(map(str, names)), targets.span, peft, "target_modules"
        )


def adapter_of(configuration: Configuration, inferred: list[str]) -> Adapter | None:
    """The low-rank adapter that a recipe trains; None without one. Adds a sentence for each default.

    Raises
    ------
    JobError
        The rank is no whole number of at least 1.
    """
    kind = configuration.get("adapter")
    if not isinstance(kind, str) or "lora" not in kind.lower():
        return None
    quantized = "4bit" in kind.lower()
    if "adapter_rank" not in configuration.settings:
        inferred.append(f"The adapter's rank is {_RANK}, the default of AWS's training adapter.")
    dropout = configuration.get("adapter_dropout", _DROPOUT)
    return Adapter(
        rank=configuration.get("adapter_rank", _RANK),
        targets=_targets(configuration.get("adapter_targets"), inferred),
        base_bits=4 if quantized else 16,
        double_quantization=quantized,
        dropout=not isinstance(dropout, int | float) or dropout > 0,
    )


def _targets(modules: object, inferred: list[str]) -> AdapterTargets:
    """Adapted products: those of ``target_modules``, by default all linear ones."""
    if modules == "all-linear":
        return "all-linear"
    names = frozenset(re.findall(r"\w+_proj\w*", modules)) if isinstance(modules, str) else frozenset()
    if names == _ATTENTION:
        return "attention"
    if names == _QUERY_VALUE:
        return "query-value"
    why = f"no estimate has one on only {', '.join(sorted(names))}" if names else "AWS's training adapter does so"
    inferred.append(f"The adapter is on all linear products, because {why}.")
    return "all-linear"
