"""The kinds of results that are recorded: advices, estimated plans, and cells with options of the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .requests import advice_requests, cell_requests, plan_requests
from .results import advice_result, cell_result, plan_result

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "Kind"]

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of result: its requests, the function that answers one, and the record."""

    requests: Callable[[], dict[str, dict[str, Any]]]
    result: Callable[[dict[str, Any]], dict[str, Any]]
    record: Path


KINDS = {
    "advice": Kind(requests=advice_requests, result=advice_result, record=_DATA / "advices.jsonl"),
    "plan": Kind(requests=plan_requests, result=plan_result, record=_DATA / "plans.jsonl"),
    "cells": Kind(requests=cell_requests, result=cell_result, record=_DATA / "cells.jsonl"),
}
"""By the name that ``intended.toml`` uses."""
