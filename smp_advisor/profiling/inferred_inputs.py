"""Inputs of a configuration, or by the names of a forward method's arguments and the first layer of the module."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.fake import fake_copy
from smp_advisor.profiling.known_values import KnownValuesMode
from smp_advisor.profiling.patching import quiet
from smp_advisor.profiling.profiled_model import task_of
from smp_advisor.profiling.structure import IMAGE_SIZE, image_size, longest_sequence

if TYPE_CHECKING:
    from collections.abc import Iterator


Make = Callable[[int, int], Any]

_VOLUME_SIZE = 96
_USUAL_SIZES = (224, 32, 28, 64, 84, 96, 128, 256)
_SOUND_SAMPLES = 16_000
"""A second of speech."""
_CONDITION_TOKENS = 77
"""Tokens of a text that conditions images: those of CLIP."""
_LATENT_PATCHES, _LATENT_SIZE = 256, 64
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_LABELS = frozenset({"labels", "label", "targets", "target", "y"})
"""Arguments with which a module computes its loss: of each token, or the class of a sample."""
_TOKENS = "token ids"


@dataclass(frozen=True, kw_only=True)
class ExampleInputs:
    """Inputs of a model."""

    make: Make
    """Tensors for (batch, sequence), by name or by position; on the meta device unless the user supplied them."""
    has_sequence: bool
    longest: int = 0
    """Maximum tokens per sample; 0 for no limit."""
    description: str
    """Text for the user."""
    inferred_batch: int = 0
    """Samples of the supplied tensors, if their first dimension is taken as the batch and resized; else 0."""
    period: int = 1
    """Samples after which the values repeat that decide costs: lengths of supplied samples."""
    scales: bool = True
    """Whether the number of samples can be chosen; if not, one sample stands for the supplied inputs together."""


def forward_method(model: nn.Module) -> Callable[..., Any]:
    """Return the method that a training step calls: forward, or `training_step` of a module without one."""
    step = getattr(model, "training_step", None)
    return step if type(model).forward is nn.Module.forward and callable(step) else model.forward


def arguments_of(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method by name; none if they are unknown."""
    try:
        return dict(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return {}


def _required(model: nn.Module) -> list[str]:
    parameters = arguments_of(forward_method(model)).items()
    return [name for name, p in parameters if p.default is p.empty and p.kind not in VARIADIC]


_BATCH, _LENGTH = 7919, 7907
"""Samples and tokens of tensors whose sizes are written as text: numbers that no other size has."""


def line_to_write(model: nn.Module, tensors: Mapping[str, Tensor] | None = None, *, ids: Collection[str] = ()) -> str:
    """Return the arguments of the forward method, and the line that passes them, with the sizes of known tensors.

    `ids` are arguments of unknown sizes that are whole numbers.
    """
    parameters = arguments_of(forward_method(model))
    texts = {_BATCH: "batch", _LENGTH: "..."}
    names = _required(model) or [name for name, p in parameters.items() if p.kind not in VARIADIC][:2] or ["input"]
    values = []
    for name in names:
        tensor = (tensors or {}).get(name)
        sizes = ("batch", "...") if tensor is None else (texts.get(n, str(n)) for n in tensor.shape)
        is_whole = name in ids if tensor is None else not tensor.is_floating_point()
        kind = ", dtype=torch.long" if is_whole else ""
        values.append(f"torch.zeros({', '.join(sizes)}{kind})")
    line = f"smpa.profile(model, inputs=lambda batch: ({', '.join(values)}{',' if len(values) < 2 else ''}))"
    unknown = " with its sizes instead of the dots" if "..." in line else ""
    return f"{type(model).__name__}.forward takes ({', '.join(parameters)}): write {line}{unknown}"


def shape_text(tensor: Tensor) -> str:
    """Shape as text."""
    return " x ".join(f"{size:,}" for size in tensor.shape) or "one number"


def _empty(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _numbers(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.float32)


def _classes(*shape: int) -> Tensor:
    """Labels that are valid for any number of classes, unlike ids below the number of tokens."""
    return torch.zeros(shape, dtype=torch.long)


def _own(config: Any, *names: str) -> Any:
    """Return the value of the first of the names that is set in the configuration or in one of its parts."""
    parts = [config, *(getattr(config, part, None) for part in ("text_config", "decoder", "encoder", "vision_config"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None) if part is not None else None
            if value is not None:
                return value
    return None


def _of_transformers(model: nn.Module, config: Any) -> ExampleInputs:
    """Return the inputs by the name of the main one and the task of the class."""
    arguments = arguments_of(forward_method(model))
    main = str(getattr(model, "main_input_name", "input_ids"))
    task = task_of(type(model), config)
    if main == "pixel_values" and "pixel_values" in arguments and "input_ids" not in arguments:
        return _pictures(arguments, config, has_loss=task == "image")
    if main in {"input_values", "input_features"}:
        return _sound(arguments, config, main, task)
    if main in {"input_ids", "inputs", "pixel_values"} and {"input_ids", "inputs"} & set(arguments):
        name = "input_ids" if "input_ids" in arguments else "inputs"
        text = _text(type(model).__name__, arguments, config, name, task)
        return _with_pictures(text, config) if name == main and "return_loss" in arguments else text
    raise ProfileError(f"{type(model).__name__} reads {main}, which can't be inferred: {line_to_write(model)}.")


def _described(make: Make, *, has_sequence: bool, longest: int = 0) -> ExampleInputs:
    tensors = ((key, value) for key, value in make(1, 8).items() if isinstance(value, Tensor))
    names = ", ".join(f"{key} of {shape_text(v[0])}" if v.ndim > 2 else key for key, v in tensors)
    return ExampleInputs(
        make=make, has_sequence=has_sequence, longest=longest, description=f"{names} (from the configuration)"
    )


def _text(kind: str, arguments: Mapping[str, Any], config: Any, name: str, task: str) -> ExampleInputs:
    choices = (2,) if kind.endswith("ForMultipleChoice") else ()
    # The size of the position table; 0 if positions are computed.
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    size = _own(config, *names, "max_target_positions")
    longest = size if isinstance(size, int) and size >= 8 else 0
    # RoBERTa-like models count positions from the padding index.
    longest -= 2 if longest % 32 == 2 else 0

    def make(batch: int, sequence: int) -> dict[str, Any]:
        inputs: dict[str, Any] = {name: _empty(batch, *choices, sequence)}
        if task == "sequence-to-sequence" and "decoder_input_ids" in arguments:
            inputs["decoder_input_ids"] = _empty(batch, sequence)
        if "bbox" in arguments:
            inputs["bbox"] = _empty(batch, sequence, 4)
        if "labels" in arguments and kind.endswith("ForTokenClassification"):
            inputs["labels"] = _classes(batch, sequence)
        elif "labels" in arguments and task in {"other", "image"}:
            inputs["labels"] = _classes(batch)
        elif "labels" in arguments:
            inputs["labels"] = _empty(batch, sequence)
        inputs |= {key: _classes(batch) for key in ("start_positions", "end_positions") if key in arguments}
        if "use_cache" in arguments:
            inputs["use_cache"] = False
        return inputs

    return _described(make, has_sequence=True, longest=longest)


def _pictures(arguments: Mapping[str, Any], config: Any, *, has_loss: bool) -> ExampleInputs:
    height, width = _pair(_own(config, "image_size", "img_size", "input_size"))
    channels = _own(config, "num_channels", "in_channels", "in_chans")
    channels = channels if isinstance(channels, int) else 3

    def make(batch: int, _: int) -> dict[str, Any]:
        inputs = {"pixel_values": _numbers(batch, channels, height, width)}
        return inputs | ({"labels": _classes(batch)} if has_loss and "labels" in arguments else {})

    return _described(make, has_sequence=False)


def _with_pictures(text: ExampleInputs, config: Any) -> ExampleInputs:
    """Return the text with one image per sample, and the loss between both."""
    pictures = _pictures({}, config, has_loss=False)

    def make(batch: int, sequence: int) -> dict[str, Any]:
        return {**text.make(batch, sequence), **pictures.make(batch, sequence), "return_loss": True}

    return _described(make, has_sequence=True, longest=text.longest)


def _sound(arguments: Mapping[str, Any], config: Any, main: str, task: str) -> ExampleInputs:
    """Return the seconds of sound, or their spectrograms, with the tokens of a text that a decoder writes."""
    frames = 2 * (_own(config, "max_source_positions") or 1500)
    has_text = task == "sequence-to-sequence" and "decoder_input_ids" in arguments

    def make(batch: int, sequence: int) -> dict[str, Any]:
        spectrogram = _numbers(batch, _own(config, "num_mel_bins", "input_feat_per_channel") or 80, frames)
        inputs = {main: _numbers(batch, _SOUND_SAMPLES) if main == "input_values" else spectrogram}
        return inputs | ({"labels": _empty(batch, sequence)} if has_text and "labels" in arguments else {})

    return _described(make, has_sequence=has_text, longest=_own(config, "max_target_positions") or 0)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int) and size > 0:
        return size, size
    if isinstance(size, Mapping):
        size = [size.get("height", IMAGE_SIZE), size.get("width", IMAGE_SIZE)]
    if isinstance(size, list | tuple) and size:
        return int(size[-min(2, len(size))]), int(size[-1])
    return IMAGE_SIZE, IMAGE_SIZE


def _of_settings(model: nn.Module) -> ExampleInputs | None:
    """Return the inputs by the settings that timm and diffusers store with a model."""
    settings = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    sizes = settings.get("input_size") if isinstance(settings, Mapping) else None
    required = _required(model)
    if sizes and len(required) == 1:
        return _described(lambda batch, _: {required[0]: _numbers(batch, *sizes)}, has_sequence=False)
    config, arguments = getattr(model, "config", None), arguments_of(forward_method(model))
    if not isinstance(config, Mapping) or "in_channels" not in config:
        return None
    width, size = config["in_channels"], config.get("sample_size")
    texts = (config.get(name) for name in ("joint_attention_dim", "cross_attention_dim", "caption_channels"))
    text = next(filter(None, texts), width if "hidden_states" in arguments else 768)
    text = text[-1] if isinstance(text, tuple | list) else text
    names = arguments if {"hidden_states", "timestep"} <= set(arguments) else required

    def make(batch: int, _: int) -> dict[str, Any]:
        inputs = {
            "sample": _numbers(batch, width, *_pair(size or 64)),
            "hidden_states": _numbers(batch, width, *_pair(size)) if size else _numbers(batch, _LATENT_PATCHES, width),
            "encoder_hidden_states": _numbers(batch, _CONDITION_TOKENS, text),
            "pooled_projections": _numbers(batch, config.get("pooled_projection_dim") or 1),
            "timestep": _numbers(batch),
            "class_labels": _classes(batch),
            "img_ids": _numbers(_LATENT_PATCHES, 3),
            "txt_ids": _numbers(_CONDITION_TOKENS, 3),
        }
        if config.get("guidance_embeds"):
            inputs["guidance"] = _numbers(batch)
        return {name: value for name, value in inputs.items() if name in names}

    return _described(make, has_sequence=False) if names and set(required) <= set(make(1, 1)) else None


def _of_layers(model: nn.Module) -> ExampleInputs:
    """Return the inputs by the usual names of arguments; the first one without such a name enters the first layer."""
    parameters = list(arguments_of(forward_method(model)))
    required = _required(model) or parameters[:1]
    optional = [name for name in parameters if name in _LABELS and name not in required]
    unnamed = (name for name in required if name not in _LABELS and name not in _NAMED)
    main = next(unnamed, "".join(required[:1]))
    forms = {name: _NAMED[name] for name in required if name in _NAMED and name != main}
    # The first layer with parameters that shows its input; times have an embedding of their own.
    skipped = nn.GroupNorm | nn.Embedding if _TIMES & set(required) else nn.GroupNorm
    layer = next((part for part in _layers(model) if part._parameters and not isinstance(part, skipped)), None)
    form = None if layer is None else _form(model, layer, is_sequence=bool(_SEQUENCES.search(main)))
    if form is not None:
        forms[main] = form
        # A loss needs labels; without tokens, an optional one may be anything.
        labels = [name for name in (*required, *optional) if name in _LABELS and name != main]
        if form[0] == _TOKENS:
            forms |= dict.fromkeys(labels, (_TOKENS, _empty, True))
        else:
            classes = ("classes", lambda batch, _: _classes(batch), False)
            embedded = _TIMES if any(isinstance(part, nn.Embedding) for part in model.modules()) else ()
            forms |= dict.fromkeys((name for name in required if name in (*labels, *embedded)), classes)
        forms |= dict.fromkeys(_TARGETS & set(required), form)
    missing = [name for name in required if name not in forms]
    if missing or not forms:
        tensors = {name: make(_BATCH, _LENGTH) for name, (_, make, _) in forms.items()}
        which = f"The input {missing[0]!r}" if missing else "The inputs"
        raise ProfileError(f"{which} can't be inferred from a layer: {line_to_write(model, tensors)}.")
    forms = {name: forms[name] for name in (*required, *optional) if name in forms}
    text = ", ".join(f"{name}: {text}" for name, (text, _, _) in forms.items())
    has_sequence = any(has for _, _, has in forms.values())
    return ExampleInputs(
        make=lambda batch, sequence: {name: make(batch, sequence) for name, (_, make, _) in forms.items()},
        has_sequence=has_sequence,
        longest=longest_sequence(model) if has_sequence else 0,
        description=f"{text} (guessed from the first layers)",
    )


_Form = tuple[str, Callable[[int, int], Tensor], bool]
"""Text and tensor of an input, and whether one of its dimensions is the number of tokens."""
_SEQUENCES = re.compile(
    r"seq|states|actions|observations|trajector|frames|windows|series|histor|steps|episode|rollout|signals|returns|"
    r"rewards|sentence|residues|events|measurements|readings"
)
"""Parts of names that people give to sequences of vectors."""
_TARGETS = frozenset({"tgt", "decoder_input_ids"})
"""Inputs of a decoder, in the form of the encoder's."""
_TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "sigma", "noise_level"})
_NAMED: dict[str, _Form] = {
    **dict.fromkeys(_TIMES, ("a number per sample", lambda batch, _: _numbers(batch), False)),
    **dict.fromkeys(
        ("lengths", "length", "input_lengths"),
        ("full lengths", lambda batch, sequence: torch.full((batch,), sequence), True),
    ),
    **dict.fromkeys(
        ("coors", "coords", "coordinates", "xyz"),
        ("3 coordinates per token", lambda batch, sequence: _numbers(batch, sequence, 3), True),
    ),
}
"""Inputs whose usual names determine them."""


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers in the order of registration; a module of PyTorch with attention is one."""
    for module in model.modules():
        if not module._modules or isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer):
            yield module


def _form(model: nn.Module, layer: nn.Module, *, is_sequence: bool = False) -> _Form | None:
    """Return the form of the input of a layer."""
    width = _width(layer)
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return _TOKENS, _empty, True
    if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d):
        size = 1 if isinstance(layer, nn.ConvTranspose2d) else _fitting_size(model, width)
        return f"images of {size} x {size}", lambda batch, _: _numbers(batch, width, size, size), False
    if isinstance(layer, nn.Conv3d):
        sizes = (_VOLUME_SIZE,) * 3
        text = f"volumes of {' x '.join(map(str, sizes))}"
        return text, lambda batch, _: _numbers(batch, width, *sizes), False
    if isinstance(layer, nn.Conv1d) and width == 1:
        return "a second of sound", lambda batch, _: _numbers(batch, 1, _SOUND_SAMPLES), False
    if isinstance(layer, nn.Conv1d):
        return f"sequences of {width} channels", lambda batch, sequence: _numbers(batch, width, sequence), True
    if not width:
        return None
    kinds = nn.MultiheadAttention | nn.RNNBase | nn.TransformerEncoderLayer | nn.LayerNorm
    mixes = any(isinstance(part, nn.MultiheadAttention | nn.RNNBase) for part in model.modules())
    if not (mixes or is_sequence or isinstance(layer, kinds)):
        return f"{width} numbers", lambda batch, _: _numbers(batch, width), False
    is_first = not isinstance(layer, kinds) or getattr(getattr(layer, "self_attn", layer), "batch_first", True)

    def make(batch: int, sequence: int) -> Tensor:
        return _numbers(*((batch, sequence) if is_first else (sequence, batch)), width)

    return f"{width} numbers per token", make, True


def _fitting_size(model: nn.Module, channels: int) -> int:
    """Size of images; where a layer reads all numbers of a map, the first usual one with which the module runs."""
    size, convolved, layers = _LATENT_SIZE if channels == 4 else image_size(model), 0, list(_layers(model))
    for before, layer in pairwise(layers):
        convolved = before.out_channels if isinstance(before, nn.Conv2d) else convolved
        side = math.isqrt(layer.in_features // convolved) if convolved and isinstance(layer, nn.Linear) else 0
        if side > 1 and layer.in_features == convolved * side**2:
            break
    else:
        return size
    mode = KnownValuesMode()
    copy = fake_copy(model, mode, None)
    with mode, torch.no_grad(), quiet():
        for usual in _USUAL_SIZES:
            with contextlib.suppress(Exception):
                copy(torch.empty(2, channels, usual, usual, dtype=next(copy.parameters()).dtype))
                return usual
    return size


def _width(layer: nn.Module) -> int:
    """Features or channels that a layer reads; 0 if unknown."""
    for name in ("in_features", "in_channels", "input_size", "embed_dim", "num_features"):
        value = getattr(layer, name, None)
        if isinstance(value, int):
            return value
    attention = getattr(layer, "self_attn", None)
    shape = getattr(layer, "normalized_shape", None)
    return int(shape[-1]) if shape else int(getattr(attention, "embed_dim", 0))


def inferred_inputs(model: nn.Module) -> ExampleInputs:
    """Return the inputs of the configuration, or by the names of arguments and the first layer."""
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict") and hasattr(model, "main_input_name"):
        return _of_transformers(model, config)
    return _of_settings(model) or _of_layers(model)
