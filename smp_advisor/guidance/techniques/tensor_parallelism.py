"""Practice 4: tensor parallelism inside the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.guidance.techniques.finding import Finding, why_not_used, why_used
from smp_advisor.guidance.what_if import vary
from smp_advisor.guidance.wording import compared, figures, fit, fits, listed, percent, seconds
from smp_advisor.libraries.families import supports_tensor_parallelism, tensor_parallel_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.guidance.case import Case
    from smp_advisor.guidance.what_if import WhatIf

__all__ = ["ask", "find"]

_DOMINATED = 0.4
"""Share of the parameters in the vocabulary tables from which dividing them alone is worth a thought."""


def ask(case: Case) -> dict[str, WhatIf]:
    """Degree 1 and half the degree where it is used; the powers of two within a node where it is not."""
    degree = case.plan.tensor_parallel_degree
    if degree > 1:
        tried = {1, degree // 2} if degree % 2 == 0 else {1}
    else:
        tried = {2**k for k in range(1, case.cluster.instance.gpus.bit_length())}
    return {str(d): vary(case, tensor_parallel_degree=d) for d in sorted(tried) if d <= case.cluster.instance.gpus}


def find(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    """Compare the plan's degree with others."""
    return (_used if case.plan.tensor_parallel_degree > 1 else _not_used)(case, asked, answers)


def _used(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    degree, per_node = case.plan.tensor_parallel_degree, case.cluster.instance.gpus
    exchange = case.estimate.time.tensor_parallel_seconds
    sentences = [
        (
            f"Each layer is divided over {degree} GPUs; the exchange of activations takes {seconds(exchange)} of the"
            f" {seconds(case.estimate.step_seconds)} of a step."
        )
    ]
    if not supports_tensor_parallelism(case.model.family):
        sentences.append(
            f"That holds only if the script registers a distributed form of {case.model.family}'s layers with"
            " smp.tp_register_with_module: the library does not divide them by itself."
        )
    if degree & (degree - 1):
        sentences.append(f"AWS advises against degrees that are no power of two, such as {degree}.")
    if _crosses_nodes(case):
        sentences.append(
            f"The group does not stay within the {per_node} GPUs of a node: AWS advises to keep it inside,"
            " because the exchange then crosses the network."
        )
    sentences.append(why_used(case, asked["1"], answers.get("1")))
    half = str(degree // 2)
    if half != "1" and half in answers:
        one = answers[half]
        sentences.append(
            f"Half the degree{asked[half].aside} {compared(case.estimate, one)}; it"
            f" {fit(one, case.min_fit_probability)}."
        )
    sentences.append(_selected_modules(case))
    estimate = answers.get("1")
    return Finding(
        decision="used",
        because=" ".join(sentences),
        figures=figures(case.estimate, estimate),
        alternative=asked["1"].plan if estimate else None,
    )


def _crosses_nodes(case: Case) -> bool:
    """Whether neighbours of a tensor-parallel group lie on several nodes."""
    degree, per_node = case.plan.tensor_parallel_degree, case.cluster.instance.gpus
    stride = case.cluster.gpus // degree if case.plan.placement_strategy == "spread" else 1
    return degree * stride > per_node or per_node % (degree * stride) != 0


def _vocabulary_share(case: Case) -> float:
    model = case.model
    own_head = 0 if model.head.tied else model.head.parameters
    return (model.token_embedding_parameters + own_head) / model.parameter_count


def _selected_modules(case: Case) -> str:
    share = _vocabulary_share(case)
    if share >= _DOMINATED:
        return (
            f"The vocabulary tables hold {percent(share)} of the parameters: dividing them alone"
            " (smp.set_tensor_parallelism on these modules) would divide most of the state with less exchange."
        )
    return (
        f"All layers are divided rather than a few modules, because no few dominate: the vocabulary tables hold"
        f" {percent(share)} of the parameters."
    )


def _not_used(case: Case, asked: Mapping[str, WhatIf], answers: Mapping[str, Estimate]) -> Finding:
    family = case.model.family
    if case.cluster.instance.gpus == 1:
        return Finding(
            decision="not possible",
            because=f"{case.cluster.instance.name} has one GPU a node, and tensor parallelism belongs inside a node.",
        )
    if not supports_tensor_parallelism(family):
        known = ", ".join(tensor_parallel_families())
        return Finding(
            decision="not possible",
            because=(
                f"The library divides the layers of {known} by itself, not those of {family}: it would leave them whole"
                " unless the script registers a distributed form with smp.tp_register_with_module."
            ),
        )
    possible = [degree for degree in asked if degree in answers]
    if not possible:
        # A node with more than one GPU has room for degree 2, so something was asked.
        first = next(iter(asked.values())).obstacle
        degrees = listed(list(asked))
        lead = f"None of the degrees that fit into a node ({degrees}) is possible. " if len(asked) > 1 else ""
        return Finding(decision="not possible", because=lead + first)
    # The smallest degree that fits says most; where the plan fits already or none does, the smallest there is.
    fitting = [] if case.fits else [d for d in possible if fits(answers[d], case.min_fit_probability)]
    degree = (fitting or possible)[0]
    sentences = [why_not_used(case, asked[degree], answers[degree], name=f"tensor_parallel_degree={degree}")]
    if _vocabulary_share(case) >= _DOMINATED:
        sentences.append(_selected_modules(case))
    return Finding(
        decision="not used",
        because=" ".join(sentences),
        figures=figures(answers[degree], case.estimate),
        alternative=asked[degree].plan,
    )
