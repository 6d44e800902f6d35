"""Rows of measured runs that the accuracy benchmark's tests share."""

import csv

from benchmarks.accuracy_rows.judge import judge
from benchmarks.accuracy_rows.table import Row, read_table

GPT = {
    "verified": "yes", "quality": "A", "plan_kind": "uniform", "recompute_class": "full", "shard_class": "zero1",
    "attention_class": "eager-assumed", "precision_class": "fp16-mixed", "model": "GPT", "family": "gpt",
    "layers": "24", "hidden": "2048", "heads": "16", "kv_heads": "16", "ffn": "8192", "vocab": "50304",
    "tied_embeddings": "1", "seq": "2048", "gpu": "A100-80GB", "gpus": "16", "nodes": "2", "tp": "2", "pp": "2",
    "dp": "4", "shard_degree": "4", "micro_batch": "2", "num_microbatches": "8", "global_batch": "64",
    "inter_node_gbps": "400", "gpus_per_node": "8", "intra_node": "nvlink", "network_known": "yes", "outcome": "fits",
    "optimizer": "Adam", "framework": "Megatron",
}  # fmt: skip
TIMED = GPT | {"step_time_s": "10", "tokens_per_s_per_gpu": ""}
MEASURED = GPT | {"memory_gib_per_gpu": "20", "mem_class": "total", "rank_or_stage": ""}


def row(base=GPT, **changes):
    return Row(base | {name: str(value) for name, value in changes.items()})


def table(folder, name, rows):
    columns = list(dict.fromkeys(column for one in rows for column in one))
    path = folder / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def score(folder, *tables):
    return judge([read_table(table(folder, f"{number}.csv", rows)) for number, rows in enumerate(tables)])
