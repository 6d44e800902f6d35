"""Findings in the records of a rehearsal: a function per kind, from counts, states and figures, never from time."""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.rehearsal.report import MOST_PROCESSES, Observed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Stage = dict[str, Any]
Event = dict[str, Any]
_LOST_PEER = re.compile(r"[Cc]onnection|closed by peer|gloo|Broken pipe|timed out|[Ss]ocket|Application timeout")
_LACKED = re.compile(r"pip install|[Rr]equire(?:ment|s)|not installed|be installed|not met")
"""In errors of libraries that name what they lack."""
_OF_ABSENT, _USELESS = re.compile(r"\b(?:NotInstalled|Nothing)\b"), "nothing that the training needs"
_OF_NAMES = re.compile(r"unexpected keyword argument|^cannot import name|^name '\w+' is not defined")
"""Errors that no data cause."""
_OF_VERSIONS = re.compile(
    rf"{_OF_NAMES.pattern}|(?<!'NoneType' object )has no attribute '|positional arguments?\b|not used by the HfArg|"
    "Unknown arguments from|^No module named|no longer supported|(?:been|was) removed"
)
_OF_GPUS = re.compile(r"_C' has no attribute '_cuda|compiled with CUDA|NVIDIA driver|_cuda\.<locals>|available devices")
_PROCESSES = re.compile(r"\b(\d+) (?:GPU|device|process|rank)(?:e?s)?\b", re.IGNORECASE)
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_DOWNLOAD = re.compile(
    r"huggingface\.co(?!/docs)|^[\w.-]+/[\w.-]+ does not appear to have a file|offline mode|"
    r"LocalEntryNotFound|resolve host|name resolution|urlopen|Name or service not known|not fully cached|"
    r"Network is unreachable|Max retries exceeded|[Cc]ould not connect to the endpoint|Unable to locate credentials"
)
_TOLERANCE = 2e-5
"""Relative difference of sums of squares: averaged gradients differ by rounding, others by the mark of 0.1 %."""
_KEPT = ("/opt/ml/model", "/opt/ml/checkpoints", "/opt/ml/output", "/dev/", "/tmp/")
_ALONE_PASSES, _ALONE_ROWS = 3, 20
_WRAPPERS = ("module.", "_orig_mod.")
"""Beginnings of the names of tensors in models of DDP and of `torch.compile`."""


def events(stage: Stage, rank: int, kind: str) -> list[Event]:
    """Events of a kind that a rank recorded."""
    return [event for event in stage["ranks"][rank]["events"] if event["kind"] == kind]


def ranks_of(stage: Stage) -> range:
    """Return the numbers of the ranks."""
    return range(len(stage["ranks"]))


def first_error(stage: Stage) -> tuple[int, Event] | None:
    """Return the error of the script that others follow from."""
    errors = [(rank, error) for rank in ranks_of(stage) for error in events(stage, rank, "error")]
    return next((pair for pair in errors if not _is_lost(pair[1])), next(iter(errors), None))


def _is_lost(error: Event) -> bool:
    return bool(_LOST_PEER.search(error["text"])) and error["name"] not in ("ValueError", "KeyError")


