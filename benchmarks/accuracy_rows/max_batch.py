"""The largest batch per GPU, for Training Compiler's table of tested models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.costs.evaluate import memory_columns
from smp_advisor.libraries.layout import Layout
from smp_advisor.libraries.state_bytes import amp
from smp_advisor.workload import Job

from .machines import instance_cluster_of
from .models import model_of
from .table import SkippedError

if TYPE_CHECKING:
    from .table import Row

__all__ = ["largest_batch"]

_LARGEST = 4096


def largest_batch(row: Row) -> int:
    """Predicted largest batch per GPU with plain data parallelism; 1 if not even one sample fits.

    Native PyTorch 1.x under the Hugging Face Trainer: autocast, the model's own attention, no recomputation.
    """
    cluster = instance_cluster_of(row)
    sequence = row.count("seq")
    if not sequence:
        raise SkippedError("sequence length not given")
    precision = row.text("precision")
    job = Job(sequence_length=sequence, precision="fp32" if "32" in precision else "fp16", attention="eager")
    batches = np.arange(1, _LARGEST + 1)
    layout = Layout.of_columns(amp(job), rows=len(batches), batch_samples=batches)
    model = model_of(row, task="language-model" if "lm" in row.text("task") else "")
    fitting = memory_columns(model, cluster, job, layout).margin >= 0
    # The first batch that does not fit ends the search, as in a measurement with increasing batches.
    return _LARGEST if fitting.all() else max(1, int(np.argmin(fitting)))
