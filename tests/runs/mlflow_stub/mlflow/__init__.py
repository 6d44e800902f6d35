"""A stand-in of MLflow's client with a file as its store: the calls that the advisor makes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace


class MlflowClient:
    """Runs in the JSON file of MLFLOW_TRACKING_URI."""

    def __init__(self):
        self.file = Path(os.environ["MLFLOW_TRACKING_URI"])
        self.runs = json.loads(self.file.read_text()) if self.file.exists() else []

    def search_experiments(self):
        return []

    def get_experiment_by_name(self, _):
        return None

    def create_experiment(self, _):
        return "1"

    def search_runs(self, _, filter_string, max_results):
        found = [run for run in self.runs if filter_string == f"attributes.run_name = '{run['name']}'"]
        return [self.get_run(run["name"]) for run in found][:max_results]

    def get_run(self, run_id):
        (tags,) = [run["tags"] for run in self.runs if run["name"] == run_id]
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id), data=SimpleNamespace(tags=tags))

    def create_run(self, _, run_name, tags):
        self.runs.append({"name": run_name, "tags": tags, "metrics": {}})
        return self.get_run(run_name)

    def log_batch(self, run_id, metrics):
        (run,) = [run for run in self.runs if run["name"] == run_id]
        for metric in metrics:
            run["metrics"].setdefault(metric.key, []).append([metric.step, metric.value])
        self.file.write_text(json.dumps(self.runs))