def not_rehearsed(stage: Stage) -> str:
    """Return why an error shows nothing about the script; empty if it does."""
    failure = first_error(stage)
    ends = {-rank["end"] for rank in stage["ranks"] if rank["end"] is not None} & {*_CRASHES}
    # gloo ends what ranks do not share, and those that wait for one that failed.
    if ends and (failure is None or _is_lost(failure[1])) and (stage["verdict"] or {}).get("code") != "order":
        return f"a process crashed here, in compiled code ({signal.Signals(min(ends)).name})"
    if failure is None:
        verdict = stage["verdict"]
        if (absent := not_installed(stage)) and not verdict and not events(stage, 0, "step"):
            return f"nothing is trained without {absent[0]}"
        return verdict["text"] if verdict and verdict["code"] in ("heavy", "guard") else ""
    error = failure[1]
    if _OF_ABSENT.search(error["text"]):
        absent = not_installed(stage) or ["a value of a stand-in"]
        return f"the training needs {absent[0]}, which is not here ({error['name']}: {error['text'][:120]})"
    if error["name"] == "NotRehearsed":
        return str(error["text"])
    if error["module"] and error["name"] == "ModuleNotFoundError":
        return f"the module {error['module']!r} is not installed here"
    lacks = error["name"].endswith(("ModuleNotFoundError", "ImportError")) and _LACKED.search(error["text"])
    if lacks or "pip install" in error["text"]:
        return f"a package is not installed here ({error['text'][:120]})"
    if error["text"].startswith("ProcessGroupGloo::") and not stage["verdict"]:
        return f"gloo cannot do it ({error['text'][:120]})"
    if _OF_GPUS.search(error["text"]):
        return f"a function of GPUs has no stand-in here ({error['name']}: {error['text'][:120]})"
    of_all = (event for rank in ranks_of(stage) for event in events(stage, rank, "error"))
    if offline := next((event for event in of_all if _DOWNLOAD.search(event["text"])), None):  # others follow from it
        return f"there is no network here ({offline['name']}: {offline['text'][:120]})"
    needed = _PROCESSES.search(error["text"])
    if needed and not error["update"] and int(needed[1]) > len(stage["ranks"]):
        remedy = "pass processes=" + needed[1] if int(needed[1]) <= MOST_PROCESSES else f"{MOST_PROCESSES} are the most"
        return f"the script needs {needed[1]} processes: {remedy} ({error['text'][:80]})"
    if error["name"] == "ZeroDivisionError" and "//" in error["line"] and not error["update"]:
        return f"a quotient is zero here, with {len(stage['ranks'])} processes and small data ({error['line'][:80]})"
    if error["cut"]:
        return f"a loop ended early here, and the script needs all of it ({error['name']}: {error['text'][:80]})"
    if error["own"]:
        return f"a stand-in failed ({error['name']}: {error['text'][:120]})"
    if error["imports"] and not error["text"].startswith("cannot import name"):
        return f"a library does not import here ({error['name']}: {error['text'][:120]})"
    empty = events(stage, failure[0], "empty channel")
    if empty and error["update"] == 0 and not _OF_NAMES.search(error["text"]):
        name = empty[0]["name"]
        return f"the channel {name} is empty here: pass data={{{name!r}: folder}} ({error['text'][:80]})"
    is_input = "/opt/ml/input/data" in error["text"] and error["name"] in ("FileNotFoundError", "NotADirectoryError")
    if is_input and not error["update"]:
        return f"the job's data are not here: pass data={{channel: folder}} ({error['text'][:80]})"
    rows = [e["what"] for e in events(stage, failure[0], "stand-in") if e["what"].startswith("data set ")]
    names_column = re.search(r"(?i)column|features|dataset of size|KeyError|^'\w+'$", error["text"] + error["name"])
    of_rows = names_column and error["name"] in ("KeyError", "ValueError", "IndexError")
    if rows and (of_rows or error["of_data"]) and error["update"] == 0 and not _OF_NAMES.search(error["text"]):
        return f"the stand-in of the {rows[0]} is other than the real data: pass data= ({error['text'][:80]})"
    return ""


def not_installed(stage: Stage) -> list[str]:
    """Return the packages that are not here, and do not only report."""
    texts = [event["what"] for event in events(stage, 0, "stand-in") if event["what"].endswith(_USELESS)]
    return [text.partition(":")[0] for text in texts]


def unstated(stage: Stage) -> str:
    """Return why a script without stated hyperparameters stops at its start; empty if they are not the reason."""
    failure, refusal = first_error(stage), _refusal(stage)
    if failure is None or failure[1]["update"]:
        return ""
    reads = any(event["name"].startswith(("SM_HP", "hyperparameters")) for event in events(stage, failure[0], "reads"))
    if "required" in refusal or (reads and failure[1]["name"] in ("KeyError", "TypeError")):
        text = refusal or f"{failure[1]['name']}: {failure[1]['text'][:80]}"
        return f"the hyperparameters are not stated: pass job={{'hyperparameters': ...}} ({text})"
    return ""


