"""One process of a rehearsal: it becomes what a launcher would start, and runs the script."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import random
import re
import signal
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

import torch

from smp_advisor.rehearsal import libraries, loops, observation, process_group, processors
from smp_advisor.rehearsal.libraries.absent import EARLIER
from smp_advisor.rehearsal.libraries.rows import lines, tokenized
from smp_advisor.rehearsal.observer import OWN, Ended, NotRehearsed, Observer
from smp_advisor.sandbox.isolated import own_streams

_SEED = 1
_PAUSE_SECONDS = 0.02
_DUMPABLE = 4
_PASSING = re.compile(r"\boriginal\(|\bnext\(|\.wait\(|\braise\b|transforms?\(|\blayer\.")
"""Lines that hand arguments on: what fails in them fails in compiled code, or for the script's reason."""

_OF_CUTS = (IndexError, StopIteration, UnboundLocalError, ZeroDivisionError)
"""Errors of code that uses what all iterations would leave, where a loop or a loader ended after the first ones."""
_OF_DATA = re.compile(r"/datasets/\w+\.py$|/torch/utils/data/_utils/")
"""Files of libraries that call the script's functions of rows."""
_OBSERVING = frozenset({
    "described", "note_save", "figures_of", "digest_of", "_note", "_before", "_after", "finish", "put",
    "_parameters_of",
})  # fmt: skip
"""Functions that only look: what fails in them, at any depth, is no error of the script."""


