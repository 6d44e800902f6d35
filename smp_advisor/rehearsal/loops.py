"""Loops of the user's code that end early: after the same number of iterations on every rank, in memory only."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
from typing import TYPE_CHECKING, Any

import torch

from smp_advisor.core.files import data_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from smp_advisor.rehearsal.observer import Observer

_EVALUATIONS = 8
"""Iterations of a loop of forward passes without gradients: more are no other kind of work."""
_PERIOD = 2
_OF_UPDATES = re.compile(r"(?:^|[._])(?:step|backward|zero_grad|no_sync|unscale_|update|optimi[sz]e\w*)$")
"""In names of functions that are a part of updates, whose accumulation is not changed."""
_OF_TRAINING = re.compile(rf"{_OF_UPDATES.pattern}|(?i:train|epoch|\bfit)")
"""In names of functions that a loop of training calls, unlike one over layers or rows."""
RENAMED = data_file("rehearsal", "stand_ins")["renamed"]
_ACCUMULATION = re.compile(r"((?i:accum)\w*(?:[\"']\s*:|\s*(?::\s*int\s*)?=)\s*)([2-9]|[1-9]\d\d?)(?=\s*[,)}\n#;])")
"""Microbatches of an update, as a number in the text of a script."""
_SIZED = ("enumerate", "tqdm", "trange", "zip", "iter", "track")


_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def with_names_here(source: str) -> str:
    """Return code with the newer name of a library that is installed here under it alone."""
    is_other = importlib.util.find_spec("lightning") and not importlib.util.find_spec("pytorch_lightning")
    return re.sub(r"\bpytorch_lightning\b", "lightning.pytorch", source) if is_other else source


def _calls(body: list[ast.stmt], names: re.Pattern[str]) -> bool:
    """Return whether statements call a function of such a name."""
    parts = (part for statement in body for part in ast.walk(statement))
    return any(isinstance(part, ast.Call) and names.search(ast.unparse(part.func)) for part in parts)


def _quotients(test: ast.expr) -> Iterator[ast.BinOp]:
    """Yield ``i % n`` of each ``i % n == 0`` in a condition."""
    for part in ast.walk(test):
        match part:
            case ast.Compare(ast.BinOp(_, ast.Mod()) as quotient, [ast.Eq()], [ast.Constant(0)]):
                yield quotient


class _Marked(ast.NodeTransformer):
    def __init__(self, file: str, tree: ast.Module, left_out: list[list[str]], observer: Observer) -> None:
        self._file, self._observer = file, observer
        self._left_out = [(int(line), name) for place, name in left_out for of, _, line in [place.rpartition(":")]
                          if of == file]  # fmt: skip
        """Lines of calls, and the argument that the callee lacks here."""
        functions = [part for part in tree.body if isinstance(part, ast.FunctionDef)]
        self._has_next = any(function.name == "next" for function in functions)
        branches = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _calls(node.body, _OF_UPDATES)]
        self._of_updates = {ast.unparse(quotient.right) for node in branches for quotient in _quotients(node.test)}
        self._is_in_training = False

    def _setting(self, node: Any) -> Any:
        """Have a setting of the script small in a run that is too heavy."""
        self.generic_visit(node)
        place = node if isinstance(node, ast.keyword) else getattr(node, "targets", [getattr(node, "target", None)])[0]
        name = next((str(value) for key in ("arg", "id", "attr") if (value := getattr(place, key, None))), "")
        if isinstance(node.value, ast.Constant):
            node.value.value = self._observer.small(name, node.value.value)
        return node

    visit_Assign = visit_AnnAssign = visit_keyword = _setting  # noqa: N815 - names of the visitor

    def visit_If(self, node: ast.If) -> ast.If:
        """Have what a training loop does each n iterations done each second one, if that is no part of an update."""
        self.generic_visit(node)
        leaves = any(isinstance(part, _LEAVING) for statement in node.body for part in ast.walk(statement))
        for quotient in _quotients(node.test) if self._is_in_training and not leaves else ():
            if ast.unparse(quotient.right) not in self._of_updates and "rank" not in ast.unparse(quotient.left):
                quotient.right = self._call("__smp_every__", quotient.right)
                ast.fix_missing_locations(quotient)
        return node

    def _loop(self, node: Any) -> Any:
        leaves = any(isinstance(part, ast.Break | ast.Return) for part in ast.walk(node))
        outer, self._is_in_training = self._is_in_training, _calls(node.body, _OF_TRAINING)
        self.generic_visit(node)
        self._is_in_training = outer
        # Who iterates over a generator or awaits a loop decides when it ends.
        if any(isinstance(part, ast.Yield | ast.YieldFrom | ast.Await) for part in ast.walk(node)):
            return node
        key = ast.Constant(f"{self._file}:{node.lineno}")
        if isinstance(node, ast.For):
            iterated = node.iter
            name = iterated.func if isinstance(iterated, ast.Call) else None
            called = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
            if isinstance(iterated, ast.Call) and called in _SIZED and iterated.args:
                iterated.args[0] = self._call("__smp_sized__", key, iterated.args[0])
            else:
                node.iter = self._call("__smp_sized__", key, iterated)
        # Entering counts the loop; each turn begins with a look whether all ranks have done enough.
        enter = ast.Expr(self._call("__smp_enter__", key, ast.Constant(leaves)))
        stop = ast.If(self._call("__smp_stop__", key), [ast.Break()], [])
        node.body.insert(0, stop)
        for part in (stop, enter):
            ast.copy_location(part, node)
            ast.fix_missing_locations(part)
        ast.fix_missing_locations(node)
        return [enter, node]

    visit_For = visit_While = _loop  # noqa: N815 - names of the visitor

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        for line, name in self._left_out:
            for keyword in [entry for entry in node.keywords if entry.arg == name]:
                if node.lineno <= line <= (node.end_lineno or line):
                    keyword.arg = RENAMED.get(name)
                    node.keywords = [entry for entry in node.keywords if entry.arg or entry is not keyword]
        if isinstance(node.func, ast.Name) and node.func.id == "next" and not self._has_next:
            node.func.id = "__smp_next__"
        return node

    def _call(self, name: str, *arguments: ast.expr) -> ast.expr:
        call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
        return ast.copy_location(call, arguments[-1]) if hasattr(arguments[-1], "lineno") else call


class _Counts:
    """Iterations of each loop, and how often it may run."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._last: dict[str, tuple[int, int] | None] = {}
        """Updates and backward passes before the last iteration: a loop over optimizers has no pass of its own."""
        self._iterations: dict[str, int] = {}
        self._needed: dict[str, int] = {}
        self._passes: dict[str, tuple[int, int]] = {}
        self._sizes: dict[str, int] = {}
        self._leaves: dict[str, bool] = {}
        """Whether the loop has a statement that ends it early."""
        self.total_passes = 0

    def restart(self) -> None:
        """Count iterations from zero: those before were no part of what is counted from now on."""
        self._iterations.clear()
        self._last.clear()

    def sized(self, key: str, values: Any) -> Any:
        try:
            self._sizes[key] = len(values)
        except TypeError:
            self._sizes.pop(key, None)
        return values

    def enter(self, key: str, leaves: bool) -> None:
        self._last[key] = None
        self._leaves[key] = leaves
        self._passes[key] = (self.total_passes, 0)

    def stop(self, key: str) -> bool:
        observer = self._observer
        last, self._last[key] = self._last.get(key), (observer.updates, observer.all_backwards)
        count = self._iterations.get(key, 0)
        trained = last is not None and observer.updates > last[0] and observer.all_backwards > last[1]
        if trained and key not in self._needed:
            size, leaves = self._sizes.get(key), self._leaves[key]
            all_of_them = size if size and key in observer.options["full"] else 0
            self._needed[key] = max(observer.options["steps"] * max(1, count), all_of_them)
            observer.put("loop", key=key, size=size, iterations=count, leaves=leaves)
        if key in self._needed:
            if observer.done or count >= self._needed[key]:
                observer.done = observer.is_cut = True
                return True
        elif not (torch.is_grad_enabled() or observer.options.get("live")):
            before, evaluations = self._passes[key]
            evaluations += self.total_passes > before
            self._passes[key] = (self.total_passes, evaluations)
            if evaluations >= _EVALUATIONS:
                observer.stand_in("loops of passes without gradients: their first iterations")
                return True
        self._iterations[key] = count + 1
        return False


