"""Values learned from measured runs of the user, and their JSON file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smp_advisor.arguments.signatures import checked, checked_methods
from smp_advisor.core import MOST
from smp_advisor.core.files import CONFIGURATION, json_values, read_text, sentence, user_path, write_text
from smp_advisor.errors import CalibrationError

if TYPE_CHECKING:
    from collections.abc import Sequence


MemoryKind = Literal["", "allocated", "reserved", "total", "out of memory"]

MEMORY_QUANTITIES = ("state", "activations", "allocator", "context")
"""Learned parts of the memory: parameters, gradients and optimizer state; activations, logits and buffers; the
allocator's reserve; CUDA context and libraries."""

FEATURES = (
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "sharding_level",
    "sharding_groups",
    "microbatch_samples",
    "microbatches",
    "sequence_length",
    "checkpointed",
    "offloaded",
)
"""Figures of a configuration, 1 or more. Runs are close if the logarithms of their figures are. `sharding_groups` is
the number of groups with all parts of the divided state."""

MAX_RUNS = 200
"""Most runs of a calibration: more take longer to solve and teach nothing further."""
ACCEPTED = "Accepted by its user:"
"""Start of the note of a run that was learned against a doubt, and is not shared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Conditions of a run. Their differences determine how much it teaches about another run."""

    gpu: str
    instance: str
    stack: str
    family: str
    kind: str
    training: str
    """Precision, optimizer, attention and further settings of the job that change its work."""
    parameters: float
    nodes: int
    configuration: tuple[float, ...]
    """Values of `FEATURES`; 1 or more each."""

    def __post_init__(self) -> None:
        _require_figures(self)
        if len(self.configuration) != len(FEATURES):
            raise CalibrationError(f"The configuration of a measured run must be {len(FEATURES)} numbers.")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    conditions: Conditions
    source: str = "figures of the user"
    notes: tuple[str, ...] = ()
    """Values that were read: steps used, steps dropped with the reason, spread, inferred units."""
    step_seconds: float | None = None
    """Measured seconds per optimizer step; None if only memory was measured."""
    step_noise: float = 0.02
    """One standard deviation of the logarithm of `step_seconds` as a measurement."""
    predicted_seconds: float = 0.0
    """Predicted seconds per step without calibration."""
    memory_kind: MemoryKind = ""
    """Kind of measured memory. ``out of memory``: the run needed more than `memory_gib`."""
    memory_gib: float | None = None
    """Measured peak per GPU in GiB (2**30 bytes)."""
    memory_noise_gib: float = 0.1
    predicted_gib: float = 0.0
    """Predicted memory of the same kind, without calibration."""
    memory_errors_gib: tuple[float, ...] = ()
    """One standard deviation of the prediction by `MEMORY_QUANTITIES`."""

    def __post_init__(self) -> None:
        _require_figures(self)
        if self.step_seconds is None and self.memory_gib is None:
            raise CalibrationError("A measured run needs a step time or a peak of memory.")
        if self.step_seconds is not None and self.predicted_seconds <= 0:
            raise CalibrationError("A measured step time needs predicted_seconds above 0.")
        if self.memory_gib is not None and not self.memory_kind:
            raise CalibrationError("A measured memory needs its memory_kind.")
        if self.memory_gib is not None and len(self.memory_errors_gib) != len(MEMORY_QUANTITIES):
            raise CalibrationError(f"memory_errors_gib of a measured run must be {len(MEMORY_QUANTITIES)} numbers.")


