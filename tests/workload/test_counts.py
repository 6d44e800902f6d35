"""Parameter counts as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.arguments import amount_of
from smp_advisor.errors import AdvisorError, ModelError
from smp_advisor.workload import format_count, parse_count


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("10B", 10**10),
        ("1.5b", 1_500_000_000),
        ("350M", 350_000_000),
        ("10_000_000_000", 10**10),
        ("10,000,000,000", 10**10),
        ("1.3 T", 1_300_000_000_000),
        (" 70 B ", 70 * 10**9),
        ("10e9", 10**10),
        (".5B", 500_000_000),
        (10e9, 10**10),
        (124_439_808, 124_439_808),
    ],
)
def test_reads_what_people_write(written, count):
    assert parse_count(written) == count


@pytest.mark.parametrize(
    "written",
    ["10Q", "", "-3B", "nan", "inf", "B", "1.5.2B", "ten", "1e99", 0, -1, float("nan"), float("inf"), True, None, [10]],
)
def test_says_what_would_work_instead(written):
    with pytest.raises(ModelError, match=r"'10B'.*not ") as caught:
        parse_count(written)
    assert str(caught.value).endswith(f"{written!r}.")


@given(st.integers(1, 10**15))
def test_what_is_shown_reads_back_as_nearly_the_same_count(count):
    assert parse_count(format_count(count)) == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(9_867_264_000, "9.87 B"), (999_600_000, "1 B"), (174.6e9, "175 B"), (1_008e9, "1.01 T"), (12, "12")],
)
def test_shows_three_digits(count, shown):
    assert format_count(count) == shown


@pytest.mark.parametrize(
    ("written", "amount"), [("300B", 3e11), ("1.4T", 1.4e12), ("2_000k", 2e6), (7, 7.0), ("0.5", 0.5), ("3e11", 3e11)]
)
def test_amounts_are_read_as_people_write_them(written, amount):
    assert amount_of("tokens", written) == amount


@pytest.mark.parametrize("wrong", ["", "many", "-3", -3, 0, "0", True, None, float("nan"), float("inf"), "1e99", [3]])
def test_what_is_no_amount_is_refused_with_its_name(wrong):
    with pytest.raises(AdvisorError, match="max_days must be a positive number, for example 30, not"):
        amount_of("max_days", wrong, "30")
