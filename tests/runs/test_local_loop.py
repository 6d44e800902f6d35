"""A run on this machine: start, watch from another object, stop. No mocks.

Its calibration and the next advice are those of `tests/browser/test_runs.py` and the notebook `watch_a_run`.
"""

import time

import pytest

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError, RunError

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_local_run_is_watched_and_stopped(advice, tmp_path):
    folder = tmp_path / "run"
    run = advice.start(local=True, folder=folder, steps=10_000)
    assert run.is_local
    assert not run.done
    while not run.source.state()["transitions"]:
        time.sleep(0.1)
    again = smpa.watch(folder)  # as another kernel does
    assert (again.advice.plan, again.total_steps) == (run.advice.plan, 10_000)
    run.stop()
    again.wait()
    assert again.last.status == run.poll().last.status == "Stopped"
    with pytest.raises(RunError, match="not an empty folder"):
        advice.start(local=True, folder=folder)
    for wrong in ({"steps": 0}, {"steps": True}, {"spot": True}):
        with pytest.raises(AdvisorError):
            advice.start(local=True, folder=tmp_path / "other", **wrong)
    assert not (tmp_path / "other").exists()


def test_one_process_trains_to_the_end_without_a_launcher(advice, tmp_path):
    run = advice.start(local=True, folder=tmp_path / "run", steps=2, processes=1)
    run.wait()
    assert (run.last.status, run.step) == ("Completed", 2), run.last.failure
