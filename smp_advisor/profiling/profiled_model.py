"""The model to profile: a live module, a transformers configuration, or a shape inferred from a parameter count."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import ProfileError
from smp_advisor.workload.from_config import config_values
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


Task = Literal["causal", "masked", "sequence-to-sequence", "image", "other"]

_SUFFIXES: tuple[tuple[str, Task], ...] = (
    ("ForCausalLM", "causal"),
    ("LMHeadModel", "causal"),
    ("ForMaskedLM", "masked"),
    ("ForConditionalGeneration", "sequence-to-sequence"),
    ("ForImageClassification", "image"),
    ("ForImageClassificationWithTeacher", "image"),
    ("ForMaskedImageModeling", "image"),
    ("WithLMHead", "causal"),
    ("WithLMHeadModel", "causal"),
    ("Decoder", "causal"),
)
_OTHER_LABELS = ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForMultipleChoice")
_MAPPINGS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "sequence-to-sequence": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
"""Names of transformers' tables of classes by ``model_type``."""


@dataclass(frozen=True, kw_only=True)
class ProfiledModel:
    """A configuration that models can be built from, or a live module that is never modified."""

    name: str
    source: Literal["module", "configuration", "count"]
    origin: str = ""
    """How the shape was inferred; empty if it was not."""
    module: nn.Module | None = None
    """The live module; None if there is only a configuration."""
    config: Any = None
    """The transformers configuration object, if there is one."""
    model_class: Any = None
    """The transformers class to build from the configuration."""

    def build(self, *, attention: str | None = None) -> nn.Module:
        """Build a new model from the configuration for training, on the default device and in the default dtype."""
        if self.model_class is None:
            raise ProfileError(f"{self.name} is a live module and cannot be rebuilt; it is copied instead.")
        config = copy.deepcopy(self.config)
        kernels = ("eager", "flash_attention_2", "flash_attention_3", "flex_attention")
        if attention == "eager":
            config._attn_implementation = "eager"
        elif attention == "fused" and getattr(config, "_attn_implementation", None) in kernels:
            # transformers then uses SDPA if the model supports it; the trace substitutes the kernel of a GPU.
            config._attn_implementation = None
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
        model: nn.Module = self.model_class(config)
        return model

    @property
    def config_json(self) -> str:
        """The configuration as JSON text; ``{}`` if there is none."""
        if self.config is None:
            return "{}"
        try:
            values = json.loads(self.config.to_json_string(use_diff=False))
        except (TypeError, ValueError, AttributeError):
            return "{}"
        values["architectures"] = [(self.model_class or type(self.module)).__name__]
        return json.dumps(values, sort_keys=True)


def task_of(cls: type, config: Any) -> Task:
    """Task of a model class, from its name; encoder-decoder configurations are always sequence-to-sequence."""
    name = cls.__name__
    task: Task = next((kind for suffix, kind in _SUFFIXES if name.endswith(suffix)), "other")
    if getattr(config, "is_encoder_decoder", False) is True and task != "image" and not name.endswith(_OTHER_LABELS):
        return "sequence-to-sequence"
    if "ForImageClassification" in name:
        return "image"
    return task


def read_model(model: Any) -> ProfiledModel:
    """Read the model that the user passed."""
    from torch import nn

    if isinstance(model, ProfiledModel):
        return model
    if isinstance(model, nn.Module):
        model = _unwrapped(model)
        config = getattr(model, "config", None)
        config = config if hasattr(config, "to_dict") else None
        return ProfiledModel(
            name=type(model).__name__,
            source="module",
            module=model,
            config=config,
            model_class=type(model)
            if config is not None and type(model).__module__.startswith("transformers.")
            else None,
        )
    if isinstance(model, Model):
        source: Literal["configuration", "count"] = "count" if model.origin == "inferred" else "configuration"
        return _from_values(json.loads(model.config_json), name=model.name, origin=model.note, source=source)
    if isinstance(model, os.PathLike) or (
        isinstance(model, str) and (model.endswith(".json") or "/" in model or "\\" in model)
    ):
        return _from_values(config_values(model)[0], name="", source="configuration")
    if isinstance(model, str | Real):
        return read_model(Model.from_parameters(model if isinstance(model, str) else float(model)))
    if isinstance(model, dict):
        return _from_values(model, name="", source="configuration")
    if hasattr(model, "to_dict") and hasattr(model, "model_type"):
        return _from_config(model, name="", source="configuration")
    raise ProfileError(
        "profile requires a torch.nn.Module, a transformers configuration or a parameter count, not "
        f"{type(model).__name__}."
    )


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``."""
    wrappers = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
    while type(module).__module__.startswith("torch."):
        inner = module._modules.get(wrappers.get(type(module).__name__, ""))
        if inner is None:
            break
        module = inner
    return module


def _from_values(
    values: Mapping[str, Any], *, name: str, source: Literal["configuration", "count"], origin: str = ""
) -> ProfiledModel:
    try:
        from transformers import AutoConfig
    except ImportError:
        raise ProfileError(
            "Building a model from its configuration requires transformers: install it, or pass the module itself."
        ) from None
    fields = {key: value for key, value in values.items() if key not in {"model_type", "auto_map"}}
    if not values.get("model_type"):
        raise ProfileError('The configuration has no model_type: add one such as "model_type": "gpt2".')
    try:
        config = AutoConfig.for_model(values["model_type"], **fields)
    except (ValueError, TypeError, KeyError) as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ProfileError(f"transformers cannot read this configuration: {problem}.") from None
    return _from_config(config, name=name, source=source, origin=origin)


def _from_config(
    config: Any, *, name: str, source: Literal["configuration", "count"], origin: str = ""
) -> ProfiledModel:
    import transformers
    from transformers.models.auto import modeling_auto

    candidates = [name for name in (getattr(config, "architectures", None) or []) if isinstance(name, str)]
    # BERT's configuration also builds a decoder, and BART's a masked model: the main task comes first.
    first = "sequence-to-sequence" if getattr(config, "is_encoder_decoder", False) is True else "masked"
    last = "causal" if getattr(config, "is_decoder", False) is not True else ""
    for task in sorted(_MAPPINGS, key=lambda task: (task != first, task == last)):
        entry = getattr(modeling_auto, _MAPPINGS[task], {}).get(config.model_type)
        candidates += [entry] if isinstance(entry, str) else list(entry or [])
    model_class = next((getattr(transformers, name) for name in candidates if hasattr(transformers, name)), None)
    if model_class is None:
        raise ProfileError(
            f"transformers {transformers.__version__} has no trainable model for the model type {config.model_type!r}: "
            "pass the module itself."
        )
    if getattr(config, "is_encoder_decoder", False) is True and getattr(config, "decoder_start_token_id", None) is None:
        config = copy.deepcopy(config)
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return ProfiledModel(
        name=name or model_class.__name__, source=source, origin=origin, config=config, model_class=model_class
    )
