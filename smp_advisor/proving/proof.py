"""Run an original script and its adaptation in child processes, and compare what they do."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments import require_types
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.libraries.plan import Plan
from smp_advisor.proving import comparison
from smp_advisor.proving.comparison import Difference, Record
from smp_advisor.proving.confinement import clean_environment
from smp_advisor.proving.preparation import changed_statements
from smp_advisor.proving.program import UNENDED, WAITED
from smp_advisor.reading.source import read
from smp_advisor.sandbox import Limits, run_isolated
from smp_advisor.sandbox.limits import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smp_advisor.libraries.library import Library

_STEPS = 24
_LOSSES = 400
"""Backward passes after which a script is stopped that takes no steps of an optimizer of PyTorch."""
_SECONDS = 900.0
"""Last guard of one run: it ends by the number of its steps, and a process that waits in vain is recognized."""
_BATCH = 8
_MOST_FILES = 2000
_MOST_BYTES = 50 * 2**20
_PRELOADED = ("transformers", "datasets", "peft", "accelerate", "PIL")
"""Libraries that look for others, of which stand-ins are imported later."""
_DRIVEN = re.compile(r"^\s*(?:from|import)\s+(?:accelerate|trl|transformers\s.*Trainer)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Result of a comparison.

    Examples
    --------
    >>> prove("train.py", "train_fsdp.py", plan).proven  # doctest: +SKIP
    """

    proven: bool
    """Whether both scripts ran, every changed line ran, and nothing differs."""
    differences: tuple[Difference, ...]
    failure: str
    """Why the scripts could not be compared; empty if they could."""
    compared: tuple[str, ...]
    """Compared behavior, each with its number."""
    not_compared: tuple[str, ...]
    """Behavior that the runs do not show."""
    stand_ins: tuple[str, ...]
    """Libraries and downloads that were replaced in the child processes."""
    reachable: tuple[str, ...] = ()
    """Parts of the machine that the code could reach; empty if it saw only copies, and no network."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - the signature of IPython
        del cycle
        printer.text(str(self))

    def __str__(self) -> str:
        lines = [f"The code could reach {', and '.join(self.reachable)}."] if self.reachable else []
        lines.append("proven" if self.proven else f"not proven{': ' + self.failure if self.failure else ''}")
        lines += [f"- {difference}" for difference in self.differences]
        for title, entries in (
            ("compared", self.compared), ("not compared", self.not_compared), ("stand-ins", self.stand_ins),
        ):  # fmt: skip
            if entries:
                lines.append(f"{title}: {', '.join(entries)}")
        return "\n".join(lines)


def prove(
    original: str | Path,
    adapted: str | Path,
    plan: Plan | None = None,
    *,
    library: str | None = None,
    root: str | Path | None = None,
    arguments: Sequence[str] = (),
    seconds: float = _SECONDS,
) -> Proof:
    """Run a script and its adaptation for a few updates, and compare them; a person or a tool may have written it.

    Two processes with gloo run the adaptation, and one the original. SMP v1 and v2 are replaced by stand-ins. Losses,
    gradients, parameters, modes, saved keys, printed figures, the order of collectives and the settings of the plan are
    compared, and every changed line has to run. The code gets no variables of the environment, no files but copies of
    the folder of the script, no network and no sockets where the system allows namespaces; otherwise the first line of
    the result reports what it could reach. Epochs, steps and models are small in both runs.

    Parameters
    ----------
    original
        The script before its adaptation: a path, or its content.
    adapted
        The script after it.
    plan
        Plan whose settings the adaptation must have.
    library
        ``smp-v1``, ``smp-v2``, ``ddp`` or ``fsdp``; overrides the library of the plan.
    root
        Folder to copy instead of the folder of the script, such as the root of its package.
    arguments
        Command line of the script.
    seconds
        Last guard of one run, which the result names if it strikes.

    Raises
    ------
    AdvisorError
        An argument has the wrong type, or a file cannot be read.
    ProfileError
        The child processes cannot be started.

    Examples
    --------
    >>> print(prove("train.py", "train_fsdp.py", plan))  # doctest: +SKIP
    """
    require_types({"plan": (plan, (Plan, type(None))), "library": (library, (str, type(None)))}, "prove")
    library = library or (plan.library if plan is not None else "")
    if library not in LIBRARIES or get_library(library).framework != "pytorch" or get_library(library).compiles:
        raise AdvisorError(f"prove() requires a plan or the name of a library for PyTorch loops, not {library!r}.")
    target, before, after = get_library(library), read(original), read(adapted)
    if driven := _DRIVEN.search(before.text):
        failure = f"{driven[0].split()[1]} runs the loop, and shards on GPUs only, which a proof does without."
        return Proof(proven=False, differences=(), failure=failure, compared=(), not_compared=(), stand_ins=())
    steps, own_group = target.script == "smp_step", "init_process_group" in before.text
    # A script that divides its work by the number of processes is compared with itself in two processes.
    first: dict[str, Any] = {
        "name": "original", "source": before.text, "microbatches": 0, "divide": False, "adapted": False,
        "processes": own_group * (1 if steps else 2),
    }  # fmt: skip
    changed = {**first, "source": after.text, "adapted": True, "processes": 0 if steps else 2, "microbatches": steps}
    runs = [
        first,
        {**first, "name": "again"},
        {**changed, "name": "repeated"},
        {**changed, "name": "divided", "divide": True, "microbatches": 2 * steps},
    ]
    lines = changed_statements(before.text, after.text)
    with tempfile.TemporaryDirectory(prefix="smp-proof-") as name:
        base = Path(name).resolve()
        folder, relative = _copy(before.file, None if root is None else Path(root), base)
        code = "\n".join([before.text, *(path.read_text("utf-8", "replace") for path in folder.rglob("*.py"))])
        request = {
            "base": str(base),
            "folder": str(folder),
            "script": relative,
            "arguments": list(arguments),
            "steps": _STEPS,
            "losses": _LOSSES,
            "most": _BATCH,
            "entire": plan is not None,  # the batch of the plan may be smaller
            "shrink": True,
            "accumulation": int(getattr(plan, "gradient_accumulation_steps", 1) or 1),
            "seconds": seconds,
            "libraries": [name for name in _PRELOADED if re.search(rf"\b{name}\b", code)],
            "runs": runs,
            "changed": [line for line, where in lines.items() if not where],
        }
        memory = max(2**30, available_memory_bytes() * 9 // 10)
        reachable = run_isolated(
            "smp_advisor.proving.program:make_runs", request, what="the proof", environment=clean_environment(),
            limits=Limits(seconds=60 + 2 * seconds * len(runs), processes=96, memory_bytes=memory),
        )  # fmt: skip
        further = ({**first, "name": "half"}, {**first, "name": "original resumed"}, {**changed, "name": "resumed"})
        records = {run["name"]: _records(base, run) for run in (*runs, *further)}
    settings: dict[str, Any] = {}
    if plan is not None and plan.library == library:
        settings["batch_size"] = plan.batch_size
        if not steps:
            settings["gradient_accumulation_steps"] = plan.gradient_accumulation_steps
            settings["precision"] = {"bf16": "bf16", "fp16": "fp16"}.get(str(plan.precision).split("-")[0], "fp32")
            settings["activation_checkpointing"] = bool(plan.activation_checkpointing)
    proof = _judge(records, target, settings, lines, own_group=own_group)
    return replace(proof, reachable=tuple(reachable))


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
            # Hidden files have credentials at times, and environments are shown as they are.
            skipped = name.startswith(".") or name in ("__pycache__", "node_modules") or (path / "pyvenv.cfg").exists()
            if skipped or path.is_symlink() or not (path.is_dir() or path.is_file()):
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
    names = {field.name for field in fields(Record)}
    for rank in range(max(1, run["processes"])):
        path = base / f"{run['name']}-{rank}.json"
        if not path.exists():  # the run was not needed
            records.append(Record(error=UNENDED))
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        printed = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        records.append(Record(printed=printed, **{key: value for key, value in content.items() if key in names}))
    return records


def _judge(  # noqa: C901, PLR0915 - a list of comparisons
    records: dict[str, list[Record]],
    target: Library,
    settings: dict[str, Any],
    lines: dict[int, str],
    *,
    own_group: bool,
) -> Proof:
    original, steps = records["original"][0], target.script == "smp_step"
    repeated, divided, resumed = records["repeated"], records["divided"], records["resumed"]
    notes = {note for record in (original, *repeated, *divided) for note in record.notes}
    half = records["half"][0]
    if half.error and not half.error.startswith(UNENDED):
        notes.add("undivided")
        divided = repeated
    if "batch_norm" not in notes and divided is not repeated and comparison.is_sum_over_batch(original, divided):
        notes.add("sum")
    if original.stopped:
        notes.add("stopped")
    stand_ins = tuple(sorted(n.removeprefix("stand-in: ") for n in notes if n.startswith("stand-in: ")))
    error = next(
        (r.error for r in records["original"] if r.error), "" if original.losses else "it has no backward pass"
    )
    if error:
        return Proof(
            proven=False, differences=(), failure=f"The original script did not run: {error}.", compared=(),
            not_compared=(), stand_ins=stand_ins,
        )  # fmt: skip
    differences: list[Difference] = []
    for name, run in (("with all data in each process", repeated), ("with divided data", divided)):
        # A process that waits in vain follows from another one's failure.
        errors = [record.error for record in run if record.error]
        error = min(errors, key=lambda text: text.startswith(WAITED), default="")
        if error:
            differences.append(Difference(what=f"The adapted script fails {name}: {error}."))
    not_compared = ["speed and memory", "shuffling, dropout and 16-bit rounding, which are off", "small eps of Adam"]
    not_compared += [reason for note, reason in _REASONS.items() if note in notes]
    not_compared += ["the library itself, which is replaced by a stand-in"] if target.of_sagemaker else []
    resumed_original = records["original resumed"][0]
    resumed_again = not resumed_original.error and not differences  # every line ran, or it does not run again
    if not differences:
        differences += comparison.compare_updates(original, repeated)
        differences += [d for d in (comparison.compare_modes(original, repeated[0]),) if d is not None]
        differences += comparison.compare_saves(original, repeated[0], renamed=steps)
        differences += comparison.compare_processes(repeated)
        if repeated[0].accumulation > original.accumulation:
            not_compared.append("printed figures, because the batches of the plan are smaller")
        else:
            differences += comparison.compare_prints(
                original, records["again"][0], repeated[0], settings.get("batch_size", 0)
            )
        differences += comparison.compare_settings(repeated, settings, target)
        same = "same batches" in repeated[0].notes and "divided batches" not in repeated[0].notes
        if same and not steps and not own_group:
            what = "Every process reads the same batches: no loader of the training has a DistributedSampler."
            differences.append(Difference(what=what))
        parted = notes & {"batch_norm", "undivided", "sum", "left out", "random"}
        differences += comparison.compare_replicas(divided) if parted else comparison.compare_updates(original, divided)
        if resumed_again:
            error = next((record.error for record in resumed if record.error), "")
            what = f"The adapted script fails with the files that it saved: {error}."
            differences += [Difference(what=what)] if error else comparison.compare_updates(resumed_original, resumed)
        hits = {line for record in (*repeated, *divided, *resumed) if not record.error for line in record.hits}
        unseen = {line: where for line, where in sorted(lines.items()) if line not in hits}
        differences += [
            Difference(what="It never ran: pass arguments with which it does, or read it.", line=line)
            for line, where in unseen.items()
            if not where
        ]
        if any(unseen.values()):
            not_compared.append(f"lines {', '.join(str(line) for line, where in unseen.items() if where)}, on a GPU")
    counts = (
        (original.losses, "{} loss", "{} losses"),
        (original.updates, "gradients and parameters of {} update", "gradients and parameters of {} updates"),
        (original.modes, "{} change of mode", "{} changes of mode"),
        (original.saves, "{} saved file", "{} saved files"),
        (original.printed, "{} printed line", "{} printed lines"),
        (repeated[0].collectives, "{} collective", "{} collectives"),
    )  # fmt: skip
    compared = (
        *((singular if len(entries) == 1 else plural).format(len(entries)) for entries, singular, plural in counts),
        *(["a second run with the files of the first"] if resumed_again else []),
        *([f"settings of the plan ({', '.join(settings)})"] if settings else []),
    )
    return Proof(
        proven=not differences, differences=tuple(differences), failure="", compared=compared,
        not_compared=tuple(not_compared), stand_ins=stand_ins,
    )  # fmt: skip


_REASONS = {
    "batch_norm": "losses of divided batches, because batch normalization depends on the batch of a process",
    "undivided": "losses of divided batches, because the script does not run with a smaller batch size",
    "random": "losses of divided batches, because the loop draws random numbers for a batch",
    "left out": "losses of divided batches, because the loss is a mean over labels that it weighs or leaves out",
    "sum": "losses of divided batches: the loss is a sum over a batch, whose gradients are averaged over the processes",
    "stopped": f"updates after the first {_STEPS}",
    "many losses": f"backward passes after the first {_LOSSES}",
}
