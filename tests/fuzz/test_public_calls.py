"""Any argument of a public call gives a result or one sentence, with limited work.

``pytest tests/fuzz --fuzz-inputs 100000`` makes that many calls; the suite makes a small share of them.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from smp_advisor.errors import AdvisorError
from tests.steps import MOST_STEPS, Steps

from .entry_points import EntryPoints

LONGEST_SENTENCE = 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wrong_arguments_are_refused_in_one_sentence(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seed = request.config.getoption("fuzz_seed")
    random = Random(seed)
    entry_points = EntryPoints(random)
    names = list(entry_points.calls)
    outcomes: Counter[str] = Counter()
    for number in range(request.config.getoption("fuzz_inputs")):
        name = random.choice(names)
        work = Steps()
        try:
            with work:
                entry_points.calls[name]()
            outcomes["result"] += 1
        except AdvisorError as error:
            sentence = str(error)
            assert "\n" not in sentence or "log:" in sentence, (name, number, sentence)
            assert len(sentence) < LONGEST_SENTENCE, (name, number, sentence)
            outcomes["sentence"] += 1
        except Exception as error:
            raise AssertionError(f"{name}, call {number}, seed {seed}: {error!r:.300}") from error
        assert work.count < MOST_STEPS, (name, number)
    assert outcomes["sentence"] > outcomes["result"] / 10
    assert not any(tmp_path.iterdir())
