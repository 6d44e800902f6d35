"""Peaks of the phases of a run: loading the model, the first update, the other steps, saving a checkpoint.

A plan fits if every phase does. Of loading, what the exported scripts for FSDP and DDP do is counted: bitsandbytes
quantizes the full model on every GPU before it is sharded; the first process of a sharded job, and every process of a
replicated one, has the model in host memory before it is on the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.core import GIB
from smp_advisor.core.elementwise import anywhere, maximum, where
from smp_advisor.core.files import sentence
from smp_advisor.costs.constants import constant
from smp_advisor.costs.effective_time import checkpoint_bytes, writing_nodes
from smp_advisor.costs.estimate import Phase
from smp_advisor.libraries.library import loads_with_smp_v2

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.estimate import PhaseName
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model

HOST_SHARE = 0.8
"""Maximum share of host memory for a job. Data loading and the operating system use the remainder."""
_BYTES_FP32 = 4


def start_gpu_bytes(model: Model, layout: Layout) -> Floats:
    """Return the bytes of a GPU before the first step, shape (n,); 0 where a step needs more in any case.

    The full quantized model, before it is sharded, or the model that SMP v1 traces before it assigns the stages.
    """
    loaded = quantized_bytes(model, layout) if layout.state_bytes.loaded_entirely else 0.0
    if not anywhere(layout.traced_on_gpu):
        return loaded
    traced = layout.state_bytes.parameter_bytes * model.parameter_count / layout.tensor_parallel_degree
    return maximum(loaded, where(layout.traced_on_gpu, traced + constant("memory.context_gib") * GIB, 0.0))


def quantized_bytes(model: Model, layout: Layout) -> float:
    """Return the bytes of a GPU with a full quantized model: embedding, head and what is not packed stay in 16 bits."""
    state = layout.state_bytes
    if not state.unpacked or state.frozen_bytes is None:
        return 0.0
    packed = sum(g.count * (g.block.parameters - g.block.unpacked_parameters) for g in model.groups)
    wide = state.compute_bytes * (model.parameter_count - packed)
    return float(state.frozen_bytes * packed + wide + constant("memory.context_gib") * GIB)


def copied_bytes(model: Model, cluster: Cluster, job: Job, phase: PhaseName) -> float | None:
    """Bytes of a node's host memory by the copies of the model that a rehearsal counted in a phase; None without."""
    copies = {name: first + (cluster.instance.gpus - 1) * further for name, first, further in job.overheads.host_copies}
    return copies[phase] * _BYTES_FP32 * model.parameter_count if phase in copies else None


def _loaded_copies(model: Model, cluster: Cluster, processes: str) -> int:
    if not processes or (processes == "unsupported" and loads_with_smp_v2(model.family)):
        return 0
    return cluster.instance.gpus if processes == "each" else 1


def load_host_bytes(model: Model, cluster: Cluster, job: Job, layout: Layout) -> float:
    """Bytes of a node's host memory while weights are loaded: as a rehearsal counted, or by the exported script.

    A base that is quantized goes to the GPU value by value, from a file that is mapped: Linux drops its pages. A file
    of the type of the model is mapped, too (transformers 5.23, 2026-11-30), and one of another type is converted.
    """
    if (size := copied_bytes(model, cluster, job, "load")) is not None:
        return size
    state = layout.state_bytes
    copies = _loaded_copies(model, cluster, state.loaded_copies)
    bytes_ = copies * (state.parameter_bytes if state.frozen_bytes is None else state.frozen_bytes)
    if job.training == "dpo" and state.loaded_copies == "first":
        # TRL computes a checksum of the reference model, which every process has.
        bytes_ += cluster.instance.gpus * (2 if job.precision == "bf16" else 4)
    return bytes_ * model.parameter_count


def phases(
    model: Model, cluster: Cluster, job: Job, layout: Layout, *, steps: Phase, state_gib: float, update_gib: float
) -> tuple[Phase, ...]:
    """Peaks of all phases of a run, in their order.

    Parameters
    ----------
    steps
        Peaks of a step, which the cost model counts term by term.
    state_gib
        Parameters and context of a GPU between steps.
    update_gib
        Parameters, gradients, optimizer state and temporaries of the update.
    """
    saved = checkpoint_bytes(model, layout) / writing_nodes(cluster, layout) / GIB
    loaded, on_host = (
        max(float(start_gpu_bytes(model, layout)) / GIB, state_gib),
        load_host_bytes(model, cluster, job, layout),
    )
    start: PhaseName = "trace" if layout.traced_on_gpu else "load"
    copies_gib = (copied_bytes(model, cluster, job, "save") or 0.0) / GIB
    return (
        Phase(name=start, gpu_gib=loaded, host_gib_per_node=on_host / GIB),
        Phase(name="first update", gpu_gib=min(update_gib, steps.gpu_gib), host_gib_per_node=steps.host_gib_per_node),
        steps,
        Phase(
            name="save",
            gpu_gib=min(update_gib, steps.gpu_gib),
            host_gib_per_node=steps.host_gib_per_node + max(copies_gib, saved if job.overheads.asynchronous else 0.0),
            disk_gib_per_node=saved,
        ),
    )


def worst_phase(every: tuple[Phase, ...], usable_gib: float, host_gib: float) -> Phase:
    """Return the phase with the largest share of what a GPU or a host has; of equal ones, the steps."""
    limit = max(HOST_SHARE * host_gib, 1e-9)

    def share(phase: Phase) -> tuple[float, bool]:
        used = max(phase.gpu_gib / usable_gib, phase.host_gib_per_node / limit)
        return round(used, 6), phase.name == "steps"

    return max(every, key=share)


def phase_words(phase: Phase, usable_gib: float) -> str:
    """Return the need of a phase: "loading the quantized model on every GPU needs 40.1 of 39.4 GiB"."""
    return sentence("costs", f"phase_{phase.name.replace(' ', '_')}", needed=phase.gpu_gib, usable=usable_gib)
