"""Practice 7: batch and microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.guidance.amounts import batch_limit, global_batch
from smp_advisor.guidance.techniques.finding import Finding
from smp_advisor.guidance.what_if import WhatIf, vary
from smp_advisor.guidance.wording import compared, fit, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case

__all__ = ["ask", "find"]


def ask(case: Case) -> dict[str, WhatIf]:
    """Twice the batch, twice the microbatches, twice the active microbatches: each where it can be."""
    plan = case.plan
    result: dict[str, WhatIf] = {}
    if case.job.global_batch_size is None and not _beyond_limit(case):
        result["batch"] = vary(case, batch_size=2 * plan.batch_size)
    if plan.batch_size % (2 * plan.microbatches) == 0:
        more: dict[str, Any] = {"microbatches": 2 * plan.microbatches}
        # Held, so that microbatches alone change; the library's default would follow.
        if plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple":
            more["active_microbatches"] = plan.active_in_flight
        result["microbatches"] = vary(case, **more)
    if plan.pipeline_parallel_degree > 1 and plan.pipeline != "simple" and plan.active_in_flight < plan.microbatches:
        active = min(2 * plan.active_in_flight, plan.microbatches)
        result["active"] = vary(case, active_microbatches=active)
    return result


def _beyond_limit(case: Case) -> bool:
    return 2 * case.estimate.tokens_per_step > case.job.max_tokens_per_step


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Say what the batch is and what more of it would do."""
    plan, now = case.plan, case.estimate
    rounds = plural(plan.microbatches, "microbatch", "microbatches")
    size = plan.batch_size // plan.microbatches
    copies = case.replicas if plan.prescaled_batch else case.data_parallel_degree
    whole = global_batch(case.model, now)
    sentences = [
        (
            f"Each {_who(case)} is handed {plural(plan.batch_size, 'sample')} a step, in {rounds} of {size};"
            f" {f'{copies:,} of them make' if copies > 1 else 'that is'} a global batch of {whole}."
        )
    ]
    if plan.microbatches > 1:
        sentences.append(
            f"Every batch must be a multiple of {plan.microbatches}, the last one of an epoch included: drop it with"
            " drop_last=True."
        )
    for key, what in (
        ("batch", f"Twice the batch ({2 * plan.batch_size})"),
        ("microbatches", f"Twice the microbatches ({2 * plan.microbatches}, each half as large)"),
    ):
        if key in answers:
            sentences.append(_more(case, f"{what}{asked[key].aside}", answers[key]))
    if "active" in answers:
        plan_with = asked["active"].plan
        active = plan_with.active_in_flight if plan_with else None
        sentences.append(
            _more(case, f"{active} active microbatches instead of {plan.active_in_flight}", answers["active"])
        )
    if case.job.global_batch_size is not None:
        sentences.append("The global batch is the one that was asked for.")
    if case.job.global_batch_size is None and _beyond_limit(case):
        sentences.append(f"Twice the batch would exceed the limit of {batch_limit(case.model, case.job)} a step.")
    figures = (
        ("batch_size", str(plan.batch_size)),
        ("microbatches", str(plan.microbatches)),
        ("samples per microbatch", str(size)),
        ("microbatches in flight", str(now.microbatches_in_flight)),
        ("global batch", whole),
    )
    shown = next((asked[key].plan for key in ("batch", "microbatches", "active") if key in answers), None)
    return Finding(decision="used", because=" ".join(sentences), figures=figures, alternative=shown)


def _who(case: Case) -> str:
    """What `batch_size` is the batch of."""
    tp, pp = case.plan.tensor_parallel_degree, case.plan.pipeline_parallel_degree
    if case.plan.prescaled_batch and tp > 1:
        return f"model-parallel group of {tp * pp} GPUs" if pp > 1 else f"tensor-parallel group of {tp} GPUs"
    return f"pipeline of {pp} GPUs" if pp > 1 else "GPU"


def _more(case: Case, what: str, estimate: Estimate) -> str:
    return f"{what} {compared(case.estimate, estimate)}; it {fit(estimate, case.min_fit_probability)}."
