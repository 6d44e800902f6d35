"""Stop during the first call leaves every module complete: the next call works."""

import os
import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest

from smp_advisor.core.uninterrupted import uninterrupted

PACKAGE = Path(__file__).parents[1] / "smp_advisor"

FIRST_CALL = """
import os, signal, sys
import smp_advisor as smpa

class Stop:
    left = {os.environ["OF_NUMPY"], "numpy.random._generator", "pandas.core.frame", "smp_advisor.search.search"}
    def find_spec(self, name, path=None, target=None):
        if name in self.left:
            self.left.remove(name)
            os.kill(os.getpid(), signal.SIGINT)

# The tests' process may pass on another state.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
sys.meta_path.insert(0, Stop())
stopped = 0
while True:
    try:
        advice = smpa.advise("350M", "ml.p4d.24xlarge", library="ddp", sequence_length=512)
        rows = len(advice.alternatives)
        break
    except KeyboardInterrupt:
        stopped += 1
assert not Stop.left, Stop.left
print(stopped, rows > 0)
"""


def test_a_stop_in_the_imports_of_the_first_call_leaves_the_next_one_working():
    of_numpy = f"numpy.{'_core' if int(version('numpy').partition('.')[0]) > 1 else 'core'}.fromnumeric"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OF_NUMPY": of_numpy}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True, check=False
    )
    # The stops during the imports for `advise` are raised once, after all of them.
    assert done.stdout.split() == ["2", "True"], done.stderr


def test_interrupts_wait_for_the_block_in_the_main_thread_alone():
    done = []

    def block():
        with uninterrupted(), uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def work():
        with uninterrupted():
            done.append(threading.current_thread())

    done: list[threading.Thread] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [thread]
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
