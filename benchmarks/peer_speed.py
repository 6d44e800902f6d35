"""Measure the seconds per plan of llm-analysis. `cost_speed.py` runs this file with an interpreter that has it.

Reads plans and a shape as JSON from standard input and prints one JSON object.
"""

import json
import logging
import statistics
import sys
import time

logging.disable(logging.CRITICAL)

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # noqa: E402
from llm_analysis.config import (  # noqa: E402
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)


def main() -> None:
    query = json.load(sys.stdin)
    shape = query["shape"]
    model = ModelConfig(
        name="model",
        num_layers=shape["layers"],
        n_head=shape["heads"],
        hidden_dim=shape["hidden"],
        vocab_size=shape["vocab"],
        max_seq_len=shape["sequence_length"],
    )
    gpu, dtype = get_gpu_config_by_name("a100-sxm-40gb"), get_dtype_config_by_name("w16a16e16")
    seconds = []
    for plan in query["plans"]:
        start = time.process_time()
        degrees = ParallelismConfig(tp_size=plan["tensor"], pp_size=plan["pipeline"], dp_size=plan["data"], sp_size=1)
        try:
            LLMAnalysis(model, gpu, dtype, degrees, flops_efficiency=0.5).training(
                batch_size_per_gpu=plan["micro_batch"],
                gradient_accumulation_steps=plan["microbatches"],
                seq_len=shape["sequence_length"],
                activation_recomputation=ActivationRecomputation.FULL
                if plan["recompute"]
                else ActivationRecomputation.NONE,
                ds_zero=DSZeRO.STAGE_1 if plan["zero"] else DSZeRO.NONE,
            )
        except AssertionError:
            continue  # unsupported degrees, such as those that do not divide the layers
        seconds.append(time.process_time() - start)
    print(json.dumps({"seconds_per_plan": statistics.mean(seconds), "plans": len(seconds)}))


if __name__ == "__main__":
    main()
