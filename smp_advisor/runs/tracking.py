"""A watched run in MLflow: the prediction next to the measured metrics, in the run of the job or in one of its own.

usage: python -m smp_advisor.runs.tracking NAME, with the figures as JSON on standard input

The server is that of MLFLOW_TRACKING_URI. MLflow is imported in a child process only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from smp_advisor.runs.sources import child

if TYPE_CHECKING:
    from smp_advisor.runs.watching import Run

_EXPERIMENT, _OWN = "smp-advisor", "smp_advisor.watch"
_MOST = 1000
"""Metrics of one request (MLflow's REST API, Log Batch)."""


def track(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """Log what is new in a run, with the `state` of the last call; an ``error`` in its answer is one sentence."""
    estimate, measured = run.estimate, run.samples
    first = state.get("logged", 0)
    if not os.environ.get("MLFLOW_TRACKING_URI") or estimate is None or len(measured) <= first:
        return state
    predicted: dict[str, float] = {}
    for name, word in (("step_seconds", "seconds_per_step"), ("tokens_per_second", "tokens_per_second")):
        low, high = getattr(estimate, f"{name}_range")
        predicted |= {word: getattr(estimate, name), f"{word}_low": low, f"{word}_high": high}
    rows = [[number if s.step is None else s.step, s.value] for number, s in enumerate(measured[first:])]
    content = {"predicted": predicted, "measured": rows, "loss": run.steps.loss}
    answer = child(run.name, module="tracking", text=json.dumps(content))
    return {**state, **answer} if "error" in answer else {"logged": len(measured)}


def logged(name: str, content: dict[str, Any], mlflow: Any) -> None:
    """Log figures to the job's run of MLflow, whose script logs the measured ones, or to one of the advisor's own."""
    client, quoted, rows = mlflow.MlflowClient(), name.replace("'", ""), content["measured"]
    query = {"search_all_experiments": True, "filter_string": f"attributes.run_name = '{quoted}'", "max_results": 1}
    runs = mlflow.search_runs(**query, output_format="list")
    if not runs:
        experiment = mlflow.set_experiment(_EXPERIMENT)
        runs = [client.create_run(experiment.experiment_id, run_name=quoted, tags={_OWN: "true"})]
    last = rows[-1][0]
    figures = [(f"predicted_{key}", value, last) for key, value in content["predicted"].items()]
    if _OWN in runs[0].data.tags:
        figures += [("seconds_per_step", value, step) for step, value in rows]
        figures += [] if content["loss"] is None else [("loss", content["loss"], last)]
    metrics = [mlflow.entities.Metric(key, value, int(time.time() * 1000), step) for key, value, step in figures]
    for start in range(0, len(metrics), _MOST):
        client.log_batch(runs[0].info.run_id, metrics=metrics[start : start + _MOST])


def main(arguments: list[str]) -> int:
    """Log the figures, and print a JSON object; with ``error``, a sentence, if it cannot be done."""
    result = {}
    try:
        import mlflow

        logged(arguments[0], json.load(sys.stdin), mlflow)
    except ImportError:
        result = {"error": "MLflow is not installed here: run pip install mlflow, or unset MLFLOW_TRACKING_URI."}
    except Exception as error:  # noqa: BLE001 - the server's answer, whatever it is, must not end the watch
        result = {"error": f"MLflow did not take the figures. {' '.join(str(error).split()):.200}"}
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
