"""``%smp_calibrate`` in a shell as IPython makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import smp_advisor as smpa
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.notebook.view_state import recommendation
from tests.runs.logs import exported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shell(advice: smpa.Advice, capsys: pytest.CaptureFixture[str]) -> Iterator[InteractiveShell]:
    """A shell in which the advice is displayed."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "smp_advisor")
    set_displayed_last(shell, Advisor(advice))
    capsys.readouterr()
    yield shell
    shell.run_line_magic("unload_ext", "smp_advisor")
    InteractiveShell.clear_instance()


def test_a_log_is_read_shown_saved_and_loaded(
    shell: InteractiveShell, advice: smpa.Advice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 1.4 * advice.estimate.step_seconds
    (tmp_path / "job.log").write_text(exported([40 * seconds, *[seconds] * 20]), "utf-8")
    saved = tmp_path / "calibration.json"
    advisor = shell.run_line_magic("smp_calibrate", f"{tmp_path}/job.log --save {saved}")
    assert isinstance(advisor, Advisor)
    shown = capsys.readouterr().out
    for text in ("20 of 21 values", "Dropped 1: warm-up", "Step time:", " -> ", "Calibrated with 1 run of yours"):
        assert text in shown
    assert advisor.advice.job.calibration == smpa.load_calibration(saved)
    (fact,) = [fact for fact in recommendation(advisor.advice)["facts"] if fact["label"] == "Calibration"]
    assert fact["text"].startswith("1 measured run; step time ")
    again = shell.run_line_magic("smp_calibrate", f"--load {saved} --peak-gib 30 --peak-kind reserved")
    assert len(again.advice.job.calibration.runs) == 2
    only = shell.run_line_magic("smp_calibrate", f"--load {saved}")
    assert only.advice.estimate == advisor.advice.estimate


def test_a_variable_is_a_log(shell: InteractiveShell, advice: smpa.Advice) -> None:
    shell.user_ns["lines"] = exported([3.0] * 9)
    assert shell.run_line_magic("smp_calibrate", "lines").advice.job.calibration.runs[0].step_seconds == 3.0


@pytest.mark.parametrize("line", ["", "missing.log", "--step-seconds fast", "--peak-gib 3 --out-of-memory", "--load x"])
def test_errors_are_one_sentence(shell: InteractiveShell, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        shell.run_line_magic("smp_calibrate", line)
    assert "\n" not in str(caught.value)


def test_the_summary_escapes_names(advice: smpa.Advice, tmp_path: Path) -> None:
    path = tmp_path / "<b>.log"
    path.write_text(exported([3.0] * 9), "utf-8")
    learned = advice.calibrate(path).learned
    assert learned is not None
    html = learned._repr_html_()
    assert "&lt;b&gt;.log" in html
    assert "<b>.log" not in html


def test_a_log_is_watched_next_to_the_plan_on_screen(
    shell: InteractiveShell, advice: smpa.Advice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(exported([advice.estimate.step_seconds] * 20) + "\n", "utf-8")
    run = shell.run_line_magic("smp_watch", f"{log} --plan")
    assert run.step == 20
    assert run.advice.plan == advice.plan
    assert "20 regular steps" in capsys.readouterr().out or run.steady_steps == 19
    with pytest.raises(UsageError, match="no training job can have this name"):
        shell.run_line_magic("smp_watch", f"{tmp_path}/none.log")


@pytest.mark.parametrize("answer", ["no", None])
def test_a_job_starts_only_after_its_price_was_answered_with_yes(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str | None
) -> None:
    def reply(_: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    started: list[object] = []
    monkeypatch.setattr("builtins.input", reply)
    monkeypatch.setattr("smp_advisor.runs.start.start_job", lambda *_, **more: started.append(more))
    if answer is None:
        with pytest.raises(UsageError, match="--yes"):
            shell.run_line_magic("smp_start", "")
    else:
        assert shell.run_line_magic("smp_start", "") is None
    assert "per hour" in capsys.readouterr().out
    assert started == []
