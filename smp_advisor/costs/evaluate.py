"""Evaluation of many plans as arrays, and of single plans as values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from smp_advisor.arguments.signatures import checked
from smp_advisor.core import GIB
from smp_advisor.core.elementwise import anywhere, largest, root, smallest
from smp_advisor.core.files import sentence
from smp_advisor.core.stopping import stop_if_nobody_waits
from smp_advisor.costs.activations import block_bytes
from smp_advisor.costs.communication import MOST_MEASURED, Group, is_first_generation
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.costs.constants import are_overridden, constant, peak_flops
from smp_advisor.costs.distinct import Distinct, distinct_memory, held, one
from smp_advisor.costs.effective_time import effective_time
from smp_advisor.costs.estimate import CATEGORIES, TIME_PARTS, Estimate, Memory, Phase, StageMemory, StepTime
from smp_advisor.costs.kernels import MOST_OF_PEAK
from smp_advisor.costs.learned import LearnedMemory, is_measured, learned_time, targets
from smp_advisor.costs.memory import (
    host_bytes,
    memory_error_squares,
    needed_bytes,
    pressure_factor,
    pressure_warning,
    stage_bytes,
)
from smp_advisor.costs.phases import (
    HOST_SHARE,
    copied_bytes,
    load_host_bytes,
    phase_words,
    phases,
    quantized_bytes,
    start_gpu_bytes,
    worst_phase,
)
from smp_advisor.costs.step_time import Step, step_of
from smp_advisor.costs.uncertainty import Doubt, has_runs, narrowed, plan_kinds, step_time_factors
from smp_advisor.costs.world import World, in_flight, stack_of, stage_kinds, stages, vocabulary_shards
from smp_advisor.libraries.groups import global_batch_size
from smp_advisor.libraries.layout import layout_of_plan
from smp_advisor.libraries.library import get_library, supports_tensor_parallelism
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.validation import check_against
from smp_advisor.libraries.version import installed_by
from smp_advisor.workload.model import Model, with_decoder
from smp_advisor.workload.stack import AUTO, stack, stack_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.cluster.table import Instance
    from smp_advisor.core.elementwise import Floats
    from smp_advisor.costs.distinct import One
    from smp_advisor.costs.world import Stage
    from smp_advisor.libraries.layout import Layout
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.workload.job import Job


@dataclass(frozen=True, kw_only=True)
class MemoryColumns:
    needed_bytes: NDArray[np.float64]
    """Required memory of the largest stage, without memory that the allocator can release."""
    margin: NDArray[np.float64]
    """Free memory in standard deviations of its error, for the stage with the least."""
    host_bytes_per_node: NDArray[np.float64]


_ROWS_AT_ONCE = 65_536
"""Rows of one evaluation. The temporary arrays of larger ones do not stay in the processor's cache."""


def _parts(layout: Layout) -> Iterator[tuple[int, slice | NDArray[np.intp], Layout]]:
    """Yield the rows that are computed together: (pipeline degree, rows, layout of the rows)."""
    stop_if_nobody_waits()
    if "parts" not in vars(layout):  # memory and time have the same
        vars(layout)["parts"] = [*_divided(layout)]
    yield from vars(layout)["parts"]


def _divided(layout: Layout) -> Iterator[tuple[int, slice | NDArray[np.intp], Layout]]:
    order = None
    starts = _changes(layout)
    if len(starts) > 2:
        # Sorting integers of 16 bits reads each byte once.
        order = np.argsort(layout.pipeline_parallel_degree.astype(np.uint16), kind="stable")
        layout = layout.take(order)
        starts = _changes(layout)
    for start, end in pairwise([*starts, len(layout)]):
        degree = int(layout.pipeline_parallel_degree[start])
        for first in range(start, end, _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, end))
            yield degree, rows if order is None else order[rows], layout.part(rows)


def _changes(layout: Layout) -> list[int]:
    """Return the rows with another pipeline degree than the row before, and the first row."""
    degrees = layout.pipeline_parallel_degree
    return [0, *(np.flatnonzero(degrees[1:] != degrees[:-1]) + 1).tolist()] if len(layout) else []


def kinds_bytes(
    model: Model, job: Job, layout: Layout, world: World, degree: int
) -> list[tuple[Stage, dict[str, Floats], Floats]]:
    """(stage, bytes by category, host bytes) of each kind of stage."""
    blocks = block_bytes(model, layout, world, job)
    return [
        (stage, stage_bytes(model, layout, world, stage, blocks), host_bytes(model, layout, world, stage))
        for stage in stage_kinds(model, degree)
    ]


