"""Which line of a log is the user's own."""

from __future__ import annotations

import dataclasses
import sys

from smp_advisor.profiling.sandbox.place import trace_in_log

HEAD = "Traceback (most recent call last):"
LIBRARY = f'  File "{dataclasses.__file__}", line 433, in _create_fn'


def test_code_that_a_library_made_up_is_not_the_users():
    log = [HEAD, LIBRARY, '  File "<string>", line 0, in <module>', "KeyboardInterrupt"]
    assert trace_in_log(log) is None
    mine = '  File "/home/me/train.py", line 7, in main'
    assert str(trace_in_log([HEAD, mine, *log[1:]]).place) == "/home/me/train.py:7"


def test_a_program_given_as_text_is_the_users():
    found = trace_in_log([HEAD, '  File "<string>", line 3, in <module>', "KeyError: 1"])
    assert (found.place.line, found.exception) == (3, "KeyError: 1")
    assert sys.executable not in str(found.place)
