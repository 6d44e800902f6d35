"""Data of charts with their drawings. Run this file to write anew those that the view draws, too: the bars."""

from __future__ import annotations

import json
from pathlib import Path

from smp_advisor.charts.chart import DRAWINGS

CASES = Path(__file__).parents[2] / "js/tests/charts.json"
HOSTILE = "<img src=x onerror=\"alert(1)\"> & 'text'"

_BARS = {
    "unit": "GiB",
    "names": ["Parameters", HOSTILE, "Activations"],
    "rows": [
        {"label": "Stage 0", "parts": [4.604, 0, 13.55], "total": 18.154, "ghost": 20.25, "interval": None},
        {
            "label": "Stages 1–6, 9",
            "parts": [4.6, 20.05, 16],
            "total": 40.65,
            "ghost": None,
            "interval": [29.5, 40.2, 50.9],
        },
    ],
    "limit": 39.4,
    "nominal": 40,
}
_TIME = {
    "unit": "s",
    "names": ["Forward", "Backward"],
    "rows": [{"label": "Each step", "parts": [0.0123, 0.25], "total": 0.2623, "ghost": None, "interval": None}],
    "limit": None,
    "nominal": None,
}
_SWEEP = {
    "label": "Batch size",
    "texts": ["1", "2", "4", "8", "16", "32"],
    "unit": "tokens/s",
    "rates": [40970.5, 79011, None, 150000, 171250, 180000],
    "memory": [18.43, 18.75, None, 30.05, 38.95, 55.5],
    "fits": ["fits", "fits", "refused", "fits", "risk", "over"],
    "limit": 39.4,
    "current": 3,
    "recommended": 1,
}
_GANTT = {
    "names": ["Forward", "Backward", "Recomputation"],
    "rows": [
        {"label": "Stage 0", "spans": [[0, 0, 0.1, 0], [0, 0.1, 0.1, 1], [1, 0.4, 0.25, 0], [2, 1.05, 0.15, -1]]},
        {"label": "Stage 1", "spans": [[0, 0.1, 0.1, 0], [1, 0.2, 0.2, 0]]},
    ],
    "seconds": 1.25,
    "description": f"A step of {HOSTILE}",
}
_SCATTER = {
    "unit": "tokens/s",
    "free": [10.36, -2.5, 20.125],
    "rates": [276619, 120000, 286257.5],
    "groups": [2, 0, 4],
    "names": ["full copies", "tensor parallel", "sharded", "pipeline", "offloading"],
    "titles": ["shards 16", HOSTILE, "TP 2"],
    "best": 0,
    "now": [19.9, 281000],
}


def _point(nodes: int, time: float, cost: float, mark: str = "") -> dict[str, object]:
    ranges = {"time_range": [0.7 * time, 2.2 * time], "cost_range": [0.7 * cost, 2.2 * cost]}
    return {"nodes": nodes, "time": time, "cost": cost, **ranges, "mark": mark, "title": f"{nodes} nodes", "row": 0}


_FRONTIER = {
    "time": "days of the run",
    "cost": "USD of the run",
    "lines": [
        {
            "name": "p4d",
            "points": [_point(1, 162, 98300), _point(16, 12.8, 124000, "now"), _point(128, 1.82, 141000, "knee")],
        },
        {"name": HOSTILE, "points": [_point(2, 60, 300500)]},
    ],
    "max_time": 14,
    "max_cost": 200000,
}


def _rung(title: str, memory: float | None, step: float | None, *, used: bool = True) -> dict[str, object]:
    before = {"memory_before": 100.5 if step else None, "step_before": 8.25 if step else None}
    fits = step is not None
    return {
        "title": title,
        "memory": memory,
        **before,
        "step": step,
        "fits": fits,
        "decision": "used" if fits else "does not fit",
        "used": used,
        "because": "With 2 GPUs." if used else "",
    }


_LADDER = {
    "limit": 39.4,
    "rows": [
        _rung("the entire model on each GPU, in two accumulated batches of 16", 220.05, None),
        _rung(HOSTILE, 29.0, 7.58),
        _rung("expert parallelism", None, None, used=False),
    ],
}


def _ranks(nodes: int, columns: int) -> dict[str, object]:
    gpus = range(8 * nodes)
    every = [
        {"name": "stage", "letter": "P", "values": [gpu // 8 % 2 for gpu in gpus], "degree": 2},
        {"name": "tensor slice", "letter": "T", "values": [gpu % 8 for gpu in gpus], "degree": 8},
    ]
    return {
        "gpus_per_node": 8,
        "nodes": list(range(nodes)),
        "columns": every[:columns],
        "by": 0,
        "description": "Ranks.",
    }


DATA = {
    "memory of two groups of stages": ("bars", _BARS),
    "a step of milliseconds": ("bars", _TIME),
    "a setting with every state": ("sweep", _SWEEP),
    "a schedule": ("gantt", _GANTT),
    "plans": ("scatter", _SCATTER),
    "clusters with limits": ("frontier", _FRONTIER),
    "clusters without limits": ("frontier", {**_FRONTIER, "max_time": None, "max_cost": None}),
    "a ladder": ("ladder", _LADDER),
    "two nodes": ("ranks", _ranks(2, 2)),
    "six nodes without divisions": ("ranks", _ranks(6, 0)),
}
WIDTHS = {"a ladder": (420, 900)}


def cases() -> list[dict[str, object]]:
    """Every case with its drawing."""
    return [
        {"name": f"{name}, {width} px", "kind": kind, "data": data, "width": width, "svg": DRAWINGS[kind](data, width)}
        for name, (kind, data) in DATA.items()
        for width in WIDTHS.get(name, (640,))
    ]


if __name__ == "__main__":
    of_the_view = [case for case in cases() if case["kind"] == "bars"]
    CASES.write_text(json.dumps(of_the_view, indent=1, ensure_ascii=False) + "\n", "utf-8")
