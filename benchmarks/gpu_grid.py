"""Steps of transformers models on one GPU, by model, microbatch, precision, loop and optimizer, and the estimates.

    python benchmarks/gpu_grid.py measure ROWS.csv    # needs a GPU; each row is a process of its own
    python benchmarks/gpu_grid.py [ROWS.csv ...]      # compares; benchmarks/gpu_rows/transformers.csv by default

Rows of 16 tokens wait for the host: they have its time for a block under each loop. Their GPU's host was a shared
virtual machine, slower than that of an instance: an addition took it 10 microseconds, and a Linear layer 28. So ratios
between loops count more than milliseconds. Phases are synchronized; sums of phases are a step. No constant of the cost
model was fitted to these rows unless its source names them.
"""

from __future__ import annotations

import csv
import gc
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import smp_advisor as smpa

ROWS = Path(__file__).with_name("gpu_rows") / "transformers.csv"
SETTING_FIELDS = [
    "card",
    "torch",
    "kind",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "sequence",
    "microbatch",
]
SETTING_FIELDS += ["precision", "loop", "recompute", "optimizer"]
PHASES = ("forward", "backward", "optimizer")
PEAKS = ["peak_allocated_gib", "peak_reserved_gib"]
FIELDS = [*SETTING_FIELDS, *(f"{phase}{of}_ms" for of in ("", "_host") for phase in PHASES), *PEAKS, "outcome"]
LAYERS = {512: 12, 1024: 24, 2048: 16, 4096: 8, 8192: 2}
LOOPS = [("plain", "none"), ("plain", "full"), ("fsdp2", "none"), ("fsdp2", "full"), ("fsdp1", "none"), ("ddp", "none")]
WARM_STEPS, STEPS = 3, 5
SETTINGS = {"precision": "bf16-mixed", "loop": "plain", "recompute": "none", "optimizer": "fused", "vocab": 32000}


def grid() -> list[dict[str, Any]]:  # noqa: C901 (a table)
    """The rows to measure."""
    rows: list[dict[str, Any]] = []

    def add(kind: str, hidden: int, sequence: int, microbatch: int, **settings: Any) -> None:
        layers = settings.pop("layers", LAYERS.get(hidden, 12))
        shape = {"kind": kind, "layers": layers, "hidden": hidden, "sequence": sequence, "microbatch": microbatch}
        rows.append(SETTINGS | shape | settings)

    for hidden in LAYERS:
        for loop, recompute in LOOPS:
            add("llama", hidden, 16, 1, loop=loop, recompute=recompute)
            if hidden in {1024, 2048, 4096}:
                for microbatch in (1, 4):
                    add("llama", hidden, 2048, microbatch, loop=loop, recompute=recompute)
        for optimizer in ("foreach", "loop"):
            add("llama", hidden, 16, 1, optimizer=optimizer)
        for microbatch in (1, 2, 4, 8):
            add("llama", hidden, 2048, microbatch)
        for precision in ("fp32", "tf32", "bf16-pure"):
            add("llama", hidden, 2048, 2, precision=precision)
    for kind in ("gpt2", "bert", "t5"):
        add(kind, 768, 16, 1)
        for hidden, microbatch in ((768, 8), (1024, 8), (1024, 32)):
            add(kind, hidden, 512, microbatch)
    for sequence, microbatch in ((4096, 2), (8192, 1), (16384, 1), (32768, 1)):
        add("llama", 2048, sequence, microbatch, recompute="none" if sequence < 16384 else "full")
    for microbatch in (1, 4):
        add("llama", 4096, 2048, microbatch, layers=4, vocab=128256)
    return rows


