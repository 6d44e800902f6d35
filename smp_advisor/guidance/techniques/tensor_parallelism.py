"""Tensor parallelism inside the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.conclusion import Conclusion, why_not_used, why_used
from smp_advisor.guidance.what_if import vary, without
from smp_advisor.libraries.library import supported_families, supports_tensor_parallelism
from smp_advisor.wording import compared, duration, figures, fit, fits, listed, percent, step_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.planned_run import PlannedRun
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["comparisons", "conclude"]

_DOMINATED = 0.4
"""Share of the parameters in the vocabulary tables from which dividing them alone is an option."""


def comparisons(run: PlannedRun) -> dict[str, WhatIf]:
    """Degree 1 and half the degree if it is used; otherwise the powers of two within a node."""
    degree, per_node = run.plan.tensor_parallel_degree, run.cluster.instance.gpus
    if degree > 1:
        degrees = {1, degree // 2} if degree % 2 == 0 else {1}
    else:
        degrees = {2**k for k in range(1, per_node.bit_length())}
    change = without if degree > 1 else vary
    return {str(d): change(run, tensor_parallel_degree=d) for d in sorted(degrees) if d <= per_node}


def conclude(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    """Compare the plan's degree with others."""
    return (_used if run.plan.tensor_parallel_degree > 1 else _not_used)(run, comparisons, estimates)


def _used(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    degree, per_node = run.plan.tensor_parallel_degree, run.cluster.instance.gpus
    exchange = run.estimate.time.tensor_parallel_seconds
    sentences = [
        f"Each layer is divided over {degree} GPUs.",
        (
            f"The exchange of activations takes {duration(run.estimate, exchange)} of"
            f" {step_time(run.estimate)} per step."
        ),
    ]
    if not supports_tensor_parallelism(run.model.family, run.plan.library):
        sentences.append(
            f"This requires that the script registers a distributed form of {run.model.family}'s layers with"
            " smp.tp_register_with_module: the library does not divide them by itself."
        )
    if degree & (degree - 1):
        sentences.append(f"AWS advises against degrees that are not a power of two, such as {degree}.")
    if _crosses_nodes(run):
        sentences.append(
            f"The group is not within the {per_node} GPUs of a node. AWS advises to keep it inside, because the"
            " exchange otherwise crosses the network."
        )
    estimate = estimates.get("1")
    sentences.append(why_used(run, comparisons["1"], estimate))
    half = str(degree // 2)
    if half != "1" and half in estimates:
        sentences += [
            f"With half the degree{comparisons[half].aside}, the plan {compared(run.estimate, estimates[half])}.",
            f"It {fit(estimates[half], run.min_fit_probability)}.",
        ]
    sentences.append(_selected_modules(run))
    return Conclusion(
        decision="used",
        because=" ".join(sentences),
        figures=figures(run.estimate, estimate),
        alternative=comparisons["1"].plan if estimate else None,
    )


def _crosses_nodes(run: PlannedRun) -> bool:
    """Whether neighbors of a tensor-parallel group are on several nodes."""
    degree, per_node = run.plan.tensor_parallel_degree, run.cluster.instance.gpus
    stride = run.cluster.gpus // degree if run.plan.placement_strategy == "spread" else 1
    return degree * stride > per_node or per_node % (degree * stride) != 0


def _vocabulary_share(run: PlannedRun) -> float:
    model = run.model
    own_head = 0 if model.head.tied else model.head.parameters
    return (model.token_embedding_parameters + own_head) / model.parameter_count


def _selected_modules(run: PlannedRun) -> str:
    share = percent(_vocabulary_share(run))
    if _vocabulary_share(run) >= _DOMINATED:
        return (
            f"The vocabulary tables have {share} of the parameters. Dividing them alone (smp.set_tensor_parallelism on"
            " these modules) would divide most of the state with less exchange."
        )
    return f"All layers are divided, because no modules dominate: the vocabulary tables have {share} of the parameters."


def _not_used(run: PlannedRun, comparisons: Mapping[str, WhatIf], estimates: Mapping[str, Estimate]) -> Conclusion:
    family, library = run.model.family, run.plan.library
    if run.cluster.instance.gpus == 1:
        return Conclusion(
            decision="not possible",
            because=f"{run.cluster.instance.name} has one GPU per node, and tensor parallelism runs inside a node.",
        )
    if not supports_tensor_parallelism(family, library):
        families = ", ".join(supported_families("tensor_parallel", library))
        return Conclusion(
            decision="not possible",
            because=(
                f"The library divides the layers of {families} by itself, but not those of {family}: they stay"
                " undivided unless the script registers a distributed form with smp.tp_register_with_module."
            ),
        )
    possible = [degree for degree in comparisons if degree in estimates]
    if not possible:
        # A node with more than one GPU allows degree 2, so there is a comparison.
        first = next(iter(comparisons.values())).obstacle
        degrees = listed(list(comparisons))
        lead = f"None of the degrees within a node ({degrees}) is possible. " if len(comparisons) > 1 else ""
        return Conclusion(decision="not possible", because=lead + first)
    # The smallest degree that fits explains most; if the plan fits already or none does, the smallest there is.
    fitting = [] if run.fits else [d for d in possible if fits(estimates[d], run.min_fit_probability)]
    degree = (fitting or possible)[0]
    sentences = [why_not_used(run, comparisons[degree], estimates[degree], name=f"tensor_parallel_degree={degree}")]
    if _vocabulary_share(run) >= _DOMINATED:
        sentences.append(_selected_modules(run))
    return Conclusion(
        decision="not used",
        because=" ".join(sentences),
        figures=figures(estimates[degree], run.estimate),
        alternative=comparisons[degree].plan,
    )
