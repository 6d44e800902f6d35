"""Bars, which Python and the view draw alike. Run this file to write the view's cases anew."""

from __future__ import annotations

import json
from pathlib import Path

from smp_advisor.charts.drawings import bars

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
DATA = {"memory of two groups of stages": _BARS, "a step of milliseconds": _TIME}


def cases() -> list[dict[str, object]]:
    """Every case with its drawing."""
    return [
        {"name": f"{name}, {width} px", "data": data, "width": width, "svg": bars(data, width)}
        for name, data in DATA.items()
        for width in (640,)
    ]


if __name__ == "__main__":
    CASES.write_text(json.dumps(cases(), indent=1, ensure_ascii=False) + "\n", "utf-8")
