"""The cell that runs the training script on this machine, with a small model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.export.literal import text_literal
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import SCRIPT_NAME, builds, training_script
from smp_advisor.export.small_model import SEQUENCE_LENGTH, small_configuration
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

__all__ = ["local_cell"]

_DATA_PARALLEL = "ddp"
_STEPS = 20
_PROCESSES = 2
_LARGEST_BATCH = 2


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
    config = json.dumps(small_configuration(json.loads(model.config_json)), sort_keys=True)
    small = replace(model, name=f"small copy of {model.name}", config_json=config)
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
    if model.reads_tokens:
        plain["sequence_length"] = min(job.sequence_length, SEQUENCE_LENGTH)
    script = training_script(small, cluster, replace(job, **plain), alone, small_copy=True)
    return f"%%smp_local --processes {_PROCESSES} --steps {_STEPS} --name {SCRIPT_NAME}\n{script}"
