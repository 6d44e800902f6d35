"""Changes after which a model fits, with their memory and speed, and the error where nothing fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from smp_advisor.cluster.cluster import Cluster
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Table
from smp_advisor.core.words import plural
from smp_advisor.costs.evaluate import fit_probability
from smp_advisor.costs.wording import batch_limit, gib, percent, probability, rate
from smp_advisor.errors import NoPlanFitsError
from smp_advisor.libraries.library import get_library, libraries
from smp_advisor.search.clusters import AUTO, COUNTS, ClusterSize, Places, best_on, holds_parameters, hourly, suitable
from smp_advisor.search.sizes import compare, time_and_cost
from smp_advisor.workload.adapter import Adapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smp_advisor.cluster.table import Instance
    from smp_advisor.search.candidates import Request
    from smp_advisor.search.clusters import Limits, Question
    from smp_advisor.search.search import SearchResult
    from smp_advisor.search.sizes import ClusterSizes, Progress

Change = Literal["setting", "library", "nodes", "instance", "batch", "optimizer", "sequence", "adapter"]

_LARGER_BY = (2, 4, 8, 16, 32, 64)
"""Multiples of the cluster that are tried."""
_MOST_COUNTS = 16
"""Numbers of nodes tried between the last multiple that does not fit and the first that does."""
_LEAST_NODE_GIB = 300
"""GPU memory of a node that is tried for a model that fits nowhere near: 8 A100 with 40 GB and more."""
_SHORTEST = 128
"""Tokens of the shortest sequence that is tried."""
_LONGEST = 370
"""Characters of the error's sentence; the error has all ways out."""
_ADAPTERS = {"LoRA": Adapter(), "QLoRA": Adapter(base_bits=4)}


@dataclass(frozen=True, kw_only=True, slots=True)
class WayOut:
    change: Change
    """Kind of the change, in the order of `WaysOut.ways`."""
    words: str
    """The change in words: ``11 nodes``, ``a sequence of 1,024 tokens``."""
    size: ClusterSize
    """The best plan after the change, on its cluster."""

    @property
    def memory(self) -> str:
        return "" if self.size.estimate is None else gib(self.size.estimate.needed_gib)


@dataclass(frozen=True, kw_only=True)
class WaysOut:
    """Changes after which a model fits, each by itself: first those that train the same, then smaller runs."""

    request: Request = field(repr=False)
    nearest_gib: float | None
    """GiB per GPU of the plan that is nearest to fitting; None if the library has no plan at all."""
    ways: tuple[WayOut, ...] = field(repr=False)

    def of(self, change: Change) -> WayOut | None:
        """Return the first change of a kind; None if none of them makes the model fit."""
        return next((way for way in self.ways if way.change == change), None)

    @property
    def words(self) -> str:
        """The changes other than more nodes in one phrase: ``2 x ml.p5.48xlarge (54.9 GiB), LoRA (20.1 GiB)``."""
        return ", ".join(self.phrases)

    @property
    def phrases(self) -> list[str]:
        return [f"{way.words} ({way.memory})" for way in self.ways if way.change != "nodes"]

    @property
    def enough(self) -> str:
        """The number of nodes that would be enough, as the end of a sentence; empty if none is."""
        nodes = self.of("nodes")
        return "" if nodes is None else f"; {nodes.words} would be enough"

    def table(self) -> Table:
        """Return the changes with the memory, the speed and the cost of the best plan after each."""
        rows: list[tuple[str, ...]] = []
        model = self.request.model
        for way in self.ways:
            now = way.size.estimate
            speed, cost = ("", "") if now is None else (rate(model, now), time_and_cost(model, now)[1])
            rows.append((way.words, way.memory, speed, cost))
        return Table(columns=("change that fits", "memory per GPU", "speed (95 %)", "cost (95 %)"), rows=rows)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<div class="smp-ways">{self.table().html()}</div>'


def ways_out(question: Question, nearest_gib: float | None) -> WaysOut:
    """Every change that makes a model fit on the question's cluster, each by itself; the smallest of its kind."""
    # As where the library is chosen: if nothing fits, libraries count that may run on the instance.
    ways = tuple(_ways(question.having(unlisted=True)))
    return WaysOut(request=question.request, nearest_gib=nearest_gib, ways=ways or tuple(_anywhere(question)))