def shape_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row with heads and the width of the feed-forward layers."""
    hidden, kind = row["hidden"], row["kind"]
    heads = hidden // (128 if hidden >= 1024 and kind in {"llama", "gpt2"} else 64)
    kv_heads = heads // 4 if hidden >= 2048 and kind == "llama" else heads
    ffn = int(hidden * 3.5) // 256 * 256 if kind == "llama" else 4 * hidden
    return row | {"heads": heads, "kv_heads": kv_heads, "ffn": ffn}


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """Configuration of transformers."""
    kind, positions = row["kind"], max(2048, row["sequence"])
    names = {
        "llama": "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size",
        "bert": "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size",
        "gpt2": "vocab_size n_embd n_layer n_head n_inner",
        "t5": "vocab_size d_model num_layers num_heads d_ff",
    }[kind].split()
    values = (row[name] for name in ("vocab", "hidden", "layers", "heads", "ffn"))
    more: dict[str, Any] = {
        "llama": {"num_key_value_heads": row["kv_heads"], "max_position_embeddings": positions, "use_cache": False},
        "bert": {},
        "gpt2": {"n_positions": positions, "use_cache": False},
        "t5": {"d_kv": 64, "num_decoder_layers": row["layers"], "decoder_start_token_id": 0, "use_cache": False},
    }[kind]
    return {"model_type": kind, **dict(zip(names, values, strict=True)), **more}


def measured(row: dict[str, Any]) -> dict[str, Any]:  # noqa: C901, PLR0912, PLR0915 (one training script)
    """Phases of a step, and its peak memory."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
    )

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if row["precision"] == "tf32" else "highest")
    loop, layers = row["loop"], row["layers"]
    if loop != "plain":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    build = {"bert": AutoModelForMaskedLM, "t5": AutoModelForSeq2SeqLM}.get(row["kind"], AutoModelForCausalLM)
    config = config_of(row)
    with torch.device("cuda"):
        model: Any = build.from_config(AutoConfig.for_model(config.pop("model_type"), **config)).train()
    if row["precision"] == "bf16-pure":
        model.bfloat16()
    if row["recompute"] == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == layers]
    blocks = [block for stack in stacks for block in stack]
    if loop == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        for module in (*blocks, model):
            fully_shard(module, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    elif loop == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy, half = ModuleWrapPolicy({type(blocks[0])}), MixedPrecision(*(torch.bfloat16,) * 3)
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, mixed_precision=half, use_orig_params=True, device_id=0
        )
    elif loop == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    form: dict[str, Any] = {
        "fused": {"fused": True},
        "foreach": {"foreach": True},
        "loop": {"foreach": False, "fused": False},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **form[row["optimizer"]])
    ids = torch.randint(0, row["vocab"], (row["microbatch"], row["sequence"]), device="cuda")
    casts = row["precision"] == "bf16-mixed" and not loop.startswith("fsdp")
    steps = []
    for _ in range(WARM_STEPS + STEPS):
        seconds = []
        loss: Any = None
        for phase in PHASES:
            start = time.perf_counter()
            if phase == "forward":
                with torch.autocast("cuda", torch.bfloat16, enabled=casts):
                    loss = model(input_ids=ids, labels=ids).loss
            elif phase == "backward":
                loss.backward()
            else:
                optimizer.step()
                optimizer.zero_grad()
            free = time.perf_counter()
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - start, free - start))
        steps.append(seconds)
    result: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "outcome": "fits"}
    for place, phase in enumerate(PHASES):
        for which, name in enumerate((f"{phase}_ms", f"{phase}_host_ms")):
            middle = statistics.median(step[place][which] for step in steps[WARM_STEPS:])
            result[name] = round(1e3 * middle, 3)
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    return result | dict(zip(PEAKS, (round(peak / 2**30, 3) for peak in peaks), strict=True))


def measure(path: Path) -> None:
    """Measure every row in a fork of this process, which has no GPU context."""
    import torch

    with path.open("w", newline="") as file:
        csv.DictWriter(file, FIELDS).writeheader()
    for entry in grid():
        row = shape_of(entry)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            row |= measured(row)
        except torch.OutOfMemoryError:
            row["outcome"] = "OOM"
        except Exception as error:  # noqa: BLE001 - a row of the table
            row["outcome"] = f"{type(error).__name__}: {error}"[:150].replace("\n", " ")
        with path.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)
        print(*(row.get(name, "") for name in FIELDS[2:]), flush=True)
        gc.collect()
        os._exit(0)


def estimate_of(row: dict[str, Any]) -> smpa.Estimate:
    """Estimate of the same step on an instance with one H100; without TF32, which the product does not set."""
    row = {name: int(value) if value.isdigit() else value for name, value in row.items()}
    precision: Any = {"fp32": "fp32", "tf32": "fp32"}.get(row["precision"], "bf16")
    job = smpa.Job(
        sequence_length=row["sequence"],
        precision=precision,
        attention="fused",
        optimizer_step=row["optimizer"],
        state_precision="16-bit" if row["precision"] == "bf16-pure" else "mixed",
    )
    shards: dict[str, Any] = {"library": "fsdp", "sharding_strategy": "full_shard"}
    plan = smpa.Plan(
        **(shards if row["loop"].startswith("fsdp") else {"library": "ddp"}),
        precision=precision,
        batch_size=row["microbatch"],
        activation_checkpointing="each" if row["recompute"] == "full" else False,
    )
    return smpa.estimate(smpa.Model.from_config(config_of(row)), smpa.Cluster("ml.p5.4xlarge"), job, plan)


def compare(paths: list[Path]) -> None:
    """Print every row with its estimate, and the bias by loop."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in (row for path in paths for row in csv.DictReader(path.open()) if row["outcome"] == "fits"):
        if row["loop"] == "compiled":
            continue
        estimate = estimate_of(row)
        step_ms = sum(float(row[f"{phase}_ms"]) for phase in PHASES)
        peak = estimate.memory.peak
        gib = peak.total_gib - peak.context_gib
        kind = f"{row['precision']} {row['loop']} {row['recompute']}{' host' if row['sequence'] == '16' else ''}"
        errors[f"step    {kind}"].append(math.log(1e3 * estimate.step_seconds / step_ms))
        if row["peak_reserved_gib"] and row["loop"] != "plain":  # a plain loop has no buckets of gradients
            errors[f"memory  {kind}"].append(math.log(gib / float(row["peak_reserved_gib"])))
        print(
            f"{row['card'][7:11]} {row['kind']:6s}{row['layers']:>3s} layers of {row['hidden']:>4s},"
            f" {row['microbatch']:>2s} x {row['sequence']:>5s} {kind:24s} {row['optimizer']:8s}"
            f" {step_ms:7.1f} ms, estimated {1e3 * estimate.step_seconds:7.1f};"
            f" {row['peak_reserved_gib'] or '-':>6s} GiB, estimated {gib:6.2f}"
        )
    for kind, values in sorted(errors.items()):
        print(f"{kind:36s} {len(values):3d} rows: bias {statistics.mean(values):+.2f}, median absolute"
              f" {statistics.median(map(abs, values)):.2f}")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]))
    else:
        compare([Path(name) for name in sys.argv[1:]] or [ROWS])
