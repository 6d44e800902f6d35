"""Run an original script and its adaptation in child processes, and compare what they do."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.profiling.sandbox import Limits, run_isolated
from smp_advisor.proving.comparison import (
    Difference,
    Record,
    compare_losses,
    compare_modes,
    compare_prints,
    compare_saves,
    is_sum_over_batch,
)
from smp_advisor.proving.program import UNENDED, WAITED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Proof", "prove", "prove_all"]

_STEPS = 10
_LOSSES = 400
"""Backward passes after which a script is stopped that takes no steps of an optimizer of PyTorch."""
_SECONDS = 900.0
"""Last guard of one run: it ends by the number of its steps, and a process that waits in vain is recognized."""
_MOST_FILES = 2000
_MOST_BYTES = 50 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Result of a comparison."""

    proven: bool
    """Whether both scripts ran and nothing differs."""
    differences: tuple[Difference, ...]
    failure: str
    """Why the scripts could not be compared; empty if they could."""
    compared: tuple[str, ...]
    """Compared behavior, each with its number."""
    not_compared: tuple[str, ...]
    """Behavior that the runs do not show."""
    stand_ins: tuple[str, ...]
    """Libraries and downloads that were replaced in the child processes."""

    def __str__(self) -> str:
        lines = ["proven" if self.proven else f"not proven{': ' + self.failure if self.failure else ''}"]
        lines += [f"- {difference}" for difference in self.differences]
        for title, entries in (
            ("compared", self.compared), ("not compared", self.not_compared), ("stand-ins", self.stand_ins),
        ):  # fmt: skip
            if entries:
                lines.append(f"{title}: {', '.join(entries)}")
        return "\n".join(lines)


def prove(
    original: str,
    adapted: str,
    *,
    library: str,
    script: Path | None = None,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    seconds: float = _SECONDS,
) -> Proof:
    """Run a script and its adaptation for a few steps on small data, and compare them; see `prove_all`."""
    proofs = prove_all(original, {library: adapted}, script=script, root=root, arguments=arguments, seconds=seconds)
    return proofs[library]


