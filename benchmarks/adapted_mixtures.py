"""Every mixture of the table of names under LoRA and QLoRA: what `advise` counts, next to what the pinned packages do.

usage: python -m benchmarks.adapted_mixtures

transformers builds each model at its published size without memory (PyTorch's meta device), bitsandbytes replaces its
modules and PEFT adds the adapter, with the settings of the exported script. Writes
benchmarks/results/adapted_mixtures.md.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smp_advisor
from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import Plan
from smp_advisor.workload import Adapter, Job, Model

_PAGE = Path(__file__).parent / "results" / "adapted_mixtures.md"
_INSTANCE, _NODES = "ml.p5en.48xlarge", 1
_NAMES = (
    *(
        "mixtral-8x7b",
        "mixtral-8x22b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "qwen3-coder-480b-a35b",
        "qwen1.5-moe-a2.7b",
    ),
    *("gpt-oss-20b", "gpt-oss-120b", "llama-4-scout", "llama-4-maverick", "deepseek-v2-lite", "deepseek-v2"),
    *("deepseek-v3", "kimi-k2"),
)
_ADAPTERS = {"LoRA": Adapter(rank=8), "QLoRA": Adapter(rank=8, base_bits=4)}
_HEAD = """# Mixtures under adapters

Written by `python -m benchmarks.adapted_mixtures`. Packages: {packages}.

- trained: parameters of the adapter, of rank 8 on all linear modules;
- GiB of frozen weights: those of one full copy with the scales of a quantized base. Experts are one three-dimensional
  parameter in transformers 5, which bitsandbytes does not quantize;
- one value: the estimate and the packages have the same (GiB: within {most:.1%}). Two: **the packages'**, and the
  estimate's in parentheses;
- advice: the answer of `advise` for {nodes} {instance}.

{right} of {total} rows agree.

| model | adapter | trained | GiB of frozen weights | advice |
| --- | --- | --- | --- | --- |
"""
_MOST = 0.001
_BLOCK = 64
"""Weights of one scale in bitsandbytes, whose scale is fp32."""


def measured(model: Model, adapter: Adapter) -> tuple[int, int]:
    """Trained parameters, and bytes of the frozen ones, of the packages' own model."""
    import torch
    from bitsandbytes.nn import Linear4bit
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    settings = json.loads(model.config_json)
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.bfloat16)
        if adapter.quantized:
            bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)
            AutoHfQuantizer.from_config(bits, pre_quantized=False).preprocess_model(model=real, device_map=None)
        adapted = get_peft_model(real, LoraConfig(r=adapter.rank, target_modules="all-linear"))
    kept = re.compile("|".join(map(re.escape, real._keep_in_fp32_modules_strict or ["\n"])))  # noqa: SLF001
    packed = {id(part.weight) for part in adapted.modules() if isinstance(part, Linear4bit)}
    frozen = 0.0
    for name, value in adapted.named_parameters():
        if id(value) in packed:
            frozen += value.numel() * (0.5 + 4 / _BLOCK)
        elif not value.requires_grad:
            frozen += value.numel() * (4 if kept.search(name) else 2)
    return adapted.get_nb_trainable_parameters()[0], round(frozen)


def counted(model: Model, adapter: Adapter) -> tuple[int, int]:
    """The same figures of the estimate."""
    job = Job(sequence_length=2048, precision="bf16", adapter=adapter)
    plan = Plan(library="ddp", batch_size=1, precision="bf16")
    (stage,) = estimate(model, Cluster(_INSTANCE, _NODES), job, plan).memory.stages
    trained = adapter.parameter_count(model)
    # Without the adapter, in fp32 and as the passes read it.
    return trained, round(stage.parameters_gib * 2**30) - 6 * trained


def advice(model: Model, adapter: Adapter) -> str:
    """The answer of `advise`, as a phrase."""
    try:
        answer = smp_advisor.advise(model, _INSTANCE, instance_count=_NODES, adapter=adapter, sequence_length=2048)
    except AdvisorError as error:
        return str(error)
    value = answer.estimate
    fits = "fits" if value.fits else "does not fit"
    try:
        answer.cell()
    except AdvisorError:
        fits += " (with a script of your own)"
    return f"{fits}: {value.plan.library}, {value.needed_gib:.1f} of {value.usable_gpu_memory_gib:.1f} GiB per GPU"


def _cell(right: float, own: float, text: str, tolerance: float) -> str:
    same = abs(right - own) <= tolerance * right
    return format(right, text) if same else f"**{right:{text}}** ({own:{text}})"


def row(model: Model, name: str, adapter: Adapter) -> list[str]:
    """The cells of one row."""
    (trained, frozen), (own_trained, own_frozen) = measured(model, adapter), counted(model, adapter)
    gib = _cell(frozen / 2**30, own_frozen / 2**30, ",.2f", _MOST)
    return [model.name, name, _cell(trained, own_trained, ",", 0), gib, advice(model, adapter)]


def page(rows: list[list[str]]) -> str:
    """The page of the rows."""
    names = ("torch", "transformers", "peft", "bitsandbytes")
    values: dict[str, Any] = {
        "packages": ", ".join(f"{name} {version(name)}" for name in names),
        "right": sum("**" not in "".join(cells) for cells in rows),
        "total": len(rows),
        "most": _MOST,
        "nodes": _NODES,
        "instance": _INSTANCE,
    }
    return _HEAD.format(**values) + "".join(f"| {' | '.join(cells).replace(chr(10), ' ')} |\n" for cells in rows)


def main() -> None:
    """Write the page."""
    rows = []
    for model in map(Model.from_name, _NAMES):
        for name, adapter in _ADAPTERS.items():
            rows.append(row(model, name, adapter))
            print(*rows[-1], sep=" | ", flush=True)
    _PAGE.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main()