_Kinds = list[tuple["Stage", "dict[str, Floats]", "Floats", "Floats", "Floats"]]


@lru_cache(maxsize=4096)
def _memory_of_one(model: Model, cluster: Cluster, job: Job, one: One, degree: int) -> tuple[_Kinds, Memory]:
    kinds = _judged(model, cluster, job, one.layout, one.world, degree)
    return kinds, _memory(model, degree, kinds)


def _judged(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, degree: int) -> _Kinds:
    """(stage, bytes by category, host bytes, needed bytes, one standard deviation of their error) of each kind."""
    shards, band = vocabulary_shards(model, layout), model.activation_band
    kinds = kinds_bytes(model, job, layout, world, degree)
    own = job.calibration
    learned = None if own is None else LearnedMemory.of(own, targets(model, cluster, job, layout))
    if learned is None:
        errors = [root(sum(memory_error_squares(by, shards, band).values(), 0.0)) for _, by, _ in kinds]
        return [(stage, by, h, needed_bytes(by), of) for (stage, by, h), of in zip(kinds, errors, strict=True)]
    corrected = [learned.of_stage(by, shards, band) for _, by, _ in kinds]
    return [(stage, by, h, needed, of) for (stage, _, h), (by, needed, of) in zip(kinds, corrected, strict=True)]


def trained(model: Model, job: Job) -> Model:
    """Return the model as the job trains it: with the job's adapter, if any, and the length of its decoder."""
    share = 1.0 if job.decoder_length is None else job.decoder_length / job.sequence_length
    model = with_decoder(model, share)
    return model if job.adapter is None else job.adapter.applied_to(model)


def memory_columns(model: Model, cluster: Cluster, job: Job, layout: Layout) -> MemoryColumns:
    model = trained(model, job)
    usable = cluster.instance.usable_gpu_memory_gib * GIB
    required, margin, host = (np.zeros(len(layout)) for _ in range(3))
    for degree, rows, part in _parts(layout):
        few = Distinct(part) if job.calibration is not None else distinct_memory(model, part, degree)
        kinds = _judged(model, cluster, job, few.layout, World.of(model, cluster, job, few.layout), degree)
        required[rows] = few.all_rows(largest([needed for *_, needed, _ in kinds]))
        margin[rows] = few.all_rows(smallest([(usable - needed) / error for *_, needed, error in kinds]))
        # A node may have several stages. Each of its GPUs is counted with the largest.
        host[rows] = few.all_rows(largest([h for _, _, h, *_ in kinds]) * cluster.instance.gpus)
    started, loaded_host = start_gpu_bytes(model, layout), load_host_bytes(model, cluster, job, layout)
    if anywhere(started > 0):
        required = np.maximum(required, started)
        margin = np.minimum(margin, (usable - started) / _start_error(started))
    host = np.maximum(host + (copied_bytes(model, cluster, job, "save") or 0.0), loaded_host)
    return MemoryColumns(needed_bytes=required, margin=margin, host_bytes_per_node=host)


def pressure_columns(model: Model, cluster: Cluster, job: Job, layout: Layout, needed: Floats) -> Floats:
    """Factors of the step times of n plans of a trained model near full memory, shape (n,).

    A measured step time has its own in it.
    """
    factor = pressure_factor(needed, cluster.instance.usable_gpu_memory_gib * GIB)
    if job.calibration is None or not np.size(needed):
        return factor
    return 1 + (factor - 1) * (1 - is_measured(job.calibration, model, cluster, job, layout))


_START_ERROR = 0.03


def _start_error(bytes_: Floats) -> Floats:
    """One standard deviation of the error of a loaded model, bytes: its tensors are known, the context less so."""
    return root((_START_ERROR * bytes_) ** 2 + (0.3 * GIB) ** 2)


def fit_probability(margin: float) -> float:
    """Probability that a plan fits, from its margin in standard deviations (normal error)."""
    return NormalDist().cdf(margin)


def seconds_columns(
    model: Model, cluster: Cluster, job: Job, layout: Layout, draws: tuple[int, ...] = ()
) -> dict[str, NDArray[np.float64]]:
    """Step time of n plans by part (the fields of `StepTime`), arrays of shape (n,).

    Free memory is assumed: `pressure_columns` has the time of the allocator near full memory. With `draws` ``(d,)``
    inside `overriding` with d draws of constants, the arrays have shape (d, n).
    """
    result = {name: np.zeros((*draws, len(layout))) for name in TIME_PARTS}
    model = trained(model, job)
    for degree, rows, part in _parts(layout):
        own = job.calibration
        factor = None if own is None else learned_time(own, model, cluster, job, part)[0]
        for name, values in step_of(model, cluster, job, part, None, degree).seconds.items():
            if type(values) is np.ndarray or values:
                result[name][..., rows] = values if factor is None else values * factor
    return result


