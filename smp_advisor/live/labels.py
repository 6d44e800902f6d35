"""Labels and texts of settings and figures, the same in every view."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.schema import schema
from smp_advisor.live.job_controls import STACK, stack_text
from smp_advisor.live.settings import label_of, names_of, settings_of
from smp_advisor.workload.training_settings import training_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.libraries.library import Setting
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job

__all__ = [
    "configuration",
    "dollars",
    "labels_of",
    "precision_text",
    "rows_of",
    "training_settings_text",
    "value_text",
    "with_labels",
]


def labels_of(library: str) -> Mapping[str, str]:
    """Labels of a library's controls, by setting."""
    return {name: label_of(library, name) for name in names_of(library)}


def rows_of(library: str) -> Mapping[str, str]:
    """Labels of the rows of a plan's configuration, by setting."""
    return {**labels_of(library), "global_batch": "Global batch"}


def value_text(name: str, value: Setting) -> str:
    """Text of a setting's value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if name == "sharding":
        texts = {"none": "none", "optimizer_state": "optimizer state"}
        return texts.get(value) or f"full, over {value.removeprefix('sharded_')} GPUs"
    if name == "activation_checkpointing":
        texts = {
            "none": "off",
            "each": "each block",
            "contiguous": "all blocks of a stage",
            "operators": "part of the operators",
        }
        if value.startswith("every_"):
            return f"one of {value.removeprefix('every_')} blocks"
        return texts.get(value) or f"groups of {value.removeprefix('group_')} blocks"
    return value


def with_labels(library: str, text: str) -> str:
    """A message with the labels of settings instead of their names, for the views.

    Examples
    --------
    >>> with_labels("smp-v1", "batch_size must be a multiple of microbatches (batch_size=7, microbatches=2)")
    'Batch size must be a multiple of microbatches (Batch size = 7, microbatches=2)'
    """
    titles = {setting.key: setting.title for setting in (*schema(library).parameters, *schema(library).settings)}

    def labeled(name: re.Match[str]) -> str:
        return f"{titles[name[1]]}{' = ' if name[2] else ''}" if name[1] in titles else name[0]

    return re.sub(r"\b([a-z]+(?:_[a-z]+)+)\b(=?)", labeled, text)


def configuration(advice: Advice, plan: Plan) -> list[str]:
    """Texts of a plan's configuration, in the order of `rows_of`; empty if a row does not apply."""
    texts = {
        name: stack_text(str(value), plan.library) if name == STACK else value_text(name, value)
        for name, value in settings_of(plan, advice.job).items()
    }
    if plan.pipeline_parallel_degree == 1:
        texts |= {name: "" for name in ("active_microbatches", "pipeline") if name in texts}
    texts["global_batch"] = f"{global_batch_size(plan, advice.cluster):,}"
    return [texts[name] for name in rows_of(plan.library)]


def dollars(amount: float) -> str:
    """An amount in USD: full dollars from 100, else cents or three significant digits."""
    if amount >= 100:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.1 else f"${amount:.3g}"


def precision_text(job: Job) -> str:
    """Text of a job's precision."""
    if job.precision == "fp32":
        return "fp32"
    return f"{job.precision} with {'16-bit states' if job.state_precision == '16-bit' else 'fp32 master copies'}"


def training_settings_text(job: Job) -> str:
    """Settings of the training script that differ from their defaults; empty without any."""
    table = training_settings()
    texts = [
        table[name].title.lower() if value is True else f"{table[name].title.lower()} {value}"
        for name, value in job.training_settings().items()
        if name != "state_precision"  # part of `precision_text`
    ]
    return ", ".join(texts)
