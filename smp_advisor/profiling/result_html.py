"""Notebook display of results: one form for all, in JupyterLab's theme colors; all user text is escaped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin, get_type_hints

from smp_advisor.core.words import escape
from smp_advisor.profiling.polynomial import Polynomial

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self


_OK = "var(--jp-success-color1, #1b7f3b)"
_FAILED = "var(--jp-error-color1, #b3261e)"


class NotebookResult:
    """A result with a `summary` in one line, and labeled `findings`; ``ok`` if it has an outcome.

    A dataclass assigns `_repr_pretty_` again, since IPython prefers a class's own ``__repr__`` to inherited methods.
    """

    __slots__ = ()

    @property
    def summary(self) -> str:
        """The result in one line."""
        raise NotImplementedError

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each part of the result."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`, also after a JSON round trip."""
        result: Self = restored(cls, values)
        return result

    def as_html(self) -> str:
        """Return the HTML form for a notebook."""
        return box(self.summary, table(self.findings), ok=getattr(self, "ok", None))

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"  {label}: {text}" for label, text in self.findings)])

    def _repr_html_(self) -> str:
        return self.as_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's own form)
        # Plain text for terminals, and for saved notebooks next to the HTML.
        printer.text("..." if cycle else str(self))


def restored(kind: Any, value: Any) -> Any:
    """A value of the annotated kind: dataclasses from mappings of their fields, tuples from lists, polynomials."""
    if kind is Polynomial:
        return Polynomial.from_list(value["polynomial"])
    if dataclasses.is_dataclass(kind):
        hints = _hints(cast("type", kind))
        return kind(**{name: restored(hints[name], entry) for name, entry in value.items()})  # type: ignore[operator]
    kinds = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else restored(next(part for part in kinds if part is not NoneType), value)
    if get_origin(kind) is not tuple:
        return value
    return tuple(restored(kinds[0] if kinds[-1] is ... else kinds[i], entry) for i, entry in enumerate(value))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Mapping": Mapping, "OperatorKind": str})


def box(title: str, *parts: str, ok: bool | None = None) -> str:
    """Return a bordered result: a title with HTML below it; `ok` sets the border color and adds the outcome as text."""
    color = "var(--jp-border-color1, #999)" if ok is None else _OK if ok else _FAILED
    outcome = "" if ok is None else f'<span style="color:{color}">{"Done." if ok else "Failed."}</span> '
    return (
        f'<div class="smp-advisor-result" style="border-left:3px solid {color};padding-left:10px;margin:4px 0">'
        f"<p>{outcome}<strong>{escape(title)}</strong></p>{''.join(parts)}</div>"
    )


def details(title: str, content: str, *, is_open: bool = False) -> str:
    """Return a collapsible section."""
    attribute = " open" if is_open else ""
    return f'<details{attribute}><summary style="cursor:pointer">{escape(title)}</summary>{content}</details>'


def table(rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return a table of text; the first cell of each row is its header."""
    head = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in heads)
    lines = []
    for first, *values in rows:
        cells = "".join(
            f'<td style="text-align:left;overflow-wrap:anywhere">{escape(str(value))}</td>' for value in values
        )
        lines.append(f'<tr><th scope="row" style="text-align:left">{escape(str(first))}</th>{cells}</tr>')
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{''.join(lines)}</tbody></table>"