def of_other_version(stage: Stage, texts: Mapping[str, str]) -> str:
    """Return why a name that a library lacks here shows nothing about a job with another version; empty if it does."""
    failure = first_error(stage)
    owner = next((name for name in failure[1]["owners"] if name in texts), "") if failure else ""
    if failure is None or not owner or not _OF_VERSIONS.search(failure[1]["text"]):
        return ""
    return f"{texts[owner]} ({failure[1]['name']}: {failure[1]['text'][:120]})"


def failures(stage: Stage) -> Iterator[Observed]:
    """Errors and waits of a stage."""
    failure, verdict = first_error(stage), stage["verdict"]
    lost = failure is not None and _is_lost(failure[1])
    # Arguments first: they explain each error that follows.
    if refusal := _refusal(stage):
        yield Observed(kind="arguments", text=f"the script's parser refuses what the job passes: {refusal}")
    elif failure is not None and not lost:
        rank, error = failure
        failing = {r for r in ranks_of(stage) for e in events(stage, r, "error") if e["name"] == error["name"]}
        is_of_some = len(failing) < len(stage["ranks"])
        who = f"rank {rank}" if is_of_some or len(failing) == 1 else "every rank"
        # Some errors of one rank alone have a known reason: it came before rank 0, or after another one.
        kind = (
            "node" if stage["nodes"] > 1
            else "late" if error["name"] in ("FileNotFoundError", "EOFError") and 0 not in failing
            else "written twice" if error["name"] == "FileExistsError" and is_of_some
            else "failure"
        )  # fmt: skip
        hint = ": wait until rank 0 has written it (a barrier)" if kind == "late" else ""
        yield Observed(kind=kind, text=f"{who}: {error['name']}: {error['text'][:200]}{hint}", site=error["site"])
    # A rank that lost its peer is a symptom: the place where they parted is the cause.
    if verdict and verdict["code"] in ("order", "ended", "asleep") and (failure is None or lost):
        parted = f"; apart since {verdict['parted']}" if verdict.get("parted") else ""
        yield Observed(kind="order", text=verdict["text"] + parted, site=verdict["site"])
    elif lost and failure is not None and not verdict:
        text = f"rank {failure[0]} loses its peer, which has ended or is elsewhere: {failure[1]['text'][:120]}"
        yield Observed(kind="order", text=text, site=failure[1]["site"])
    elif failure is None and not verdict:
        ends = [(rank, stage["ranks"][rank]["end"]) for rank in ranks_of(stage) if not events(stage, rank, "killed")]
        for rank, end in [(rank, end) for rank, end in ends if end][:1]:
            how = f"signal {-end}" if end < 0 else f"status {end}"
            yield Observed(kind="failure", text=f"rank {rank} ended with {how}")


def _refusal(stage: Stage) -> str:
    """Return the sentence with which a parser of arguments ends the script; empty if none does."""
    failure = first_error(stage)
    if failure is None:
        return ""
    rank, error = failure
    if error["name"] == "ValueError" and "arguments are not used" in error["text"]:  # by HfArgumentParser
        return str(error["text"][:200])
    if (error["name"], error["text"], error["update"]) != ("SystemExit", "2", 0):
        return ""
    lines = [line for line in stage["ranks"][rank]["log"] if re.match(r"(?:\S+: )?error: ", line, re.IGNORECASE)]
    return str(lines[-1][:200]) if lines else "it ends with status 2"


