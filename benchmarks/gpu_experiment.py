"""Measure on one GPU what published runs leave open, in under ten minutes: one command, one CSV.

    python benchmarks/gpu_experiment.py rows.csv [--only attention,logits] [--tiny]

The column ``decides`` names what a row settles. ``attention``: the kernels at 2k, 16k and 64k tokens
(``gpu.flash_2_efficiency`` and its siblings). ``logits``: peak bytes per logit of four ways to compute the loss
(``logit_bytes`` of a kind of code). ``adapter``: a LoRA product as PEFT writes it, and compiled (``fuses_adapters``).
``experts``: a layer of 128 experts, in a loop and grouped, and the seconds in which the host launches it (doubt
``experts``). ``accumulation``: gradients added by a kernel of its own, and by the product. ``autocast``: peak
of a block by autocast and with cast parameters (``Job.autocast``). ``--tiny`` tries the program without a GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]
_COLUMNS = ("part", "case", "size", "seconds", "host_seconds", "peak_bytes", "per_unit", "decides", "device", "torch")
_STEPS = 20


class Bench:
    """A device, a scale of sizes, and measurements on it."""

    def __init__(self, *, tiny: bool) -> None:
        self.device = "cpu" if tiny else "cuda"
        self.steps, self.scale = (1, 16) if tiny else (_STEPS, 1)
        self.dtype = torch.bfloat16

    def tensor(self, *shape: int, gradient: bool = True, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype, requires_grad=gradient)

    def measure(self, work: Callable[[], Any]) -> Row:
        """Seconds of a step, those in which the host launches it, and its peak above what is there before."""
        cuda = self.device == "cuda"
        for _ in range(3 if cuda else 1):
            work()
        before = 0
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        for _ in range(self.steps):
            work()
        launched = time.perf_counter() - start
        if cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / self.steps
        peak = torch.cuda.max_memory_allocated() - before if cuda else 0
        return {"seconds": seconds, "host_seconds": launched / self.steps, "peak_bytes": peak}


def attention(bench: Bench) -> Iterator[Row]:
    backends = {
        "flash-2": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    heads, width = max(32 // bench.scale, 1), 128
    for length in (2048 // bench.scale, 16_384 // bench.scale, 65_536 // bench.scale**2):
        query = bench.tensor(1, heads, length, width)
        for kernel, backend in backends.items():

            def both(query: torch.Tensor = query, backend: SDPBackend = backend) -> None:
                with sdpa_kernel(backend) if bench.device == "cuda" else nullcontext():
                    functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()

            row = bench.measure(both)
            flops = 3.5 * 2 * heads * width * length**2
            yield row | {"case": kernel, "size": length, "per_unit": flops / row["seconds"], "decides": "gpu rates"}
        try:
            from flash_attn_interface import flash_attn_func  # FlashAttention-3
        except ImportError:
            continue
        third = query.transpose(1, 2)
        row = bench.measure(lambda third=third: flash_attn_func(third, third, third, causal=True).sum().backward())
        flops = 3.5 * 2 * heads * width * length**2
        yield row | {"case": "flash-3", "size": length, "per_unit": flops / row["seconds"], "decides": "gpu rates"}


def logits(bench: Bench) -> Iterator[Row]:
    tokens, hidden, vocabulary = 8192 // bench.scale, 1024 // bench.scale, 151_936 // bench.scale
    inputs, weight = bench.tensor(tokens, hidden), bench.tensor(vocabulary, hidden)
    labels = torch.randint(vocabulary, (tokens,), device=bench.device)

    def plain(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(rows @ weight.T, targets)

    def floated(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy((rows @ weight.T).float(), targets)

    def chunked(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        parts = zip(rows.chunk(8), targets.chunk(8), strict=True)
        losses = [torch.utils.checkpoint.checkpoint(floated, *part, use_reentrant=False) for part in parts]
        return torch.stack(losses).mean()

    compiled = torch.compile(floated) if bench.device == "cuda" else floated
    for name, loss in {"plain": plain, "float()": floated, "compiled": compiled, "chunked": chunked}.items():
        row = bench.measure(lambda loss=loss: loss(inputs, labels).backward())
        per_logit = row["peak_bytes"] / (tokens * vocabulary)
        yield row | {"case": name, "size": tokens, "per_unit": per_logit, "decides": "logit_bytes, Job.loss"}


def adapter(bench: Bench) -> Iterator[Row]:
    tokens, hidden, rank = 8192 // bench.scale, 4096 // bench.scale, 16
    inputs, base = bench.tensor(tokens, hidden), bench.tensor(hidden, hidden, gradient=False)
    down, up = bench.tensor(hidden, rank), bench.tensor(rank, hidden)

    def alone() -> torch.Tensor:
        return inputs @ base

    def peft() -> torch.Tensor:
        added = functional.dropout(inputs.to(down.dtype), 0.05) @ down @ up
        return inputs @ base + added * 2.0

    compiled = torch.compile(peft) if bench.device == "cuda" else peft
    for name, forward in {"base alone": alone, "PEFT": peft, "compiled": compiled}.items():
        row = bench.measure(lambda forward=forward: forward().sum().backward())
        yield row | {"case": name, "size": tokens, "per_unit": row["seconds"] / tokens, "decides": "fuses_adapters"}


def experts(bench: Bench) -> Iterator[Row]:
    count, active, hidden, width = 128 // bench.scale, 8 // min(bench.scale, 4), 2048 // bench.scale, 768 // bench.scale
    up, down = bench.tensor(count, hidden, width), bench.tensor(count, width, hidden)
    for tokens in (512, 1024, 4096):
        inputs = bench.tensor(tokens // bench.scale, hidden)
        chosen = torch.rand(len(inputs), count, device=bench.device).topk(active).indices.flatten()
        order = chosen.argsort()
        sizes = torch.bincount(chosen, minlength=count)
        of_token = order // active

        def loop(inputs: torch.Tensor = inputs, sizes: torch.Tensor = sizes, rows: torch.Tensor = of_token) -> None:
            parts = inputs[rows].split(sizes.tolist())
            outputs = [functional.silu(part @ up[i]) @ down[i] for i, part in enumerate(parts)]
            torch.zeros_like(inputs).index_add(0, rows, torch.cat(outputs)).sum().backward()

        def grouped(inputs: torch.Tensor = inputs, sizes: torch.Tensor = sizes, rows: torch.Tensor = of_token) -> None:
            ends = sizes.cumsum(0).to(torch.int32)
            middle = functional.silu(torch._grouped_mm(inputs[rows], up, offs=ends))  # noqa: SLF001 - its only name
            outputs = torch._grouped_mm(middle, down, offs=ends)  # noqa: SLF001
            torch.zeros_like(inputs).index_add(0, rows, outputs).sum().backward()

        cases = {"loop": loop} | ({"grouped": grouped} if bench.device == "cuda" else {})
        for name, work in cases.items():
            row = bench.measure(work)
            yield row | {"case": name, "size": tokens, "per_unit": row["host_seconds"], "decides": "host per layer"}


def accumulation(bench: Bench) -> Iterator[Row]:
    tokens, hidden = 2048 // bench.scale, 8192 // bench.scale
    inputs, output = bench.tensor(tokens, hidden, gradient=False), bench.tensor(tokens, hidden, gradient=False)
    kept = torch.zeros(hidden, hidden, device=bench.device)

    def product() -> None:
        output.T @ inputs

    def separate() -> None:
        kept.add_(output.T @ inputs)

    cases: dict[str, Callable[[], None]] = {"product alone": product, "separate": separate}
    try:
        from fused_weight_gradient_mlp_cuda import wgrad_gemm_accum_fp32  # Apex

        cases["fused"] = lambda: wgrad_gemm_accum_fp32(inputs, output, kept)
    except ImportError:
        pass
    for name, work in cases.items():
        row = bench.measure(work)
        yield row | {"case": name, "size": tokens, "per_unit": row["seconds"] / hidden**2, "decides": "accumulation"}


def autocast(bench: Bench) -> Iterator[Row]:
    tokens, hidden = 4096 // bench.scale, 2048 // bench.scale
    for name, dtype in (("autocast", torch.float32), ("cast parameters", bench.dtype)):
        block = torch.nn.TransformerEncoderLayer(
            hidden, 16, 4 * hidden, dropout=0.0, batch_first=True, norm_first=True, device=bench.device, dtype=dtype
        )
        inputs = bench.tensor(1, tokens, hidden, dtype=dtype)

        def step(
            block: torch.nn.Module = block, inputs: torch.Tensor = inputs, *, on: bool = name == "autocast"
        ) -> None:
            with torch.autocast(bench.device, bench.dtype, enabled=on):
                result = block(inputs)
            result.sum().backward()

        row = bench.measure(step)
        per_element = row["peak_bytes"] / (tokens * hidden)
        yield row | {"case": name, "size": tokens, "per_unit": per_element, "decides": "Job.autocast"}


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "attention": attention, "logits": logits, "adapter": adapter, "experts": experts, "accumulation": accumulation,
    "autocast": autocast,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the table. The exit status is 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="CSV")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--tiny", action="store_true", help="try the program without a GPU")
    chosen = parser.parse_args(arguments)
    if not chosen.tiny and not torch.cuda.is_available():
        print("There is no GPU: run it on one, or try the program with --tiny.", file=sys.stderr)
        return 2
    bench = Bench(tiny=chosen.tiny)
    same = {"device": "CPU" if chosen.tiny else torch.cuda.get_device_name(), "torch": torch.__version__}
    with chosen.file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for part in chosen.only.split(","):
            try:
                for row in PARTS[part](bench):
                    writer.writerow({"part": part} | row | same)
                    file.flush()
            except RuntimeError as error:  # a kernel that this GPU or this PyTorch does not have
                writer.writerow({"part": part, "case": f"stopped: {error}".splitlines()[0][:200]} | same)
    return 0


if __name__ == "__main__":
    sys.exit(main())
