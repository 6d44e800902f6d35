"""Count the injected faults that a rehearsal finds, and its false alarms on sound models.

Run it with ``python -m benchmarks.rehearsal_faults [NAME ...]``. A fault counts as found if the report contains its
cause, and its parameter where there is one. It fails below 27 of 30 faults, or with a false alarm.
"""

from __future__ import annotations

import sys

from benchmarks.rehearsal_cases import FAULTS, SOUND, TOKENS, Case
from smp_advisor import Job
from smp_advisor.errors import ProfileError
from smp_advisor.profiling.profiled_model import read_model
from smp_advisor.profiling.rehearsal.run import run

MIN_FOUND = 27


def report(case: Case) -> tuple[bool, str]:
    """Whether the rehearsal raised no alarm, and its problems as text."""
    try:
        rehearsal = run(
            read_model(case.make()), Job(sequence_length=TOKENS), case.plan, data_parallel_degree=case.data,
            inputs=case.inputs,
        )  # fmt: skip
    except ProfileError as error:
        return False, str(error)
    text = " ".join(str(problem) for problem in rehearsal.problems)
    return rehearsal.ok, text or ("" if rehearsal.ok else rehearsal.summary)


def is_found(case: Case, text: str) -> bool:
    """Whether a report names the cause of an injected fault."""
    return any(cause in text for cause in case.causes) and case.parameter in text


def main(names: list[str]) -> int:
    """Rehearse all cases, or those whose name contains one of `names`."""
    found = alarms = 0
    faults = [case for case in FAULTS if not names or any(name in case.name for name in names)]
    sound = [case for case in SOUND if not names or any(name in case.name for name in names)]
    for case in faults:
        ok, text = report(case)
        success = not ok and is_found(case, text)
        found += success
        print(f"{'found ' if success else 'MISSED'} {case.name}: {text[:400] or 'no problem'}", flush=True)
    for case in sound:
        ok, text = report(case)
        alarms += not ok
        print(f"{'quiet ' if ok else 'ALARM '} {case.name}{': ' + text[:400] if text else ''}", flush=True)
    print(f"{found} of {len(faults)} faults found, {alarms} false alarms on {len(sound)} sound models")
    return 0 if alarms == 0 and found >= min(MIN_FOUND, len(faults)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
