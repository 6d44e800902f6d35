"""Write the traces of published models that no formula of the package counts: vision, speech and diffusion.

Needs transformers and diffusers; run it again when the trace or the format of a profile changes, or for a new model.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import smp_advisor as smpa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE = Path(smpa.__file__).parent / "workload" / "data" / "published_modules.json.xz"
UNREAD = {"agreements", "buffer_bytes", "checkpointed_bytes", "checkpointed_timeline", "gradient_bytes", "local"}
UNREAD |= {"operations", "optimizer_rise_bytes", "rehearsal", "scaled", "timeline", "unreached", "warnings"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A published model: its class, the values of its configuration that differ from the class's, and one batch."""

    module: str
    source: str
    config: Mapping[str, Any]
    inputs: Callable[[int], Mapping[str, Any]]
    aliases: tuple[str, ...] = ()
    parameters: int
    """As the published weights have them."""


def _images(size: int = 224) -> Callable[[int], Mapping[str, Any]]:
    return lambda batch: {"pixel_values": torch.zeros(batch, 3, size, size), "labels": _whole(batch)}


def _whole(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def _whisper(
    name: str, width: int, layers: int, heads: int, parameters: int, *aliases: str, **config: Any
) -> dict[str, Published]:
    bins = config.get("num_mel_bins", 80)
    sizes = {"d_model": width, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers, "vocab_size": 51_865}
    sizes |= {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    return {
        name: Published(
            module="transformers.WhisperForConditionalGeneration",
            source="arXiv 2212.04356, table 1; 30 seconds of audio and 448 tokens per sample",
            config=sizes | config,
            inputs=lambda batch: {"input_features": torch.zeros(batch, bins, 3_000), "labels": _whole(batch, 448)},
            aliases=aliases,
            parameters=parameters,
        )
    }


def _clip(
    name: str, patch: int, vision: Mapping[str, int], text: Mapping[str, int], parameters: int, *aliases: str
) -> dict[str, Published]:
    both = text["hidden_size"]
    return {
        name: Published(
            module="transformers.CLIPModel",
            source="arXiv 2103.00020, table 20; an image of 224 pixels and 77 tokens per sample",
            config={
                "vision_config": {"patch_size": patch, "projection_dim": both, **vision},
                "text_config": {"projection_dim": both, **text},
                "projection_dim": both,
            },
            inputs=lambda batch: {
                "input_ids": _whole(batch, 77),
                "pixel_values": torch.zeros(batch, 3, 224, 224),
                "return_loss": True,
            },
            aliases=aliases,
            parameters=parameters,
        )
    }


def _swin(name: str, width: int, third: int, heads: int, parameters: int) -> dict[str, Published]:
    return {
        f"Swin {name}": Published(
            module="transformers.SwinForImageClassification",
            source="arXiv 2103.14030, section 3.3; an image of 224 pixels per sample",
            config={
                "embed_dim": width,
                "depths": [2, 2, third, 2],
                "num_heads": [heads, 2 * heads, 4 * heads, 8 * heads],
                "num_labels": 1_000,
            },
            inputs=_images(),
            aliases=(f"swin-{name[0]}", f"swin-{name}-patch4-window7-224"),
            parameters=parameters,
        )
    }


def _convnext(name: str, width: int, third: int, parameters: int) -> dict[str, Published]:
    return {
        f"ConvNeXt {name}": Published(
            module="transformers.ConvNextForImageClassification",
            source="arXiv 2201.03545, section 3; an image of 224 pixels per sample",
            config={
                "hidden_sizes": [width, 2 * width, 4 * width, 8 * width],
                "depths": [3, 3, third, 3],
                "num_labels": 1_000,
            },
            inputs=_images(),
            aliases=(f"convnext-{name}-224", f"convnext-{name[:2] if name == 'xlarge' else name[0]}"),
            parameters=parameters,
        )
    }


def _resnet(layers: int, depths: list[int], parameters: int) -> dict[str, Published]:
    return {
        f"ResNet {layers}": Published(
            module="transformers.ResNetForImageClassification",
            source="arXiv 1512.03385, table 1; an image of 224 pixels per sample",
            config={"depths": depths, "num_labels": 1_000},
            inputs=_images(),
            parameters=parameters,
        )
    }


def _latents(size: int, width: int, **more: Callable[[int], Any]) -> Callable[[int], Mapping[str, Any]]:
    return lambda batch: {
        "sample": torch.zeros(batch, 4, size, size),
        "timestep": _whole(batch),
        "encoder_hidden_states": torch.zeros(batch, 77, width),
        **{name: value(batch) for name, value in more.items()},
    }


SMALL = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2_048}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3_072}
LARGE = {"hidden_size": 1_024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4_096}
MODELS: dict[str, Published] = {
    **_whisper("Whisper tiny", 384, 4, 6, 37_760_640),
    **_whisper("Whisper base", 512, 6, 8, 72_593_920),
    **_whisper("Whisper small", 768, 12, 12, 241_734_912),
    **_whisper("Whisper medium", 1_024, 24, 16, 763_857_920),
    **_whisper("Whisper large-v2", 1_280, 32, 20, 1_543_304_960, "whisper-large"),
    **_whisper("Whisper large-v3", 1_280, 32, 20, 1_543_490_560, vocab_size=51_866, num_mel_bins=128),
    **_clip("CLIP ViT-B/32", 32, BASE, SMALL, 151_277_313, "clip-vit-base-patch32", "clip-vit-b-32"),
    **_clip("CLIP ViT-B/16", 16, BASE, SMALL, 149_620_737, "clip-vit-base-patch16", "clip-vit-b-16"),
    **_clip("CLIP ViT-L/14", 14, LARGE, BASE, 427_616_513, "clip", "clip-vit-large-patch14", "clip-vit-l-14"),
    **_swin("tiny", 96, 6, 3, 28_288_354),
    **_swin("small", 96, 18, 3, 49_606_258),
    **_swin("base", 128, 18, 4, 87_768_224),
    **_swin("large", 192, 18, 6, 196_532_476),
    **_convnext("tiny", 96, 9, 28_589_128),
    **_convnext("small", 96, 27, 50_223_688),
    **_convnext("base", 128, 27, 88_591_464),
    **_convnext("large", 192, 27, 197_767_336),
    **_convnext("xlarge", 256, 27, 350_196_968),
    **_resnet(50, [3, 4, 6, 3], 25_557_032),
    **_resnet(101, [3, 4, 23, 3], 44_549_160),
    **_resnet(152, [3, 8, 36, 3], 60_192_808),
    "Stable Diffusion 1.5 U-Net": Published(
        module="diffusers.UNet2DConditionModel",
        source="unet/config.json of stable-diffusion-v1-5; an image of 512 pixels and 77 tokens per sample",
        config={"sample_size": 64, "cross_attention_dim": 768},
        inputs=_latents(64, 768),
        aliases=("sd-1.5", "sd1.5", "sd-1.5-unet", "stable-diffusion-1.5", "stable-diffusion-v1-5"),
        parameters=859_520_964,
    ),
    "SDXL U-Net": Published(
        module="diffusers.UNet2DConditionModel",
        source="unet/config.json of stable-diffusion-xl-base-1.0; an image of 1,024 pixels and 77 tokens per sample",
        config={
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (320, 640, 1_280),
            "transformer_layers_per_block": (1, 2, 10),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2_048,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2_816,
            "use_linear_projection": True,
        },
        inputs=_latents(
            128,
            2_048,
            added_cond_kwargs=lambda batch: {
                "text_embeds": torch.zeros(batch, 1_280),
                "time_ids": torch.zeros(batch, 6),
            },
        ),
        aliases=("sdxl", "stable-diffusion-xl", "stable-diffusion-xl-base-1.0"),
        parameters=2_567_463_684,
    ),
}  # fmt: skip


