"""The user's source line in a log."""

from __future__ import annotations

import dataclasses
import sys

from smp_advisor.profiling.sandbox.failure import last_error_in_log

HEAD = "Traceback (most recent call last):"
LIBRARY = f'  File "{dataclasses.__file__}", line 433, in _create_fn'


def test_code_that_a_library_made_up_is_not_the_users():
    log = [HEAD, LIBRARY, '  File "<string>", line 0, in <module>', "KeyboardInterrupt"]
    assert last_error_in_log(log) is None
    mine = '  File "/home/me/train.py", line 7, in main'
    assert str(last_error_in_log([HEAD, mine, *log[1:]]).source_line) == "/home/me/train.py:7"


def test_a_program_given_as_text_is_the_users():
    error = last_error_in_log([HEAD, '  File "<string>", line 3, in <module>', "KeyError: 1"])
    assert (error.source_line.line, error.exception) == (3, "KeyError: 1")
    assert sys.executable not in str(error.source_line)
