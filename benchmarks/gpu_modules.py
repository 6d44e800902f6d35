"""Steps of modules without the usual blocks on one GPU, and the estimates from their profiles.

    python benchmarks/gpu_modules.py measure ROWS.csv   # needs a GPU
    python benchmarks/gpu_modules.py [ROWS.csv]         # compares; benchmarks/gpu_rows/modules.csv by default

The loss is the mean square of every output. The host of the measured GPU was slow: see ``gpu_grid.py``. One constant of
the cost model, the traffic of convolutions, was set to the U-Net, the WaveNet and the diffusion model.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import smp_advisor as smpa

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = Path(__file__).with_name("gpu_rows") / "modules.csv"
SETTING_FIELDS = ["card", "torch", "module", "params", "batch", "precision", "optimizer"]
PHASES = ("forward", "backward", "optimizer")
FIELDS = [*SETTING_FIELDS, *(f"{phase}_ms" for phase in PHASES), "peak_allocated_gib", "peak_reserved_gib"]
WARM_STEPS, STEPS = 3, 5


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions, each with its norm and activation function."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The U-Net of segmentation."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64 * 2**level for level in range(5)]
        pairs = list(itertools.pairwise(widths))
        self.first, self.last = convolutions(3, widths[0]), nn.Conv2d(widths[0], 2, 1)
        self.down = nn.ModuleList(convolutions(*pair) for pair in pairs)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(deep, wide, 2, 2) for wide, deep in reversed(pairs))
        self.up = nn.ModuleList(convolutions(2 * wide, wide) for wide, _ in reversed(pairs))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.first(x), []
        for down in self.down:
            skips.append(x)
            x = down(functional.max_pool2d(x, 2))
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat([skips.pop(), widen(x)], 1))
        return self.last(x)


class WaveNet(nn.Module):
    """Dilated causal convolutions over audio."""

    def __init__(self) -> None:
        super().__init__()
        dilations = [2 ** (layer % 10) for layer in range(30)]
        self.first = nn.Conv1d(1, 128, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(128, 256, 2, dilation=d, padding=d) for d in dilations)
        self.mixed = nn.ModuleList(nn.Conv1d(128, 256, 1) for _ in dilations)
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(128, 128, 1), nn.ReLU(), nn.Conv1d(128, 256, 1))

    def forward(self, x: Tensor) -> Tensor:
        length, x = x.shape[-1], self.first(x)
        total = torch.zeros_like(x)
        for dilated, mixed in zip(self.dilated, self.mixed, strict=True):
            values, gates = dilated(x)[..., :length].chunk(2, 1)
            further, skip = mixed(torch.tanh(values) * torch.sigmoid(gates)).chunk(2, 1)
            x, total = x + further, total + skip
        return self.last(total)


class Tagger(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(30000, 512), nn.Linear(2048, 50)
        self.rnn = nn.LSTM(512, 1024, 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(x))[0])


class Recommender(nn.Module):
    """DLRM: tables of embeddings, their pairs, and two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(26))
        self.bottom = perceptron(13, 512, 256, 64)
        self.top = perceptron(27 * 26 // 2 + 64, 1024, 512, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        dense = self.bottom(dense)
        rows = [table(ids[:, None]) for table, ids in zip(self.tables, sparse.unbind(1), strict=True)]
        features = torch.stack([dense, *rows], 1)
        first, second = torch.triu_indices(27, 27, 1, device=dense.device)
        return self.top(torch.cat([dense, (features @ features.mT)[:, first, second]], 1))


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Diffusion(nn.Module):
    """A residual network with a time embedding, and attention at its lowest resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(128, 768), nn.SiLU(), nn.Linear(768, 768))
        self.first, self.last = nn.Conv2d(4, 192, 3, padding=1), nn.Conv2d(192, 4, 3, padding=1)
        self.down = nn.ModuleList(self.part(a, b, timed=True) for a, b in ((192, 192), (192, 384), (384, 768)))
        self.attention = nn.MultiheadAttention(768, 8, batch_first=True)
        self.up = nn.ModuleList(self.part(a, b) for a, b in ((1536, 384), (768, 192), (384, 192)))

    @staticmethod
    def part(inputs: int, outputs: int, *, timed: bool = False) -> nn.ModuleList:
        """Norm and convolution; with the time, its layer, and a norm and convolution after it."""
        layers: list[nn.Module] = [nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)]
        if timed:
            layers += [nn.Linear(768, outputs), *Diffusion.part(outputs, outputs)]
        return nn.ModuleList(layers)

    def forward(self, x: Tensor, time_: Tensor) -> Tensor:
        time_, x, skips = self.time(time_), self.first(x), []
        for norm, convolution, linear, second_norm, second in self.down:
            y = convolution(functional.silu(norm(x))) + linear(time_)[:, :, None, None]
            x = second(functional.silu(second_norm(y))) + y
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        pixels = x.flatten(2).mT
        x = x + self.attention(pixels, pixels, pixels, need_weights=False)[0].mT.reshape(x.shape)
        for norm, convolution in self.up:
            x = torch.cat([functional.interpolate(x, scale_factor=2.0), skips.pop()], 1)
            x = convolution(functional.silu(norm(x)))
        return self.last(x)


def swin() -> nn.Module:
    """Swin-B."""
    return transformers.SwinModel(
        transformers.SwinConfig(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32])
    )


def vit() -> nn.Module:
    """ViT-L/16."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_labels=1000))


def convnext() -> nn.Module:
    """ConvNeXt-B."""
    sizes = {"hidden_sizes": [128, 256, 512, 1024], "depths": [3, 3, 27, 3]}
    return transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**sizes, num_labels=1000))


