"""Measure processor time, memory and exactness of the default trace of a model in a fresh process.

Run it with ``python benchmarks/profile_trace.py``. Each model is profiled by ``profile(config, stages=("trace",))`` in
a process of its own: all sampled batches and sequences, the full model once, a size that was not sampled, and
activation checkpointing. The time is the processor time of the process and its child, with all imports, relative to a
loop (`yardstick.py`). It fails if a figure is off by more than 0.01 %, or if processor time or memory of the process
exceed the limits of the project.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from yardstick import seconds

LLAMA = {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192, "num_key_value_heads": 8}
MODELS: dict[str, tuple[dict[str, object], int, float]] = {
    # name: configuration, parameters, limit of the processor time in seconds
    "GPT-2 XL": ({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200, 5.0),
    "Llama 3 8B": (
        LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        8_030_261_248,
        5.0,
    ),
    "Llama 3 70B": (
        LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
        70_553_706_496,
        8.0,
    ),
}
LIMIT_MIB = 300
TOLERANCE = 1e-4


def measure(name: str) -> None:
    """Profile one model in this process and its child."""
    from smp_advisor import profile

    config, _, _ = MODELS[name]
    result = profile(config, stages=("trace",))
    print(
        json.dumps(
            {
                "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
                "child_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10,
                "parameters": result.parameter_count,
                "worst": max(abs(agreement.ratio - 1) for agreement in result.agreements),
                "checks": len(result.agreements),
            }
        )
    )


def clock() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def profiled(name: str) -> subprocess.CompletedProcess[str]:
    """A process that profiles one model."""
    return subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)


def main() -> int:
    passed = True
    print("model         CPU s  limit   share     MiB  child MiB   worst of the checks")
    for name, (_, parameters, limit) in MODELS.items():
        runs: list[subprocess.CompletedProcess[str]] = []
        used = seconds(lambda name=name, runs=runs: runs.append(profiled(name)), clock)
        done = runs[0]
        if done.returncode:
            print(f"{name:12} failed: {done.stderr.strip().splitlines()[-1]}")
            passed = False
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        good = (
            figures["parameters"] == parameters
            and figures["worst"] <= TOLERANCE
            and figures["mib"] < LIMIT_MIB
            and used < limit
        )
        passed &= good
        sizes = f"{figures['mib']:7.0f} {figures['child_mib']:10.0f}"
        checks = f"{100 * figures['worst']:.4f} % of {figures['checks']}{'' if good else '  OVER THE LIMIT'}"
        print(f"{name:12} {used:6.1f} {limit:6.0f} {used / limit:7.0%} {sizes}   {checks}")
    return 0 if passed else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        sys.exit(0)
    sys.exit(main())
