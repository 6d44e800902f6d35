"""The head of a model, from the ``architectures`` of its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from smp_advisor.workload.settings import Settings

__all__ = ["HeadTask", "Task", "head_task"]

Task = Literal[
    "language-model", "sequence-classification", "token-classification", "image-classification", "pretraining", "none"
]

_SUFFIXES: dict[str, Task] = {
    "ForCausalLM": "language-model",
    "LMHeadModel": "language-model",
    "ForMaskedLM": "language-model",
    "ForConditionalGeneration": "language-model",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForPreTraining": "pretraining",
    "Model": "none",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadTask:
    """The task that the head after the last block serves."""

    task: Task
    note: str = ""
    """Note for the user where the task is assumed."""


def head_task(settings: Settings, *supported: Task) -> HeadTask:
    """Task of the configuration: the first of `supported` unless ``architectures`` names another of them."""
    architectures = settings.value("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str):
        return HeadTask(task=supported[0])
    # The longest suffix decides: LMHeadModel also ends in Model.
    suffix = max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default=None)
    if suffix is not None and _SUFFIXES[suffix] in supported:
        return HeadTask(task=_SUFFIXES[suffix])
    return HeadTask(
        task=supported[0],
        note=f"counted with a {supported[0]} head because the head of {name} is unknown",
    )