def parted(stage: Stage, kind: str) -> Iterator[Observed]:
    """Yield a provocation after which ranks part; a script that ends on every rank at the same line has decided to."""
    errors = [events(stage, rank, "error")[-1:] for rank in ranks_of(stage)]
    if all(errors) and len({(error[0]["name"], error[0]["site"]) for error in errors}) == 1 and not stage["verdict"]:
        return
    # An error may come of the values of a loss that never falls.
    yield from (replace(entry, kind=kind) for entry in failures(stage) if kind != "order" or entry.kind == "order")


def arguments(
    stage: Stage, hyperparameters: Mapping[str, Any], words: list[str], *, reads_otherwise: bool
) -> Iterator[Observed]:
    """Yield the hyperparameters that arrive otherwise, or nowhere; `words` start the script."""
    parsed = [event for event in events(stage, 0, "arguments") if event["options"]]
    reads = {event["name"] for event in events(stage, 0, "reads")}
    refused, noted = bool(_refusal(stage)), partial(Observed, kind="arguments")
    for name, value in hyperparameters.items():
        upper = name.upper()
        if name.startswith("sagemaker_") or reads & {
            f"SM_HP_{upper}", f"SM_HP_{upper.replace('-', '_')}", "SM_HPS", "hyperparameters.json", "SM_TRAINING_ENV",
        } or refused:  # fmt: skip
            continue
        if not parsed:
            if not reads_otherwise and first_error(stage) is None:
                yield noted(text=f"the hyperparameter {name} is read by nobody", level="warning")
            continue
        last = parsed[-1]
        option, key = f"--{name}", name.replace("-", "_")
        if option in last["rest"] or (option not in last["options"] and option in last["given"]):
            close = next((entry for entry in last["options"] if entry.strip("-").replace("-", "_") == key), "")
            hint = f"; {close} is" if close else ""
            yield noted(text=f"{option} is no option of the script{hint}: {value!r} does not arrive")
        elif not any(word.partition("=")[0] == option for word in words):
            default = last["values"].get(key)
            yield noted(text=f"the hyperparameter {name}={value!r} is not passed to the script, which uses {default!r}")
        elif key in last["values"] and not _is_same(last["values"][key], value):
            why = ": type=bool is True for every text" if key in last["flags"] else ""
            why = ": the option takes no value, and is true once it is passed" if str(value) in last["rest"] else why
            yield noted(text=f"{name}={value!r} arrives as {last['values'][key]!r}{why}")


def _is_same(got: Any, expected: Any) -> bool:
    if str(got) == str(expected):
        return True
    if isinstance(got, bool) != isinstance(expected, bool):
        return isinstance(got, bool) and str(expected).strip().lower() in (str(got).lower(), str(int(got)))
    try:
        return abs(float(got) - float(expected)) <= 1e-9 * abs(float(expected))
    except (TypeError, ValueError):
        # A list, a dictionary or a path in a form of the script's own.
        return not isinstance(expected, str | int | float) or not isinstance(got, str | int | float)


def apart(stage: Stage) -> Iterator[Observed]:
    """Processes that do not train together: no group, gradients, batches, lengths, rates."""
    if len(stage["ranks"]) < 2:
        return
    steps = [events(stage, rank, "step") for rank in ranks_of(stage)]
    if not all(steps):
        return
    if not any(events(stage, rank, "group") for rank in ranks_of(stage)):
        text = f"{len(steps)} processes train without a process group, each its own model"
        text += ": start one, or rehearse a job of one process with processes=1"
        yield Observed(kind="no group", text=text, site=steps[0][0]["site"])
    yield from _not_reduced(stage["ranks"][0]["events"])
    if not events(stage, 0, "tensor parallel") and not any(events(stage, rank, "message") for rank in ranks_of(stage)):
        yield from [*_not_averaged(steps, [updates_of(stage, rank) for rank in (0, 1)])] or other_parameters(steps)
        yield from same_batches(stage)
    is_divided = any(event["size"] == len(steps) for event in events(stage, 0, "tensor parallel"))
    for what, kind, level, differs, text in _DIFFERENCES:
        pairs = zip(events(stage, 0, what), events(stage, 1, what), strict=False)
        for n, (mine, theirs) in enumerate(pairs, 1):
            if differs(mine, theirs) and (is_divided or kind != "other batches"):
                filled = text.format(n=n, a=mine, b=theirs)
                yield Observed(kind=kind, text=filled, site=mine["site"], level=level)
                break


