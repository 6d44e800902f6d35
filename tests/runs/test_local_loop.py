"""The whole loop on this machine: start, watch from another object, calibrate, advise again. No mocks."""

from __future__ import annotations

import time

import pytest

import smp_advisor as smpa
from smp_advisor.errors import RunError

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_local_run_goes_from_advice_to_the_next_advice(advice, tmp_path):
    folder = tmp_path / "run"
    started = advice.start(local=True, folder=folder, steps=12)
    assert started.is_local
    assert not started.done
    again = smpa.watch(folder)  # as another kernel does
    assert again.advice is not None
    assert again.advice.plan == started.advice.plan
    heard = []
    again.wait(lambda run: heard.append(run.headline))
    assert again.last.status == "Completed", again.last.failure
    assert again.step == again.total_steps == 12
    assert again.log.title == "exported script"
    assert any("step " in line for line in heard)
    # Not run.calibrated(): how many of the steps are regular depends on what else the machine does.
    before, after = again.advice.estimate, again.advice.calibrate(again.log, accept=True).estimate
    assert after.step_seconds_range[1] / after.step_seconds_range[0] < (
        before.step_seconds_range[1] / before.step_seconds_range[0]
    )
    assert started.poll().done
    with pytest.raises(RunError, match="not an empty folder"):
        advice.start(local=True, folder=folder)


def test_a_local_run_can_be_stopped(advice, tmp_path):
    run = advice.start(local=True, folder=tmp_path / "run", steps=10_000)
    while not run.source.state()["transitions"]:
        time.sleep(0.1)
    run.stop()
    run.wait()
    assert run.last.status == "Stopped"


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": True}, {"spot": True}])
def test_wrong_options_start_nothing(advice, tmp_path, wrong):
    with pytest.raises(RunError):
        advice.start(local=True, folder=tmp_path / "run", **wrong)
