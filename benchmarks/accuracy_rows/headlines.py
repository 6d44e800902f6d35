"""Figures of the step time for users: sources that were left out of the fit, and users' code on AWS."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.costs.constants import constants
from smp_advisor.costs.evaluate import estimate
from smp_advisor.costs.uncertainty import step_time_factors
from smp_advisor.errors import AdvisorError

from .arithmetic import errors, rate
from .predict import step_time_doubt
from .spreads import coverage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .plans import Run
    from .sites import Linear
    from .spreads import Covered
    from .table import Row
    from .timed import Timed

    Floats = NDArray[np.float64]
    Chosen = NDArray[np.bool_]

__all__ = ["headlines"]

_FACTOR_OF_TWO = float(np.log(2))
_CAUSES = {
    "Host time of the modules of Megatron and SMP v1": {"time.module_seconds": 0.0},
    "Host time of FSDP per unit": {"time.unit_seconds": 0.0},
    "Host time of activation checkpointing": {"time.checkpoint_seconds": 0.0},
    "Launches of collectives": {"time.collective_launch_seconds": 0.0},
    "Coordination of hosts by SMP v1": {"time.host_floor_seconds": 0.0},
    "Slower hosts of older GPUs": {f"gpu.host_pace.{gpu}": 1.0 for gpu in ("V100", "T4", "A100", "A10G")},
    "Blocking copies of offloaded activations, instead of the full link": {"offload.blocking_gb_per_s": 52.0},
    "Optimizers that update one tensor after the other": {"time.optimizer_unfused": 1.0},
    "A kept copy of gradients that are accumulated": {"time.gradient_accumulation": 1.0},
}
"""Parts of the step time, with the constants that leave each out."""
_LEAST_EFFECT = 0.005


def headlines(point: Linear) -> dict[str, Any]:
    """Figures as plain data. Errors are natural logarithms of predicted over measured."""
    rows, runs = point.rows, point.runs_left_out()
    tuned, users = ~rows.users_code, rows.users_code
    covered, public = coverage(runs, tuned), rows.public()
    inside = covered.inside
    result: dict[str, Any] = {"left_out": {}, "users": {}, "residual": {}}
    if tuned.any():
        left = runs.errors
        result["left_out"] = {
            "all": _figures(left[tuned]),
            "public": _figures(left[tuned & public]),
            "private": _figures(left[tuned & ~public]),
            "each_source_once": _figures(_medians(left[tuned], rows.publications[tuned])),
            "after_one_run": _figures(point.after_one_run()),
            "within": asdict(rate(int(inside[tuned].sum()), int(tuned.sum()))),
            "sources": len(np.unique(rows.publications[tuned])),
            "width": float(np.median(covered.widths[tuned])),
            "score": float(np.mean(covered.scores[tuned])),
            "by_kind": _by(left, covered, tuned, rows.kinds()),
            "by_stack": _by(left, covered, tuned, rows.groups()),
            "by_source": _by(left, covered, tuned, rows.publications),
            "moved_by": point.moved_by(),
        }
        result["residual"] = {
            "all": _figures(point.errors[tuned]),
            "public": _figures(point.errors[tuned & public]),
            "private": _figures(point.errors[tuned & ~public]),
        }
    if users.any():
        result["users"] = _users(point, inside, public)
    result["causes"] = {name: _without(rows, values) for name, values in _CAUSES.items()}
    return result


def _without(rows: Timed, values: dict[str, float]) -> dict[str, Any]:
    """Errors without one part of the step time and with it, of the rows that it changes."""
    present = {name: constant.value for name, constant in constants().items()}
    shown, without = rows.errors(present), rows.errors(present | values)
    moved = np.abs(without - shown) > _LEAST_EFFECT
    return {"without": _figures(without[moved]), "with": _figures(shown[moved])} if moved.any() else {}


def users_group(row: Row) -> str:
    """Kind of users' code of a row of a run on AWS."""
    framework = row.text("framework")
    if "smp v1" in framework:
        return "SMP v1"
    if "fsdp" in framework:
        return "Hugging Face, FSDP, offload" if "activation" in row.text("offload") else "Hugging Face, FSDP"
    return "other"


def _users(point: Linear, inside: Chosen, public: Chosen) -> dict[str, Any]:
    rows, users, now = point.rows, point.rows.users_code, point.errors
    groups = np.array([users_group(row.row) for row in rows.rows])
    each = []
    for index in np.flatnonzero(users):
        scored = rows.rows[index]
        run = scored.run
        if run is None:
            continue
        low, high = step_time_factors(step_time_doubt(run.model, run.cluster, run.job, run.layout))
        each.append(
            {
                "id": scored.row.values.get("id", ""),
                "source": scored.row.values.get("source", ""),
                "group": str(groups[index]),
                "model": scored.row.values.get("model", ""),
                "gpus": f"{scored.row.text('gpus')} {scored.row.text('gpu')}",
                "public": run.plan is not None,
                "measured": scored.measured,
                "predicted": scored.predicted,
                "error": float(now[index]),
                "within": bool(low <= scored.measured / scored.predicted <= high),
                "cause": _cause(run) if abs(now[index]) > _FACTOR_OF_TWO else "",
            }
        )
    return {
        "all": _figures(now[users]),
        "public": _figures(now[users & public]),
        "private": _figures(now[users & ~public]),
        "within": asdict(rate(sum(bool(row["within"]) for row in each), len(each))),
        "within_source_left_out": asdict(rate(int(inside[users].sum()), int(users.sum()))),
        "by_group": {str(name): _figures(now[users & (groups == name)]) for name in np.unique(groups[users])},
        "each": each,
    }


def _cause(run: Run) -> str:
    """First sentence of the estimate that warns about the plan's time; empty without one."""
    if run.plan is None:
        return ""
    try:
        found = estimate(run.model, run.cluster, run.job, run.plan)
    except AdvisorError:
        return ""
    return next((text for text in found.assumptions if "unexplained" in text), "")


def _by(values: Floats, covered: Covered, chosen: Chosen, labels: NDArray[np.str_]) -> dict[str, Any]:
    return {
        str(name): {
            **_figures(values[chosen & (labels == name)]),
            "scatter": float(np.std(values[chosen & (labels == name)])),
            "within": float(covered.inside[chosen & (labels == name)].mean()),
            "width": float(np.median(covered.widths[chosen & (labels == name)])),
        }
        for name in np.unique(labels[chosen])
    }


def _medians(values: Floats, groups: NDArray[np.str_]) -> Floats:
    return np.array([np.median(values[groups == name]) for name in np.unique(groups)])


def _figures(values: Floats) -> dict[str, Any]:
    return asdict(errors([float(value) for value in values]))