def traced(name: str, entry: Published) -> dict[str, Any]:
    """The part of a model's profile that `Model.from_profile` reads."""
    package, cls = entry.module.split(".")
    build = getattr(__import__(package), cls)
    with torch.device("meta"):
        module = build(**entry.config) if package == "diffusers" else build(build.config_class(**entry.config))
    count = sum(parameter.numel() for parameter in module.parameters())
    if count != entry.parameters:
        raise SystemExit(f"{name} has {count:,} parameters, published are {entry.parameters:,}")
    values = smpa.profile(module, inputs=entry.inputs, stages=("trace",)).as_dict()
    values["config_json"] = "{}"  # no script is generated for it
    return {key: value for key, value in values.items() if key not in UNREAD}


def main() -> None:
    """Trace every model, or those whose names contain an argument, and write the traces and the table of names."""
    old = dict(map(json.loads, lzma.decompress(FILE.read_bytes()).splitlines())) if FILE.exists() else {}
    chosen = [name for name in MODELS if name not in old or any(part in name for part in sys.argv[1:] or [""])]
    profiles = {name: traced(name, MODELS[name]) if name in chosen else old[name] for name in MODELS}
    lines = (json.dumps(entry, separators=(",", ":")) + "\n" for entry in profiles.items())
    FILE.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    with FILE.with_name("published_modules.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["name", "aliases", "parameters", "source"])
        for name, entry in MODELS.items():
            table.writerow([name, " ".join(entry.aliases), entry.parameters, f"{entry.module}, {entry.source}"])
    print(f"{len(chosen)} of {len(MODELS)} models traced, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
