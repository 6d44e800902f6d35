"""Modules of well-known packages for `profiling_coverage.py`: how each is built, and its inputs for a batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

_torchvision = torch.library.Library("torchvision", "DEF")  # its compiled operators are for CUDA; training needs none
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name)

    return build


def _torchvision_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision import models

        backbone = {"weights_backbone": None} if name.startswith(("deeplab", "retinanet")) else {}
        return models.get_model(name, weights=None, **backbone, **settings)

    return build


def _transformers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        cls = getattr(transformers, name)
        return cls(cls.config_class(**settings))

    return build


def _made(path: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """Call of a class or function; an argument that is itself such a call is made first."""

    def build() -> Any:
        from importlib import import_module

        module, _, name = path.partition(":")
        target: Any = import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        values = [value() if callable(value) else value for value in arguments]
        return target(*values, **{key: value() if callable(value) else value for key, value in settings.items()})

    return build


def _zeros(*shape: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda batch, _: (torch.zeros(batch, *shape),)


def _tokens(batch: int, sequence: int) -> tuple[Tensor, ...]:
    return (torch.zeros(batch, sequence, dtype=torch.long),)


def _ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _detection(batch: int, _: int) -> tuple[Any, ...]:
    boxes = {"boxes": torch.tensor([[10.0, 10.0, 100.0, 100.0]]), "labels": torch.ones(1, dtype=torch.long)}
    return [torch.zeros(3, 512, 512) for _ in range(batch)], [boxes] * batch


def _graph(nodes: int, features: int) -> tuple[Tensor, ...]:
    edges = torch.arange(nodes)
    return torch.zeros(nodes, features), torch.stack([edges, edges.roll(1)])


class LSTMTagger(nn.Module):
    """An LSTM with a tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20_000, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(512, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tag(self.lstm(self.embed(tokens))[0])


class WaveNet(nn.Module):
    """Gated dilated convolutions over a second of sound."""

    def __init__(self, channels: int = 160, layers: int = 30, skip: int = 256) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, channels, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2 ** (i % 10), padding=2 ** (i % 10)) for i in range(layers)
        )
        self.residual = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(layers - 1))
        self.skip = nn.ModuleList(nn.Conv1d(channels, skip, 1) for _ in range(layers))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, 256, 1))

    def forward(self, sound: Tensor) -> Tensor:
        hidden, total = self.start(sound), 0
        for i, gate in enumerate(self.gates):
            first, second = gate(hidden)[..., : hidden.shape[-1]].chunk(2, 1)
            gated = first.tanh() * second.sigmoid()
            total = total + self.skip[i](gated)
            hidden = hidden + self.residual[i](gated) if i < len(self.residual) else hidden
        return self.end(total)


