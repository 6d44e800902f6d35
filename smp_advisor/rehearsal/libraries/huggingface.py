"""transformers and TRL: small models of the real classes, a tokenizer of a few words, and short trainings."""

from __future__ import annotations

import json
import os
import re
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.core.files import data_file
from smp_advisor.rehearsal.libraries.rows import WORDS
from smp_advisor.rehearsal.observation import note_save
from smp_advisor.rehearsal.observer import around

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smp_advisor.rehearsal.observer import Observer

_TABLES = data_file("rehearsal", "stand_ins")
SMALL: dict[str, int] = _TABLES["sizes"]
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_DEPTHS = tuple(name for name in SMALL if "layer" in name)
_SMALL_WIDTH, _SMALL_DEPTH, _MOST_WIDTH = 64, 4, 1280
_NOT_OF_CONFIGURATIONS: list[str] = _TABLES["not_of_configurations"]
_KEPT_WEIGHTS_BYTES = 64 * 2**20
_NEW_TOKENS, _SAVED_AT, _MOST_TOKENS = 8, 2, 128


def change(observer: Observer, module: Any) -> None:
    """Change a module of the library after its import."""
    changes: dict[str, Any] = {
        "transformers.modeling_utils": _models,
        "transformers.models.auto.auto_factory": _auto_models,
        "transformers.models.auto.configuration_auto": _configurations,
        "transformers.models.auto.tokenization_auto": _preprocessing,
        "transformers.models.auto.processing_auto": _preprocessing,
        "transformers.models.auto.image_processing_auto": _preprocessing,
        "transformers.tokenization_utils_base": _preprocessing,
        "transformers.generation.utils": _generation,
        "transformers.training_args": _arguments,
        "transformers.trainer": _trainer,
        "safetensors.torch": _safetensors,
    }
    if module.__name__ in changes:
        changes[module.__name__](observer, module)


def shrink(config: Any, observer: Observer | None = None) -> Any:
    """Make a configuration small, with heads that divide its width, which stays where the script depends on it."""
    values = vars(config)
    width, depth = (max(n for name in names if type(n := values.get(name, 0)) is int) for names in (_WIDTHS, _DEPTHS))
    if 0 < width <= _SMALL_WIDTH and depth <= _SMALL_DEPTH:
        return config  # weights of these sizes may be loaded
    names: Iterable[str] = SMALL
    if observer is not None:
        observer.once("shrunk")
        names = _DEPTHS if observer.options.get("full_width") and width <= _MOST_WIDTH else SMALL
    for name in names:
        current, value = values.get(name), SMALL[name]
        if type(current) is int and current > value:
            setattr(config, name, value or None)
    for name in ("layer_types", "attention_layers", "mlp_layer_types"):
        if isinstance(values.get(name), list) and len(values[name]) > 2:
            setattr(config, name, values[name][:2])
    for name in ("text_config", "vision_config", "encoder", "decoder"):
        if hasattr(values.get(name), "to_dict"):
            shrink(values[name], observer)
    if str(values.get("_attn_implementation_internal") or "").startswith("flash"):
        config._attn_implementation_internal = "sdpa"
    return config


def _require(observer: Observer, name: Any) -> None:
    """Refuse a folder of the job that does not exist; other disks, and channels without data, are not known here."""
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else ""
    is_of_job = text.startswith(("./", "../", "/opt/ml/")) and not Path(text).exists()
    channel = re.match("/opt/ml/input/data/[^/]+", text)
    if is_of_job and (channel is None or (channel[0] not in observer.options["empty"] and Path(channel[0]).exists())):
        raise OSError(f"{text} is no folder that the job has, and no name of the hub")


