"""Recommend, explain and export SageMaker model-parallel configurations.

In a notebook: ``%load_ext smp_advisor``, then ``%smp_advise 10B --instance ml.p4d.24xlarge --count 16``.
"""

import sys
from importlib import import_module

from smp_advisor._version import __version__

TYPE_CHECKING = False  # that of typing, which a command must not import before it leaves the folder of its user
if TYPE_CHECKING:
    from typing import Any

    from IPython.core.interactiveshell import InteractiveShell

    from smp_advisor import errors
    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.costs import Estimate, estimate
    from smp_advisor.estimators import check_estimator, watch
    from smp_advisor.libraries import Plan
    from smp_advisor.notebook import Advisor
    from smp_advisor.profiling import Profile, profile
    from smp_advisor.rehearsal import Rehearsal, rehearse
    from smp_advisor.review.scripts import Finding, check_script, read_stack, script_changes
    from smp_advisor.runs import Failure, read_failure
    from smp_advisor.runs.watching import Run
    from smp_advisor.session import Advice
    from smp_advisor.session.advise import advise
    from smp_advisor.session.files import load, save
    from smp_advisor.workload import Adapter, Calibration, Job, Model, Overheads, Stack, load_calibration, stacks

__all__ = [
    "Adapter",
    "Advice",
    "Advisor",
    "Calibration",
    "Cluster",
    "Estimate",
    "Failure",
    "Finding",
    "Instance",
    "Job",
    "Model",
    "Overheads",
    "Plan",
    "Profile",
    "Rehearsal",
    "Run",
    "Stack",
    "__version__",
    "advise",
    "check_estimator",
    "check_script",
    "errors",
    "estimate",
    "load",
    "load_calibration",
    "profile",
    "read_failure",
    "read_stack",
    "rehearse",
    "save",
    "script_changes",
    "stacks",
    "watch",
]

_HOMES = {
    "Adapter": "workload",
    "Advice": "session",
    "Advisor": "notebook",
    "Calibration": "workload",
    "Cluster": "cluster",
    "Estimate": "costs",
    "Failure": "runs",
    "Finding": "review.scripts",
    "Instance": "cluster",
    "Job": "workload",
    "Model": "workload",
    "Overheads": "workload",
    "Plan": "libraries",
    "Profile": "profiling",
    "Rehearsal": "rehearsal",
    "Run": "runs.watching",
    "Stack": "workload",
    "advise": "session.advise",
    "check_estimator": "estimators",
    "check_script": "review.scripts",
    "estimate": "costs",
    "load": "session.files",
    "load_calibration": "workload",
    "profile": "profiling",
    "read_failure": "runs",
    "read_stack": "review.scripts",
    "rehearse": "rehearsal",
    "save": "session.files",
    "script_changes": "review.scripts",
    "stacks": "workload",
    "watch": "estimators",
}
"""Where each public name lives: imported when first used, so that loading the extension stays quick."""

_GONE = {
    "adapt_script": "rehearse(new, compare=old) shows whether a change that you or an assistant made is right",
    "prove": "rehearse(new, compare=old) compares two versions of a script",
}
"""Names of earlier releases, and where their users go."""


def __getattr__(name: str) -> "Any":
    if name == "errors":
        return import_module("smp_advisor.errors")
    if name in _GONE:
        raise AttributeError(f"smp_advisor has no {name}() any more: {_GONE[name]}.")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"smp_advisor.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def load_ipython_extension(ipython: "InteractiveShell") -> None:
    """``%load_ext smp_advisor``: register the magics."""
    from smp_advisor.notebook.loading import load

    _register_display(ipython)
    load(ipython)


def unload_ipython_extension(ipython: "InteractiveShell") -> None:
    """``%unload_ext smp_advisor``."""
    from smp_advisor.notebook.loading import unload

    unload(ipython)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "smp-advisor"}]


def _show_advice(advice: "Advice | Recommendation") -> None:
    from smp_advisor.notebook.advisor import advisor_of

    advisor_of(advice).show_now()


def _show_run(run: "Run") -> None:
    from smp_advisor.notebook.run_magics import show_run

    show_run(run)


def _register_display(shell: "InteractiveShell | None") -> None:
    """Have IPython show an `Advice` as the widget.

    Registered by name, so that the value does not import its display, and the widget is imported when first shown.
    """
    if shell is not None:
        formatter: Any = shell.display_formatter
        shown = formatter.ipython_display_formatter
        shown.for_type_by_name("smp_advisor.session.advice", "Advice", _show_advice)
        shown.for_type_by_name("smp_advisor.advice.recommendation", "Recommendation", _show_advice)
        shown.for_type_by_name("smp_advisor.runs.watching", "Run", _show_run)


if "IPython" in sys.modules:
    _register_display(sys.modules["IPython"].get_ipython())
