"""Adapted scripts run: on a CPU, with a stand-in for the library that refuses what the documentation forbids."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.adapt.conftest import LOOPS, PLANS, REFUSED, adapt

pytestmark = pytest.mark.slow

# bf16 plans need inputs in bfloat16, which a stand-in on a CPU does not cast.
RUNS = [(loop, name) for loop in LOOPS for name in ("pipeline", "tensor_fp16") if (loop.stem, name) not in REFUSED]
RUNS += [(loop, "data") for loop in LOOPS[::3]]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    runs = {}
    for loop, name in RUNS:
        plan = PLANS[name]
        size = plan.pipeline_parallel_degree * plan.tensor_parallel_degree
        runs[f"{loop.stem}-{name}"] = {
            "source": adapt(loop, name).source,
            "world": 2 * size,
            "rank": 0,
            "parameters": plan.parameters,
        }
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "runs.json").write_text(json.dumps(runs))
    runner = Path(__file__).with_name("run_adapted.py")
    subprocess.run(
        [sys.executable, str(runner), str(folder / "runs.json"), str(folder / "results.json")],
        check=True,
        cwd=folder,
    )
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("run", [f"{loop.stem}-{name}" for loop, name in RUNS])
def test_an_adapted_loop_trains(run, results):
    result = results[run]
    assert result["error"] is None, result["error"]
    events = result["events"]
    names = [name for name, _ in events]
    assert names.index("init") < names.index("set_device") < names.index("DistributedModel") < names.index("step")
    assert names.count("DistributedModel") == names.count("DistributedOptimizer") == 1
    training = [details for name, details in events if name == "step" and "train" in details["function"]]
    assert len(training) >= 2
    assert all(math.isfinite(value) for details in training for value in details["outputs"])
    assert all(details["gradients"] for details in training)
    assert "backward" in names
    # After each training step, or each few where gradients are accumulated.
    assert names.count("optimizer.step") >= len(training) // 2 >= 1


def test_evaluation_runs_in_steps_without_gradients(results):
    for loop in ("epoch_helper", "evaluation_loop", "transformers_lm", "loader_in_helper", "classification"):
        events = results[f"{loop}-pipeline"]["events"]
        evaluated = [details for name, details in events if name == "step" and "eval" in details["function"]]
        assert evaluated, loop
        assert not any(details["gradients"] for details in evaluated), loop


def test_checkpoints_are_written_by_the_library(results):
    saved = {
        loop: next(details for name, details in results[f"{loop}-pipeline"]["events"] if name == "save_checkpoint")
        for loop in ("flat", "ddp", "trainer_class", "evaluation_loop")
    }
    assert saved["flat"] == {"tag": "model.pt", "partial": False, "content": None}
    assert saved["ddp"]["partial"] is False
    assert saved["trainer_class"]["partial"] is True
    assert saved["evaluation_loop"]["content"]["epoch"] == 0
