"""An advice is displayed as the widget, although the value knows nothing of it."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import smp_advisor as smpa
from smp_advisor.advice import Advice
from smp_advisor.advice.live import LiveAdvice
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
    monkeypatch.setattr(Advisor, "show_now", lambda advisor: shown.extend([advisor]))
    shell = InteractiveShell.instance()
    try:
        smp_advisor.load_ipython_extension(shell)
        live = LiveAdvice(advice)
        for value in (advice, live, live):
            assert shell.display_formatter.format(value) == ({}, {})
    finally:
        InteractiveShell.clear_instance()
    assert shown[0].advice.recommended is advice
    # Displayed again, it is the same widget: a move in one output is one in all.
    assert shown[1] is shown[2]
    assert shown[1].advice is live
    assert not hasattr(Advice, "_ipython_display_")


def test_showing_an_advisor_again_takes_little_memory():
    def show() -> None:
        Advisor(smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, library="fsdp"))._repr_mimebundle_()

    show()  # imports and tables
    tracemalloc.start()
    try:
        show()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # ipywidgets holds every widget: 20 displays may take 50 MB.
    assert used < 2_500_000
