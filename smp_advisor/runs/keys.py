"""Keys and values in lines of training logs: step, seconds, rates, batch and loss, whatever program printed them."""

from __future__ import annotations

import math
import re

_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_STEP = re.compile(
    r"(?<![\w/-])(?:global[_ ]?step(?:/max_steps)?|completed step|current_steps|num_updates|steps?|iter(?:ation)?s?|it"
    r"|batch|update)(?:\(\w+\))?['\"]?\s{0,3}[:=|]?\s{0,8}['\"\[]{0,2}\s{0,8}(?P<step>\d[\d,]*)(?!\.?\d)"
    r"|\[\s{0,8}(?P<of>\d+)\s?/\s?\d+(?:\]|\s{1,3}\()|\|\s{0,8}(?P<batch>\d+)/\s{0,8}\d+ batches",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"(?:^|[\s|\[('\"/:])(?:eval\w*|valid\w*|val|test\w*|predict\w*|download\w*|map|filter|sav\w+|load\w*|generat\w*)\b",
    re.IGNORECASE,
)
"""Before the number of a step: it is not one of training."""
_SEPARATOR = r"\)?['\"]?\s{0,6}[:=]?\s{0,6}['\"(]?"
_VALUE = rf"(?P<value>{_NUMBER})(?![\d:/])\s?(?P<unit>ms|secs?|seconds|s|K|M|B|G|T)?(?![A-Za-z%])"
_OWN = (
    r"elapsed[_ ]time[_ ]per[_ ]iteration|(?:time|secs?|seconds?)[_ ]?per[_ ]?(?:step|iter(?:ation)?|it|batch|update)"
    r"|(?:step|iter(?:ation)?|update|batch)[_ ](?:time|timing|duration|seconds|secs?|avg)|sec/(?:step|it|batch)"
    r"|m?s/(?:it|step|iter|batch)|(?:timing_s|time)/step|interval_runtime|train_speed\(s/it|time_this_iter_s"
)
_OTHER = (
    r"(?<!remaining )(?<!elapsed )(?<!total )(?<!left )"
    r"(?:last_time|dt|seconds|secs|iter(?=['\"]?\s?[:=]\s?\d+\.\d)|time|duration)"
)
_SINCE_START = r"(?:train|elapsed|wall|total)_time|elapsed|time_elapsed"
_GIVEN = r"(?:[ _]?[\[(]?(?P<given>ms|secs?|seconds|s)\b[\])]?)?"
_TIMES = tuple(
    re.compile(rf"(?<![\w/])(?P<key>{keys}){_GIVEN}{_SEPARATOR}{_VALUE}", re.IGNORECASE) for keys in (_OWN, _OTHER)
)
_ELAPSED = re.compile(
    rf"(?<![\w/])(?:{_SINCE_START}){_SEPARATOR}(?P<clock>\d+:[\d:]+\d|{_NUMBER}(?=\s?(?:ms|s)\b))\s?(?P<unit>ms|s)?",
    re.IGNORECASE,
)
_BARE = re.compile(rf"(?<![\w.])(?P<value>{_NUMBER})\s?ms\b")
_PER = r"(?:[_ ]?per[_ ]?|/)"
_SECOND = r"s(?:ec(?:ond)?s?)?"
_RATES = {
    "steps_per_second": rf"(?:steps?|iters?|iterations?|it|batches|updates?){_PER}{_SECOND}|ups|device/BPS",
    "tokens_per_second_per_gpu": rf"(?:tokens?|tok){_PER}{_SECOND}{_PER}(?:gpu|device|chip|rank)"
    r"|device/(?:TPS|tokens_per_sec(?:ond)?)|tgs"
    rf"|(?:tokens?|tok){_PER}(?:gpu|device){_PER}{_SECOND}",
    "tokens_per_second": rf"(?<!device/)(?:tokens?|tok|words?){_PER}{_SECOND}",
    "samples_per_second": rf"(?:samples?|images?|examples?|sequences?){_PER}{_SECOND}",
}
_RATE = {
    name: (
        re.compile(rf"(?<![A-Za-z])(?:{keys})(?![\w/]){_SEPARATOR}{_VALUE}", re.IGNORECASE),
        re.compile(rf"(?<![\w.,])(?P<value>{_NUMBER})\s?(?P<unit>K|M)?\s?(?:{keys})(?![\w/'\":=])", re.IGNORECASE),
    )
    for name, keys in _RATES.items()
}
_PROOFS = {
    "batch": re.compile(
        r"global[_ ]?batch[_ ]?size['\"]?\s{0,3}[:=]?\s{0,3}(\d[\d,]*)(?![\d.]|\s?[KM])", re.IGNORECASE
    ),
    "sequence": re.compile(r"\bsequence[_ ]length['\"]?\s{0,3}[:=]?\s{0,3}(\d[\d,]*)(?![\d.])", re.IGNORECASE),
    "consumed": re.compile(rf"\bconsumed[_ ]samples['\"]?\s{{0,3}}[:=]\s{{0,12}}({_NUMBER})(?!\s?[KM])", re.IGNORECASE),
    "tokens": re.compile(rf"\b(?:num_tokens|num_input_tokens_seen)['\"]?\s{{0,3}}[:=]\s{{0,3}}['\"]?({_NUMBER})"),
    "tflops": re.compile(
        rf"(?:TFLOP/s/GPU\)|tflops_per_gpu|TFLOPS/GPU|TFLOP/s/device)['\"]?\s{{0,3}}[:=]?\s{{0,3}}({_NUMBER})",
        re.IGNORECASE,
    ),
}
"""Figures from which the work of a step follows."""
_WAIT = re.compile(
    r"(?<![\w/])(?:data(?:[_ ]?loading)?(?:[_ ]time)?|time/data|timing_s/data)['\"]?\s{0,2}[:=]?\s{0,3}"
    r"(?P<value>\d+\.\d+(?:[eE][-+]?\d+)?)\s?(?P<unit>ms|s)?(?![\w%:])",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<![\w/-])(?:reduced_train_|train(?:ing)?[_/ ]|lm[_ ]|total_|step_|loss/train/)?(?:CE |Cross[_ ]?Entropy[_ ]?)?"
    r"loss(?:/train/total|[_ ]train|_step)?"
    rf"['\"]?(?P<sign>\s{{0,3}}[:=])?\s{{0,6}}['\"(]{{0,2}}(?P<value>[-+]?nan\b|[-+]?inf(?:inity)?\b|{_NUMBER})",
    re.IGNORECASE,
)
_OTHER_LOSS = re.compile(r"(?:val(?:id\w*)?|eval\w*|test|aux\w*|balanc\w*|router|mtp)[ _/]$", re.IGNORECASE)
_EVALUATION = re.compile(r"(?:^|[\s|\[(:])(?:eval\w*|valid\w*|val|test|predict\w*)[ :]", re.IGNORECASE)
_NO_GRADIENT = re.compile(r"grad(?:ient)?[_ ]?norm['\"]?\s{0,3}[:=]?\s{0,3}['\"]?nan\b", re.IGNORECASE)
_FACTORS = {"ms": 1e-3, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def number(value: object) -> float | None:
    """Return a measured number, 0 or more: of Python, of NumPy, or as text."""
    if isinstance(value, str):
        value = value.replace(",", "")
    try:
        amount = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return amount if 0 <= amount < 1e15 else None


def seconds_of(clock: str) -> float:
    """Return seconds of a duration: ``1:02:03``, ``02:03``, ``15s``, or a number."""
    total = 0.0
    for part in clock.strip().removesuffix("s").split(":"):
        total = 60 * total + (number(part) or 0.0)
    return total


def step_in(line: str) -> float | None:
    """Return the number of the training step in a line."""
    match = _STEP.search(line)
    if match is None or _ELSEWHERE.search(line, 0, match.start()):
        return None
    return number(next(filter(None, match.groups()), ""))


def proofs_in(line: str) -> dict[str, float]:
    """Return figures from which the work of a step follows."""
    matches = ((name, pattern.search(line)) for name, pattern in _PROOFS.items())
    return {name: value for name, match in matches if match and (value := number(match[1])) is not None}


def measures_in(line: str) -> dict[str, float]:
    """Return seconds per step and rates of a line."""
    row: dict[str, float] = {}
    for pattern in _TIMES:
        match = pattern.search(line)
        if match and (value := number(match["value"])):
            written_unit = "ms" if match["key"].lower().startswith("ms") else (match["given"] or "").lower()
            unit, factor = (match["unit"] or "").lower(), 1.0
            factor *= _FACTORS["ms"] if "ms" in (written_unit, unit) else 1.0
            row["seconds"] = value * factor * (1e3 if unit == "k" else 1.0)
            break
    if match := _ELAPSED.search(line):
        row["elapsed"] = seconds_of(match["clock"]) * (_FACTORS["ms"] if match["unit"] == "ms" else 1.0)
    for name, patterns in _RATE.items():
        for pattern in patterns:
            match = pattern.search(line)
            if match and (value := number(match["value"])):
                row[name] = value * _FACTORS.get((match["unit"] or "").lower(), 1.0)
                break
    if not row and len(bare := _BARE.findall(line)) == 1 and (value := number(bare[0])):
        row["seconds"] = value / 1e3
    return row


def waits_in(line: str) -> float | None:
    """Return seconds for which a step waited for data."""
    match = _WAIT.search(line)
    return None if match is None else (number(match["value"]) or 0.0) * (1e-3 if match["unit"] == "ms" else 1.0)


def loss_in(line: str, *, has_step: bool) -> float | None:
    """Return the training loss of a line; nan, too, if it prints 0 next to a gradient that is not a number."""
    for match in _LOSS.finditer(line):
        if not (match["sign"] or has_step) or _OTHER_LOSS.search(line, max(match.start() - 16, 0), match.start()):
            continue
        if _EVALUATION.search(line, 0, match.start()):
            continue
        value = float(match["value"].replace(",", ""))
        return math.nan if value == 0 and _NO_GRADIENT.search(line) else value
    return None
