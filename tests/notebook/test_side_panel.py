"""The instances and libraries that the side panel offers are those of the tables: it needs no kernel for them."""

from __future__ import annotations

import json
from pathlib import Path

from smp_advisor.cluster.table import instances
from smp_advisor.libraries.library import libraries

CHOICES = Path(__file__).parents[2] / "js/src/lab/choices.json"


def described(instance) -> str:
    price = "no price known" if instance.usd_per_hour is None else f"${instance.usd_per_hour:,.2f} per hour"
    return f"{instance.gpus} × {instance.gpu_label}, {price}"


def test_the_choices_are_those_of_the_tables():
    expected = {
        "instances": [[instance.name, described(instance)] for instance in instances()],
        "libraries": [[library.name, library.title] for library in libraries()],
    }
    assert json.loads(CHOICES.read_text()) == expected, "write js/src/lab/choices.json anew with the expected value"
