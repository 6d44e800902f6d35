"""Child processes as on systems without /proc, which the tests of other systems do not reach."""

from __future__ import annotations

import pytest

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import Limits, portable, run_isolated

WAIT = "[{}, __import__('signal').pause()]"
LIMITS = {"memory_bytes": 2**28, "output_bytes": 2**16}


@pytest.mark.parametrize(
    ("target", "argument", "expected"),
    [
        ("builtins:len", [1, 2], 2),
        (sum, [1, 2], 3),
        ("builtins:eval", "1/0", "failed.*: ZeroDivisionError: division by zero"),
        (int, "x", "failed.*: ValueError: invalid literal"),
        (sum, open, "takes|not iterable|cannot be copied"),
        ("builtins:eval", WAIT.format("b'x' * 2**29"), "needed more than the 0.25 GiB"),
        ("builtins:eval", WAIT.format("print('x' * 2**17, flush=True)"), "wrote more than 0.0625 MiB"),
        ("os:_exit", 3, "exited with status 3"),
        ("os:abort", None, "crashed.*SIGABRT"),
    ],
)
def test_a_child_of_a_system_without_proc_ends_in_the_same_way(target, argument, expected, monkeypatch):
    monkeypatch.setattr(portable, "is_needed", lambda: True)
    lines, arguments = [], () if argument is None else (argument,)
    if not isinstance(expected, str):
        assert run_isolated(target, *arguments, on_line=lines.append) == expected
        return
    with pytest.raises(ProfileError, match=expected) as failure:
        run_isolated(target, *arguments, limits=Limits(**LIMITS), on_line=lines.append)
    assert portable.NOTE in failure.value.log or expected.startswith(("wrote", "cannot"))


def test_its_lines_and_progress_arrive(monkeypatch):
    monkeypatch.setattr(portable, "is_needed", lambda: True)
    lines, reports = [], []
    work = "[print('one\\ntwo'), __import__('smp_advisor.sandbox').sandbox.progress(1, 2, 'half')]"
    options = {"on_line": lines.append, "on_progress": lambda *report: reports.append(report)}
    assert run_isolated("builtins:eval", work, **options) == [None, None]
    assert lines == ["one", "two"]
    assert reports == [(1, 2, "half")]