def _best_on(question: Question, cluster: Cluster) -> ClusterSize:
    """Return the best plan on a cluster, which is not searched if it cannot hold the parameters."""
    if not holds_parameters(question, cluster):
        return ClusterSize(cluster=cluster, library=question.library, job=question.request.job, estimate=None)
    return best_on(question, cluster)


def _first(change: Change, forms: Iterable[tuple[str, Question]]) -> Iterator[WayOut]:
    """Yield the first form of a change, with its words, that fits on the question's cluster."""
    for words, form in forms:
        size = _best_on(form, form.request.cluster)
        if size.fits:
            yield WayOut(change=change, words=words, size=size)
            return


def _ways(question: Question) -> Iterator[WayOut]:
    """Yield the first change of each kind that is enough: first those that train the same model in the same way."""
    library, here, fixed = question.library, question.request.cluster, question.request.pins
    freed = [(f"{name} not fixed", {key: fixed[key] for key in fixed if key != name}) for name in sorted(fixed)]
    freed += [("no fixed settings", {})] * (len(fixed) > 1)
    yield from _first("setting", ((words, question.having(pins=pins)) for words, pins in freed))
    if library != AUTO:
        for way in _first("library", [("", replace(question, library=AUTO))]):
            if way.size.library != library:
                yield replace(way, words=f"library={way.size.library!r}")
    if library == AUTO or get_library(library).divides_model:
        yield from _nodes(question)
    # As many nodes of another type: the lowest price per hour first, then a lower cost of the run.
    memory = here.instance.usable_gpu_memory_gib * here.instance.gpus
    larger = [machine for machine in suitable(library) if machine.usable_gpu_memory_gib * machine.gpus > memory]
    listed = question.having(unlisted=False)
    sizes = [size for machine in larger if (size := _best_on(listed, Cluster(machine, here.nodes))).fits]
    yield from (WayOut(change="instance", words=_priced(size), size=size) for size in _offers(sizes))
    yield from _smaller(question)


def _offers(sizes: list[ClusterSize]) -> list[ClusterSize]:
    """The cluster with the lowest price per hour, those with a lower cost of the run, and the fastest of them."""
    offers = [min(sizes, key=lambda size: hourly(size.cluster))] if sizes else []
    for measure in (lambda size: size.usd or math.inf, lambda size: -size.tokens_per_second):
        best = min(sizes, key=measure, default=None)
        if best is not None and best not in offers and (best.usd or math.inf) < (offers[0].usd or math.inf):
            offers.append(best)
    return offers


def _priced(size: ClusterSize) -> str:
    """A cluster with its price, and with the days of the run if they are known: ``1 x ml.g6e.xlarge, 2.61 USD/h``."""
    price = "" if size.cluster.usd_per_hour is None else f", {size.cluster.usd_per_hour:,.2f} USD/h"
    return f"{size.name}{price}{'' if size.days is None else f', {size.days:,.3g} days'}"


def _smaller(question: Question) -> Iterator[WayOut]:
    """Smaller runs: the largest batch, the longest sequence, and LoRA before QLoRA."""
    library, job, model = question.library, question.request.job, question.request.model
    batches = _halves(job.global_batch_size or 1, 0)
    forms = ((f"a global batch of {plural(n, 'sample')}", question.training(global_batch_size=n)) for n in batches)
    yield from _first("batch", forms)
    if job.optimizer == "adam" and job.adapter is None:
        yield from _first("optimizer", [("8-bit Adam", question.training(optimizer="adam-8bit"))])
    if not model.fixed_sequence_length:
        lengths = _halves(job.sequence_length, _SHORTEST)
        forms = ((f"a sequence of {n:,} tokens", question.training(sequence_length=n)) for n in lengths)
        yield from _first("sequence", forms)
    if model.reads_tokens and (job.adapter is None or not job.adapter.quantized):
        adapters = _ADAPTERS if job.adapter is None else {"QLoRA": replace(job.adapter, base_bits=4)}
        if job.precision == "fp32":  # a quantized base trains in 16 bits
            adapters = {title: of for title, of in adapters.items() if not of.quantized}
        having = question if library == AUTO or get_library(library).adapters else replace(question, library=AUTO)
        forms = ((f"{title} of rank {of.rank}", having.training(adapter=of)) for title, of in adapters.items())
        for way in _first("adapter", forms):
            titles = [get_library(name).title for name in (way.size.library, library) if having is not question]
            yield replace(way, words=f"{way.words} with {' instead of '.join(titles)}") if titles else way


