"""Random actions leave page, kernel, saved notebook and exported cell in agreement.

``pytest tests/browser/test_monkey.py --monkey-actions 1000 --monkey-seeds 3`` acts a thousand times with three seeds.
"""

from __future__ import annotations

import smp_advisor as smpa
from smp_advisor.advice.live import LiveAdvice

from .monkey import Monkey


def make_advice() -> LiveAdvice:
    return smpa.advise("10B", "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=512, tokens="20B")


def test_random_actions(host, request, monkey_seed):
    actions = request.config.getoption("monkey_actions")
    monkey = Monkey(host(make_advice()), make_advice, monkey_seed)
    monkey.act(actions)
    assert sum(monkey.done.values()) >= actions
