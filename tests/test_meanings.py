"""Unknown keywords and the ones that are meant."""

import pytest

import smp_advisor as smpa
from smp_advisor.arguments import meant
from smp_advisor.errors import AdvisorError


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("days", "max_days"),
        ("budget", "max_usd"),
        ("nodes", "instance_count"),
        ("instance_type", "cluster"),
        ("seq_len", "sequence_length"),
        ("dtype", "precision"),
        ("tp", "tensor_parallel_degree"),
        ("sequence_lenght", "sequence_length"),
        ("qqqqqq", ""),
    ],
)
def test_a_keyword_is_known_by_its_meaning_or_its_letters(name, keyword):
    keywords = {"max_days", "max_usd", "instance_count", "cluster", "sequence_length", "precision"}
    assert meant(name, keywords | {"tensor_parallel_degree"}) == keyword


@pytest.mark.parametrize(
    ("name", "keyword"), [("nodes", "instance_count"), ("seq_len", "sequence_length"), ("tp", "tensor_parallel_degree")]
)
def test_advise_suggests_the_keyword_that_is_meant(name, keyword):
    with pytest.raises(AdvisorError, match=rf"advise takes no setting '{name}'; did you mean {keyword}\?"):
        smpa.advise("10B", "ml.p4d.24xlarge", **{name: 4})


def test_check_estimator_suggests_the_keyword_that_is_meant():
    with pytest.raises(
        AdvisorError, match=r"check_estimator takes no argument 'instance_type'; did you mean cluster\?"
    ):
        smpa.check_estimator("", instance_type="ml.p4d.24xlarge")
