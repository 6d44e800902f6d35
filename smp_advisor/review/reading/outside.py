"""Code outside of the file: names of libraries, imports, and functions that other code calls."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from smp_advisor.core.files import folders_from
from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.module import parse
from smp_advisor.review.reading.run import Frame, Journal
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import (
    Argument,
    Collection,
    Constant,
    External,
    Function,
    Item,
    LocalModule,
    Mapping,
    Partial,
    Result,
    Scope,
    Unknown,
    Value,
    choice,
    options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smp_advisor.review.reading.module import Module
    from smp_advisor.review.reading.run import Run
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Class


_DATA = tomllib.loads((files("smp_advisor.review.reading") / "names.toml").read_text(encoding="utf-8"))
_PREFIXES: dict[str, str] = _DATA["prefixes"]
LAUNCHERS = frozenset(_DATA["functions"]["launchers"])
LAUNCHED = tuple(_DATA["functions"]["launched"])
COMMAND_LINES = frozenset(_DATA["functions"]["command_lines"])
COMMANDS = frozenset(_DATA["functions"]["commands"])
TRANSPARENT = frozenset(_DATA["functions"]["transparent"])
ITERATORS = frozenset(_DATA["functions"]["iterators"])
LEAVING = frozenset(_DATA["functions"]["leaving"])
NAMESPACES = frozenset(_DATA["functions"]["namespaces"])
LIBRARIES = frozenset(_DATA["functions"]["libraries"])
"""Packages whose names the checks know: a project that is one of them is not read."""


def canonical(path: str) -> str:
    """`path` by the name that the checks use: ``smdistributed.modelparallel.torch.step`` is ``smp.step``."""
    for prefix, name in _PREFIXES.items():
        if path.startswith(prefix) and (path == prefix or prefix.endswith(".") or path[len(prefix)] == "."):
            return name + path[len(prefix) :]
    return path


_MOST_MODULES = 60
_DEFINITION = re.compile(r"^(?:(?:async )?def|class)\s+(\w+)|^(\w+)\s*[:=]", re.MULTILINE)
_PUBLIC = re.compile(r"^__all__\s*=\s*[\[(]([^\])]*)", re.MULTILINE)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>[\w.]+)[ \t]+)?import[ \t]+(?P<names>\((?:[^()#]++|#.*+)*+\)|[\w., \t]+)",
    re.MULTILINE,
)


def bind_import(run: Run, frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    """Follow an import statement."""
    if run.reached and not run.doubts and not run.optional and not (run.functions and run.guards):
        run.trace.sure_imports.add(node)
    if isinstance(node, ast.Import):
        for alias in node.names:
            run.trace.imports.append((frame.module, node, alias.name))
            local = _load(run, frame, alias.name, node)
            first = alias.name.partition(".")[0]
            if alias.asname:
                run.bind(frame, alias.asname, local or External(canonical(alias.name)))
            else:
                plain = _load(run, frame, first, node) if "." in alias.name else local
                run.bind(frame, first, plain or External(canonical(first)))
        return
    base = "." * node.level + (node.module or "")
    for alias in node.names if not node.level else ():
        path = f"{node.module}.{alias.name}" if node.module else alias.name
        run.trace.imports.append((frame.module, node, path))
    if _waits(run, frame, base, node):
        frame.scope.deferred.append(_deferred(run, frame, base, node))
        return
    local = _load(run, frame, base, node)
    for alias in node.names:
        if alias.name == "*":
            _bind_all(run, frame, node, local)
            continue
        run.bind(frame, alias.asname or alias.name, _member(run, frame, base, alias.name, local, node))


def load_module(run: Run, frame: Frame, dotted: str, node: ast.expr) -> Value:
    """Return the module that an expression imports by its name."""
    return _load(run, frame, dotted, node) or External(canonical(dotted))


def _member(run: Run, frame: Frame, base: str, name: str, local: LocalModule | None, node: ast.stmt) -> Value:
    if local is not None and (member := local.module.scope.find(name)) is not None:
        return member
    inner = _load(run, frame, f"{base}.{name}" if base.strip(".") else base + name, node)
    outside = External(canonical(f"{base}.{name}"))
    missing = Unknown(f"{name} of {base} is not in the files next to this one")
    return inner or (missing if local is not None or base.startswith(".") else outside)


def _waits(run: Run, frame: Frame, base: str, node: ast.ImportFrom) -> bool:
    """Whether an import of a module is followed when a name is read: large packages import all that they have."""
    if frame.module.entry or frame.scope is not frame.module.scope or run.functions or run.guards or run.doubts:
        return False
    path = _path(run, frame.module, base)
    if path is None or path in run.modules:
        return False
    if path not in run.waiting:
        try:
            source = read(path)
        except AdvisorError:
            return False
        if not run.can_wait(source.text):
            return False
        run.waiting[path] = source
    return not _replaces(frame.scope, node, run.waiting[path].text)


def _replaces(scope: Scope, node: ast.ImportFrom, text: str) -> bool:
    """Return whether the import binds names that have a value already, which are read without the import."""
    names = {alias.asname or alias.name for alias in node.names}
    if "*" in names:
        public = _PUBLIC.search(text)
        if public is not None:
            names = set(re.findall(r"\w+", public[1]))
        else:
            names = {name for pair in _DEFINITION.findall(text) for name in pair if name[:1] not in ("", "_")}
    return not names.isdisjoint(scope.names)


def _deferred(run: Run, frame: Frame, base: str, node: ast.ImportFrom) -> Callable[[str], Value | None]:
    """Return the value of a name that the import binds."""
    names = {alias.asname or alias.name: alias.name for alias in node.names}
    path = _path(run, frame.module, base)
    text = run.waiting[path].text if path is not None else ""
    visited: set[str] = set()

    def value_of(name: str) -> Value | None:
        if name in visited:
            return None
        if "*" in names:
            if name.startswith("_") or not ("import *" in text or name in text):
                return None
        elif name not in names:
            return None
        visited.add(name)  # modules can import each other
        local = _load(run, frame, base, node)
        if "*" in names:
            return local.module.scope.find(name) if local is not None else None
        return _member(run, frame, base, names[name], local, node)

    return value_of


def _bind_all(run: Run, frame: Frame, node: ast.ImportFrom, local: LocalModule | None) -> None:
    if local is not None:
        for name, value in local.module.scope.names.items():
            if not name.startswith("_"):
                run.bind(frame, name, value)
        if local.module.scope.deferred:
            frame.scope.deferred.append(lambda name: None if name.startswith("_") else local.module.scope.find(name))
        return
    what = f"from {node.module} import * binds names that are not known here; what they do is not checked."
    run.unresolved.append(frame.module.source.unresolved(node.lineno, what))


def _load(run: Run, frame: Frame, dotted: str, node: ast.stmt | ast.expr) -> LocalModule | None:
    path = _path(run, frame.module, dotted)
    if path is None:
        return None
    if path in run.modules:
        return LocalModule(run.modules[path])
    if len(run.modules) >= _MOST_MODULES:
        what = f"More than {_MOST_MODULES} modules are imported: {dotted} and later ones are left out."
        if not any(note.what.startswith(what.partition(":")[0]) for note in run.unresolved):
            run.unresolved.append(frame.module.source.unresolved(node.lineno, what))
        return None
    return _follow(run, frame, path, node)


def _follow(run: Run, frame: Frame, path: Path, node: ast.stmt | ast.expr) -> LocalModule | None:
    try:
        module = parse(run.waiting.get(path) or read(path), entry=False, directory=path.parent)
    except AdvisorError as error:
        what = f"An imported module is left out: {error}"
        run.unresolved.append(frame.module.source.unresolved(node.lineno, what))
        return None
    run.modules[path] = module
    run.trace.modules.append(module)
    # A module runs once, whatever branch or loop imports it first.
    around = run.journal, run.guards, run.contexts, run.loops, run.doubts, run.repeats, run.optional
    run.optional += run.doubts
    run.journal, run.guards, run.contexts, run.loops, run.doubts, run.repeats = Journal(), [], [], [], 0, 0
    run.execute(Frame(module, module.scope), module.tree.body)
    run.journal, run.guards, run.contexts, run.loops, run.doubts, run.repeats, run.optional = around
    return LocalModule(module)


def local_files(text: str, folder: Path) -> set[Path]:
    """Return the files that the imports of a file in `folder` probably name, without parsing it."""
    names: set[str] = set()
    for match in _IMPORT.finditer(text):
        base = match["base"]
        members = re.findall(r"[\w.]+", match["names"])
        names |= set(members) if base is None else {base, *(f"{base.rstrip('.')}.{name}" for name in members)}
    return {path for name in names for path in _candidates(folder, name) if path.is_file()}


def _path(run: Run, module: Module, dotted: str) -> Path | None:
    """Return the file of a module next to the importing one; None if there is none."""
    if module.directory is None or not dotted:
        return None
    folders = [module.directory]
    if not dotted.startswith(".") and dotted.partition(".")[0] not in LIBRARIES:
        # Packages of the project are next to its project file, or in src.
        for folder in folders_from(module.directory / "_"):
            if any(_is_there(run, folder / name) for name in _ROOTS):
                folders += [folder, folder / "src"]
                break
    candidates = (path for folder in folders for path in _candidates(folder, dotted) if path != module.source.file)
    return next((path for path in candidates if _is_there(run, path) and path.is_file()), None)


_ROOTS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def _is_there(run: Run, path: Path) -> bool:
    if path not in run.looked_for:
        run.looked_for[path] = path.exists()
    return run.looked_for[path]


def _candidates(folder: Path, dotted: str) -> list[Path]:
    """Possible files of a module that a file in `folder` imports, in the order in which Python looks for them."""
    name = dotted.lstrip(".")
    for _ in range(len(dotted) - len(name) - 1):
        folder = folder.parent
    parts = name.split(".") if name else []
    target = folder.joinpath(*parts)
    return [*([target.with_suffix(".py")] if parts else []), target / "__init__.py"]


_MOST_COMMANDS = 3
"""Files of commands that are followed together. The facts of a larger suite belong to different jobs."""
UNFOLLOWED = "Only one of these commands runs, and none is followed: check their files."


def launch(run: Run, event: Call) -> Value | None:
    """Follow the functions that a launcher calls; the result of the last one, None if it calls none."""
    by_options = event.name in COMMAND_LINES
    if not by_options and event.name not in LAUNCHERS and not _of_fabric(event):
        return None
    targets = [event.arguments[0]] if event.arguments else [event.keywords[n] for n in LAUNCHED if n in event.keywords]
    if by_options and not event.arguments:
        targets = [function for function in run.trace.functions if _is_top_level(function)]
    returned: Value | None = None
    functions = [function for target in targets for function in _callables(target)]
    if by_options and len({id(function.module) for function in functions}) > _MOST_COMMANDS:
        run.unresolved.append(event.module.source.unresolved(event.node.lineno, UNFOLLOWED))
        return None
    for function in functions:
        if run.follows(function):
            returned = run.enter(function, _of_options(run, function) if by_options else _of_process(event, function))
    return returned


def _of_fabric(event: Call) -> bool:
    """Return whether it is ``fabric.launch(main, ...)``, which calls the function with itself as first argument."""
    fabrics = [option.call.name for option in options(event.receiver) if isinstance(option, Result)]
    return event.method == "launch" and bool(fabrics) and all(name.endswith(".Fabric") for name in fabrics)


def _of_process(event: Call, function: Function) -> dict[str, Value]:
    """Parameters of a function that ``spawn`` or ``Process`` calls; the former puts the rank before the arguments."""
    if _of_fabric(event) and event.receiver is not None:
        passed = [event.receiver, *event.arguments[1:]]
        return {**dict(zip(function.positional, passed, strict=False)), **event.keywords}
    single = event.name.endswith("multiprocessing.Process")  # the script counts the ranks in a loop
    if not (single or event.name == "torch.multiprocessing.spawn") or function.owner is not None:
        return {}
    rank = Item(External("os.environ"), Constant("LOCAL_RANK"))
    further = event.argument("args", 3 if single else 1)
    items = further.items if isinstance(further, Collection) else []
    bound = dict(zip(function.positional, [*([] if single else [rank]), *items], strict=False))
    return {**bound, "rank": rank} if single and "rank" in bound else bound


def _callables(target: Value) -> Iterator[Function]:
    """Yield the functions that a target can be: one of a dictionary or list, or the one of a ``functools.partial``."""
    for option in options(target):
        if isinstance(option, Function):
            yield option
        elif isinstance(option, Partial):
            yield from _callables(option.of)
        elif isinstance(option, Mapping):
            for value in option.values().values():
                yield from _callables(value)
        elif isinstance(option, Collection):
            for value in option.items:
                yield from _callables(value)


def _of_options(run: Run, function: Function) -> dict[str, Value]:
    """Return the parameters of a function as options of the command line, with their defaults."""
    defaults = run.defaults(function)
    names = [*function.positional, *(argument.arg for argument in function.node.args.kwonlyargs)]
    bound: dict[str, Value] = {name: Argument(name, defaults.get(name, Unknown())) for name in names}
    if function.owner is not None and function.positional:
        bound[function.positional[0]] = function.owner
    return bound


def is_command(decorator: Value) -> bool:
    """Return whether a decorator makes a function a command: ``@app.command()``, ``@hydra.main(...)``."""
    return any(
        isinstance(option, Result) and option.call.called in COMMANDS and option.call.function is None
        for option in options(decorator)
    )


def follow_entries(run: Run, is_entry: Callable[[], bool]) -> None:
    """Follow the functions that other code surely or probably calls: commands, and functions nobody here names."""
    for function in tuple(run.trace.functions):
        # The compiler's runtime calls this one, once per worker.
        if function.name == "_mp_fn" and not run.followed[function.node]:
            run.enter(function, {})
    for function in run.trace.commands:
        if function.module.entry and not run.followed[function.node]:
            run.enter(function, _of_options(run, function))
    candidates = [function for function in run.trace.functions if _is_top_level(function)]
    module = run.trace.modules[0]
    classes = [cls for cls in run.trace.classes if cls.module is module and cls.node in module.tree.body]
    if not (candidates or classes) or not is_entry():
        return
    used = {node.id for node in module.all(ast.Name) if isinstance(node.ctx, ast.Load)}
    names = used | {node.attr for node in module.all(ast.Attribute)}
    for function in candidates:
        if not run.followed[function.node] and function.name not in names:
            run.trace.assumed_entries.append(function)
            defaults = run.defaults(function)
            why = f"it is an argument of {function.name}"
            bound: dict[str, Value] = {name: Unknown(why, name) for name in function.positional}
            bound |= {name: choice(value, bound[name]) for name, value in defaults.items() if name in bound}
            if "rank" in bound and getattr(defaults.get("rank"), "value", None) in (None, 0, -1):  # not that of LoRA
                bound["rank"] = Unknown(why, "global_rank")
            run.enter(function, bound)
    plain = (cls for cls in classes if {getattr(base, "path", "") for base in cls.bases} <= {"object", "abc.ABC"})
    unused = (cls for cls in plain if cls.node.name not in names)
    for cls in (cls for cls in unused if "backward(" in ast.unparse(cls.node)):
        _use(run, module, cls)


def _use(run: Run, module: Module, cls: Class) -> None:
    """Make an object of a class that trains, and call the methods that no line of the text calls: other code does."""
    called = {node.attr for node in module.all(ast.Attribute) if getattr(node.value, "id", "") == "self"}
    members = {name: member for name, member in cls.members.items() if isinstance(member, Function)}
    entries = [m for name, m in members.items() if name not in called and name[:1] != "_" and not m.static]
    run.trace.assumed_entries += entries
    scope = Scope(module.scope)
    for function in (*(m for name, m in members.items() if name == "__init__"), *entries):
        parameters = function.positional[1:]
        scope.names |= {name: Unknown(f"it is an argument of {function.name}", name) for name in parameters}
        passed = ", ".join(f"{name}={name}" for name in parameters)
        call = f"_made = {cls.node.name}" if function.name == "__init__" else f"_made.{function.name}"
        statements = ast.parse(f"{call}({passed})").body
        for node in ast.walk(statements[0]):
            ast.copy_location(node, cls.node)
        run.execute(Frame(module, scope), statements)


def _is_top_level(function: Function) -> bool:
    top = function.scope is function.module.scope and function.home is None
    return function.module.entry and top and not isinstance(function.node, ast.Lambda)
