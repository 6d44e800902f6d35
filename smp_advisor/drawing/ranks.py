"""Contents of every GPU of every node. Twin: ``ranks.ts``."""

from __future__ import annotations

from typing import TypedDict

from smp_advisor.drawing.svg import frame, label, rect

__all__ = ["RankColumn", "Ranks", "ranks"]


class RankColumn(TypedDict):
    """One number per GPU."""

    name: str
    """``stage``, ``tensor slice``, ``shard``, ``replica``."""
    letter: str
    values: list[int]
    degree: int
    """Number of different values."""


class Ranks(TypedDict):
    """GPUs of the shown nodes, node by node."""

    gpus_per_node: int
    nodes: list[int]
    """Numbers of the shown nodes."""
    columns: list[RankColumn]
    by: int
    """Column of the colors."""
    description: str


_COLORS = 8
_GAP = 3


def ranks(data: Ranks, width: float) -> str:
    """Nodes with their GPUs as SVG, `width` pixels wide."""
    per_node = data["gpus_per_node"]
    detailed = len(data["nodes"]) <= 4
    lanes = 1 if detailed else max(int(width // 300), 1)
    box = width / lanes
    left = 58
    across = min(per_node, 8)
    cell = (box - left - 12) / across
    high = 32 if detailed else 18
    tall = -(-per_node // across) * (high + _GAP) + 8
    parts: list[str] = []
    for position, node in enumerate(data["nodes"]):
        x, y = box * (position % lanes), 4 + tall * (position // lanes)
        parts.append(label("smp-text", x, y + 13, f"Node {node}"))
        for gpu in range(per_node):
            index = position * per_node + gpu
            values = [column["values"][index] for column in data["columns"]]
            texts = [f"{column['name']} {value}" for column, value in zip(data["columns"], values, strict=True)]
            title = f"Node {node}, GPU {gpu}, rank {node * per_node + gpu}: {', '.join(texts) or 'the entire model'}"
            color = values[data["by"]] % _COLORS if values else 0
            cx, cy = x + left + cell * (gpu % across), y + (high + _GAP) * (gpu // across)
            parts.append(rect(f"smp-gpu smp-r{color}", cx, cy, cell - _GAP, high, title))
            if detailed:
                codes = [f"{column['letter']}{value}" for column, value in zip(data["columns"], values, strict=True)]
                middle = cx + (cell - _GAP) / 2
                parts.append(label(f"smp-code smp-o{color}", middle, cy + 13, " ".join(codes[:2]), "middle"))
                parts.append(label(f"smp-code smp-o{color}", middle, cy + 26, " ".join(codes[2:4]), "middle"))
            elif values and cell > 24:
                parts.append(
                    label(f"smp-code smp-o{color}", cx + (cell - _GAP) / 2, cy + 13, str(values[data["by"]]), "middle")
                )
    rows = -(-len(data["nodes"]) // lanes)
    return frame(width, 4 + tall * rows, data["description"], parts)
