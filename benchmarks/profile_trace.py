"""Measure time, memory and exactness of the full profile trace of a model.

Run it with ``python benchmarks/profile_trace.py``. Each model is profiled in its own process: all sampled batches and
sequences, the full model once, a size that was not sampled, and activation checkpointing. The time does not include
imports. It fails if a figure is off by more than 0.01 %, or if time or memory exceed the limits of the project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

MODELS = {
    # name: configuration, keywords, parameters, limit in seconds on two cores
    "GPT-2 XL": ("GPT2Config", {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200, 5.0),
    "Llama 3 8B": (
        "LlamaConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
        },
        8_030_261_248,
        5.0,
    ),
    "Llama 3 70B": (
        "LlamaConfig",
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
        },
        70_553_706_496,
        10.0,
    ),
}
SLACK = 1.5
"""Factor by which a shared machine may be slower."""
LIMIT_GIB = 1.0
TOLERANCE = 1e-4


def measure(name: str) -> None:
    """Profile one model in this process."""
    import resource

    import torch
    import transformers

    from smp_advisor.profiling.fallback import profile_with_fallbacks
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.trace import Settings

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(2)
    settings = Settings(precision="bf16", attention="fused", sequence=2048)
    small = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    profile_with_fallbacks(read_model(small), settings)  # includes the deferred imports of PyTorch
    config_class, keywords, _, _ = MODELS[name]
    config = getattr(transformers, config_class)(**keywords)
    start, cpu = time.perf_counter(), time.process_time()
    profile = profile_with_fallbacks(read_model(config), settings)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
                "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "parameters": profile.parameter_count,
                "checks": len(profile.agreements),
                "worst": max(abs(agreement.ratio - 1) for agreement in profile.agreements),
                "operations": profile.operations,
            }
        )
    )


def main() -> int:
    passed = True
    print("model          seconds   of CPU     GiB   operations   worst of the checks")
    for name, (_, _, parameters, limit) in MODELS.items():
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name:12} failed: {done.stderr.strip().splitlines()[-1]}")
            passed = False
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        # The limit is on CPU time, which does not include other processes.
        good = (
            figures["parameters"] == parameters
            and figures["worst"] <= TOLERANCE
            and figures["gib"] < LIMIT_GIB
            and figures["cpu_seconds"] < SLACK * limit
        )
        passed &= good
        times = (
            f"{figures['seconds']:9.1f} {figures['cpu_seconds']:8.1f} {figures['gib']:7.2f} {figures['operations']:12,}"
        )
        checks = f"{100 * figures['worst']:.4f} % of {figures['checks']}{'' if good else '  OVER THE LIMIT'}"
        print(f"{name:12} {times}   {checks}")
    return 0 if passed else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        sys.exit(0)
    sys.exit(main())
