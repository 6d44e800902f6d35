"""A stand-in of MLflow's client with a file as its store: the calls that the advisor makes."""

import json
import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

entities = SimpleNamespace(Metric=namedtuple("Metric", "key value timestamp step"))  # noqa: PYI024


def _runs():
    file = Path(os.environ["MLFLOW_TRACKING_URI"])
    return json.loads(file.read_text()) if file.exists() else []


def _of(run):
    return SimpleNamespace(info=SimpleNamespace(run_id=run["name"]), data=SimpleNamespace(tags=run["tags"]))


def search_runs(*, search_all_experiments, filter_string, max_results, output_format):
    return [_of(run) for run in _runs() if filter_string == f"attributes.run_name = '{run['name']}'"]


def set_experiment(_):
    return SimpleNamespace(experiment_id="1")


class MlflowClient:
    """Runs in the JSON file of MLFLOW_TRACKING_URI."""

    def create_run(self, _, run_name, tags):
        run = {"name": run_name, "tags": tags, "metrics": {}}
        Path(os.environ["MLFLOW_TRACKING_URI"]).write_text(json.dumps([*_runs(), run]))
        return _of(run)

    def log_batch(self, run_id, metrics):
        runs = _runs()
        (run,) = [run for run in runs if run["name"] == run_id]
        for metric in metrics:
            run["metrics"].setdefault(metric.key, []).append([metric.step, metric.value])
        Path(os.environ["MLFLOW_TRACKING_URI"]).write_text(json.dumps(runs))
