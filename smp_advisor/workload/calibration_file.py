"""The JSON file of a calibration."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smp_advisor.arguments import require_path
from smp_advisor.errors import CalibrationError
from smp_advisor.files import CONFIGURATION, has_too_many_values, read_bytes, write_text
from smp_advisor.workload.calibration import CONDITION_FIELDS, RUN_FIELDS, Calibration, Conditions, MeasuredRun

__all__ = ["load_calibration", "save"]

_FORMAT = "smp-advisor-calibration"
_VERSION = 1


def save(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration. The file is complete or unchanged, whatever happens."""
    target = Path(path)
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(calibration)}, indent=1)
    try:
        write_text(target, f"{text}\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CalibrationError(f"The calibration cannot be written to {os.fspath(target)!r}: {reason}.") from None


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration from its JSON file.

    Raises
    ------
    CalibrationError
        The file is missing, too large, or no calibration of a version that this package reads.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> better = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp").calibrate(step_seconds=5.2)
    >>> better.job.calibration.save("calibration.json")
    >>> smpa.load_calibration("calibration.json") == better.job.calibration
    True
    """
    require_path(path, "load_calibration")
    target = Path(path)
    try:
        raw = read_bytes(target, CONFIGURATION)
        text = raw.decode("utf-8")
        document = None if has_too_many_values(text) else json.loads(text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CalibrationError(f"The calibration {os.fspath(target)!r} cannot be read: {reason}.") from None
    except (ValueError, RecursionError):
        raise CalibrationError(f"{os.fspath(target)!r} is no JSON file of a calibration.") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise CalibrationError(f"{os.fspath(target)!r} is no calibration of this package.")
    if document.get("version") != _VERSION:
        raise CalibrationError(
            f"{os.fspath(target)!r} has version {document.get('version')!r:.50} of the calibration's format, and this "
            f"package reads version {_VERSION}."
        )
    runs = document.get("runs")
    if set(document) != {"format", "version", "runs"} or not isinstance(runs, list):
        raise CalibrationError(f"{os.fspath(target)!r} is no calibration: it needs format, version and runs only.")
    return Calibration(runs=tuple(_run(run) for run in runs))


def _run(values: Any) -> MeasuredRun:
    if not isinstance(values, dict) or not set(values) <= set(RUN_FIELDS) or "conditions" not in values:
        raise CalibrationError("A run of the calibration has unknown or missing fields.")
    conditions = values["conditions"]
    if not isinstance(conditions, dict) or set(conditions) != set(CONDITION_FIELDS):
        raise CalibrationError("The conditions of a run of the calibration have unknown or missing fields.")
    return MeasuredRun(**{**_frozen(values), "conditions": Conditions(**_frozen(conditions))})


def _frozen(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
