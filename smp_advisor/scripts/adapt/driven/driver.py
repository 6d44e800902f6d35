"""Find the library that runs the loop of a script, and the calls whose arguments choose its parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from smp_advisor.scripts.adapt.known_names import known_names
from smp_advisor.scripts.adapt.roles import backward_calls

if TYPE_CHECKING:
    import libcst as cst

    from smp_advisor.scripts.adapt.survey import Survey

__all__ = ["Driver", "Runner", "driver_of"]

Runner = Literal["accelerate", "trainer", "lightning", "fabric"]
"""Accelerate, the Trainer of transformers, the Trainer of Lightning, or Lightning Fabric."""

_LIGHTNING = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
_TRAINERS = frozenset({"transformers", "trl"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The library that runs the loop."""

    runner: Runner
    title: str
    """Name of the library in a sentence."""
    calls: tuple[cst.Call, ...]
    """Calls whose arguments choose the parallelism; empty if they are in another file or made by a parser."""
    parsed: bool = False
    """Whether a parser of the command line makes the arguments."""


def driver_of(survey: Survey) -> Driver | None:
    """The library that runs the loop; None if the script runs it."""
    roots = {origin.split(".")[0] for origin in survey.imported.values()}
    names = {call: survey.callee(call) for call in survey.calls}

    def of(*suffixes: str, libraries: frozenset[str]) -> tuple[cst.Call, ...]:
        return tuple(
            call
            for call, name in names.items()
            if name.split(".")[0] in libraries and name.rpartition(".")[2].endswith(suffixes)
        )

    if "accelerate" in roots and (calls := of("Accelerator", libraries=frozenset({"accelerate"}))):
        return Driver(runner="accelerate", title="Accelerate", calls=calls)
    if calls := of("Fabric", libraries=_LIGHTNING):
        return Driver(runner="fabric", title="Lightning Fabric", calls=calls)
    if roots & _LIGHTNING:
        calls = of("Trainer", libraries=_LIGHTNING)
        parsed = any(name.rpartition(".")[2] in ("LightningCLI", "from_argparse_args") for name in names.values())
        if calls or parsed:
            return Driver(runner="lightning", title="The Trainer of Lightning", calls=calls, parsed=parsed)
    trains = any(name.rpartition(".")[2].endswith("Trainer") for name in names.values())
    if roots & _TRAINERS and trains and not backward_calls(survey):
        calls = of(*known_names("training_arguments"), libraries=_TRAINERS)
        parsed = any(
            name.rpartition(".")[2] in ("HfArgumentParser", "TrlParser", "parse_args_into_dataclasses")
            for name in names.values()
        )
        return Driver(runner="trainer", title="The Trainer of transformers", calls=calls, parsed=parsed)
    return None