def run(rank: int, events: int, log: int, shared: Any, values: dict[str, Any]) -> None:
    """Run the script to its end, and record how it ended; never returns.

    `values` are those of `stages.Stage.process`: options of the stage, variables, folder, script and arguments.
    """
    own_streams(log)
    os.dup2(events, 3)
    os.closerange(4, 1 << 16)
    ctypes.CDLL(None).prctl(_DUMPABLE, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every interpreter starts
    # The streams of the parent are closed, and their numbers belong to others soon.
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.Logger.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        # One without a stream yet, and one of a file, closes its own.
        if isinstance(handler, logging.StreamHandler) and handler.stream is not None:
            vars(handler)["stream"] = None if isinstance(handler, logging.FileHandler) else sys.stderr
    faulthandler.enable(file=2)
    code, script = Path(values["code"]), values["options"]["script"]
    os.environ.update(values["variables"])
    observer = Observer(rank, values["world"], 3, code, dict(values["options"]), shared)
    status = 1
    try:
        status = _script(observer, code, script, values)
    except BaseException as error:  # noqa: BLE001 - everything that a script raises is a result
        _note_error(observer, error)
        traceback.print_exc()
    finally:
        shared[rank] = 2
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        observer.put("end", status=status)
        while rank == 0 and not status and any(shared[peer] != 2 for peer in range(1, int(values["world"]))):
            time.sleep(_PAUSE_SECONDS)  # with a launcher, the store of the group outlives its first rank
        os._exit(status)


def _script(observer: Observer, code: Path, script: str, values: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    compiled = loops.install(observer)
    processors.install(observer)
    process_group.install(observer)
    observation.install(observer)
    libraries.install(observer, compiled)
    _define_names(observer)
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_SEED)
    os.chdir(code)
    path = str(code / script)
    parent = [] if values["is_started_as_module"] else [str(Path(path).parent)]
    sys.path[0:0] = [str(code), *parent] if observer.options["is_module"] else [*parent, str(code)]
    own = {file.stem for place in (Path(path).parent, code) for file in place.glob("*.py")} - sys.stdlib_module_names
    for name in [name for name in sys.modules if name.partition(".")[0] in own - {"torch", "numpy"}]:
        del sys.modules[name]  # a library that this process has, and the job has in no other place than the script's
    sys.argv = [path, *values["arguments"]]
    module = types.ModuleType("__main__")
    module.__file__ = path
    if observer.options["is_module"]:
        module.__package__ = ".".join(Path(script).parent.parts)
    sys.modules["__main__"] = module
    is_limited = False
    try:
        exec(compiled(Path(path).read_text("utf-8"), path), vars(module))  # noqa: S102 - what a rehearsal is for
    except Ended:
        is_limited = True
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    observer.options["training"].finish()
    observer.put("finished", limited=is_limited or observer.done)
    return 0


def _define_names(observer: Observer) -> None:
    """Give a fragment the names that it takes from elsewhere: tokenized rows, or a function that returns them."""
    import builtins

    for name, how in observer.options["names"].items():
        observer.stand_in(f"{name}, which the script does not define: tokenized rows")
        rows: Any = tokenized(one_label=observer.options["one_label"])
        if observer.options["needs_table"]:
            import datasets

            if observer.options.get("texts_needed"):
                rows = datasets.Dataset.from_dict({"text": lines()})
            else:
                table = {key: [row[key].tolist() for row in rows[:256]] for key in rows[0]}
                rows = datasets.Dataset.from_dict(table).with_format("torch")
        setattr(builtins, name, (lambda *_, _rows=rows, **__: _rows) if how == "call" else rows)


def _note_error(observer: Observer, error: BaseException) -> None:
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # which the script has shown, and left with a status
    frames = traceback.extract_tb(error.__traceback__)
    sites = [f"{f.filename[len(observer.code) :]}:{f.lineno}" for f in frames if f.filename.startswith(observer.code)]
    last = frames[-1] if frames else None
    site = sites[-1] if sites else ""
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(observer.code):
        site, last = f"{error.filename[len(observer.code) :]}:{error.lineno}", None
    # Whose error: the last frame of the user's code, and whether the deepest frame is ours or a library's.
    user = next((f for f in reversed(frames) if last and f.filename.startswith(observer.code)), None)
    is_own = bool(last and last.filename.startswith(OWN) and not _PASSING.search(last.line or ""))
    looks = any(f.filename.startswith(OWN) and f.name in _OBSERVING for f in frames)
    of_data = any(_OF_DATA.search(f.filename) for f in frames)
    owners, lacked = _owners(error, observer, site)
    imports = bool(user and last is not user and (user.line or "").lstrip().startswith(("import ", "from ")))
    observer.put(
        "error", name=type(error).__name__, text=" ".join(str(error).split())[:600], site=site,
        module=getattr(error, "name", None) if isinstance(error, ImportError) else None,
        of_library=last is not user, of_data=of_data, owners=owners, lacked=lacked,
        line=user.line if user else "",
        own=looks or is_own or isinstance(error, NotRehearsed), imports=imports,
        cut=observer.is_cut and last is user and isinstance(error, _OF_CUTS),
    )  # fmt: skip


def _owners(error: BaseException, observer: Observer, site: str) -> tuple[list[str], list[str]]:
    """Return the libraries to which a name that is missing can belong: of its object, its call, or what calls it.

    And the place and name of what is left out, since the version of the job has it. PyTorch calls what others define,
    and has their attributes: it is one of its own names only.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_script = [frame.f_code.co_filename.startswith(observer.code) for frame in frames]
    users = [frame for frame, is_user in zip(frames, is_of_script, strict=True) if is_user]
    called = re.match(r"(\w+)(?:\.\w+)*\(\) (?:got an unexpected keyword argument '(\w+)')?", str(error))
    names = {**users[-1].f_globals, **users[-1].f_locals} if users and called else {}
    thing, callee = getattr(error, "obj", None), names.get(called[1]) if called else None
    kinds = type(thing).__mro__ if isinstance(error, AttributeError) else ()
    homes = [str(getattr(sys.modules.get(kind.__module__), "__file__", "")) for kind in kinds]
    lacked: list[str] = []
    imported = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
    is_pinned = imported is not None and imported[2].partition(".")[0] in observer.options["differing"]
    if imported and is_pinned and (imported[1] in EARLIER or imported[1].startswith("is_")):
        lacked = [imported[2], imported[1]]
    elif called and called[2] and callee is not None and observer.job_has(callee, called[2]):
        lacked = [site, called[2]]
    elif isinstance(error, AttributeError) and kinds and observer.job_has(type(thing), str(error.name)):
        base = next(kind for kind, home in zip(kinds, homes, strict=True) if not home.startswith(observer.code))
        lacked = [f"{base.__module__}.{base.__name__}", str(error.name)]
    if homes and homes[0].startswith(observer.code) and is_of_script[-1:] == [True] and not lacked:
        kinds = ()  # an attribute that the script's own class lacks in its own line
    modules = [
        error.name if isinstance(error, ImportError) else None,
        thing.__name__ if isinstance(thing, types.ModuleType) else None,
        getattr(callee, "__module__", None),
        *(kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] != "torch"),
        *(name for frame in frames[-1:] if (name := str(frame.f_globals.get("__name__"))).partition(".")[0] != "torch"),
    ]
    roots = [str(name or "").partition(".")[0].replace("_", "-") for name in modules]
    return [root for root in dict.fromkeys(roots) if root], lacked
