"""Generated scripts as jobs of a few processes over gloo, see `run_jobs.py`."""

import json
import re
from pathlib import Path

from tests.forked import run_forked

QUICK = {"learning_rate": 0.01, "warmup_steps": 1, "log_every": 1, "max_steps": 6}
"""Options of a job of a tiny model, whose loss falls in a few steps."""


def spec(script, place, options, *, processes=2, stand_in=None, environment=None, channels=None, **more):
    """One job for `run_jobs.py`: a script, its folder, its options and its channels by name."""
    paths = {f"SM_CHANNEL_{name.upper()}": str(path) for name, path in (channels or {}).items() if path}
    return {
        "script": str(script),
        "folder": str(place),
        "stand_in": stand_in and str(stand_in),
        "processes": processes,
        "environment": {"SM_MODEL_DIR": str(place)} | paths | (environment or {}),
        "options": [text for key, value in options.items() if value is not None for text in (f"--{key}", str(value))],
    } | more


def run_jobs(folder, specs):
    """Results of jobs by name. One child process runs them all, in order: they can build on each other."""
    (folder / "jobs.json").write_text(json.dumps(specs))
    run_forked(Path(__file__).with_name("run_jobs.py"), folder / "jobs.json", folder / "results.json", cwd=folder)
    return json.loads((folder / "results.json").read_text())


def losses_of(job):
    """Losses by step of a job that ended without an error."""
    assert job["error"] is None, job["error"][-3000:]
    lines = re.findall(r"^step (\d+)/\d+ loss (\S+)", job["printed"], re.MULTILINE)
    return {int(step): float(loss) for step, loss in lines}