def config_for(observer: Observer, name: Any, options: dict[str, Any], kind: Any = None) -> Any:
    """Return the configuration in a folder, or one of the class that reads it, or of the family that the name shows."""
    import transformers

    _require(observer, name)
    path = Path(str(name), "config.json")
    if path.is_file():
        written = json.loads(path.read_text("utf-8"))
        config = transformers.AutoConfig.for_model(**written)
    else:
        lower = str(name).lower().replace("/opt/ml", "")
        family = next((value for part, value in _TABLES["families"].items() if part in lower), "Llama")
        extra = {"attention_types": [[["global", "local"], 1]], "num_layers": 2} if family == "GPTNeo" else {}
        if kind is not None:  # of the class that loads it
            family, extra = kind.__name__.removesuffix("Config"), {}
        observer.stand_in(f"{name}: random weights of a small {family}")
        size = observer.options["vocabulary"]
        config = (kind or getattr(transformers, f"{family}Config"))(**extra, **({"vocab_size": size} if size else {}))
        if kind is None:
            config.architectures = [family + _TABLES["heads"].get(family, "ForCausalLM")]
        tokens = ("pad_token_id", "bos_token_id", "eos_token_id")
        for token in (*tokens, "decoder_start_token_id") if config.is_encoder_decoder else tokens:
            setattr(config, token, 0)
        longest = getattr(config, "max_position_embeddings", None)
        if type(longest) is int and longest < _MOST_TOKENS:
            config.max_position_embeddings = _MOST_TOKENS
    for key, value in options.items():
        if key in ("num_labels", "id2label", "label2id") or (hasattr(config, key) and key != "dtype"):
            setattr(config, key, value)
    return shrink(config, observer)


def _small_model(observer: Observer, original: Any) -> Any:
    def from_pretrained(cls: Any, name: Any = None, *arguments: Any, **options: Any) -> Any:
        folder = Path(str(name))
        sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
        if (folder / "config.json").is_file() and 0 < sum(sizes) < _KEPT_WEIGHTS_BYTES:  # also of this run
            types = ("dtype", "torch_dtype") if observer.options["keep_half"] else ()
            names = ("config", "num_labels", "state_dict", *types)
            model_options = {key: value for key, value in options.items() if key in names}
            return original(cls, name, *arguments, **model_options)
        for key in ("quantization_config", "load_in_4bit", "load_in_8bit"):
            if options.get(key):
                observer.stand_in(f"{key}: weights of 32 bits")
        config = options.get("config")
        if config is None:
            of_model = {key: value for key, value in options.items() if key not in _NOT_OF_CONFIGURATIONS}
            config = config_for(observer, name, of_model, getattr(cls, "config_class", None))
        observer.stand_in(f"{name}: random weights")
        state = torch.get_rng_state()
        torch.manual_seed(7)
        before, modeling = observer.host_elements, sys.modules["transformers.modeling_utils"]
        model = cls.from_config(config) if hasattr(cls, "from_config") else cls(config)
        is_elsewhere = options.get("device_map") not in (None, "cpu") or options.get("quantization_config") is not None
        if is_elsewhere or (modeling.is_fsdp_enabled() and not modeling.is_local_dist_rank_0()):
            observer.host_elements = before
        elif not str(options.get("dtype", options.get("torch_dtype"))).endswith("float32"):
            observer.host_elements -= (observer.host_elements - before) / 2
        torch.set_rng_state(state)
        kind = getattr(torch, str(options.get("dtype", options.get("torch_dtype"))).rpartition(".")[2], None)
        model = model.to(kind) if observer.options["keep_half"] and isinstance(kind, torch.dtype) else model
        model.eval()
        model.name_or_path = str(name)
        return model

    return classmethod(from_pretrained)


def _models(observer: Observer, module: Any) -> None:
    kind = module.PreTrainedModel

    @around(kind, "__init__")
    def created(original: Any, self: Any, config: Any, *arguments: Any, **options: Any) -> None:
        original(self, shrink(config, observer), *arguments, **options)

    kind.from_pretrained = _small_model(observer, kind.from_pretrained.__func__)

    @around(kind, "save_pretrained")
    def saved(original: Any, self: Any, folder: Any, *arguments: Any, **options: Any) -> Any:
        is_main = bool(options.get("is_main_process", arguments[0] if arguments else True))
        if is_main:
            note_save(observer, folder, options.get("state_dict") or self.state_dict(), pretrained=True)
        return original(self, folder, *arguments, **options)