class DLRM(nn.Module):
    """Recommendation: 26 tables, 13 numbers, and the products of their vectors."""

    def __init__(self, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 27 * 26 // 2, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = torch.stack([dense, *(table(ids[:, i : i + 1]) for i, table in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)[:, : 27 * 26 // 2]
        return self.top(torch.cat([dense, products], 1))


class NeRF(nn.Module):
    """Color and density of points along rays."""

    def __init__(self, width: int = 256, frequencies: int = 10) -> None:
        super().__init__()
        inputs = 6 * frequencies
        self.frequencies = frequencies
        self.layers = nn.Sequential(
            *(part for i in range(8) for part in (nn.Linear(width if i else inputs, width), nn.ReLU()))
        )
        self.out = nn.Linear(width, 4)

    def forward(self, points: Tensor) -> Tensor:
        scaled = torch.cat([points * 2**i * math.pi for i in range(self.frequencies)], -1)
        return self.out(self.layers(torch.cat([scaled.sin(), scaled.cos()], -1)))


FLUX = {
    "num_layers": 2, "num_single_layers": 4, "attention_head_dim": 64, "num_attention_heads": 8, "in_channels": 64,
    "joint_attention_dim": 512, "pooled_projection_dim": 512, "axes_dims_rope": (8, 28, 28),
}  # fmt: skip


def _flux(batch: int, _: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.zeros(batch, 256, 64), "encoder_hidden_states": torch.zeros(batch, 64, 512),
        "pooled_projections": torch.zeros(batch, 512), "timestep": torch.zeros(batch),
        "img_ids": torch.zeros(256, 3), "txt_ids": torch.zeros(64, 3), "return_dict": False,
    }  # fmt: skip


def _stable_diffusion(batch: int, _: int) -> dict[str, Any]:
    return {
        "sample": torch.zeros(batch, 4, 64, 64), "timestep": _ids(batch),
        "encoder_hidden_states": torch.zeros(batch, 77, 768), "return_dict": False,
    }  # fmt: skip


_SD = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
_VIT = {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 768, "depth": 12, "heads": 12, "mlp_dim": 3072}

MODULES: dict[str, tuple[str, Callable[[], nn.Module], Any]] = {
    # name: (field, how it is built, inputs)
    "timm resnet50": ("images", _timm("resnet50"), _zeros(3, 224, 224)),
    "timm convnext_tiny": ("images", _timm("convnext_tiny"), _zeros(3, 224, 224)),
    "timm swin_tiny_patch4_window7_224": ("images", _timm("swin_tiny_patch4_window7_224"), _zeros(3, 224, 224)),
    "timm vit_large_patch16_224": ("images", _timm("vit_large_patch16_224"), _zeros(3, 224, 224)),
    "timm efficientnet_b0": ("images", _timm("efficientnet_b0"), _zeros(3, 224, 224)),
    "torchvision deeplabv3_resnet50": (
        "segmentation", _torchvision_model("deeplabv3_resnet50"), _zeros(3, 512, 512)
    ),
    "torchvision retinanet_resnet50_fpn": ("detection", _torchvision_model("retinanet_resnet50_fpn"), _detection),
    "torchvision r3d_18": ("video", _torchvision_model("r3d_18"), _zeros(3, 16, 112, 112)),
    "vit_pytorch ViT": ("images", _made("vit_pytorch:ViT", **_VIT), _zeros(3, 224, 224)),
    "vit_pytorch MAE": (
        "images",
        _made("vit_pytorch:MAE", encoder=_made("vit_pytorch:ViT", **_VIT), masking_ratio=0.75, decoder_dim=512),
        _zeros(3, 224, 224),
    ),
    "segmentation_models_pytorch Unet": (
        "segmentation", _made("segmentation_models_pytorch:Unet", "resnet34", encoder_weights=None), _zeros(3, 256, 256)
    ),
    "monai UNet": (
        "volumes",
        _made("monai.networks.nets:UNet", 3, 1, 2, channels=(32, 64, 128, 256), strides=(2, 2, 2), num_res_units=2),
        _zeros(1, 96, 96, 96),
    ),
    "monai SwinUNETR": (
        "volumes", _made("monai.networks.nets:SwinUNETR", 1, 2, feature_size=24), _zeros(1, 64, 64, 64)
    ),
    "monai UNETR": ("volumes", _made("monai.networks.nets:UNETR", 1, 2, (96, 96, 96)), _zeros(1, 96, 96, 96)),
    "diffusers UNet2DModel": (
        "diffusion", _made("diffusers:UNet2DModel", sample_size=64),
        lambda batch, _: (torch.zeros(batch, 3, 64, 64), _ids(batch)),
    ),
    "diffusers UNet2DConditionModel (Stable Diffusion 1.5)": (
        "diffusion", _made("diffusers:UNet2DConditionModel", **_SD), _stable_diffusion
    ),
    "diffusers FluxTransformer2DModel": ("diffusion", _made("diffusers:FluxTransformer2DModel", **FLUX), _flux),
    "diffusers AutoencoderKL": (
        "images",
        _made(
            "diffusers:AutoencoderKL", down_block_types=("DownEncoderBlock2D",) * 4, layers_per_block=2,
            up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(128, 256, 512, 512),
        ),
        _zeros(3, 256, 256),
    ),
    "denoising_diffusion_pytorch Unet": (
        "diffusion", _made("denoising_diffusion_pytorch:Unet", 64),
        lambda batch, _: (torch.zeros(batch, 3, 128, 128), torch.zeros(batch)),
    ),
    "open_clip ViT-B-32": (
        "images and text", _made("open_clip:create_model", "ViT-B-32"),
        lambda batch, _: (torch.zeros(batch, 3, 224, 224), _ids(batch, 77)),
    ),
    "x_transformers TransformerWrapper": (
        "text",
        _made(
            "x_transformers:TransformerWrapper", num_tokens=20_000, max_seq_len=1024,
            attn_layers=_made("x_transformers:Decoder", dim=512, depth=12, heads=8),
        ),
        _tokens,
    ),
    "performer_pytorch PerformerLM": (
        "text",
        _made("performer_pytorch:PerformerLM", num_tokens=20_000, max_seq_len=2048, dim=512, depth=6, heads=8),
        _tokens,
    ),
    "xlstm xLSTMLMModel": (
        "text",
        _made(
            "xlstm:xLSTMLMModel",
            _made(
                "xlstm:xLSTMLMModelConfig", mlstm_block=_made("xlstm:mLSTMBlockConfig"), context_length=256,
                num_blocks=6, embedding_dim=256, vocab_size=20_000,
            ),
        ),
        _tokens,
    ),
    "transformers BertForSequenceClassification": (
        "text", _transformers("BertForSequenceClassification"),
        lambda batch, sequence: {"input_ids": _ids(batch, sequence), "labels": _ids(batch)},
    ),
    "transformers T5ForConditionalGeneration": (
        "text", _transformers("T5ForConditionalGeneration", decoder_start_token_id=0),
        lambda batch, sequence: {"input_ids": _ids(batch, sequence), "labels": _ids(batch, sequence)},
    ),
    "transformers MixtralForCausalLM": (
        "text",
        _transformers(
            "MixtralForCausalLM", hidden_size=512, intermediate_size=1024, num_hidden_layers=6,
            num_attention_heads=8, num_key_value_heads=4, vocab_size=32_000,
        ),
        lambda batch, sequence: {"input_ids": _ids(batch, sequence), "labels": _ids(batch, sequence)},
    ),
    "transformers WhisperForConditionalGeneration": (
        "speech", _transformers("WhisperForConditionalGeneration"),
        lambda batch, _: {"input_features": torch.zeros(batch, 80, 3000), "labels": _ids(batch, 64)},
    ),
    "transformers PatchTSTForPrediction": (
        "time series", _transformers("PatchTSTForPrediction", context_length=512, num_input_channels=7),
        lambda batch, _: {"past_values": torch.zeros(batch, 512, 7), "future_values": torch.zeros(batch, 24, 7)},
    ),
    "torchaudio wav2vec2_base": ("speech", _made("torchaudio.models:wav2vec2_base", aux_num_out=32), _zeros(16_000)),
    "torchaudio ConvTasNet": ("sound", _made("torchaudio.models:ConvTasNet"), _zeros(1, 16_000)),
    "torchaudio Conformer": (
        "speech", _made("torchaudio.models:Conformer", 80, 4, 256, 12, 31),
        lambda batch, _: (torch.zeros(batch, 400, 80), torch.full((batch,), 400)),
    ),
    "demucs HTDemucs": (
        "sound", _made("demucs.htdemucs:HTDemucs", ["drums", "bass", "other", "vocals"]), _zeros(2, 343_980)
    ),
    "speechbrain ECAPA_TDNN": (
        "speech", _made("speechbrain.lobes.models.ECAPA_TDNN:ECAPA_TDNN", 80), _zeros(300, 80)
    ),
    "torch_geometric GCN": ("graphs", _made("torch_geometric.nn:GCN", 128, 256, 3, 10), _graph(2708, 128)),
    "torch_geometric GAT": ("graphs", _made("torch_geometric.nn:GAT", 128, 256, 3, 10), _graph(2708, 128)),
    "neuralop FNO": (
        "physics", _made("neuralop.models:FNO", n_modes=(16, 16), in_channels=1, out_channels=1, hidden_channels=64),
        _zeros(1, 128, 128),
    ),
    "egnn_pytorch EGNN_Network": (
        "molecules", _made("egnn_pytorch:EGNN_Network", num_tokens=21, depth=3, dim=32, num_nearest_neighbors=8),
        lambda batch, _: (_ids(batch, 64), torch.zeros(batch, 64, 3)),
    ),
    "tab_transformer_pytorch FTTransformer": (
        "tables",
        _made(
            "tab_transformer_pytorch:FTTransformer", categories=(10, 5, 6, 5, 8), num_continuous=10, dim=32,
            depth=6, heads=8,
        ),
        lambda batch, _: (_ids(batch, 5), torch.zeros(batch, 10)),
    ),
    "stable_baselines3 NatureCNN": (
        "reinforcement learning",
        _made(
            "stable_baselines3.common.torch_layers:NatureCNN",
            _made("gymnasium.spaces:Box", 0, 255, (4, 84, 84), _made("numpy:dtype", "uint8")),
        ),
        _zeros(4, 84, 84),
    ),
    "PyTorch LSTM tagger": ("text", LSTMTagger, _tokens),
    "PyTorch WaveNet": ("sound", WaveNet, _zeros(1, 16_000)),
    "PyTorch DLRM": ("recommendation", DLRM, lambda batch, _: (torch.zeros(batch, 13), _ids(batch, 26))),
    "PyTorch NeRF": ("scenes", NeRF, _zeros(3)),
}  # fmt: skip
