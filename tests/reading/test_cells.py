"""Cells are followed as they would run, and never run."""

import pytest

from smp_advisor import check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries import Plan
from tests.estimators import cells
from tests.estimators.cells import PARAMETERS, written

PLAN = Plan(pipeline_parallel_degree=2, microbatches=4, fp16=True, batch_size=4)


@pytest.mark.parametrize("name", cells.WAYS)
def test_dictionaries_are_followed_however_they_are_made(name):
    report = check_estimator(written(cells.WAYS[name]))
    assert report.plan == PLAN, report
    assert report.cluster == Cluster("ml.p4d.24xlarge", 2)
    assert all("memory is not checked" in note.what for note in report.unresolved)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"parameters = {PARAMETERS}\nparameters['microbatches'] = pieces", "pieces is set elsewhere"),
        (
            f"from mine import helper\nparameters = {PARAMETERS}\nparameters['microbatches'] = helper()",
            "mine.helper(...)",
        ),
        (
            f"import os\nparameters = {PARAMETERS}\nif os.environ.get('BIG'):\n    parameters['microbatches'] = 8",
            "it depends on `os.environ.get('BIG')`",
        ),
        ("parameters = load()", "load"),
        ("parameters = 'smp_config.json'", "they are in the file 'smp_config.json'"),
        (f"parameters = {PARAMETERS}\nfor n in range(size()):\n    parameters['microbatches'] = n", "in the loop"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(body, why):
    report = check_estimator(written(body))
    assert report.plan is None
    assert any(why in note.what for note in report.unresolved), report.unresolved
    assert not [one for one in report if one.id in {"EST501", "EST505"}]  # nothing is made of what is not seen


def test_what_a_cell_takes_and_gives():
    text = written(f"parameters = {PARAMETERS}") + "parameters['pipeline_parallel_degree'] = 8\n"
    assert check_estimator(text).plan == PLAN

    text = written(f"parameters = {PARAMETERS}\nparameters['microbatches'] = pieces")
    assert check_estimator(text, variables={"pieces": 4, "other": object()}).plan == PLAN

    inside = "\n".join(f"    {line}" for line in written(f"parameters = {PARAMETERS}").splitlines())
    assert check_estimator(f"def start(role):\n{inside}\n    return estimator\n").plan == PLAN
    guarded = f"class Job:\n  def start(self):\n{inside}\n\nif __name__ == '__main__':\n    Job().start()\n"
    assert check_estimator(guarded).plan == PLAN
    asked = inside.replace("'microbatches': 4", "'microbatches': m")
    report = check_estimator(f"def start(m):\n{asked}\n")
    assert report.plan is None
    assert "an argument of start" in report.unresolved[0].what


@pytest.mark.parametrize(
    "hostile",
    [
        "x = f'{1:999999999}'\n",
        "def f(n):\n    return f(n)\nx = f(1)\n",
        "while True:\n    x = 1\n",
        "x = 1 << 10 ** 9\n",
        "x = " + "(" * 150 + "1" + ")" * 150 + "\n",
    ],
)
def test_a_text_made_to_be_slow_is_read_quickly_or_refused(hostile):
    try:
        report = check_estimator(hostile + cells.V1)
    except AdvisorError:
        return
    assert report.plan is not None


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "ran"
    text = f"import os\nopen({str(mark)!r}, 'w')\nos.system('touch {mark}')\n__import__('os').mkdir({str(mark)!r})\n"
    assert check_estimator(text + cells.V1).plan is not None
    assert not mark.exists()