def _auto_models(observer: Observer, module: Any) -> None:
    base: Any = module._BaseAutoModelClass

    base_from_pretrained = base.from_pretrained.__func__
    original = base.from_config.__func__

    def from_config(cls: Any, config: Any, **options: Any) -> Any:
        if str(options.get("attn_implementation", "")).startswith("flash"):
            observer.stand_in("flash-attention: PyTorch's attention")
            options["attn_implementation"] = "sdpa"
        for key in ("dtype", "torch_dtype"):
            if not observer.options.get("keep_half"):
                options.pop(key, None)
        return original(cls, shrink(config, observer), **options)

    def replace(kind: Any) -> Any:
        kind.from_pretrained, kind.from_config = _small_model(observer, base_from_pretrained), classmethod(from_config)
        return kind

    for kind in (base, *base.__subclasses__()):  # each has a copy of the method
        replace(kind)

    @around(module, "auto_class_update")
    def updated(original: Any, *arguments: Any, **options: Any) -> Any:
        return replace(original(*arguments, **options))


def _configurations(observer: Observer, module: Any) -> None:
    @around(module.AutoConfig, "from_pretrained")
    def from_pretrained(original: Any, cls: Any, name: Any, *_: Any, **options: Any) -> Any:
        if Path(str(name), "config.json").is_file():
            return original(cls, name, **options)
        wants_rest = options.pop("return_unused_kwargs", False)
        settings = {key: value for key, value in options.items() if key not in _NOT_OF_CONFIGURATIONS}
        config = config_for(observer, name, settings)
        return (config, {}) if wants_rest else config


def _tokenizer(observer: Observer, name: Any) -> Any:
    """Return a tokenizer of the library, with the words of the rows."""
    import tokenizers
    import transformers

    observer.stand_in(f"{name}: a tokenizer of {len(WORDS)} words")
    special = ["<e>", "<mask>", "<|im_start|>", "<|im_end|>"]
    signs = [f"{before}{sign}" for before in ("", "##") for sign in string.printable.split()[0]]
    words = {word: number for number, word in enumerate([*special, *WORDS, *signs])}  # others by their signs
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="<mask>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ends = dict.fromkeys(("pad_token", "eos_token", "bos_token", "sep_token", "cls_token"), "<e>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=_MOST_TOKENS, mask_token="<mask>", unk_token="<mask>", **ends
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    return tokenizer


def _image_processor(observer: Observer, name: Any) -> Any:
    import transformers

    observer.stand_in(f"{name}: images of 224 pixels")
    return transformers.ViTImageProcessor()


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
_STAND_INS: dict[str, tuple[tuple[str, ...], Any]] = {
    "PreTrainedTokenizerBase": (_TOKENIZER_FILES, _tokenizer),
    "AutoTokenizer": (_TOKENIZER_FILES, _tokenizer),
    "AutoProcessor": (_TOKENIZER_FILES, _tokenizer),
    "AutoImageProcessor": (("preprocessor_config.json",), _image_processor),
}
"""Classes, files of which one is in a folder that they can load, and what makes a stand-in otherwise."""


def _preprocessing(observer: Observer, module: Any) -> None:
    for name, (files, make) in _STAND_INS.items():
        kind = getattr(module, name, None)
        if kind is not None and kind.__module__ == module.__name__:

            @around(kind, "from_pretrained")
            def from_pretrained(
                original: Any, cls: Any, name: Any = None, *arguments: Any, _files: Any = files, _make: Any = make,
                **options: Any,
            ) -> Any:  # fmt: skip
                if any(Path(str(name), file).is_file() for file in _files):
                    return original(cls, name, *arguments, **options)
                _require(observer, name)
                return _make(observer, name)


