"""Any line of a magic, message or trait of the page gives a result or one sentence, and damages no state."""

import os
from collections import Counter
from random import Random

import pytest
from IPython.core.error import UsageError

from smp_advisor.errors import AdvisorError
from smp_advisor.notebook import Advisor
from tests.steps import MOST_STEPS, Steps

from .notebook_points import NotebookPoints
from .test_public_calls import LONGEST_SENTENCE

SHARE = 0.3
"""Calls for each call of the public functions."""
EVERY = 100
"""Calls between two checks that the advisor still works."""


@pytest.fixture
def shell(monkeypatch, tmp_path, shell):
    """A shell in a folder with hostile files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "loop.json").symlink_to("loop.json")
    os.mkfifo(tmp_path / "pipe.py")
    return shell


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hostile_lines_and_messages_are_refused_in_one_sentence(request, shell, monkeypatch, capsys, tmp_path):
    seed = request.config.getoption("fuzz_seed")
    random = Random(seed)
    points = NotebookPoints(random, shell)
    sent: list[dict] = []
    monkeypatch.setattr(Advisor, "send", lambda _, content: sent.append(content))
    names, outcomes = list(points.calls), Counter[str]()
    files = sorted(path.name for path in tmp_path.iterdir())
    for number in range(int(request.config.getoption("fuzz_inputs") * SHARE)):
        name = random.choice(names)
        sent.clear()
        work = Steps()
        try:
            with work:
                points.calls[name]()
            points.settle()
            outcomes["result"] += 1
            sentences = [str(content.get("text") or content.get("problem") or "") for content in sent]
        except (UsageError, AdvisorError) as error:
            sentences = [str(error)]
            outcomes["sentence"] += 1
        except Exception as error:
            raise AssertionError(f"{name}, call {number}, seed {seed}: {error!r:.300}") from error
        assert all("\n" not in text and len(text) < LONGEST_SENTENCE for text in sentences), (name, number, sentences)
        assert work.count < MOST_STEPS, (name, number)
        assert number % EVERY or points.still_works(), (name, number)
        assert "Traceback" not in "".join(capsys.readouterr()), (name, number)
    assert outcomes["sentence"] > outcomes["result"] / 10
    assert files == sorted(path.name for path in tmp_path.iterdir())
