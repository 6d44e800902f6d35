"""An advice is displayed as the widget, although the value knows nothing of it."""

from __future__ import annotations

import subprocess
import sys

from smp_advisor.advice import Advice
from smp_advisor.notebook import Advisor

CODE = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import smp_advisor, sys
printers = shell.display_formatter.ipython_display_formatter
assert "smp_advisor.notebook" not in sys.modules
from smp_advisor.advice import Advice
print(printers.lookup_by_type(Advice).__name__)
"""


def test_importing_the_package_in_ipython_registers_the_display(root):
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "_show_advice"


def test_an_advice_is_shown_once_as_the_widget(advice, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    import smp_advisor

    shown = []
    monkeypatch.setattr(Advisor, "show_now", lambda advisor: shown.append(advisor.advice))
    shell = InteractiveShell.instance()
    try:
        smp_advisor.load_ipython_extension(shell)
        assert shell.display_formatter.format(advice) == ({}, {})
    finally:
        InteractiveShell.clear_instance()
    assert shown == [advice]
    assert not hasattr(Advice, "_ipython_display_")