_DIFFERENCES: tuple[tuple[str, str, str, Callable[[Event, Event], bool], str], ...] = (
    ("pass", "other batches", "error", lambda a, b: a["digest"] != b["digest"],
     "training pass {n} has other inputs on rank 0 than on rank 1, which divide the same layers"),
    ("loader", "uneven", "warning",
     lambda a, b: a["site"] == b["site"] and len({a["length"], b["length"]} - {None}) > 1,
     "the loader has {a[length]} batches on rank 0 and {b[length]} on rank 1"),
    ("step", "learning rate", "error",
     lambda a, b: a["optimizer"] == b["optimizer"] and a["rates"] != b["rates"],
     "update {n}: the learning rate is {a[rates][0]:.4g} on rank 0 and {b[rates][0]:.4g} on rank 1"),
    ("metric", "learning rate", "error", lambda a, b: not near(a["value"], b["value"], 1e-6),
     "ReduceLROnPlateau decides by {a[value]:.4g} on rank 0 and by {b[value]:.4g} on rank 1"),
)  # fmt: skip
"""Events of the first two ranks that are pairs: the kind of finding where they differ, its level, and its text."""


def updates_of(stage: Stage, rank: int) -> list[tuple[float, float, float, int, int, float | None]]:
    """Of each update of a rank: loss, squares of entire and part gradients, sum and number of samples, clipped norm."""
    updates: list[tuple[float, float, float, int, int, float | None]] = []
    losses, samples, count, norm = [], 0, 0, None
    for event in stage["ranks"][rank]["events"]:
        if event["kind"] == "backward":
            losses.append(event["loss"])
            norm = None  # of a part of the passes
        elif event["kind"] == "pass":
            samples, count = (samples + event["samples"]) % 2**56, count + event["count"]
        elif event["kind"] == "clip" and not event["part"]:
            norm = event["norm"] if norm is None else norm
        elif event["kind"] == "step":
            squares = (norm**2, 0.0) if norm is not None else (event["gradients"][1], event["part_gradients"][1])
            updates.append((sum(losses), *squares, samples, count, norm))
            losses, samples, count, norm = [], 0, 0, None
    return updates


def _not_reduced(recorded: list[Event]) -> Iterator[Observed]:
    """Yield an update whose last backward pass scatters no gradients, which wait for those of the next update."""
    entries = [event for event in recorded if event["kind"] in ("backward", "collective", "step")]
    marks = "".join("r" if "reduce_scatter" in e.get("operation", "") else e["kind"][0] for e in entries)
    if match := re.search("r[^s]*b[^rs]*s", marks):
        step = entries[match.end() - 1]
        text = f"update {step['update'] + 1} is without the gradients of its last backward pass, which reduces none"
        yield Observed(kind="not averaged", text=f"{text}, and an earlier one does", site=step["site"])


def _not_averaged(steps: list[list[Event]], updates: list[Any]) -> Iterator[Observed]:
    for number, (mine, theirs) in enumerate(zip(steps[0], steps[1], strict=False)):
        if mine["optimizer"] != theirs["optimizer"] or mine["elements"] != theirs["elements"]:
            return
        first, second = mine["gradients"][1], theirs["gradients"][1]
        if None not in (updates[0][number][5], updates[1][number][5]):  # gradients that are clipped are alike
            first, second = updates[0][number][1], updates[1][number][1]
        if abs(first - second) <= _TOLERANCE * max(first, second, 1e-12):
            continue
        later = next(
            ((a, b) for a, b in zip(steps[0][number + 1 :], steps[1][number + 1 :], strict=False)
             if a["optimizer"] == mine["optimizer"] == b["optimizer"]), None,
        )  # fmt: skip
        if later and near(later[0]["parameters"][1], later[1]["parameters"][1], 1e-9):
            return  # the parameters are averaged instead, or nothing changes them
        text = (
            f"update {number + 1}: the gradients are not averaged, their squares sum to {first:.6g} on rank 0 and "
            f"{second:.6g} on rank 1: call the wrapped model, and let the last pass before an update reduce"
        )
        yield Observed(kind="not averaged", text=text, site=mine["site"])
        return


