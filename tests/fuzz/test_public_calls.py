"""Any argument of a public call gives a result or one sentence, in limited time.

``pytest tests/fuzz --fuzz-inputs 100000`` makes that many calls; the suite makes a small share of them.
"""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest

from smp_advisor.errors import AdvisorError

from .entry_points import EntryPoints

SECONDS = 10
"""Far more than a call takes on a busy machine, and far less than one that is not bounded."""
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
        begun = time.process_time()
        try:
            entry_points.calls[name]()
            outcomes["result"] += 1
        except AdvisorError as error:
            sentence = str(error)
            assert "\n" not in sentence or "log:" in sentence, (name, number, sentence)
            assert len(sentence) < LONGEST_SENTENCE, (name, number, sentence)
            outcomes["sentence"] += 1
        except Exception as error:
            raise AssertionError(f"{name}, call {number}, seed {seed}: {error!r:.300}") from error
        assert time.process_time() - begun < SECONDS, (name, number)
    assert outcomes["sentence"] > outcomes["result"] / 10
    assert not any(tmp_path.iterdir())
