"""Results of a request: key figures in full, digests of all others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import smp_advisor as smpa

from .code import code_digest
from .requests import digest, estimated_model, make_cluster, make_job, make_model

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

__all__ = ["advice_result", "cell_result", "plan_result"]

Result = dict[str, Any]

_DECISIONS = {"used": "+", "not used": "-", "not possible": "/"}


def advice_result(request: dict[str, Any]) -> Result:
    """The recommendation for a request: its plan, figures, decisions, pitfalls, alternatives and cells."""
    try:
        advice = _advice(request)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the result
        return {"error": type(error).__name__}
    return {
        "plan": f"{advice.plan.library} {advice.plan.version}",
        **_settings(advice.plan),
        "cluster": f"{advice.cluster.nodes} x {advice.cluster.instance.name}",
        **_figures(advice.estimate),
        "rest": digest(_rest(advice.estimate)),
        "steps": " ".join(_DECISIONS[step.decision] + step.technique for step in advice.steps),
        "compared": digest([step.alternative and _settings(step.alternative) for step in advice.steps]),
        "pitfalls": " ".join(f"{pitfall.severity[0]}:{pitfall.id}" for pitfall in advice.pitfalls),
        "reference": None
        if advice.reference is None
        else [advice.reference.fits, _rounded(advice.reference.needed_gib, 9), len(advice.reference.differences)],
        "defaults": len(advice.defaults),
        "plans": [advice.plans_enumerated, advice.plans_scored, advice.plans_fit],
        "alternatives": _alternatives(advice.alternatives),
        "cells": " ".join(
            map(_cell, (lambda: advice.cell(sdk="v2"), lambda: advice.cell(sdk="v3"), advice.script_cell))
        ),
    }


def cell_result(request: dict[str, Any]) -> Result:
    """Digests of all cells of a recommendation, with options of the job."""
    try:
        advice = _advice(request)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the result
        return {"error": type(error).__name__}
    options = request["options"]
    return {
        "v2": _cell(lambda: advice.cell(sdk="v2", **options)),
        "v3": _cell(lambda: advice.cell(sdk="v3", **options)),
        "local": _cell(advice.local_cell),
        "monitoring": _cell(advice.monitoring_cell),
        "permissions": _cell(lambda: advice.permissions_cell(**options)),
        "quota": _cell(lambda: advice.quota_cell(**options)),
    }


def _advice(request: dict[str, Any]) -> smpa.Advice:
    model, shape = make_model(request["model"])
    return smpa.advise(model, make_cluster(request["cluster"]), **shape, **make_job(request["settings"]))


def plan_result(request: dict[str, Any]) -> Result:
    """The estimate of a plan, or at which step which error refuses it."""
    where = "plan"
    try:
        plan = smpa.Plan(**request["plan"])
        where = "job"
        job = smpa.Job(**request["job"])
        where = "estimate"
        value = smpa.estimate(estimated_model(request["model"]), make_cluster(request["cluster"]), job, plan)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the result
        return {"error": f"{where}: {type(error).__name__}"}
    return {**_figures(value), "rest": digest([_rest(value), _settings(plan)])}


def _cell(write: Callable[[], str]) -> str:
    """Digest of a cell, or the class of the error that refuses it."""
    try:
        return code_digest(write()) or "none"
    except smpa.errors.AdvisorError as error:
        return type(error).__name__


def _settings(plan: smpa.Plan) -> dict[str, Any]:
    return {"parameters": plan.parameters, "hyperparameters": plan.hyperparameters}


def _figures(value: smpa.Estimate) -> dict[str, Any]:
    """The figures that a record shows."""
    figures = {
        "peak_gib": value.memory.peak.total_gib,
        "needed_gib": value.needed_gib,
        "fit_probability": value.fit_probability,
        "step_seconds": value.step_seconds,
        "tokens_per_second": value.tokens_per_second,
        "usd_per_hour": value.usd_per_hour,
        "batch": value.global_batch_size,
    }
    return {name: _rounded(figure, 9) for name, figure in figures.items()}


def _rest(value: smpa.Estimate) -> list[object]:
    """Every other figure of an estimate. Seven digits: the order of a sum must not matter."""
    stages = [dataclasses.asdict(stage) for stage in value.memory.stages]
    figures = [
        value.usable_gpu_memory_gib,
        value.host_memory_gib_per_node,
        value.host_memory_fits,
        value.memory_error_gib,
        value.tokens_per_step,
        value.microbatches_in_flight,
        value.tflops_per_gpu,
        value.mfu,
        value.days,
        value.usd_total,
        *value.step_factors,
        len(value.assumptions),
    ]
    times = dataclasses.asdict(value.time)
    return [
        [{name: _rounded(figure, 7) for name, figure in stage.items()} for stage in stages],
        {name: _rounded(figure, 7) for name, figure in times.items()},
        [_rounded(figure, 7) for figure in figures],
    ]


def _alternatives(frame: pd.DataFrame) -> str:
    rows = frame.drop(columns="why").to_dict("records")
    return f"{len(rows)} {digest([{name: _rounded(cell, 7) for name, cell in row.items()} for row in rows])}"


def _rounded(figure: object, digits: int) -> object:
    """A number with so many significant digits; zero for what is left of a difference of equal numbers."""
    if hasattr(figure, "item"):
        figure = figure.item()
    if isinstance(figure, bool) or not isinstance(figure, float):
        return figure
    return 0.0 if abs(figure) < 1e-12 else float(f"{figure:.{digits}g}")
