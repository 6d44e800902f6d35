"""Tables of a profile as DataFrames: figures by module, and operators with their estimated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments import require_whole
from smp_advisor.cluster.table import instance
from smp_advisor.core.tables import frame_of
from smp_advisor.costs.kernels import operator_seconds
from smp_advisor.errors import ProfileError

if TYPE_CHECKING:
    import pandas as pd

    from smp_advisor.profiling.parts import BlockProfile, OperatorProfile
    from smp_advisor.profiling.result import Profile


Grouping = Literal["operator", "module"]
_MODULE_FIGURES = ("parameters", "forward_flops", "backward_flops", "saved_bytes")
_OPERATOR_FIGURES = ("count", "flops", "bytes", "seconds")


def _frame(rows: list[dict[str, object]], index: list[str]) -> pd.DataFrame:
    return frame_of(rows).set_index(index)


def _equal_blocks(profile: Profile) -> dict[BlockProfile, list[str]]:
    """Paths of equal blocks."""
    groups: dict[BlockProfile, list[str]] = {}
    for block, path in zip(profile.blocks, profile.block_paths, strict=True):
        groups.setdefault(block, []).append(path)
    return groups


def _require_column(sort: str | None, columns: tuple[str, ...]) -> None:
    if sort is not None and sort not in columns:
        raise ProfileError(
            f"sort must be one of {', '.join(columns)}, or None for the order of execution, not {sort!r}."
        )


def module_table(profile: Profile, sort: str | None) -> pd.DataFrame:
    """Table of a profile's modules; see `Profile.modules`."""
    _require_column(sort, _MODULE_FIGURES)
    if not profile.is_traced:
        raise ProfileError(f"{profile.name} was not traced: run the trace stage of its profile.")
    size = profile.batch, profile.sequence
    model = (
        profile.parameter_count, profile.forward_flops(*size), profile.backward_flops(*size), profile.saved_bytes(*size)
    )  # fmt: skip
    outside_figures = list(model)
    rows: list[dict[str, object]] = []
    for block, paths in _equal_blocks(profile).items():
        of_a_block = block.parameters, block.forward_flops(*size), block.backward_flops(*size), block.saved_bytes(*size)
        figures = [len(paths) * value for value in of_a_block]
        outside_figures = [value - own for value, own in zip(outside_figures, figures, strict=True)]
        row = dict(zip(_MODULE_FIGURES, figures, strict=True))
        rows.append({"module": paths[0], "kind": block.kind, "count": len(paths), **row})
    outside = dict(zip(_MODULE_FIGURES, outside_figures, strict=True))
    rows.append({"module": "outside the blocks", "kind": "", "count": 1, **outside})
    table = _frame(rows, ["module"])
    table = table.astype({"forward_flops": float, "backward_flops": float})
    table["saved_share"] = table["saved_bytes"] / max(1, model[-1])
    return table if sort is None else table.sort_values(sort, ascending=False, kind="stable")


def operator_table(
    profile: Profile, by: Grouping, sort: str | None, batch: int | None, sequence: int | None, instance_type: str | None
) -> pd.DataFrame:
    """Table of a profile's operators; see `Profile.operators`."""
    if by not in {"operator", "module"}:
        raise ProfileError(f"by must be operator or module, not {by!r}.")
    _require_column(sort, _OPERATOR_FIGURES)
    gpu = None if instance_type is None else instance(instance_type)
    if sort == "seconds" and gpu is None:
        raise ProfileError('Seconds depend on the GPU: pass instance_type="ml.p4d.24xlarge" or another instance.')
    size = profile.batch if batch is None else batch, profile.sequence if sequence is None else sequence
    for name, number in zip(("batch", "sequence"), size, strict=True):
        require_whole(name, number, ProfileError)
    # Attention has the width and the mask of the model's first one.
    attention = next((attention for block in profile.blocks for attention in block.attentions), None)
    places: list[tuple[str, int, tuple[OperatorProfile, ...]]] = [("", 1, profile.outside_operators)]
    places += [(paths[0], len(paths), block.operators) for block, paths in _equal_blocks(profile).items()]
    rows: dict[tuple[object, ...], dict[str, object]] = {}
    for path, count, operators in places:
        for entry in operators:
            module = (f"{path}.{entry.module}".strip(".") or "(model)",) if by == "module" else ()
            key = (*module, entry.operator, entry.kind, entry.phase)
            names = dict(zip((*("module",) * len(module), "operator", "kind", "phase"), key, strict=True))
            row = rows.setdefault(key, names | dict.fromkeys(_OPERATOR_FIGURES[: 3 if gpu is None else 4], 0))
            flops, moved = entry.flops(*size), entry.bytes(*size)
            figures: list[float] = [entry.count(*size), flops, moved]
            if gpu is not None:
                seconds = operator_seconds(
                    entry.kind,
                    flops,
                    moved,
                    gpu,
                    fp32=profile.precision == "fp32",
                    head_dim=128 if attention is None else attention.head_dim,
                    keys=size[1],
                    causal=attention is not None and attention.causal,
                    backward=entry.phase == "backward",
                )
                figures.append(seconds)
            for name, value in zip(_OPERATOR_FIGURES, figures, strict=False):
                row[name] += count * value  # type: ignore[operator]
    if not rows:
        raise ProfileError(f"The operators of {profile.name} were not traced: run the trace stage of its profile.")
    table = _frame(list(rows.values()), ["module", "operator"] if by == "module" else ["operator"])
    weight = table["bytes" if gpu is None else "seconds"]
    table["share"] = weight / max(weight.sum(), 1e-30)
    return table if sort is None else table.sort_values(sort, ascending=False, kind="stable")
