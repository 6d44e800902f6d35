"""Search the reports of seeded random requests for numbers that are no value of their recommendation.

``python -m benchmarks.report_figures 300`` prints each sentence with such a number, a comparison of figures that are
not those of one pair of estimates, or a line that a page lacks.
"""

from __future__ import annotations

import html
import math
import random
import re
import sys
from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import smp_advisor as smpa
from smp_advisor.advice import recommendation
from smp_advisor.advice.reference import reference_rows
from smp_advisor.advice.report import sections
from smp_advisor.costs.estimate import TIME_PARTS, Estimate
from smp_advisor.costs.guesses import guesses
from smp_advisor.costs.wording import compared
from smp_advisor.errors import AdvisorError
from smp_advisor.search.candidates import Candidate
from smp_advisor.search.rank import TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, batch_policy, kept_share
from smp_advisor.search.sizes import saving
from smp_advisor.session.written import html_page

if TYPE_CHECKING:
    from collections.abc import Sequence

SCALES = {"%": 100, "ms": 1000, "M": 1e-6, "B": 1e-9, "K": 1e-3, "hours": 24}
NUMBER = re.compile(r"(?<![\w.,/-])(\d[\d,]*(?:\.\d+)?)(?![\w/]|[.,]\d|-\w)(?: (GiB|ms|[A-Za-z]\w*|%))?")
DRAWN = "Techniques in the order of AWS's best practices, each added to those above", "Ladder", "Memory per GPU"
"""Sections that the page has as a picture or a table of its own."""
INTERVAL = re.compile(r"(\d[\d,.]*) (%|\w+)?(\S* ?)\(-?(\d[\d,.]*) to (\d[\d,.]*)\)")
PACKAGE = Path(smpa.__file__).parent
POLICY = TECHNIQUE_GAIN, TECHNIQUE_PROBABILITY, kept_share("headroom"), kept_share("simplicity")
STATIC = " ".join(
    " ".join(path.read_text("utf-8").split())
    for path in sorted(PACKAGE.rglob("*"))
    if path.suffix in (".toml", ".py", ".json", ".csv")
)


def request(seed: int) -> tuple[str, str, dict[str, Any]]:
    """Return the model, the instance and the settings of a request."""
    draw = random.Random(seed)
    names = "125m 1.3B 7B 30B llama-3.1-8b qwen2.5-7b mixtral-8x7b bert-large gpt-2-xl phi-4 qwen3-30b-a3b t5-large"
    machines = "p4d.24xlarge p5.48xlarge g5.12xlarge g5.48xlarge g6e.48xlarge p3.16xlarge p5en.48xlarge"
    settings = {
        "instance_count": draw.choice([1, 2, 3, 4, 8]),
        "sequence_length": draw.choice([512, 512, 1024]),
        "library": draw.choice(["auto", "auto", "smp-v2", "fsdp", "smp-v1"]),
        "objective": draw.choice(["throughput", "throughput", "cost", "headroom", "simplicity"]),
    }
    settings |= draw.choice([{}, {"global_batch_size": draw.choice([7, 48, 256, 512])}])
    settings |= draw.choice([{}, {"tokens": draw.choice(["1B", "300B"])}])
    settings |= draw.choice([{}, {}, {"adapter": smpa.Adapter(rank=16, base_bits=draw.choice([16, 4]))}])
    settings |= draw.choice([{}, {}, {"optimizer": draw.choice(["lion", "sgd"])}])
    return draw.choice(names.split()), f"ml.{draw.choice(machines.split())}", settings


