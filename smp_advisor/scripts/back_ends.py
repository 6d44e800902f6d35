"""Conditions that choose a back end: rules of a library do not apply where the script runs without it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.reading.trace import Call

__all__ = ["BACK_ENDS", "BackEnd"]

_SMP = r"(?:^|_)smp|sagemaker_mp|smdistributed|model_?parallel"
_XLA = r"xla|(?:^|_)tpu|trcomp|torchacc"
_EQUAL = (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackEnd:
    """How scripts name one library: its packages, its calls, and words in conditions on it."""

    title: str
    packages: tuple[str, ...]
    namespaces: tuple[str, ...]
    words: re.Pattern[str]
    excluding: re.Pattern[str]
    """Words in conditions that hold only without it."""

    @property
    def aliases(self) -> frozenset[str]:
        """Local names that scripts import the library as."""
        return frozenset(name.partition(".")[0].removesuffix("tf") for name in self.namespaces)

    def runs(self, call: Call) -> bool:
        """Whether the call certainly runs with the library: it is the library's, or a condition requires it."""
        if call.name.startswith(self.namespaces) or call.step is not None:
            return True
        return any(
            (holds and _names(part, self.words)) or _calls(part, self.aliases) for part, holds in _conditions(call)
        )

    def excludes(self, call: Call) -> bool:
        """Whether a condition around the call excludes the library: ``else`` of ``if is_smp_enabled()``."""
        for part, holds in _conditions(call):
            if _calls(part, self.aliases):
                continue
            if _calls(part, _ALIASES):
                return True
            if _names(part, self.words):
                if not holds:
                    return True
            elif holds and _names(part, self.excluding):
                return True
        return False


BACK_ENDS = {
    "smp_torch": BackEnd(
        title="SMP v1",
        packages=("smdistributed.modelparallel.torch",),
        namespaces=("smp.",),
        words=re.compile(_SMP),
        excluding=re.compile(rf"deepspeed|horovod|{_XLA}"),
    ),
    "smp_tensorflow": BackEnd(
        title="SMP v1",
        packages=("smdistributed.modelparallel.tensorflow",),
        namespaces=("smptf.",),
        words=re.compile(_SMP),
        excluding=re.compile("horovod"),
    ),
    "smp_v2": BackEnd(
        title="SMP v2",
        packages=("torch.sagemaker",),
        namespaces=("tsm.",),
        words=re.compile(r"(?:^|_)smp|(?:^|_)tsm|sagemaker"),
        excluding=re.compile(rf"deepspeed|horovod|{_XLA}"),
    ),
    "xla": BackEnd(
        title="PyTorch/XLA",
        packages=("torch_xla",),
        namespaces=("xm.", "pl.", "xmp.", "torch_xla."),
        words=re.compile(_XLA),
        excluding=re.compile(r"deepspeed|horovod|sagemaker_mp|smdistributed"),
    ),
}
"""Back ends by their names in `Libraries`."""
_ALIASES = frozenset(alias for back_end in BACK_ENDS.values() for alias in back_end.aliases)


def _conditions(call: Call) -> Iterator[tuple[ast.expr, bool]]:
    for guard in call.guards:
        yield from _implied(guard.test, holds=guard.holds)


def _implied(test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Parts of a condition whose truth is certain, each with its truth: both sides of an ``and`` that holds."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _implied(test.operand, holds=not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == holds:
            for part in test.values:
                yield from _implied(part, holds=holds)
    elif isinstance(test, ast.Compare):
        right = test.comparators[0]
        holds = holds != isinstance(test.ops[0], (ast.NotEq, ast.IsNot))
        if len(test.ops) > 1 or not isinstance(test.ops[0], _EQUAL) or not isinstance(right, ast.Constant):
            return
        if isinstance(right.value, str) and right.value:
            yield right, holds
        elif not right.value or right.value is True:
            yield test.left, holds == bool(right.value)
    else:
        yield test, holds


def _names(part: ast.expr, words: re.Pattern[str]) -> bool:
    """Whether a name, attribute or text in a condition has one of the words."""
    for node in ast.walk(part):
        text = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(text, str) and words.search(text.lower()):
            return True
    return False


def _calls(part: ast.expr, aliases: frozenset[str]) -> bool:
    """Whether the condition calls a library, which then is there: ``smp.rank() == 0``."""
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
        for node in ast.walk(part)
    )
