"""Cells that train a small model on this machine."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ExportError, UnknownFamilyError
from smp_advisor.export.options import JobOptions
from smp_advisor.export.script import builds, training_script, writable
from smp_advisor.export.template import text_literal
from smp_advisor.files import data_file
from smp_advisor.job_rules import SCRIPT_NAME
from smp_advisor.libraries.library import LOCAL_LIBRARY
from smp_advisor.libraries.plan import Plan
from smp_advisor.workload.model import Model
from smp_advisor.workload.stack import training_settings

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.workload.job import Job

_LONGEST_SEQUENCE = 128
"""Of a local run, in tokens."""
_LAYERS, _STEPS, _PROCESSES, _LARGEST_BATCH = 2, 20, 2, 2


def _small_configuration(settings: dict[str, Any]) -> dict[str, Any]:
    """Reduce the sizes of a transformers configuration; its vocabulary and architecture are unchanged."""
    dimensions = data_file("export", "small_model")
    small = {name: value for name, value in settings.items() if name not in dimensions["dropped"]}
    for largest, names in dimensions["largest"].items():
        sizes = {name: small[name] for name in names if isinstance(small.get(name), int)}
        small |= {name: min(size, int(largest)) for name, size in sizes.items()}
    # As many heads share keys and values as in the original, if there are that many.
    heads = {name: settings[name] for name in dimensions["heads"] if isinstance(settings.get(name), int)}
    shared = {name: settings[name] for name in dimensions["key_value_heads"] if isinstance(settings.get(name), int)}
    most = dimensions["largest_heads"]
    total = max(heads.values(), default=most)
    small |= {name: min(count, most) for name, count in heads.items()}
    small |= {name: max(1, min(most, most * count // total)) for name, count in shared.items()}
    for name in dimensions["by_layer"]:
        if isinstance(small.get(name), list):
            small[name] = small[name][:_LAYERS]
    if "attention_types" in small:  # GPT-Neo: kinds of attention, and how often they repeat
        small["attention_types"] = [[["global"], _LAYERS]]
    rope = small.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Scaled positions have lists whose length depends on the width.
        small["rope_parameters"] = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return small


@dataclass(frozen=True, kw_only=True)
class SmallTraining:
    """The small version of a training: its script, and what the script trains."""

    script: str
    model: Model | None
    """None for a family without a cost model."""
    job: Job
    plan: Plan


def small_training(
    model: Model, cluster: Cluster, job: Job, plan: Plan, *, trainer: str = "plain", objective: str | None = None
) -> SmallTraining | None:
    """The training of `local_cell` for the generated script; None if no script can be generated for the model.

    See `JobOptions` for `trainer` and `objective`.
    """
    if not builds(model):
        return None
    settings = _small_configuration(json.loads(model.config_json))
    small = replace(model, name=f"small copy of {model.name}", config_json=json.dumps(settings, sort_keys=True))
    alone = Plan(
        library=LOCAL_LIBRARY,
        batch_size=min(plan.batch_size, _LARGEST_BATCH),
        precision="fp32",
        activation_checkpointing="each" if plan.activation_checkpointing else False,
    )
    # Settings that save memory do not matter for a small model.
    plain: dict[str, Any] = {name: training_settings()[name].default for name in job.training_settings()}
    if job.adapter is not None and trainer == "trl":
        # Weights of 4 and 8 bits require a GPU.
        plain["adapter"] = replace(job.adapter, base_bits=16, double_quantization=False, upcast=False)
    elif job.adapter is not None:
        plain |= {"adapter": None, "training": "fine-tuning"}
    if model.reads_tokens:
        plain["sequence_length"] = min(job.sequence_length, _LONGEST_SEQUENCE)
    short = replace(job, **plain)
    script = training_script(small, cluster, short, alone, trainer=trainer, objective=objective, small_copy=True)
    try:
        trained = replace(Model.from_config(settings), name=small.name)
    except UnknownFamilyError:
        trained = None
    return SmallTraining(script=script, model=trained, job=short, plan=alone)


def local_cell(model: Model, cluster: Cluster, job: Job, plan: Plan, **options: Any) -> str:
    """``%%smp_local`` cell that runs a small version of the training on this machine, in the environment of a job.

    The model-parallel libraries exist only in the SageMaker containers. The cell therefore uses the script for plain
    data parallelism, with the same data code, task and options, in fp32, for a small model of the same family. It
    finds errors in data, shapes, options and the loss, but not in memory use. A script of the user runs unchanged. The
    cell of a job that trains with TRL uses TRL if it is installed here. Of `JobOptions`, those of the script are used.
    """
    chosen = JobOptions.of(options)
    if chosen.script is not None:
        folder = "" if chosen.source_dir is None else f"{chosen.source_dir}/"
        path = text_literal(f"{folder}{chosen.script}")
        return f'%%smp_local --steps {_STEPS}\nimport runpy\n\nrunpy.run_path({path}, run_name="__main__")\n'
    note, trainer = "", "plain"
    if builds(model):
        with suppress(ExportError):  # of the plan's own script
            trainer = writable(model, cluster, job, plan, trainer=chosen.trainer, objective=chosen.objective).trainer
    if trainer == "trl" and find_spec("trl") is None:
        note = "# The job trains with TRL, which is not installed here: this is the loop of trainer='plain'.\n"
        trainer = "plain"
    objective = chosen.objective if trainer == "trl" else None
    small = small_training(model, cluster, job, plan, trainer=trainer, objective=objective)
    if small is None:
        hint = "# Put the code of your training script here, without calls of the library."
        return f"%%smp_local --steps {_STEPS}\n{hint}\n"
    return f"%%smp_local --processes {_PROCESSES} --steps {_STEPS} --name {SCRIPT_NAME}\n{note}{small.script}"