def install(observer: Observer) -> Callable[[str, str], CodeType]:
    """Return the compiler of the user's modules, whose loops are counted."""
    counts = _Counts(observer)
    observer.options["counts"] = counts

    def take(iterator: Any, *default: Any) -> Any:
        """Like `next`, for which no loader ends early: its end would be an error of the script's."""
        before, observer.takes = observer.takes, True
        try:
            return next(iterator, *default)
        finally:
            observer.takes = before

    def shortened(period: Any) -> Any:
        if observer.options.get("live") or not observer.all_backwards or type(period) is not int or period <= _PERIOD:
            return period
        observer.stand_in(f"sections of each {period} iterations: each second one")
        return _PERIOD

    left_out = observer.options["left_out"]
    for place, name in left_out:
        observer.stand_in(f"{name} of {place}: not in the version that is here")
    functions = {
        "every": shortened,
        "enter": counts.enter,
        "stop": counts.stop,
        "sized": counts.sized,
        "next": take,
    }
    vars(builtins).update({f"__smp_{name}__": function for name, function in functions.items()})

    def compiled(source: str, path: str) -> CodeType:
        text = _ACCUMULATION.sub(lambda match: f"{match[1]}{observer.microbatches(int(match[2]))}", source)
        tree = ast.parse(with_names_here(text), path)
        marked = _Marked(path.removeprefix(observer.code), tree, left_out, observer).visit(tree)
        return compile(marked, path, "exec", dont_inherit=True)

    return compiled
