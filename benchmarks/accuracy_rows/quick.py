"""A short report of errors where they count: users' code on AWS, and sources that were left out of the fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .arithmetic import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .sites import Linear
    from .table import Row

    Floats = NDArray[np.float64]

__all__ = ["quick_lines", "users_group"]


def users_group(row: Row) -> str:
    """Kind of users' code of a row of a run on AWS."""
    framework = row.text("framework")
    if "smp v1" in framework:
        return "SMP v1"
    if "fsdp" in framework:
        return "Hugging Face, FSDP, offload" if "activation" in row.text("offload") else "Hugging Face, FSDP"
    return "other"


def quick_lines(point: Linear) -> Iterator[str]:
    """Lines of the report."""
    rows, now = point.rows, point.errors
    users, tuned = rows.users_code, ~rows.users_code
    if users.any():
        yield "users' code on AWS: ln(predicted / measured) of every run, with the committed constants"
        groups = np.array([users_group(row.row) for row in rows.rows])
        for name in np.unique(groups[users]):
            chosen = users & (groups == name)
            for index in np.flatnonzero(chosen):
                row = rows.rows[index].row
                kind = f"{row.text('model')[:22]}, {row.text('gpus')} {row.text('gpu')}"
                label = f"{row.values.get('id', ''):11} {rows.publications[index][:34]:34} {kind:36}"
                yield f"  {label} {rows.measured[index]:7.2f} s {now[index]:+.2f}"
            yield _line(f"  {name}", now[chosen])
        yield _line("  all", now[users])
    if not tuned.any():
        return
    left = point.left_out(rows.publications)
    yield ""
    yield _line("fit residual", now[tuned])
    fitted = now + point.jacobian @ point.solve(point.fitted).moves
    yield _line("  after one more round of the fit", fitted[tuned])
    yield _line("source left out of the fit", left[tuned])
    yield _line("  each source once", _medians(left[tuned], rows.publications[tuned]))
    yield _line("  after one run of the same site", point.after_one_run(rows.publications))
    for title, labels in (
        ("kind of plan", rows.kinds()),
        ("pipeline", rows.pipelines()),
        ("source", rows.publications),
    ):
        yield f"by {title}: rows, source left out | residual"
        for label in np.unique(labels[tuned]):
            chosen = tuned & (labels == label)
            yield f"{_line(f'  {label}', left[chosen])} | {_figures(now[chosen])}"


def _medians(values: Floats, groups: NDArray[np.str_]) -> Floats:
    return np.array([np.median(values[groups == name]) for name in np.unique(groups)])


def _line(title: str, values: Floats) -> str:
    return f"{title:40} {len(values):5d}  {_figures(values)}"


def _figures(values: Floats) -> str:
    found = errors([float(value) for value in values])
    median, p90, bias = (100 * (value or 0.0) for value in (found.median, found.p90, found.bias))
    return f"median {median:5.1f} %  p90 {p90:5.1f} %  bias {bias:+6.1f} %"
