"""The cell that runs the training script on this machine, with a small model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.export.literal import text_literal
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import SCRIPT_NAME, builds, training_script
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.model import Model
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job

__all__ = ["local_cell"]

_DATA_PARALLEL = "ddp"
_STEPS = 20
_PROCESSES = 2
_LARGEST_BATCH = 2
_SMALL = {
    "layers": 2,
    "width": 64,
    "feed_forward": 128,
    "heads": 4,
    "head_width": 16,
    "rotary_width": 8,
    "experts": 4,
}
"""Sizes of the small model. Its other settings, including vocabulary and sequence length, are those of the job."""
_NAMES = {
    "layers": (
        *("n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_decoder_layers"),
        *("encoder_layers", "decoder_layers"),
    ),
    "width": ("n_embd", "hidden_size", "d_model", "dim", "word_embed_proj_dim", "embedding_size"),
    "feed_forward": (
        *("n_inner", "intermediate_size", "ffn_dim", "d_ff", "ffn_hidden_size", "hidden_dim"),
        *("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
    "heads": (
        *("n_head", "n_heads", "num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads"),
        *("encoder_attention_heads", "decoder_attention_heads"),
    ),
    "head_width": ("head_dim", "d_kv"),
    "rotary_width": ("rotary_dim",),
    "experts": ("num_local_experts", "num_experts"),
}
"""Keys of these sizes in the configurations of the model families."""


def local_cell(model: Model, cluster: Cluster, job: Job, plan: Plan, **options: Any) -> str:
    """``%%smp_local`` cell that runs a small version of the training on this machine, in the environment of a job.

    The model-parallel libraries exist only in the SageMaker containers. The cell therefore uses the script for plain
    data parallelism, with the same data code, task and options, in fp32, for a small model of the same family. It
    finds errors in data, shapes, options and the loss, but not in memory use. A script of the user runs unchanged.

    Parameters
    ----------
    model, cluster, job, plan
        The same as for the job cell.
    options
        Options of the job, see `JobOptions`; only ``script`` and ``source_dir`` are used.
    """
    chosen = JobOptions.of(options)
    if chosen.script is not None:
        folder = "" if chosen.source_dir is None else f"{chosen.source_dir}/"
        path = text_literal(f"{folder}{chosen.script}")
        return f'%%smp_local --steps {_STEPS}\nimport runpy\n\nrunpy.run_path({path}, run_name="__main__")\n'
    if not builds(model):
        return (
            f"%%smp_local --steps {_STEPS}\n"
            "# Put the code of your training script here, without calls of the library.\n"
        )
    small = Model.from_config(_small_config(json.loads(model.config_json)))
    alone = Plan(
        library=_DATA_PARALLEL,
        batch_size=min(plan.batch_size, _LARGEST_BATCH),
        precision="fp32",
        activation_checkpointing="each" if plan.activation_checkpointing else False,
    )
    # Settings that save memory do not matter for a small model.
    plain: dict[str, Any] = {name: training_settings()[name].default for name in job.training_settings()}
    if job.adapter is not None:
        # Weights of 4 and 8 bits require a GPU.
        plain["adapter"] = replace(job.adapter, base_bits=16, double_quantization=False)
    script = training_script(small, cluster, replace(job, **plain), alone)
    return f"%%smp_local --processes {_PROCESSES} --steps {_STEPS} --name {SCRIPT_NAME}\n{script}"


def _small_config(config: dict[str, Any]) -> dict[str, Any]:
    """Configuration of a model of the same family that fits on any machine."""
    short = dict(config)
    for size, names in _NAMES.items():
        for name in names:
            if isinstance(short.get(name), int):
                short[name] = min(short[name], _SMALL[size])
    if "attention_types" in short:  # GPT-Neo has one attention type per layer.
        short["attention_types"] = [[["global"], short["num_layers"]]]
    return short