def resnet() -> nn.Module:
    """ResNet-50."""
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def images(size: int, channels: int = 3) -> Callable[[int], tuple[Tensor, ...]]:
    """Images of a batch."""
    return lambda batch: (torch.randn(batch, channels, size, size),)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], tuple[int, ...]]] = {
    "unet-256": (UNet, images(256), (2, 8, 32)),
    "wavenet-16k": (WaveNet, lambda batch: (torch.randn(batch, 1, 16000),), (1, 4, 16)),
    "tagger": (Tagger, lambda batch: (torch.randint(30000, (batch, 256)),), (8, 64)),
    "recommender": (
        Recommender,
        lambda batch: (torch.randn(batch, 13), torch.randint(200_000, (batch, 26))),
        (2048, 16384),
    ),
    "diffusion-64": (Diffusion, lambda batch: (*images(64, 4)(batch), torch.randn(batch, 128)), (4, 16, 64)),
    "mlp": (lambda: perceptron(*[4096] * 9), lambda batch: (torch.randn(batch, 4096),), (256, 4096)),
    "swin-b": (swin, images(224), (8, 64)),
    "vit-l": (vit, images(224), (8, 64)),
    "convnext-b": (convnext, images(224), (8, 64)),
    "resnet-50": (resnet, images(224), (16, 128)),
}
"""Constructor, inputs of a batch, and the measured batches."""


def measured(name: str, batch: int, precision: str, optimizer_form: str) -> dict[str, Any]:
    """Phases of a step, and its peak memory."""
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    make, inputs, _ = MODULES[name]
    with torch.device("cuda"):
        model, values = make().train(), tuple(value.cuda() for value in inputs(batch))
    form: dict[str, Any] = {optimizer_form: True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **form)
    torch.cuda.reset_peak_memory_stats()
    steps = []
    for _ in range(WARM_STEPS + STEPS):
        milliseconds = []
        loss: Any = None
        for phase in PHASES:
            start = time.perf_counter()
            if phase == "forward":
                with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
                    outputs = [value for value in tree_leaves(dict(enumerate([model(*values)]))) if value is not None]
                    loss = sum(value.float().square().mean() for value in outputs)
            elif phase == "backward":
                loss.backward()
            else:
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            milliseconds.append(1e3 * (time.perf_counter() - start))
        steps.append(milliseconds)
    middle = [round(statistics.median(step[place] for step in steps[WARM_STEPS:]), 3) for place in range(3)]
    peaks = [round(peak() / 2**30, 3) for peak in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved)]
    parameters = sum(value.numel() for value in model.parameters())
    settings = [torch.cuda.get_device_name(), torch.__version__, name, parameters, batch, precision, optimizer_form]
    return dict(zip(FIELDS, [*settings, *middle, *peaks], strict=True))


def measure(path: Path) -> None:
    """Measure every module."""
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        for name, (_, _, batches) in MODULES.items():
            settings = [(batch, "bf16-mixed", "fused") for batch in batches]
            for entry in (*settings, (batches[0], "bf16-mixed", "foreach"), (batches[0], "fp32", "fused")):
                row = measured(name, *entry)
                rows.writerow(row)
                print(*row.values(), flush=True)


def compare(path: Path) -> None:
    """Print every row with the estimate from the module's profile, on an instance with one H100."""
    models, errors = {}, []
    for row in csv.DictReader(path.open()):
        name = row["module"]
        if name not in models:
            make, inputs, _ = MODULES[name]
            models[name] = smpa.Model.from_profile(smpa.profile(make(), inputs=inputs, stages=["trace"]))
        precision: Any = "fp32" if row["precision"] == "fp32" else "bf16"
        form: Any = row["optimizer"]
        job = smpa.Job(precision=precision, attention="fused", optimizer_step=form)
        plan = smpa.Plan(library="ddp", precision=precision, batch_size=int(row["batch"]))
        estimate = smpa.estimate(models[name], smpa.Cluster("ml.p5.4xlarge"), job, plan)
        step_ms, peak = sum(float(row[f"{phase}_ms"]) for phase in PHASES), estimate.memory.peak
        gib = peak.total_gib - peak.context_gib
        errors.append(
            [math.log(1e3 * estimate.step_seconds / step_ms), math.log(gib / float(row["peak_reserved_gib"]))]
        )
        print(
            f"{name:13s} {row['batch']:>5s} {row['precision']:10s} {form:8s} {step_ms:6.1f} ms, estimated"
            f" {1e3 * estimate.step_seconds:6.1f} ({errors[-1][0]:+.2f}); {float(row['peak_reserved_gib']):5.2f} GiB,"
            f" estimated {gib:5.2f} ({errors[-1][1]:+.2f})"
        )
    for place, figure in enumerate(("step time", "memory without the context")):
        column = sorted(error[place] for error in errors)
        print(f"{figure}: {len(column)} rows, median {statistics.median(column):+.2f}, from {column[0]:+.2f} to"
              f" {column[-1]:+.2f}, median absolute {statistics.median(map(abs, column)):.2f}")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]))
    else:
        compare(Path(sys.argv[1]) if sys.argv[1:] else ROWS)
