"""Calling a function in a child process."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import ProfileError
from smp_advisor.sandbox import portable, supervisor
from smp_advisor.sandbox.failure import describe_exception, failed
from smp_advisor.sandbox.limits import Limits, apply
from smp_advisor.sandbox.supervisor import run_monitored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _present(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals that this system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


_FRESH = "from smp_advisor.sandbox.isolated import run_fresh; run_fresh()"
_OF_ANOTHER = """
import importlib.util, sys
folder = {!r}
places = {{"location": folder + "/__init__.py", "submodule_search_locations": [folder]}}
spec = importlib.util.spec_from_file_location("smp_advisor", **places)
sys.modules["smp_advisor"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["smp_advisor"])
"""
"""Loads this package alone into the interpreter of another environment."""
_OF_KERNEL = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")
_STACK_SIGNALS = _present("SIGUSR1", "SIGRTMIN")
"""Signals on which a child process writes its Python stack, and ends at its next instruction."""
_RESET_SIGNALS = _present("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_OBJECTS_PER_COLLECTION = 20_000
_shared: list[bool] = []


def share_interpreter(*, shared: bool = True) -> None:
    """Have functions that are named by text run in forks of this process instead of fresh interpreters.

    For many calls of a process that has imported PyTorch, such as a session of tests: each fresh interpreter would
    import it again.
    """
    _shared[:] = [shared]


def run_isolated(
    target: Callable[..., Any] | str, *arguments: Any, what: str = "the profile", limits: Limits | None = None,
    environment: Mapping[str, str] | None = None, interpreter: str | None = None,
    on_line: Callable[[str], None] | None = None, on_progress: Callable[[float, float, str], None] | None = None,
) -> Any:  # fmt: skip
    """Call a function in a child process that cannot harm this one, and return its result, which must be plain data.

    The child of a function is a fork, which works on copies of this process's objects without pickling, so classes
    defined in a notebook work. That of ``"package.module:function"`` is a fresh interpreter, which receives the
    arguments as JSON: this process needs no additional imports, and may have used the GPU; `environment` are its
    variables, and `interpreter` is a Python of another environment, with its libraries. `on_line` and
    `on_progress` are called with each line that the child writes, and with each report by
    `progress`. If it fails, a `ProfileError` has the cause and the user's source line.
    """
    bounds = limits or Limits()
    bounds = replace(bounds, memory_bytes=bounds.resolved_memory_bytes())
    if portable.is_needed():
        if interpreter is not None:
            raise ProfileError("Another environment runs on Linux only: leave out environment=.")
        report = portable.run_spawned(
            target, arguments, bounds, {**os.environ, **(environment or {}), **_ONE_THREAD}, on_line, on_progress
        )
        if report.has_result and report.end.get("breach") is None:
            return report.result
        raise failed(what, report, bounds)
    request = ""
    if isinstance(target, str) and True in _shared and interpreter is None:
        target, arguments = _imported(target), tuple(json.loads(json.dumps(arguments)))
    elif isinstance(target, str):
        values = {"target": target, "arguments": arguments, "limits": asdict(bounds)}
        values["path"] = sys.path if interpreter is None else []
        request = json.dumps(values)

    def start(log: int, messages: int) -> None:
        if isinstance(target, str):
            _exec_fresh(request, log, messages, os.environ if environment is None else environment, interpreter)
        else:
            _run_forked(target, arguments, bounds, log)

    forked = not isinstance(target, str)
    report = run_monitored(
        start, bounds, forked=forked, stack_signals=_STACK_SIGNALS, on_line=on_line, on_progress=on_progress
    )
    if report.has_result and report.end.get("breach") is None:
        return report.result
    raise failed(what, report, bounds)


def _exec_fresh(request: str, log: int, messages: int, variables: Mapping[str, str], interpreter: str | None) -> None:
    """Replace this process by a fresh interpreter that executes the request."""
    _redirect(log)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.write(request)
        file.flush()
        file.seek(0)
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003
        os.set_inheritable(messages, True)  # noqa: FBT003
        environment = {**variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **_ONE_THREAD}
        code, python = _FRESH, sys.executable
        if interpreter is not None:
            code, python = _OF_ANOTHER.format(str(Path(__file__).parents[1])) + _FRESH, interpreter
            environment = {name: value for name, value in environment.items() if name not in _OF_KERNEL}
        os.execve(python, [python, "-P", "-c", code, str(messages), str(file.fileno())], environment)  # noqa: S606


def _redirect(log: int) -> None:
    """Redirect standard input from the null device, and standard output and error to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def own_streams(log: int) -> None:
    """Have this fork read from the null device and write to the log, not through the streams of its parent."""
    _redirect(log)
    # Those of a kernel would send to the notebook through sockets that belong to the kernel.
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 (stays open to the end)
    writes: dict[str, Any] = {"mode": "w", "buffering": 1, "closefd": False, "errors": "replace", "encoding": "utf-8"}
    sys.stdout = sys.__stdout__ = open(1, **writes)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, **writes)  # type: ignore[misc]  # noqa: SIM115


def _run_forked(function: Callable[..., Any], arguments: tuple[Any, ...], bounds: Limits, log: int) -> None:
    """Call a function with the kernel's objects in this forked process."""
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    own_streams(log)
    # Work on models creates many objects and few cycles, and a collection would copy the kernel's pages.
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    os.environ |= _ONE_THREAD
    if "torch" in sys.modules:
        # The kernel's thread pool is not forked, so waiting for it would never end.
        sys.modules["torch"].set_num_threads(1)
    _work(lambda: function(*arguments), bounds)


def _work(function: Callable[[], Any], bounds: Limits) -> None:
    faulthandler.enable(file=2, all_threads=False)
    asks, ends = _STACK_SIGNALS
    signal.signal(ends, _end)
    faulthandler.register(asks, file=2, all_threads=False)
    apply(bounds)
    try:
        message = {"result": function()}
        json.dumps(message)
    except BaseException as error:  # noqa: BLE001 (every exception of the user's code is reported)
        message = {"failure": describe_exception(error)}
        for number in _STACK_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the message contains its lines
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    supervisor.send(message)


def _end(*_: object) -> None:
    """End after the stack is written; the lines of an exception on its way out are no longer on it."""
    if (error := sys.exception()) is not None:
        supervisor.send({"failure": describe_exception(error)})
    os._exit(1)


def run_fresh() -> None:
    """Entry point of a fresh interpreter; its arguments are the descriptors of the channel and of a JSON request."""
    messages, request_file = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(messages, False)  # noqa: FBT003
    supervisor.open_channel(messages)
    with open(request_file, encoding="utf-8") as file:
        request = json.load(file)
    sys.path[:0] = [path for path in request["path"] if path not in sys.path]
    _work(lambda: _imported(request["target"])(*request["arguments"]), Limits(**request["limits"]))
    os._exit(0)


def _imported(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
