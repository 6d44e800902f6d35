"""Thirty questions get their right answers, over the protocol and on the command line."""

from __future__ import annotations

import pytest


@pytest.mark.slow
@pytest.mark.tools
@pytest.mark.torch
def test_every_question_is_answered(monkeypatch, capsys):
    from benchmarks.tool_tasks import main, tasks

    monkeypatch.setattr("sys.argv", ["tool_tasks.py"])
    status = main()
    output = capsys.readouterr().out
    assert status == 0, output
    assert output.count("  right  ") == len(tasks()) == 30