def _generation(observer: Observer, module: Any) -> None:
    @around(module.GenerationMixin, "generate")
    def short(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        observer.stand_in(f"generate: at most {_NEW_TOKENS} new tokens")
        for name in ("max_length", "min_new_tokens", "min_length"):
            options.pop(name, None)
        generation_config = options.get("generation_config")
        if generation_config is not None:
            generation_config.max_new_tokens, generation_config.max_length = _NEW_TOKENS, None
        options["max_new_tokens"] = min(options.get("max_new_tokens") or _NEW_TOKENS, _NEW_TOKENS)
        passes = observer.passes
        tokens = original(self, *arguments, **options)
        observer.passes = min(observer.passes, passes + 1)  # ranks end at words of their own
        return tokens


def _arguments(observer: Observer, module: Any) -> None:
    module.is_torch_bf16_gpu_available = lambda: True

    @around(module.TrainingArguments, "__post_init__")
    def finished(original: Any, self: Any) -> None:
        observer.options["scales"] = bool(self.fp16)
        if self.fp16 or self.bf16:
            self.fp16, self.bf16 = False, observer.options["keep_half"]
            observer.stand_in("16-bit numbers: bf16" if self.bf16 else "16-bit numbers: fp32")
        if str(self.optim).startswith(("paged", "adamw_bnb", "adamw_8bit", "adamw_torch_fused")) or "8bit" in str(
            self.optim
        ):
            observer.stand_in(f"{self.optim}: adamw_torch")
            self.optim = "adamw_torch"
        self.report_to, self.disable_tqdm, self.push_to_hub = "none", True, False
        self.dataloader_num_workers, self.dataloader_pin_memory = 0, False
        self.dataloader_prefetch_factor, self.dataloader_persistent_workers = None, False
        self.tf32, self.torch_compile = None, False
        size = self.per_device_train_batch_size
        self.per_device_train_batch_size = min(size, observer.options["batch_most"] or size)
        times = max(self.gradient_accumulation_steps, observer.folded)  # which the script may have of its text
        self.gradient_accumulation_steps = observer.microbatches(times)
        if self.gradient_accumulation_steps < times:  # its own sizes, by which some trainers divide what they generate
            self.per_device_train_batch_size *= times
            observer.options["batch_times"] = 1
        for name in ("save_steps", "eval_steps"):
            value = getattr(self, name, None)
            if not observer.options.get("live") and value and (value > 2 or value < 1):
                setattr(self, name, 2)
        if not self.load_best_model_at_end and self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = 2
        self.logging_steps = min(1, self.logging_steps)
        original(self)


def _trainer(observer: Observer, module: Any) -> None:
    class Stop(module.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            del state
            # Those that save by epoch save early, too: a kill comes after a save.
            control.should_save = control.should_save or (observer.updates == _SAVED_AT and args.save_strategy != "no")
            if observer.updates >= observer.options["steps"]:
                control.should_training_stop = True
            return control

    @around(module.Trainer, "__init__")
    def created(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if not any(isinstance(entry, Stop) for entry in self.callback_handler.callbacks):
            self.add_callback(Stop())


def _safetensors(observer: Observer, module: Any) -> None:
    @around(module, "load_file")
    def load_file(original: Any, filename: Any, device: Any = "cpu", **options: Any) -> Any:
        tensors = original(filename, "cpu", **options)
        if "cuda" not in str(device):
            observer.holds(sum(tensor.numel() for tensor in tensors.values()))
        return tensors

    @around(module, "save_file")
    def save_file(original: Any, tensors: Any, filename: Any, *arguments: Any, **options: Any) -> Any:
        if observer.is_asked_by_user():
            note_save(observer, filename, tensors)
        return original(tensors, filename, *arguments, **options)
