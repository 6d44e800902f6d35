"""The advisor inside Jupyter: the widget, the magics, and simpler views for pages that cannot load the widget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.notebook.advisor import Advisor

__all__ = ["Advisor"]


def __getattr__(name: str) -> Any:
    # Loading the extension imports this package. The widget and ipywidgets are imported on first use.
    if name == "Advisor":
        return import_module("smp_advisor.notebook.advisor").Advisor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