def learned_width(model: Model, cluster: Cluster, job: Job, layout: Layout) -> NDArray[np.float64]:
    """Widths of the intervals of the logarithm of n step times, relative to those without measured runs, shape (n,)."""
    if job.calibration is None:
        return np.ones(len(layout))
    width = learned_time(job.calibration, trained(model, job), cluster, job, layout)[1]
    return np.broadcast_to(width, len(layout))


def doubt_of(model: Model, cluster: Cluster, job: Job, layout: Layout, world: World, step: Step) -> Doubt:
    seconds, total = step.seconds, float(sum(step.seconds.values()))
    exchanged = (
        (seconds["tensor_parallel_seconds"], world.data_parallel_degree // world.reduction_degree, world.tensor_stride),
        (seconds["data_parallel_seconds"], world.reduction_degree, world.data_stride),
    )
    across = in_node = 0.0
    for part, members, stride in exchanged:
        if bool(Group.of(cluster, members, stride).inside):
            in_node += float(part) / total
        else:
            across += float(part) / total
    # The job names its kernel of attention by its field, or by a kind of code that has only one.
    is_named = job.attention == "eager" or job.attention_kernel != "auto" or bool(stack_of(job, layout).implies)
    launched = ("passes", "optimizer_seconds")
    coordinated = sum(float(waiting) for part, waiting in step.of_host.items() if part not in launched)
    return Doubt(
        host=min(float(sum(step.of_host.values())) / total, 1.0),
        across_nodes=across,
        in_node=in_node,
        offloaded=bool(layout.offload_activations),
        extrapolated=coordinated / total * abs(math.log(model.layer_count / float(constant("time.host_floor_blocks")))),
        unmeasured=not has_runs(cluster.instance.gpu),
        kernel=0.0 if is_named else min(float(step.of_kernels["attention"]) / total, 1.0),
        code=job.stack == AUTO,
        fp8=min(float(step.of_kernels["products"]) / total, 1.0) if job.fp8 else 0.0,
        adapter=job.adapter is not None,
        experts=any(m.experts > 1 for group in model.groups for m in group.block.matmuls),
    )


def as_planned(job: Job, plan: Plan, model: Model) -> Job:
    """Return the job in the precision of a plan, if it names none, with the code that the model really runs."""
    if (kind := stack_on(job.stack, model.family)) != job.stack:
        job = replace(job, stack=kind)
    if job.precision == plan.precision or "precision" not in job.defaulted():
        return job
    return replace(job, precision=plan.precision)


@checked
def estimate(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Estimate:
    """Return the costs of one plan.

    Parameters
    ----------
    model, cluster, job
        What is trained, and where. `advise` returns an advice with these three as attributes.
    plan
        Any plan of any library: ``smp_advisor.Plan(library="fsdp", ...)``.

    Raises
    ------
    PlanError
        The plan does not match the cluster, the model or the job.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> model, cluster = smpa.Model.from_parameters("1.3B"), smpa.Cluster("ml.p4d.24xlarge", 1)
    >>> plan = smpa.Plan(library="fsdp", batch_size=4, activation_checkpointing="each")
    >>> smpa.estimate(model, cluster, smpa.Job(sequence_length=2048, precision="bf16"), plan).fits
    True
    """
    stop_if_nobody_waits()
    return (_estimate if are_overridden() else _kept_estimate)(model, cluster, job, plan)


def _estimate(model: Model, cluster: Cluster, job: Job, plan: Plan) -> Estimate:
    own_stack, job = job.stack, as_planned(job, plan, model)
    check_against(plan, cluster, model, job)
    # The layout of the plan, the model as trained, and the exchange between GPUs.
    layout = layout_of_plan(plan, job, cluster)
    degree = plan.pipeline_parallel_degree
    model = trained(model, job)
    world = World.of(model, cluster, job, layout)
    # Time, and how far each of its parts may be off.
    parts = step_of(model, cluster, job, layout, world, degree)
    seconds, doubt = parts.seconds, doubt_of(model, cluster, job, layout, world, parts)
    factors = step_time_factors(doubt)
    # A measured run corrects the time and narrows its interval.
    if job.calibration is not None:
        factor, width = learned_time(job.calibration, model, cluster, job, layout)
        seconds = {name: part * factor for name, part in seconds.items()}
        factors = narrowed(str(plan_kinds(layout, cluster)), stack_of(job, layout).name, float(width), doubt)
    # One rank that stands for all has closed sums; otherwise each kind of rank is judged.
    single = None if job.calibration is not None else one(layout, world, held(model, layout, degree))
    if single is not None:
        kinds, memory = _memory_of_one(model, cluster, job, single, degree)
    else:
        kinds = _judged(model, cluster, job, layout, world, degree)
        memory = _memory(model, degree, kinds)
    instance, usable = cluster.instance, cluster.instance.usable_gpu_memory_gib * GIB
    # The fullest rank decides, and a nearly full GPU also slows the allocator.
    needed = max(float(need) for *_, need, _ in kinds)
    pressure = float(np.ravel(pressure_columns(model, cluster, job, layout, np.array([needed])))[0])
    seconds["allocator_seconds"] = (pressure - 1) * sum(seconds.values())
    time = StepTime(**{name: float(part) for name, part in seconds.items()})
    margin, error = min(((usable - float(need)) / float(error), float(error)) for *_, need, error in kinds)
    host = max(float(h) for _, _, h, *_ in kinds) * instance.gpus
    # Loading and saving may need more than a step.
    every = _phases(model, cluster, job, layout, memory, needed, host)
    if started := float(start_gpu_bytes(model, layout)):
        needed, of_start = max(needed, started), float(_start_error(started))
        margin, error = min((margin, error), ((usable - started) / of_start, of_start))
    host = max(phase.host_gib_per_node for phase in every) * GIB
    # Throughput, and an interval that the hardware allows.
    batch, sequence = global_batch_size(plan, cluster), model.sequence_length(job.sequence_length)
    step = time.total_seconds
    per_gpu = model_flops_per_sample(model, sequence) * batch / step / cluster.gpus
    # No interval is faster than the hardware.
    least_flops = model_flops_per_sample(model, sequence, computed=True) * batch / cluster.gpus
    fastest = least_flops / (peak_flops(instance, job, products_of_weights=True) * step)
    factors = (max(factors[0], min(fastest / MOST_OF_PEAK, 1.0)), factors[1])
    steps = None if job.tokens is None else job.tokens / (batch * sequence)
    effective = effective_time(model, cluster, job, layout, step_seconds=step, steps=steps)
    return Estimate(
        plan=plan,
        memory=memory,
        phases=every,
        time=time,
        usable_gpu_memory_gib=instance.usable_gpu_memory_gib,
        needed_gib=needed / GIB,
        host_memory_gib_per_node=host / GIB,
        host_memory_fits=host <= HOST_SHARE * instance.host_memory_gib * GIB,
        fit_probability=fit_probability(margin),
        memory_error_gib=error / GIB,
        global_batch_size=batch,
        tokens_per_step=batch * sequence,
        microbatches_in_flight=int(in_flight(layout)),
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / peak_flops(instance, job),
        usd_per_hour=cluster.usd_per_hour,
        effective=effective,
        days=None if steps is None else steps * step / effective.share / 86_400,
        step_factors=factors,
        assumptions=(
            *_named_phase(every, instance),
            *_own_loading(model, layout, needed, instance),
            *([unreplaced(own_stack, model)] if own_stack != job.stack else []),
            *(pressure_warning(needed, usable) if pressure > 1 else ()),
            *communication_caveats(cluster, layout, world),
            *assumptions(model, plan, job),
        ),
    )


_kept_estimate = lru_cache(maxsize=1024)(_estimate)
"""Every surface of an advice shows the same few plans."""


_CATEGORY_BYTES = tuple((category, category.removesuffix("_gib")) for category in CATEGORIES)


def _memory(model: Model, degree: int, kinds: _Kinds) -> Memory:
    by_kind = {}
    for stage, by, _, needed, _ in kinds:
        shown = {name: float(value) for name, value in by.items()}
        reserved = shown.pop("allocator_reserve")
        shown["allocator_reserve"] = reserve = float(needed) - sum(shown.values())
        by_kind[stage.kind] = {category: shown[name] / GIB for category, name in _CATEGORY_BYTES}
        by_kind[stage.kind]["cached_gib"] = max(reserved - reserve, 0.0) / GIB
    return Memory(
        stages=tuple(
            StageMemory(stage=stage.index, layers=stage.layers, **by_kind[stage.kind])
            for stage in stages(model, degree)
        )
    )


def _phases(
    model: Model, cluster: Cluster, job: Job, layout: Layout, memory: Memory, needed_bytes_: float, host: float
) -> tuple[Phase, ...]:
    peak, state = memory.peak, layout.state_bytes
    state_gib = peak.parameters_gib + peak.context_gib
    updated = state_gib + peak.gradients_gib + peak.optimizer_state_gib + peak.fp32_copies_gib
    owned = peak.optimizer_state_gib / state.moment_bytes if state.moment_bytes else 0.0
    steps = Phase(name="steps", gpu_gib=needed_bytes_ / GIB, host_gib_per_node=host / GIB)
    update = updated + state.step_bytes * owned
    return phases(model, cluster, job, layout, steps=steps, state_gib=state_gib, update_gib=update)


def _named_phase(every: tuple[Phase, ...], instance: Instance) -> Iterator[str]:
    """Yield a sentence, if another phase than the steps needs the most."""
    worst = worst_phase(every, instance.usable_gpu_memory_gib, instance.host_memory_gib)
    if worst is every[0] and worst.gpu_gib > max(phase.gpu_gib for phase in every if phase.name == "steps"):
        words = phase_words(worst, instance.usable_gpu_memory_gib)
        yield f"{words[0].upper()}{words[1:]}, more than a step."


def _own_loading(model: Model, layout: Layout, needed_bytes_: float, instance: Instance) -> Iterator[str]:
    """Yield a sentence, if code that is not exported may need more to load a quantized base than for a step."""
    loaded, usable = quantized_bytes(model, layout), instance.usable_gpu_memory_gib
    if layout.shard_level >= 3 and not layout.state_bytes.loaded_entirely and loaded > max(needed_bytes_, usable * GIB):
        yield sentence("costs", "own_loading", needed=loaded / GIB, usable=usable)


def unreplaced(name: str, model: Model) -> str:
    """Return a sentence on a kind of code that changes nothing in a model's family."""
    return sentence("costs", "unreplaced", title=stack(name).title, family=model.family)


@lru_cache(maxsize=1024)
def assumptions(model: Model, plan: Plan, job: Job) -> tuple[str, ...]:
    """Assumptions of the plan's figures that no source confirms, one sentence each."""
    library, degree, exports = get_library(plan.library), plan.tensor_parallel_degree, job.stack == AUTO
    fusible = all(attention.fusible for group in model.groups for attention in group.block.attentions)
    divides = degree > 1 and model.head.per_token and bool(model.shape.vocab)
    piped = plan.pipeline_parallel_degree > 1
    unfused = job.attention == "fused" and not fusible and degree == 1
    installed = installed_by(plan.library, model.family, plan.version).transformers_version if unfused else ""
    holds = {
        "inferred": model.origin == "inferred",
        "exported": exports,
        "eager": exports and job.attention == "eager" and library.default_attention == "fused",
        "decoder": model.has_decoder and job.decoder_length is None,
        "padded_decoder": model.has_decoder and exports and job.decoder_length not in (None, job.sequence_length),
        "paged": job.paged_optimizer,
        "undistributed": degree > 1 and not supports_tensor_parallelism(model.family, plan.library),
        "unfused": unfused,
        "whole_vocabulary": divides and model.shape.vocab % degree != 0,
        "divided_vocabulary": divides and model.shape.vocab % degree == 0,
        "in_flight": piped,
        "tied": piped and model.head.tied,
    }
    code = f"transformers {installed}, which the generated script installs," if installed else "its code"
    values = {"model": model, "plan": plan, "title": stack(library.stack).title, "code": code}
    sentences = [sentence("costs", key, **values) for key, applies in holds.items() if applies]
    own = job.calibration
    runs = sentence("costs", "no_run") if own is None else sentence("costs", "own_runs", count=len(own.runs))
    return (*sentences, *schema(plan.library).assumptions_of(plan), sentence("costs", "calibrated", runs=runs))


_PRODUCTION_GPUS = 128
"""GPUs of the smallest production run that took longer than predicted."""


def communication_caveats(cluster: Cluster, layout: Layout, world: World) -> Iterator[str]:
    """Yield the sentences about the communication of one plan across nodes that no measurement confirms."""
    shards, sharded = int(world.shards), int(layout.shard_level) > 0
    if cluster.nodes == 1 or not sharded or shards <= cluster.gpus_per_node:
        return
    yield sentence("costs", "reduce_scatter" if cluster.instance.efa else "without_efa")
    if is_first_generation(cluster):
        yield sentence("costs", "first_generation", machine=cluster.instance)
        if int(layout.shard_level) >= 3 and shards >= _PRODUCTION_GPUS:
            yield sentence("costs", "production")
    if shards > MOST_MEASURED:
        yield sentence("costs", "extrapolated", most=MOST_MEASURED, shards=shards)