def _halves(number: int, least: int) -> Iterator[int]:
    """Yield the number divided by powers of two, the largest first, while it is even and more than `least`."""
    while number % 2 == 0 and number > least:
        number //= 2
        yield number


def _nodes(question: Question) -> Iterator[WayOut]:
    here = question.request.cluster

    def on(nodes: int) -> ClusterSize:
        return _best_on(question, Cluster(here.instance, nodes))

    enough = next((size for factor in _LARGER_BY if (size := on(here.nodes * factor)).fits), None)
    if enough is None:
        return
    # Upwards, because whether a number of nodes fits depends on its divisors: some larger ones do not.
    last = enough.cluster.nodes
    least = max(here.nodes, last // 2) + 1
    step = max(1, (last - least) // _MOST_COUNTS)
    enough = next((size for nodes in range(least, last, step) if (size := on(nodes)).fits), enough)
    yield WayOut(change="nodes", words=plural(enough.cluster.nodes, "node"), size=enough)


def _anywhere(question: Question) -> Iterator[WayOut]:
    """The cluster with the lowest price per hour on which the model fits, of any type and size, in any library."""
    free = replace(question, library=AUTO)
    smallest = (
        next((size for nodes in COUNTS if (size := _best_on(free, Cluster(machine, nodes))).fits), None)
        for machine in suitable(AUTO)
        if machine.usable_gpu_memory_gib * machine.gpus >= _LEAST_NODE_GIB
    )
    sizes = [size for size in smallest if size is not None]
    yield from (WayOut(change="instance", words=_priced(size), size=size) for size in _offers(sizes))


def decided(question: Question, places: Places, limits: Limits, progress: Progress | None = None) -> ClusterSizes:
    """Compare the clusters of a question, of which one must be the answer. A single one without a plan is no error."""
    sizes = compare(question, places, limits, progress)
    if sizes.chosen is not None or (places.fixed is not None and not sizes.sizes[0].fits):
        return sizes
    if not any(size.fits for size in sizes.sizes):
        nearest = sizes.nearest
        ways = None if nearest is None else ways_out(question.having(cluster=nearest.cluster), nearest.nearest_gib)
        changes = f"; changes that fit there: {ways.words}" if ways is not None and ways.words else ""
        raise NoPlanFitsError(f"{sizes.refusal()}{changes}{'' if ways is None else ways.enough}.", ways)
    machine, most = places.clusters[-1].instance, max(cluster.nodes for cluster in places.clusters)
    if any(cluster.instance != machine for cluster in places.clusters):
        raise NoPlanFitsError(f"{sizes.refusal()}.")
    more = tuple(Cluster(machine, nodes) for nodes in COUNTS if nodes > most)
    stronger = [kind for kind in suitable(question.library) if _node_tflops(kind) > _node_tflops(machine)]
    elsewhere = tuple(Cluster(kind, nodes) for kind in stronger for nodes in COUNTS if nodes <= most)
    larger = (
        Places(clusters=more, goal="smallest", any_number=True),
        Places(clusters=elsewhere, goal=places.goal),
    )
    enough = filter(None, (compare(question, of, limits, progress).chosen for of in larger))
    raise NoPlanFitsError(f"{sizes.refusal(next(enough, None))}.")


def _node_tflops(machine: Instance) -> float:
    return machine.peak_tflops * machine.gpus


def nothing_fits(question: Question, results: Sequence[SearchResult]) -> NoPlanFitsError:
    """Return the error for searches without a plan that fits; `NoPlanFitsError.ways_out` has the ways out as a table.

    The first search is that of the preferred library. The nearest plan is that of all of them. Of an adapter, a library
    for which no script is generated may have a plan that fits.
    """
    own = [get_library(of.space.library).title for of in results if len(of.ranked) and question.request.job.adapter]
    results = [of for of in results if not len(of.ranked)]
    of_library = {result.space.library: result for result in reversed(results)}
    result = min(results, key=lambda result: result.needed_gib.min(initial=math.inf))
    request = question.request
    cluster, model = request.cluster, request.model
    place = f"{cluster.nodes} x {cluster.instance.name}"
    # No plan at all is another problem than no plan that fits.
    if not result.plans_enumerated:
        is_limited = request.job.global_batch_size is None and not request.pins  # no other cluster is a remedy
        ways = WaysOut(request=request, nearest_gib=None, ways=()) if is_limited else ways_out(question, None)
        return NoPlanFitsError(_no_plan(request, place), ways)
    row = int(result.needed_gib.argmin())
    nearest, usable = float(result.needed_gib[row]), cluster.instance.usable_gpu_memory_gib
    ways, chance = ways_out(question, nearest), fit_probability(float(result.margin[row]))
    # Too big, too close, or too much in host memory: three reasons with three remedies.
    if nearest > usable:
        shortfall = f"needs {gib(nearest)} and the GPU has {gib(usable)}"
    elif chance < request.min_fit_probability:
        shortfall = f"leaves {gib(usable - nearest)} free and fits with a probability of {probability(chance)}"
    else:
        shortfall = "leaves GPU memory free, and needs more host memory than a node has"
        if not request.own_script:
            shortfall += " (with the generated script: pass script= with your own)"
    if len(of_library) > 1:
        shortfall = f"({get_library(result.space.library).title}) {shortfall}"
    required, count = percent(request.min_fit_probability), sum(of.plans_enumerated for of in of_library.values())
    values = {"count": count, "model": model, "place": place, "required": required, "shortfall": shortfall}
    problem = sentence("search", "nothing_fits", **values)
    enough, phrases = ways.enough, ways.phrases
    enough += f"; your own script (script=) fits with {' or '.join(own)}" if own else ""
    # One sentence: the last changes go first, which are the most expensive.
    while phrases and len(problem) + len(", ".join(phrases)) + len(enough) > _LONGEST:
        phrases.pop()
    changes = ", ".join(phrases)
    remedy = ""
    if not get_library(results[0].space.library).divides_model:
        if ways.of("library") is None or not (changes or enough):
            names = [f"'{entry.name}'" for entry in libraries() if entry.divides_model and entry.launcher == "torchrun"]
            remedy = f"; every GPU holds an entire replica: divide the model with library={' or '.join(names)}"
            enough = ""
    elif not (changes or enough):
        smaller = ("," if request.job.global_batch_size else " or") + " a shorter sequence"
        smaller += " or a smaller batch" if request.job.global_batch_size else ""
        remedy = f"; use GPUs with more memory{smaller}"
    return NoPlanFitsError(f"{problem}{remedy}{f'; changes that fit: {changes}' if changes else ''}{enough}.", ways)


def _no_plan(request: Request, place: str) -> str:
    job, pinned = request.job, ", ".join(sorted(request.pins))
    size = 2 if job.training == "dpo" else 1  # samples that stay in one batch
    place += " for pairs of samples" if size > 1 else ""
    if job.global_batch_size is not None:
        least = size * request.cluster.gpus
        multiple = max(1, round(job.global_batch_size / least)) * least
        freed = f" with {pinned} fixed; free one of them, or" if pinned else ";"
        samples = plural(job.global_batch_size, "sample")
        return sentence("search", "undivided_batch", samples=samples, place=place, freed=freed, multiple=multiple)
    most = batch_limit(request.model, job.max_tokens_per_step)
    fewer = ", or use fewer nodes" if request.cluster.nodes > 1 else ""
    key = "no_plan_left" if pinned else "no_sample"
    return sentence("search", key, place=place, pinned=pinned, most=most, job=job, fewer=fewer)
