"""A script as a proof runs it: with few epochs and steps, small models, and a record of the lines that ran."""

from __future__ import annotations

import argparse
import ast
import builtins
import itertools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

_EPOCHS, _STEPS = 2, 8
_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"(?:\w+_)?epochs?", 3, _EPOCHS),
    (r"(?:max_|num_|total_|n_)?(?:train_|training_)?(?:steps|iters|iterations|updates)", 13, _STEPS),
    (r"(?:eval|val|log|logging|save|checkpoint|ckpt|print|report|test)_?(?:interval|every|freq|steps|iters)", 5, 4),
    (r"(?:n_|num_|num_hidden_|encoder_|decoder_)?layers?|depth", 3, 2),
    (r"(?:n|num)_?(?:attention_|kv_|key_value_)?heads?|heads|nhead", 3, 2),
    (r"n_embd|d_model|(?:hidden|embed|embedding|emb|model)_?(?:dim|size)|dim|hidden|width|n_state", 64, 32),
    (r"intermediate_size|dim_feedforward|ffn_dim|n_inner|d_ff|mlp_dim|hidden_dim_ff", 64, 64),
    (r"block_size|(?:max_|context_)?(?:seq|sequence|context)_?(?:len|length)|(?:max_)?length", 65, 64),
    (r"(?:n_|num_)?(?:vocab|vocabulary|words)(?:_size)?", 1025, 512),
    (r"n_ctx|n_positions|max_position_embeddings", 65, 64),
)  # fmt: skip
"""Names of sizes, the least value that is replaced, and its replacement; a model of real width needs real memory."""
_SHRUNK = [(re.compile(f"(?:{pattern})$"), least, value) for pattern, least, value in _SIZES]


def _small(name: str, value: Any) -> Any:
    """The value of a name in the proof."""
    if type(value) is int:
        for pattern, least, replacement in _SHRUNK:
            if value >= least and pattern.match(name.lower()):
                return replacement
    return value


def _shrink(tree: ast.AST) -> None:  # noqa: C901, PLR0912 - a list of cases
    """Replace integers by small ones where their name shows what they are, and the same large ones elsewhere."""
    large = dict[int, int]()
    for node in ast.walk(tree):
        pairs: list[tuple[str | None, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(map(_name, target.elts), node.value.elts, strict=False)
                else:
                    pairs.append((_name(target), node.value))
        elif isinstance(node, ast.AnnAssign):
            pairs = [(_name(node.target), node.value)]
        elif isinstance(node, ast.keyword):
            pairs = [(node.arg, node.value)]
        elif isinstance(node, ast.Dict):
            names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            pairs = [(str(name), value) for name, value in zip(names, node.values, strict=True)]
        elif isinstance(node, ast.arguments):
            parameters = [parameter.arg for parameter in (*node.posonlyargs, *node.args)]
            pairs = [*zip(reversed(parameters), reversed(node.defaults), strict=False)]
            pairs += zip((parameter.arg for parameter in node.kwonlyargs), node.kw_defaults, strict=True)
        for name, value in pairs:
            number: Any = value.value if isinstance(value, ast.Constant) and name else None
            small = _small(str(name), number)
            if isinstance(value, ast.Constant) and small != number:
                large |= {number: small, number + 1: small + 1} if number >= 512 else {}
                value.value = small
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = large.get(node.value, node.value)


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


class _Instrument(ast.NodeTransformer):
    """Reports each statement before it runs, and cuts loops over epochs and steps."""

    def __init__(self, *, cut: bool) -> None:
        self._cut = cut

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                setattr(node, field, list(self._reporting(block)))
        return node

    def _reporting(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        for place, statement in enumerate(block):
            is_text = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
                call = ast.Call(
                    func=ast.Name(id="__smp_hit__", ctx=ast.Load()), args=[ast.Constant(statement.lineno)], keywords=[]
                )
                yield ast.fix_missing_locations(ast.copy_location(ast.Expr(value=call), statement))
            yield statement

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if "cuda.is_available" in ast.unparse(node.test) else node

    def visit_For(self, node: ast.For) -> ast.AST:
        name = (_name(node.target) or "").lower()
        text = ast.unparse(node.iter)
        count = _EPOCHS if "epoch" in name or "epoch" in text else _STEPS
        if self._cut and "range(" in text and (count == _EPOCHS or re.search("step|iter|update|^i$|^it$", name)):
            function = ast.Name(id="__smp_few__", ctx=ast.Load())
            call = ast.Call(func=function, args=[node.iter, ast.Constant(count)], keywords=[])
            node.iter = ast.fix_missing_locations(ast.copy_location(call, node.iter))
        return self.generic_visit(node)


def instrumented(source: str, path: str, *, shrink: bool, accumulation: int) -> CodeType:
    """Code of a script that reports its lines; with `shrink`, its loops and models are small."""

    def few(values: Any, count: int) -> Iterable[Any]:
        if count == _STEPS and hasattr(values, "__len__") and len(values) <= 12:
            return values  # type: ignore[no-any-return]
        return itertools.islice(values, count * (accumulation if count == _STEPS else 1))

    builtins.__smp_few__ = few  # type: ignore[attr-defined]
    tree: ast.AST = ast.parse(source, path)
    if shrink:
        _shrink(tree)
    return compile(_Instrument(cut=shrink).visit(tree), path, "exec", dont_inherit=True)


def shrink_options() -> None:
    """Make the defaults of argparse small."""
    add: Any = argparse._ActionsContainer.add_argument  # noqa: SLF001 - groups of a parser share it

    def add_argument(self: Any, *names: Any, **options: Any) -> Any:
        name = str(names[-1] if names else options.get("dest", "")).lstrip("-").replace("-", "_")
        if "default" in options:
            options["default"] = _small(name, options["default"])
        return add(self, *names, **options)

    argparse._ActionsContainer.add_argument = add_argument  # type: ignore[method-assign]  # noqa: SLF001


def shrink_config(config: Any) -> None:
    """Make the model of a configuration of transformers small, with heads that divide its width."""
    values = {
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 32,
        "intermediate_size": 64, "head_dim": 16, "n_inner": None, "d_kv": 16, "d_ff": 64, "num_layers": 2,
        "num_decoder_layers": 2, "ffn_dim": 64, "word_embed_proj_dim": 32,
    }  # fmt: skip
    for name, value in values.items():
        current = getattr(config, name, None)
        if type(current) is int and (value is None or current > value):
            setattr(config, name, value)


def changed_statements(original: str, adapted: str) -> dict[int, str]:
    """Lines of the statements of the adapted script that are not in the original, each with its condition on a GPU."""
    import difflib

    before, after = original.splitlines(), adapted.splitlines()
    changed: set[int] = set()
    for kind, _, _, start, stop in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind in ("replace", "insert"):
            changed |= {n + 1 for n in range(start, stop) if after[n].strip() and not after[n].lstrip().startswith("#")}
    lines: dict[int, str] = {}
    stack: list[tuple[ast.AST, str]] = [(ast.parse(adapted), "")]
    while stack:
        node, condition = stack.pop()
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else (node.end_lineno or node.lineno)
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text and changed & set(range(node.lineno, max(last, node.lineno) + 1)):
                lines[node.lineno] = condition
        if isinstance(node, ast.If) and "cuda.is_available" in ast.unparse(node.test):
            stack += [(child, "cuda") for child in node.body] + [(child, condition) for child in node.orelse]
        else:
            stack += [(child, condition) for child in ast.iter_child_nodes(node)]
    return lines