@checked_methods
@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Measured runs from which the cost model learns. `Job.calibration` applies it to every estimate.

    Examples
    --------
    >>> advice = advise("10B", "ml.p4d.24xlarge", instance_count=16)  # doctest: +SKIP
    >>> calibrated = advice.calibrate(step_seconds=13.1)  # doctest: +SKIP
    >>> calibrated.job.calibration.save("calibration.json")  # doctest: +SKIP
    """

    runs: tuple[MeasuredRun, ...]

    def __post_init__(self) -> None:
        runs: object = self.runs  # of an unchecked caller
        if not isinstance(runs, tuple) or not runs or not all(isinstance(run, MeasuredRun) for run in runs):
            raise CalibrationError("A calibration consists of at least one measured run.")
        if len(self.runs) > MAX_RUNS:
            most = f"at most {MAX_RUNS} runs, not {len(self.runs)}"
            raise CalibrationError(f"A calibration has {most}: leave out old ones.")

    def with_runs(self, runs: Sequence[MeasuredRun]) -> Calibration:
        """Return the calibration with more runs."""
        return replace(self, runs=(*self.runs, *runs))

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file, which `load_calibration` reads. It is complete or unchanged."""
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1)
        try:
            write_text(user_path(path, CalibrationError), f"{text}\n")
        except OSError as error:
            reason = error.strerror or str(error)
            raise CalibrationError(f"The calibration cannot be written to {os.fspath(path)!r}: {reason}.") from None

    def share(self, path: str | Path) -> int:
        """Add the runs to the calibration in a file that a team shares, and return the number of runs in it.

        A run that the file has is not added again, nor one that was accepted against a doubt; the oldest runs beyond
        the limit are left out. A lock next to the file serves one process after the other, and the file is replaced in
        one step.
        """
        from filelock import FileLock

        own = [run for run in self.runs if not any(note.startswith(ACCEPTED) for note in run.notes)]
        if not own:
            raise CalibrationError("Runs that were accepted against a doubt are not shared: save them for yourself.")
        target = Path(os.path.realpath(user_path(path, CalibrationError)))  # links to one file have one lock
        if target.is_file() and target.stat().st_nlink > 1:  # a replaced file leaves its other names behind
            name = os.fspath(target)
            raise CalibrationError(f"{name!r} has another name (a hard link), which would not get the runs: copy it.")
        try:
            with FileLock(target.with_name(f".{target.name}.lock")):
                earlier = load_calibration(target).runs if target.exists() else ()
                merged = (*earlier, *(run for run in own if run not in earlier))[-MAX_RUNS:]
                Calibration(runs=merged).save(target)
                return len(merged)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CalibrationError(f"The calibration {os.fspath(target)!r} cannot be shared: {reason}.") from None

    def __repr__(self) -> str:
        return f"Calibration({len(self.runs)} run{'s' if len(self.runs) > 1 else ''})"


_LEAST = {
    "parameters": 1, "nodes": 1, "configuration": 1e-6, "memory_gib": 1e-6,
    "step_seconds": 1e-9, "step_noise": 1e-4, "memory_noise_gib": 1e-4,
}  # fmt: skip
"""Least values of figures; 0 for the others."""


def _require_figures(record: Conditions | MeasuredRun) -> None:
    """Refuse figures out of their range. An infinite spread is that of a measurement that teaches nothing."""
    for entry in fields(record):
        value, least = getattr(record, entry.name), _LEAST.get(entry.name, 0)
        for number in value if isinstance(value, tuple) else (value,):
            is_spread = entry.name.endswith(("noise", "noise_gib")) and number == math.inf
            if isinstance(number, int | float) and not (least <= number <= MOST or is_spread):
                raise CalibrationError(
                    f"{entry.name} of a measured run must be a number from {least:g}, not {number!r:.50}."
                )


_FORMAT = "smp-advisor-calibration"
_VERSION = 2


@checked
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
    target = user_path(path, CalibrationError)
    text = read_text(target, CONFIGURATION, CalibrationError)
    try:
        document = json_values(text)
    except ValueError:
        raise CalibrationError(f"{os.fspath(target)!r} is no JSON file of a calibration.") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise CalibrationError(f"{os.fspath(target)!r} is no calibration of this package.")
    if document.get("version") != _VERSION:
        values = {"file": os.fspath(target), "version": document.get("version"), "own": _VERSION}
        raise CalibrationError(sentence("workload", "other_version", **values))
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    reader = TypeAdapter(tuple[MeasuredRun, ...], config=ConfigDict(strict=True, extra="forbid"))
    try:
        runs = reader.validate_json(json.dumps(document.get("runs")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, ("runs", *first["loc"])))
        reason = f"{first['msg'].removeprefix('Value error, ').removesuffix('.'):.300} (at {place:.80})"
        raise CalibrationError(f"{os.fspath(target)!r} is no calibration: {reason}.") from None
    return Calibration(runs=runs)
