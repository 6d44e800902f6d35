"""Child processes as on systems without /proc, which the tests of other systems do not reach."""

import pytest

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import Limits, portable, run_isolated

WAIT = "[{}, __import__('signal').pause()]"
REPORT = "[print('one\\ntwo'), __import__('smp_advisor.sandbox').sandbox.progress(1, 2, 'half')]"
EVAL = "builtins:eval"


@pytest.mark.parametrize(
    ("target", "argument", "expected"),
    [
        (EVAL, REPORT, [None, None]),
        (sum, [1, 2], 3),
        (EVAL, "1/0", "failed.*: ZeroDivisionError: division by zero"),
        (int, "x", "failed.*: ValueError: invalid literal"),
        (EVAL, WAIT.format("b'x' * 2**29"), "needed more than the 0.25 GiB"),
        (EVAL, WAIT.format("print('x' * 2**17, flush=True)"), "wrote more than 0.0625 MiB"),
        ("os:_exit", 3, "exited with status 3"),
        (EVAL, "__import__('os').abort()", "crashed.*SIGABRT"),
    ],
)
def test_a_child_of_a_system_without_proc_ends_in_the_same_way(target, argument, expected, monkeypatch):
    monkeypatch.setattr(portable, "is_needed", lambda: True)
    lines, reports, limits = [], [], Limits(memory_bytes=2**28, output_bytes=2**16)
    options = {"limits": limits, "on_line": lines.append, "on_progress": lambda *report: reports.append(report)}
    if isinstance(expected, str):
        with pytest.raises(ProfileError, match=expected):
            run_isolated(target, argument, **options)
        return
    assert run_isolated(target, argument, **options) == expected
    assert (lines, reports) == ((["one", "two"], [(1, 2, "half")]) if argument is REPORT else ([], []))
