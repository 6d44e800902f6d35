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
    for name in ("step_seconds", "tokens_per_second"):
        word = name.replace("step_seconds", "seconds_per_step")
        low, high = getattr(estimate, f"{name}_range")
        predicted |= {word: getattr(estimate, name), f"{word}_low": low, f"{word}_high": high}
    content = {
        "id": state.get("id", ""),
        "predicted": {f"predicted_{name}": value for name, value in predicted.items()},
        "measured": [[sample.step, sample.value] for sample in measured[first:]],
        "loss": run.steps.loss,
    }
    answer = child(run.name, module="tracking", text=json.dumps(content))
    return {**state, **answer} if "error" in answer else {**answer, "logged": len(measured)}


def logged(name: str, content: dict[str, Any], client: Any, metric: Any) -> str:
    """Log figures to the job's run of MLflow, whose script logs the measured ones, or to one of the advisor's own."""
    tracked = client.get_run(content["id"]) if content["id"] else None
    if tracked is None:
        experiments = [entry.experiment_id for entry in client.search_experiments()]
        quoted = name.replace("'", "")
        tracked = next(iter(client.search_runs(experiments, f"attributes.run_name = '{quoted}'", max_results=1)), None)
    if tracked is None:
        experiment = client.get_experiment_by_name(_EXPERIMENT)
        number = client.create_experiment(_EXPERIMENT) if experiment is None else experiment.experiment_id
        tracked = client.create_run(number, run_name=name, tags={_OWN: "true"})
    now, rows = int(time.time() * 1000), content["measured"]
    steps = [number if step is None else step for number, (step, _) in enumerate(rows)]
    figures = [metric(key, value, now, steps[-1]) for key, value in content["predicted"].items()]
    if _OWN in tracked.data.tags:
        figures += [metric("seconds_per_step", value, now, step) for step, (_, value) in zip(steps, rows, strict=True)]
        figures += [] if content["loss"] is None else [metric("loss", content["loss"], now, steps[-1])]
    for start in range(0, len(figures), _MOST):
        client.log_batch(tracked.info.run_id, metrics=figures[start : start + _MOST])
    return str(tracked.info.run_id)


def main(arguments: list[str]) -> int:
    """Log the figures, and print the run's identity as JSON; with ``error``, a sentence, if it cannot be done."""
    try:
        import mlflow
        from mlflow.entities import Metric

        result = {"id": logged(arguments[0], json.load(sys.stdin), mlflow.MlflowClient(), Metric)}
    except ImportError:
        result = {"error": "MLflow is not installed here: run pip install mlflow, or unset MLFLOW_TRACKING_URI."}
    except Exception as error:  # noqa: BLE001 - the server's answer, whatever it is, must not end the watch
        result = {"error": f"MLflow did not take the figures. {' '.join(str(error).split()):.200}"}
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