def values_of(value: Any, found: set[float], depth: int = 0) -> None:
    """Collect the numbers of a value, of its parts and properties."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        found.add(float(value))
    elif isinstance(value, str):
        found.update(float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", value[:1000]))
    elif isinstance(value, dict):
        values_of([*value, *value.values()], found, depth)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            values_of(part, found, depth)
    elif hasattr(value, "__dataclass_fields__") and depth < 6:
        own = type(value)
        names = [*value.__dataclass_fields__, *(name for name in dir(own) if isinstance(getattr(own, name), property))]
        values_of([getattr(value, name, None) for name in names], found, depth + 1)


def has(values: list[float], text: str, scale: float) -> bool:
    """Return whether a value is this number in its unit, to the digits of the words."""
    shown, digits = float(text.replace(",", "")), len(text.partition(".")[2])
    three = 10.0 ** (math.floor(math.log10(shown)) - 2) if shown >= 1000 or scale != 1 else 0.0
    error = 0.501 * max(10.0**-digits, three)
    place = bisect_left(values, (shown - error) / scale)
    return place < len(values) and values[place] <= (shown + error) / scale


def figures(
    advice: smpa.Advice, estimates: Sequence[Estimate], candidates: Sequence[Candidate], further: Sequence[Any]
) -> list[float]:
    """Return all numbers that the sentences of an advice may have, in order."""
    recommended, found = advice.explained, set[float]()
    model, cluster, job, own = recommended.model, recommended.cluster, recommended.job, recommended.estimate
    jobs = job, replace(job, training="fine-tuning")
    compared_sizes = [] if advice.sizes is None or advice.sizes.own is None else advice.sizes.sizes
    values_of([model, cluster, job, recommended.decision, recommended.reference, recommended.request], found)
    values_of([recommended.sizes, recommended.plans_enumerated, recommended.plans_fit, estimates, further], found)
    values_of([advice.alternatives.to_dict("records"), *guesses(model, cluster, job, own.plan), *POLICY], found)
    values_of([batch_policy(model, of) for of in jobs], found)
    values_of([saving(size, advice.sizes.own) for size in compared_sizes if size.fits], found)
    found |= {smpa.Adapter().parameter_count(model), 0.999, *(n * model.parameter_count / 2**30 for n in (2, 4))}
    for value in estimates:
        error, peak = 1.96 * value.memory_error_gib, value.memory.peak
        found |= {abs(value.needed_gib - own.needed_gib), value.needed_gib + error, value.needed_gib - error}
        found |= {peak.parameters_gib + peak.gradients_gib + peak.optimizer_state_gib + peak.fp32_copies_gib}
        for name in ("step_seconds", "samples_per_second", "tokens_per_second"):
            ratio = getattr(value, name) / getattr(own, name)
            found |= {ratio - 1, 1 / ratio - 1}
    steps = [getattr(own.time, part) for part in TIME_PARTS]
    found |= {part * share for part in steps for share in (1 / own.step_seconds, *own.step_factors)}
    for row in reference_rows(own.plan.library) if model.reads_tokens else ():
        found |= {model.parameter_count / row.model.parameter_count, cluster.gpus / row.cluster.gpus}
        found |= {job.sequence_length / row.job.sequence_length}
    speeds = [able.tokens_per_second for able in candidates if able.tokens_per_second]
    found |= {faster / slower - 1 for faster in speeds for slower in speeds}
    return sorted(abs(number) for number in found if math.isfinite(number))


def unfounded(line: str, values: list[float]) -> tuple[list[str], int]:
    """Return the numbers of a line that are no values and in no text of the package, and how many it has."""
    units = {end: unit for _, unit, _, *ends in INTERVAL.findall(line) for end in ends}
    faults, matches = [], list(NUMBER.finditer(line))
    for match in matches:
        (start, end), text, unit = match.span(1), match[1], units.get(match[1]) or match[2]
        scales = {SCALES.get(unit, 1), 1 if unit in ("B", "M") else SCALES.get(unit, 1)}  # a name has its count
        around = line[max(0, start - 9) : end], line[start : end + 9]
        is_value = not float(text.replace(",", "")) or any(has(values, text, scale) for scale in scales)
        if not is_value and not any(len(near) >= end - start + 9 and near in STATIC for near in around):
            faults.append(match[0])
    return faults, len(matches)


def faults_of(seed: int) -> tuple[list[tuple[Any, ...]], int]:
    """Return the faulty lines of a request's report, and how many numbers it has; none where no plan fits."""
    made: dict[type, list[Any]] = {Estimate: [], Candidate: []}
    further: list[Any] = []
    price, listed = recommendation.cost_of_certainty, recommendation.representatives

    def compared_with_all(best: Any) -> Any:
        further.append(1 - float(best.scores.tokens_per_second[0] / best.scores.tokens_per_second.max()))
        return listed(best)

    def priced(*run: Any) -> Any:
        further.append(price(*run))
        return further[-1]

    with ExitStack() as patches:
        for kind, instances in made.items():

            def recorded(self: Any, original: Any = kind.__init__, instances: Any = instances, **fields: Any) -> None:
                original(self, **fields)
                instances.append(self)

            patches.enter_context(patch.object(kind, "__init__", recorded))
        patches.enter_context(patch.object(recommendation, "representatives", compared_with_all))
        patches.enter_context(patch.object(recommendation, "cost_of_certainty", priced))
        model, machine, settings = request(seed)
        try:
            advice = smpa.advise(model, machine, **settings)
        except AdvisorError:
            return [], 0
        parts = sections(advice.explained, details=True)
        values = figures(advice, *made.values(), further)
        phrases = {compared(advice.estimate, value) for value in made[Estimate]}
        page = html_page(advice)
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    faults, read = [], 0
    for title, line in [(name, line) for name, lines in parts for line in [name, *lines] if name != "Ranks"]:
        numbers, count = unfounded(line, values)
        # Two figures of one comparison are those of the same two estimates.
        one_pair = not re.search(r"the plan needs.* vs ", line) or any(phrase in line for phrase in phrases)
        flat = " ".join(line.removeprefix("- ").split())
        everywhere = title in DRAWN or line == title or flat in text
        faults += [] if not numbers and one_pair and everywhere else [(seed, numbers, one_pair, everywhere, line)]
        read += count
    return faults, read


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        for fault in faults_of(number)[0]:
            print(*fault, flush=True)