def other_parameters(steps: list[list[Event]]) -> Iterator[Observed]:
    pairs = [(a, b) for a, b in zip(steps[0], steps[1], strict=False) if a["optimizer"] == b["optimizer"] == 0]
    if pairs and all(not near(a["parameters"][1], b["parameters"][1], 1e-9) for a, b in pairs):
        mine, theirs = (event["parameters"][1] for event in pairs[0])
        text = f"the ranks have different parameters: their squares sum to {mine:.6g} on rank 0, {theirs:.6g} on rank 1"
        yield Observed(kind="not averaged", text=text, site=pairs[0][0]["site"])


def near(first: float, second: float, tolerance: float) -> bool:
    return abs(first - second) <= tolerance * max(abs(first), abs(second), 1e-12)


def same_batches(stage: Stage) -> Iterator[Observed]:
    passes = [events(stage, rank, "pass") for rank in (0, 1)]
    pairs = [(mine["digest"], theirs["digest"]) for mine, theirs in zip(*passes, strict=False)]
    rows = min((event["rows"] for event in events(stage, 0, "short")), default=math.inf)  # for a batch of all ranks
    has_enough = rows == math.inf or (bool(pairs) and 0 < len(stage["ranks"]) * passes[0][0]["count"] <= rows)
    if has_enough and all(mine == theirs for mine, theirs in pairs) and len({*pairs}) > 1:
        text = f"the inputs of all {len(pairs)} training passes are the same on rank 0 and rank 1"
        yield Observed(kind="same batches", text=text, site=passes[0][0]["site"])
    for loader, theirs in zip(events(stage, 0, "loader"), events(stage, 1, "loader"), strict=False):
        batches = [event for event in events(stage, 0, "batch") if event["loader"] == loader["number"]]
        starts = [place for place, event in enumerate(batches) if event["index"] == 0]
        taken = [batches[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]
        epochs = [epoch for epoch in taken if len({event["update"] for event in epoch}) > 1]  # trained on
        if epochs and len(stage["ranks"]) in loader["part"][:1] and loader["part"] == theirs["part"]:
            text = f"rank 0 and rank 1 both train on the part of rank {loader['part'][1]}: rank= of the sampler"
            yield Observed(kind="same batches", text=text, site=loader["site"])
        if len(epochs) < 2 or not loader["has_epochs"] or events(stage, 0, "set_epoch"):
            continue
        first, second = ([event["digest"] for event in epoch] for epoch in epochs[:2])
        shared = min(len(first), len(second))
        if first[:shared] == second[:shared] and len(set(first)) > 1:
            text = "the second epoch has the same batches in the same order: set_epoch() is not called"
            yield Observed(kind="same order", text=text, site=loader["site"], level="warning")


def alone(stage: Stage) -> Iterator[Observed]:
    """Work of one rank before a collective in which others wait."""
    if len(stage["ranks"]) < 2:
        return
    collectives = [{(e["group"], e["number"]): e for e in events(stage, rank, "collective")} for rank in (0, 1)]
    for key, mine in collectives[0].items():
        theirs = collectives[1].get(key)
        # Where ranks parted, each does what the other did before.
        names = ("operation", "elements") if stage["verdict"] else ("operation",)
        if theirs is None or any(mine[name] != theirs[name] for name in names):
            continue
        for rank, more, less in ((0, mine, theirs), (1, theirs, mine)):
            passes, rows = more["passes"] - less["passes"], more["rows"] - less["rows"]
            if passes >= _ALONE_PASSES or rows > _ALONE_ROWS:
                what = f"{more['passes']} passes" if passes >= _ALONE_PASSES else f"{more['rows']} rows"
                text = (
                    f"before the {more['operation']} rank {rank} does {what} alone; it grows with the data, and the "
                    "others wait up to the time limit of the process group"
                )
                yield Observed(kind="alone", text=text, site=more["site"], level="warning")
                return


def training(stage: Stage) -> Iterator[Observed]:
    """Parameters, groups and clipping."""
    for what, text in (
        ("scaled", "while they are scaled: call scaler.unscale_(optimizer) before"),
        ("part", "by the norm of each rank's own part: call model.clip_grad_norm_()"),
    ):
        for event in [event for event in events(stage, 0, "clip") if event[what]][:1]:
            yield Observed(kind="clipping", text=f"the gradients are clipped {text}", site=event["site"])
    # The rest is about updates: without one, nothing was seen.
    steps = events(stage, 0, "step")
    finals = [events(stage, rank, "parameters") for rank in ranks_of(stage)]
    if not steps:
        return
    first = steps[0]
    noted = partial(Observed, kind="parameters", site=first["site"])
    if all(event["without"] == event["count"] for event in steps):
        yield noted(text="no parameter of the optimizer ever has a gradient")
    if all(finals):
        # A parameter counts as unchanged only if it is so on every rank.
        unchanged = set.intersection(*(set(final[0]["unchanged"]) for final in finals))
        final, total = finals[0][0], finals[0][0]["total"]
        has_rate = any(rate for event in steps[1:] or steps for rate in event["rates"])
        is_all = len(final["unchanged"]) == total and len(unchanged) >= len(set(final["unchanged"]))
        # Rewards of a few generated words can be equal, and their advantages zero.
        is_of_stand_in = any(
            event["what"].startswith("generate") for event in events(stage, 0, "stand-in")
        ) and not any(event["gradients"][1] or event["part_gradients"][1] for event in steps)
        has_gradients = all(event["without"] < event["count"] for event in steps)
        if total and is_all and has_rate and has_gradients and not is_of_stand_in:
            yield noted(text=f"none of the {total} parameters of the optimizer ever changes")
        if count := final["outsiders"]:
            yield noted(
                text=f"{count} parameters have gradients and are in no optimizer, such as {final['outside'][0]}"
            )
        if final["never"]:
            text = f"{len(final['never'])} parameters never have a gradient, such as {final['never'][0]}"
            yield noted(text=text, level="note")
    # Typical of names that no longer match, since a wrapper put a prefix before them.
    groups = first["groups"]
    decayed = sum(count for count, decay in groups if decay)
    if any(not count and decay for count, decay in groups) and not decayed:
        text = "the group with weight decay has no parameter: nothing is decayed"
        yield Observed(kind="empty group", text=text, site=first["site"])


def saves(stage: Stage, *, keeps_checkpoints: bool, names_checkpoints: bool) -> Iterator[Observed]:
    """Yield the parts of models, files of two ranks, places that are lost, and checkpoints at the wrong place."""
    written = [events(stage, rank, "save") for rank in ranks_of(stage)]
    writers = Counter(path for entries in written for path in {event["path"] for event in entries})
    for rank, entries in enumerate(written):
        # To resume from, each rank may have a file of its own.
        of_rank = {path for path, n in writers.items() if n == 1 and path.startswith(_KEPT[1]) and all(written)}
        parts = [e for e in entries if e["part"] and not e.get("together") and e["path"] not in of_rank]
        if parts:
            text = f"rank {rank} writes {parts[0]['path']} with its own part of {parts[0]['part']}"
            yield Observed(kind="saved in part", text=text, site=parts[0]["site"])
            break
    # Two ranks that write one file: certain for models, likely for other files.
    if len(written) > 1:
        own = [
            {e["path"]: ("warning", e["site"]) for e in events(stage, rank, "write")
             if "w" in e["mode"] and e["path"].startswith("/opt/ml/")}
            | {e["path"]: ("error", e["site"]) for e in entries
               if not e.get("together") and not e["path"].startswith(("/dev/", "/tmp/"))}
            for rank, entries in enumerate(written[:2])
        ]  # fmt: skip
        both = own[0].keys() & own[1].keys()
        for (level, site), path in sorted((own[1][path], path) for path in both)[:1]:  # an error before a warning
            yield Observed(kind="written twice", text=f"rank 0 and rank 1 both write {path}", site=site, level=level)
    # SageMaker keeps three folders, and removes all others with the instance.
    lost = [event for entries in written for event in entries if not event["path"].startswith(_KEPT)]
    kept_places = "only /opt/ml/model, /opt/ml/output/data and /opt/ml/checkpoints are kept"
    place = partial(Observed, kind="place", level="warning")
    if lost:
        yield place(text=f"{lost[0]['path']} is lost when the job ends: {kept_places}", site=lost[0]["site"])
    elif stage["left"]:
        text = f"{stage['left'][0]} is written to the folder of the code and lost when the job ends: {kept_places}"
        yield place(text=text)
    # A checkpoint belongs where the next job finds it, not in the model's archive.
    checkpoints = [name for name, _ in stage["model"] if re.search(r"checkpoint-\d+/|optimizer\.(pt|bin)", name)]
    if checkpoints:
        folder = min(name.split("/")[0] for name in checkpoints)
        text = f"checkpoints are in /opt/ml/model ({folder}): they are packed into model.tar.gz"
        yield place(text=f"{text}, and nothing is there to resume from")
    # Only a run that came to its end shows what is missing.
    ended = not stage["failed"]
    if ended and not stage["model"]:
        yield Observed(kind="place", text="/opt/ml/model is empty at the end", level="note")
    is_limited = any(event["limited"] for event in events(stage, 0, "finished"))
    if ended and keeps_checkpoints and not stage["checkpoints"] and not (is_limited and names_checkpoints):
        text = "the job keeps checkpoints, and the script writes none to /opt/ml/checkpoints"
        yield Observed(kind="resume", text=text, level="warning")


def loaded(stage: Stage) -> Iterator[Observed]:
    """Yield the files at the end: whether they load and are complete."""
    without = {e["path"] for e in events(stage, 0, "save") if not e["elements"]}  # settings, which are no model
    for entry in [entry for entry in stage.get("loaded", ()) if entry["path"] not in without]:
        name = entry["path"]
        if entry["error"]:
            yield Observed(kind="load", text=f"{name} does not load: {entry['error']}")
        elif entry.get("pretrained"):
            if entry["missing"]:
                yield Observed(kind="load", text=f"{name} loads without {entry['missing']} of its weights")
        elif prefix := next((p for p in _WRAPPERS if all(key.startswith(p) for key in entry["names"] or [""])), ""):
            text = f"every name in {name} begins with {prefix}, which the plain model does not have"
            yield Observed(kind="load", text=text, level="warning")


def copies(stage: Stage) -> tuple[tuple[str, float, float], ...]:
    """Copies of the fp32 model in host memory, of the first rank and of each other one, as they load and save it."""
    models = [events(stage, rank, "model") for rank in ranks_of(stage)]
    size = sum(event["elements"] for event in models[0])
    if not size or not all(models):
        return ()
    loaded = [max(event["host_elements"] for event in entries) / size for entries in models]
    saved = [
        max((e["host_elements"] for e in events(stage, rank, "save")), default=0.0) / size for rank in ranks_of(stage)
    ]
    if any(events(stage, rank, "gathered by all") for rank in ranks_of(stage)):
        saved = [max(saved)] * len(saved)
    phases = (("load", loaded), ("save", saved))
    return tuple((name, round(first, 2), round(max(further or [first]), 2)) for name, (first, *further) in phases)