def prove_all(
    original: str,
    adapted: Mapping[str, str],
    *,
    script: Path | None = None,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    seconds: float = _SECONDS,
) -> dict[str, Proof]:
    """Run a script and its adaptations for a few steps on small data, and compare them.

    The code of the user runs in child processes with limits on memory and processes, in a temporary folder and without
    a network. Data is cut to four batches per loader, and each run to ten updates; shuffling and dropout are off in all
    runs. Processes that wait for each other are recognized by their state, so no result depends on the machine's speed.

    Parameters
    ----------
    original
        Source of the script before its adaptation.
    adapted
        Its adaptations by library: ``smp-v1`` runs against a simulator with one and two microbatches, all others in
        two processes with gloo.
    script
        Path of the script; the files next to it are copied.
    root
        Folder to copy instead of the folder of the script, such as the root of its package.
    arguments
        Command line of the script.
    seconds
        Last guard of one run, which the result names if it strikes.

    Raises
    ------
    ProfileError
        The child processes cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="smp-proof-") as name:
        base = Path(name)
        folder, relative = _copy(script, root, base)
        runs = _runs(original, adapted)
        request = {
            "base": str(base),
            "folder": str(folder),
            "script": relative,
            "arguments": list(arguments),
            "steps": _STEPS,
            "losses": _LOSSES,
            "seconds": seconds,
            "transformers": "transformers" in original,
            "runs": runs,
        }
        isolated = run_isolated(
            "smp_advisor.proving.program:make_runs", request, what="the proof",
            limits=Limits(seconds=60 + 2 * seconds * len(runs), processes=96),
        )  # fmt: skip
        halves = [{**runs[0], "name": f"{run['name']} half"} for run in runs]
        records = {run["name"]: _records(base, run) for run in (*runs, *halves)}
    return {library: _judge(records, library, isolated=isolated) for library in adapted}


def _runs(original: str, adapted: Mapping[str, str]) -> list[dict[str, Any]]:
    own_group = "init_process_group" in original
    plain = {"library": "", "microbatches": 1, "divide": False, "processes": int(own_group), "source": original}
    runs = [{**plain, "name": "original"}, {**plain, "name": "again"}]
    if own_group and set(adapted) != {"smp-v1"}:
        # A script that divides its work by the number of processes is compared with itself in two processes.
        runs += [{**plain, "name": "original pair", "processes": 2}, {**plain, "name": "again pair", "processes": 2}]
    for library, source in adapted.items():
        steps = library == "smp-v1"
        new = {**plain, "library": library, "source": source, "processes": 0 if steps else 2}
        runs.append({**new, "name": f"{library} repeated"})
        runs.append({**new, "name": f"{library} divided", "divide": True, "microbatches": 2 if steps else 1})
    return runs


def _copy(script: Path | None, root: Path | None, base: Path) -> tuple[Path, str]:
    """Copy the code and the small files next to it; the path of the script in the copy."""
    folder = base / "original"
    if script is None:
        folder.mkdir()
        return folder, "train.py"
    source = (root or script.parent).resolve()
    budget = [_MOST_FILES, _MOST_BYTES]

    def ignored(directory: str, names: list[str]) -> set[str]:
        left_out = set()
        for name in names:
            path = Path(directory) / name
            if name in (".git", "__pycache__", "node_modules") or path.is_symlink():
                left_out.add(name)
            elif path.is_file():
                budget[0] -= 1
                budget[1] -= path.stat().st_size
                if min(budget) < 0:
                    left_out.add(name)
        return left_out

    shutil.copytree(source, folder, ignore=ignored)
    relative = str(script.resolve().relative_to(source))
    return folder, relative if relative.endswith(".py") else f"{relative}.py"


def _records(base: Path, run: dict[str, Any]) -> list[Record]:
    records = []
    for rank in range(max(1, run["processes"])):
        path = base / f"{run['name']}-{rank}.json"
        if not path.exists():  # the run was not needed
            records.append(Record(losses=[], modes=[], saves=[], notes=[], printed=[], error=UNENDED))
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        printed = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        records.append(
            Record(
                losses=[(float(value), int(line)) for value, line in content["losses"]],
                modes=[(bool(t), bool(g), int(line)) for t, g, line in content["modes"]],
                saves=content["saves"],
                notes=content["notes"],
                printed=printed,
                error=content["error"],
                stopped=content["stopped"],
            )
        )
    return records


def _judge(records: dict[str, list[Record]], library: str, *, isolated: bool) -> Proof:
    original, _ = _originals(records, library)
    repeated, divided = records[f"{library} repeated"], records[f"{library} divided"]
    notes = {note for record in (original, *repeated, *divided) for note in record.notes}
    half = records[f"{library} divided half"][0]
    if half.error and not half.error.startswith(UNENDED):
        notes.add("undivided")
        divided = repeated
    if "batch_norm" not in notes and is_sum_over_batch(original, divided):
        notes.add("sum")
    if original.stopped:
        notes.add("stopped")
    stand_ins = tuple(sorted(n.removeprefix("stand-in: ") for n in notes if n.startswith("stand-in: ")))
    if original.error or not original.losses:
        failure = original.error or "it has no backward pass"
        return Proof(
            proven=False, differences=(), failure=f"The original script did not run: {failure}.", compared=(),
            not_compared=(), stand_ins=stand_ins,
        )  # fmt: skip
    differences: list[Difference] = []
    for name, run in (("repeated", repeated), ("divided", divided)):
        # A process that waits in vain follows from another one's failure.
        error = min(
            (record.error for record in run if record.error), key=lambda text: text.startswith(WAITED), default=""
        )
        if error:
            how = {"repeated": "with all data in each process", "divided": "with divided data"}[name]
            differences.append(Difference(what=f"The adapted script fails {how}: {error}."))
    if not differences:
        differences += _compare(records, library, notes)
    not_compared = _not_compared(notes, library, isolated=isolated)
    compared = (
        _number(len(original.losses), "loss", "losses"),
        _number(len(original.modes), "change of mode", "changes of mode"),
        _number(len(original.saves), "saved file", "saved files"),
        _number(len(original.printed), "printed line", "printed lines"),
    )
    return Proof(
        proven=not differences, differences=tuple(differences), failure="", compared=compared,
        not_compared=tuple(not_compared), stand_ins=stand_ins,
    )  # fmt: skip


def _number(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def _originals(records: dict[str, list[Record]], library: str) -> tuple[Record, Record]:
    """Two runs of the original script: in two processes if it has a process group of its own and runs in two."""
    pair = records.get("original pair")
    if library != "smp-v1" and pair is not None and not any(record.error for record in pair):
        return pair[0], records["again pair"][0]
    return records["original"][0], records["again"][0]


def _not_compared(notes: set[str], library: str, *, isolated: bool) -> list[str]:
    not_compared = ["speed and memory", "shuffling and dropout, which are off", "small eps of Adam"]
    if "batch_norm" in notes:
        not_compared.append("losses of divided batches, because batch normalization depends on the batch of a process")
    if "undivided" in notes:
        not_compared.append("losses of divided batches, because the script does not run with a smaller batch size")
    if "random" in notes:
        not_compared.append("losses of divided batches, because the loop draws random numbers for a batch")
    elif "sum" in notes:
        not_compared.append(
            "losses of divided batches after the first: the loss is a sum over a batch, whose gradients are averaged"
            " over the processes"
        )
    if "stopped" in notes:
        not_compared.append(f"updates after the first {_STEPS}")
    if "many losses" in notes:
        not_compared.append(f"backward passes after the first {_LOSSES}")
    if library in ("smp-v1", "smp-v2"):
        not_compared.append("the library itself, which is replaced by a simulator")
    if not isolated:
        not_compared.append("connections of compiled code, which were not blocked")
    return not_compared


def _compare(records: dict[str, list[Record]], library: str, notes: set[str]) -> list[Difference]:
    original, again = _originals(records, library)
    repeated, divided = records[f"{library} repeated"], records[f"{library} divided"]
    results = [compare_losses(original, repeated[:1]), compare_modes(original, repeated[0])]
    results += compare_saves(original, repeated[0], renamed=library == "smp-v1")
    if len(repeated) > 1 and any(save for record in repeated[1:] for save in record.saves):
        line = next(save["line"] for record in repeated[1:] for save in record.saves)
        results.append(Difference(what="A process other than the first saves files too.", line=line))
    results += compare_prints(original, again, repeated[0])
    if not notes & {"batch_norm", "undivided", "sum", "random"}:
        results.append(compare_losses(original, divided))
    return [difference for difference in results if difference is not None]
