"""The command of ``python -m`` leaves the folder of its user, where Python would find a typing.py or json.py first.

Imported first by the package of the command. ``smp-advisor`` itself needs none of this.
"""

import os
import sys

COMMAND = "smp_advisor.command"


def leave_folder() -> None:
    """Take the present folder off the path of imports, if Python runs a command of the package with ``-m``."""
    if sys.argv[:1] != ["-m"] or not any(argument.endswith(COMMAND) for argument in sys.orig_argv):
        return
    try:
        here = os.path.realpath(".")
    except FileNotFoundError:  # the folder was deleted, which the command reports
        here = ""
    sys.path[:] = [place for place in sys.path if place and os.path.realpath(place) != here]


leave_folder()
