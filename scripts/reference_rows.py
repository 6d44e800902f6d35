"""Write docs/reference_rows.md: AWS's published configurations beside the advisor's own choices.

Run it with ``python scripts/reference_rows.py``; a test holds the page to what this prints.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import smp_advisor as smpa
from smp_advisor.guidance import reference_rows
from smp_advisor.guidance.reference_smp_v2 import reference_rows_smp_v2
from smp_advisor.guidance.wording import probability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.guidance import ReferenceRow

PAGE = Path(__file__).parents[1] / "docs" / "reference_rows.md"

HEAD = """# AWS's reference configurations and the advisor's own

The best-practices pages of SageMaker's model parallelism library publish three configurations of SMP v1 (GPT-2) and
three of SMP v2 (Llama 2). Here the cost model estimates each as published, with less sharding and without activation
checkpointing, and the advisor chooses for the same model and cluster, once with the same global batch and once with a
free one (at most 4 million tokens a step, 95 % fit probability). The peak counts the free blocks that PyTorch's
allocator keeps while there is room and gives back where there is none: a plan fits where what is needed does. Figures
are the cost model's: no measurement of these rows is published. `scripts/reference_rows.py` writes this page.
"""

COLUMNS = (
    "| | peak GiB | needed GiB | usable GiB | fits | probability | step s | samples/s | MFU |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(label: str, value: smpa.Estimate) -> str:
    peak, needed, usable = value.memory.peak.total_gib, value.needed_gib, value.usable_gpu_memory_gib
    return (
        f"| {label} "
        f"| {peak:.1f} | {needed:.1f} | {usable:.1f} | {'yes' if value.fits else 'no'} "
        f"| {probability(value.fit_probability)} | {value.step_seconds:.2f} "
        f"| {value.samples_per_second:,.0f} | {100 * value.mfu:.0f} % |"
    )


def words(plan: smpa.Plan) -> str:
    if plan.library == "smp-v2":
        return words_smp_v2(plan)
    named = {
        "tensor parallel": plan.tensor_parallel_degree,
        "pipeline parallel": plan.pipeline_parallel_degree,
        "sharded data parallel": plan.sharded_data_parallel_degree,
    }
    parts = [f"{name} {degree}" for name, degree in named.items() if degree > 1]
    parts += ["optimizer-state sharding"] if plan.shard_optimizer_state else []
    if plan.activation_checkpointing:
        parts.append(f"checkpointing `{plan.activation_checkpointing}`")
    parts += ["offloading"] if plan.offload_activations else []
    group = "tensor-parallel group" if plan.prescaled_batch else "GPU"
    parts.append(f"batch {plan.batch_size} a {group} in {plan.microbatches} microbatch(es)")
    if plan.pipeline_parallel_degree > 1:
        parts.append(f"{plan.active_in_flight} active")
    return ", ".join(parts)


def words_smp_v2(plan: smpa.Plan) -> str:
    parts = [f"shard degree {plan.hybrid_shard_degree}"]
    named = {"tensor parallel": plan.tensor_parallel_degree, "context parallel": plan.context_parallel_degree}
    parts += [f"{name} {degree}" for name, degree in named.items() if degree > 1]
    parts += ["checkpointing"] if plan.activation_checkpointing else []
    parts += ["offloading"] if plan.offload_activations else []
    steps = plan.gradient_accumulation_steps
    parts.append(f"batch {plan.batch_size}" + (f", accumulated {steps} times" if steps > 1 else ""))
    return ", ".join(parts)


def less_sharded(plan: smpa.Plan) -> tuple[str, smpa.Plan]:
    if plan.library == "smp-v2":
        half = plan.hybrid_shard_degree // 2
        return f"shard degree {half}", replace(plan, hybrid_shard_degree=half)
    return "without optimizer-state sharding", replace(plan, shard_optimizer_state=False)


def not_checkpointed(plan: smpa.Plan) -> smpa.Plan:
    if plan.library == "smp-v2":
        return replace(plan, activation_checkpointing=False, offload_activations=False, sm_activation_offloading=None)
    return replace(plan, activation_checkpointing=False)


def section(row: ReferenceRow) -> Iterator[str]:
    def costs(plan: smpa.Plan) -> smpa.Estimate:
        return smpa.estimate(row.model, row.cluster, row.job, plan)

    published = costs(row.plan)
    same_job = replace(row.job, global_batch_size=published.global_batch_size)
    library = row.plan.library
    same = smpa.advise(row.model, row.cluster, same_job, library=library)
    free = smpa.advise(row.model, row.cluster, row.job, library=library)
    yield f"## {row.name}\n" if library == "smp-v1" else f"## SMP v2, {row.name}\n"
    yield f"{row.cluster.summary}."
    yield f"Published: {words(row.plan)}; global batch {published.global_batch_size:,} samples.\n"
    yield from (f"- {sentence}" for sentence in row.assumed)
    yield f"\n{COLUMNS}"
    yield line("as published", published)
    label, less = less_sharded(row.plan)
    yield line(label, costs(less))
    yield line("without activation checkpointing", costs(not_checkpointed(row.plan)))
    yield line("advisor, same global batch", same.estimate)
    yield line(f"advisor, free batch ({free.estimate.global_batch_size:,} samples)", free.estimate)
    for title, advice in (("With the same global batch", same), ("With a free batch", free)):
        yield f"\n### {title} the advisor chooses: {words(advice.plan)}\n"
        yield f"{advice.because}\n"
        for one in advice.reference.differences:
            yield f"- **{one.setting}**: {one.reference} there, {one.recommended} here. {one.because}"


ROWS = (*reference_rows(), *reference_rows_smp_v2())


def page() -> str:
    return "\n".join([HEAD, *(text for row in ROWS for text in [*section(row), ""])])


def main() -> int:
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
