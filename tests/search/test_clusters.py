"""Clusters: which ones a request leaves open, the choice among them, and changes after which a model fits."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor import Cluster, Job, Plan, estimate
from smp_advisor.advice.request import Request, question_of
from smp_advisor.arguments import LIMITS
from smp_advisor.errors import AdvisorError, JobError, NoPlanFitsError
from smp_advisor.search.clusters import COUNTS, ClusterSize, Limits, best_on, places_of
from smp_advisor.search.sizes import ClusterSizes, choose, compare, knees, saves, saving, within
from smp_advisor.workload import Model

P4D, P5 = "ml.p4d.24xlarge", "ml.p5.48xlarge"


def places(cluster, count=None, *, limits=None, cost=False, library="auto"):
    return places_of(cluster, count, limits=limits or Limits(), library=library, cost=cost)


@pytest.mark.parametrize(
    ("cluster", "count", "limits", "nodes", "goal"),
    [
        (P4D, 16, {}, (16,), "fastest"),
        (P4D, None, {}, (1,), "smallest"),
        (Cluster(P4D, 4), None, {}, (4,), "fastest"),
        (P4D, "smallest", {}, COUNTS, "smallest"),
        (P4D, None, {"max_days": 30}, COUNTS, "cheapest"),
        (P4D, None, {"max_usd": 3e5}, COUNTS, "fastest"),
        (P4D, None, {"max_days": 30, "max_usd": 3e5}, COUNTS, "fastest"),
        (P4D, 16, {"max_days": 30}, (16,), "cheapest"),
        ([P4D, P5], 8, {}, (8,), "fastest"),
        ([P4D, P5], None, {}, COUNTS, "cheapest"),
        ("any", None, {"max_days": 30}, COUNTS, "cheapest"),
        ("any", "smallest", {}, COUNTS, "smallest"),
    ],
)
def test_what_is_not_named_is_open(cluster, count, limits, nodes, goal):
    result = places(cluster, count, limits=Limits(**limits))
    assert sorted({c.nodes for c in result.clusters}) == list(nodes)
    assert result.goal == goal
    assert (result.fixed is not None) == (len(result.clusters) == 1)


def test_open_clusters_of_a_request():
    machines = [c.instance for c in places("any", 1).clusters]
    assert len({(m.gpu, m.gpus) for m in machines}) == len(machines) > 10
    assert all(m.usd_per_hour is not None for m in machines)
    assert {c.instance.name for c in places("any", 1, library="smp-v2").clusters} < {m.name for m in machines}

    result = places(P4D, 6, cost=True, library="smp-v2")
    assert result.requested == Cluster(P4D, 6)
    assert result.clusters[:5] == tuple(Cluster(P4D, nodes) for nodes in (1, 2, 3, 4, 6))
    assert {c.instance.name for c in result.clusters} > {P4D, P5}
    assert max(c.nodes for c in result.clusters) == 6


MODEL = Model.from_parameters("1.3B", sequence_length=1024, family="gpt2")
JOB = Job(sequence_length=1024, precision="bf16", attention="fused", tokens=1e9, overheads="none")
ESTIMATE = estimate(MODEL, Cluster(P4D, 1), JOB, Plan(library="fsdp", batch_size=4))


def size(nodes: int, speed: float, *, name: str = P4D, usd_per_hour: float = 30.0) -> ClusterSize:
    """A cluster that trains `speed` times as fast as the estimate, at a price per node."""
    days = ESTIMATE.days / speed
    now = replace(ESTIMATE, days=days, usd_per_hour=usd_per_hour * nodes, tokens_per_step=int(1e6 * speed))
    kind = "sharded, nodes" if nodes > 1 else "sharded, one node"
    return ClusterSize(cluster=Cluster(name, nodes), library="fsdp", job=JOB, estimate=now, kind=kind, stack="hf-sdpa")


def misfit(nodes: int) -> ClusterSize:
    return ClusterSize(cluster=Cluster(P4D, nodes), library="fsdp", job=JOB, estimate=None, nearest_gib=50.0)


SIZES = [misfit(1), size(2, 2.0), size(4, 3.9), size(8, 7.0), size(16, 9.0), size(32, 10.0)]
DAYS = ESTIMATE.days


def test_goals_and_knees():
    assert choose(SIZES, "smallest", Limits()).cluster.nodes == 2
    assert choose(SIZES, "fastest", Limits()).cluster.nodes == 32
    assert choose(SIZES, "cheapest", Limits()).cluster.nodes == 2

    assert [knee.cluster.nodes for knee in knees(SIZES)] == [8]
    assert [knee.cluster.nodes for knee in knees(SIZES[:3])] == [4]
    assert knees([misfit(1)]) == []


def test_deadlines_and_savings_with_their_intervals():
    high = ESTIMATE.step_factors[1]
    sure = Limits(max_days=DAYS / 3.9 * high * 1.01)
    assert choose(SIZES, "cheapest", sure).cluster.nodes == 4
    # Without a cluster that surely meets it, one whose estimate does.
    tight = Limits(max_days=DAYS / 9.5)
    assert choose(SIZES, "cheapest", tight).cluster.nodes == 32
    assert not within(SIZES[-1], tight, surely=True)
    assert choose(SIZES, "cheapest", Limits(max_days=DAYS / 11)) is None

    own, cheaper = size(16, 9.0), size(4, 2.4)
    point, low, high = saving(cheaper, own)
    assert point == pytest.approx(1 - (4 / 2.4) / (16 / 9.0))
    assert low < 0 < point < high
    sizes = [cheaper, own]
    assert choose(sizes, "cheapest", Limits(), own.cluster) is own
    assert choose(sizes, "cheapest", Limits()) is cheaper
    much = size(4, 7.0)
    assert saves(much, own)
    assert choose([much, own], "cheapest", Limits(), own.cluster) is much


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_saving_and_its_reverse_have_opposite_signs(one, another):
    left, right = size(2, one), size(8, another)
    forth, back = saving(left, right), saving(right, left)
    assert forth[1] <= forth[0] <= forth[2]
    assert (1 - forth[0]) * (1 - back[0]) == pytest.approx(1)
    assert not (saves(left, right) and saves(right, left))


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 50)), min_size=1, max_size=12), st.floats(0.01, 20))
def test_the_answer_is_within_the_limits_and_nothing_surely_cheaper_is_left_out(pairs, share):
    sizes = [size(nodes, speed) for nodes, speed in pairs]
    limits = Limits(max_days=DAYS * share)
    chosen = choose(sizes, "cheapest", limits)
    allowed = [other for other in sizes if within(other, limits)]
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert within(chosen, limits)
        sure = [other for other in allowed if within(other, limits, surely=True)] or allowed
        assert chosen.usd <= 1.03 * min(other.usd for other in sure) * (1 + 1e-9)


def test_limits_need_tokens_and_are_read_as_people_write_them():
    assert Limits.of(JOB, max_days="30", max_usd="250k") == Limits(max_days=30.0, max_usd=250_000.0)
    assert not Limits.of(replace(JOB, tokens=None))
    with pytest.raises(JobError, match="max_usd needs the tokens"):
        Limits.of(replace(JOB, tokens=None), max_usd=10)
    with pytest.raises(AdvisorError, match="max_days must be a positive number of days, for example 30, not 'soon'"):
        Limits.of(JOB, max_days="soon")


def test_the_curve_is_a_table_in_each_form():
    curve = ClusterSizes(model=MODEL, sizes=tuple(SIZES), goal="cheapest", requested=Cluster(P4D, 32))
    frame = curve.to_frame()
    assert list(frame["nodes"]) == [1, 2, 4, 8, 16, 32]
    assert list(frame["fits"]) == [False, *[True] * 5]
    assert list(frame["nodes"][frame["knee"]]) == [8]
    assert (frame["days_low"][1:] < frame["days"][1:]).all()
    assert list(frame["nodes"][frame["chosen"]]) == [curve.chosen.cluster.nodes]
    text, html = str(curve), curve._repr_html_()
    assert "needs 50.0 GiB" in text
    assert html.count("<tr>") == 1 + len(SIZES)
    assert [one.cluster.nodes for one in curve.pareto] == [32, 16, 8, 4, 2]
    stopped = replace(curve, sizes=curve.sizes[:3], complete=False)
    assert stopped.lines()[-1] == "3 clusters compared, then it was stopped."

    named = replace(MODEL, name="<b>x</b>")
    curve = ClusterSizes(model=named, sizes=(misfit(1),))
    assert "<b>" not in curve._repr_html_()
    assert "&lt;b&gt;" in curve._repr_html_()


SMALL = {"library": "fsdp", "sequence_length": 1024, "tokens": "20B"}


def test_a_deadline_sets_the_number_of_nodes():
    advice = smpa.advise("1.3B", P4D, max_days=1, **SMALL)
    assert advice.estimate.days <= 1
    assert advice.cluster.nodes > 1
    assert advice.sizes.limits.max_days == 1
    assert "within 1 day, with its entire interval:" in advice.because
    later = smpa.advise("1.3B", P4D, max_days="30", **SMALL)
    assert later.cluster.nodes < advice.cluster.nodes
    # The same request again, for example after a calibration, has the same answer.
    assert advice.again().cluster == advice.cluster

    counted = smpa.advise("1.3B", P4D, max_gpu_hours="3k", **SMALL)
    assert 24 * counted.estimate.days_range[1] * counted.cluster.gpus <= 3000
    assert "within 3,000 GPU-hours, with its entire interval:" in counted.because
    assert set(LIMITS) == {entry.name for entry in fields(Limits)}

    with pytest.raises(NoPlanFitsError, match="would be enough") as error:
        smpa.advise("1.3B", P4D, instance_count=1, max_days=0.5, **SMALL)
    sentence = str(error.value)
    assert sentence.startswith(f"1 x {P4D} does not train")
    nodes = int(sentence.split("; ")[1].split(maxsplit=1)[0])
    assert smpa.advise("1.3B", P4D, instance_count=nodes, max_days=0.5, **SMALL).estimate.days <= 0.5

    advice = smpa.advise("30B", P4D, instance_count="smallest", library="fsdp", sequence_length=1024)
    nodes = advice.cluster.nodes
    assert nodes > 1
    assert advice.sizes.smallest.cluster == advice.cluster
    assert "is the smallest cluster that fits" in advice.because
    with pytest.raises(NoPlanFitsError):
        smpa.advise("30B", P4D, instance_count=nodes - 1, library="fsdp", sequence_length=1024)


@pytest.mark.slow
def test_any_instance_is_one_question_with_progress():
    steps = []
    advice = smpa.advise("1.3B", "any", on_progress=lambda *step: steps.append(step), **SMALL)
    assert [done for done, _, _ in steps] == list(range(len(advice.sizes.sizes) + 1))
    assert all(done < total for done, total, _ in steps[:-1])
    assert steps[-1][:2] == (len(advice.sizes.sizes),) * 2
    assert steps[0][2].startswith("1 x ml.")
    cheapest = min(size.usd for size in advice.sizes.sizes if size.fits)
    assert advice.estimate.usd_total <= 1.03 * cheapest * (1 + 1e-9)


def test_an_interrupt_keeps_the_clusters_compared_by_then():
    def stop(done: float, *_: object) -> None:
        if done == 5:
            raise KeyboardInterrupt

    advice = smpa.advise("1.3B", P4D, max_days=30, on_progress=stop, **SMALL)
    assert len(advice.sizes.sizes) == 5
    assert not advice.sizes.complete
    assert "then it was stopped" in advice.because

    def at_once(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smpa.advise("1.3B", P4D, max_days=30, on_progress=at_once, **SMALL)


def test_no_fit_is_no_dead_end():
    request = {"sequence_length": 4096, "library": "smp-v2", "activation_checkpointing": False}
    with pytest.raises(NoPlanFitsError) as error:
        smpa.advise("30B", P4D, **request)
    ways = error.value.ways_out
    changes = [way.change for way in ways.ways]
    assert {"nodes", "instance", "adapter"} <= set(changes)
    order = ["setting", "library", "nodes", "instance", "batch", "optimizer", "sequence", "adapter"]
    assert changes == sorted(changes, key=order.index)
    assert all(way.size.estimate.fit_probability >= 0.95 for way in ways.ways)
    nodes = ways.of("nodes")
    again = smpa.advise("30B", P4D, instance_count=nodes.size.cluster.nodes, **request)
    assert again.estimate.needed_gib == pytest.approx(nodes.size.estimate.needed_gib)
    assert nodes.words in str(error.value)
    assert "QLoRA" in str(ways) or "LoRA" in str(ways)
    assert ways._repr_html_().count("<tr>") == 1 + len(changes)


def test_other_clusters_are_compared_for_an_advice():
    advice = smpa.advise("1.3B", P4D, instance_count=3, **SMALL)
    sizes = advice.compare_clusters(counts=(1, 2), max_days=300)
    assert [size.cluster.nodes for size in sizes.sizes] == [1, 2, 3]
    assert sizes.own.estimate.days == pytest.approx(advice.estimate.days)
    assert sizes.limits.max_days == 300
    types = {size.cluster.instance.name for size in advice.compare_clusters(["p4d", "p5.48xlarge"], counts=(1,)).sizes}
    assert types == {P4D, "ml.p5.48xlarge"}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "instance"), [("sdxl", P4D), ("llama-3-8b", "ml.p5.48xlarge"), ("350M", P4D)])
def test_a_comparison_takes_the_library_of_the_advice(model, instance):
    advice = smpa.advise(model, instance, instance_count=2)
    assert advice.compare_clusters(counts=(2,)).own.library == advice.plan.library


def test_an_open_number_of_nodes_has_the_refusal_of_one_node_and_a_tolerance_is_said():
    for settings, words in (({"library": "smp-v1"}, "not on AWS's list for SMP v1"), ({"precision": "bf16"}, "V100")):
        machine = "ml.g6.12xlarge" if "library" in settings else "ml.p3.16xlarge"
        other = machine.replace("12x", "48x").replace("16x", "2x")
        for place, count in ((machine, 1), (machine, "smallest"), ([machine, other], "smallest")):
            with pytest.raises(AdvisorError, match=words):
                smpa.advise("gemma-2-9b", place, instance_count=count, **settings)

    equal = ClusterSizes(model=MODEL, sizes=(size(1, 1.0), size(2, 2.02)), goal="cheapest")
    assert equal.chosen is equal.sizes[0]
    assert equal.lines()[1].startswith("Within 3.0 %, the lower price per hour decides: 2 x ml.p4d.24xlarge takes")
    slow = size(1, 0.1, name="ml.g5.xlarge", usd_per_hour=4.0)
    cheap = ClusterSizes(model=MODEL, sizes=(slow, size(1, 1.0)), goal="cheapest")
    assert cheap.lines()[1].startswith("1 x ml.g5.xlarge has the lowest price, 1.41 USD per hour: ")
    assert not any("per hour" in line for line in replace(cheap, sizes=cheap.sizes[1:]).lines())


def test_adapters_that_fit_or_name_their_library():
    with pytest.raises(NoPlanFitsError, match="QLoRA of rank 8") as error:
        smpa.advise("llama-2-13b", "ml.g5.xlarge", adapter=smpa.Adapter(rank=8), sequence_length=4096)
    assert error.value.ways_out.of("adapter").size.job.adapter == smpa.Adapter(rank=8, base_bits=4)

    with pytest.raises(NoPlanFitsError, match="LoRA of rank 16 with FSDP instead of SMP v1"):
        smpa.advise("llama-3-70b", "ml.p4de.24xlarge", instance_count=2, library="smp-v1")

    adapter = smpa.Adapter(rank=16, targets="all-linear")
    advice = smpa.advise("llama-3-70b", "ml.p5.48xlarge", instance_count=2, adapter=adapter, sequence_length=4096)
    assert advice.plan.library == "fsdp"
    assert "AWS trains adapters with PEFT" in advice.library_because
    pinned = smpa.advise(
        "llama-3-8b", "ml.p5.48xlarge", adapter=adapter, library="smp-v2", sequence_length=4096, script="t.py"
    )
    assert pinned.plan.tensor_parallel_degree == pinned.plan.expert_parallel_degree == 1


@pytest.mark.slow
def test_far_from_fitting():
    with pytest.raises(NoPlanFitsError, match=r"changes that fit there: .*QLoRA") as error:
        smpa.advise("20B", ["g5.12xlarge", "g6.12xlarge"], instance_count=1, sequence_length=4096)
    assert error.value.ways_out.of("adapter") is not None

    with pytest.raises(NoPlanFitsError) as error:
        smpa.advise("405B", "ml.g5.xlarge")
    way, *_ = error.value.ways_out.ways
    assert way.change == "instance"
    assert way.words in str(error.value)
    assert way.size.estimate.fits

    pins = {"batch_size": 4, "activation_checkpointing": False, "sharding_strategy": "full_shard"}
    with pytest.raises(NoPlanFitsError, match=r"leaves \d+\.\d GiB free and fits with a probability of 88\.\d %"):
        smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", min_fit_probability=0.99, loss="plain", **pins)


@pytest.mark.parametrize(
    ("model", "machines", "library", "count", "of_run"),
    [
        ("llama-3.1-8b", "ml.g5.12xlarge", "fsdp", None, {"max_days": 12}),
        pytest.param("7B", P4D, "fsdp", None, {"max_usd": 6_000}, marks=pytest.mark.release),  # as that of 20B
        ("1.3B", P4D, "smp-v2", None, {"max_days": 0.4, "max_gpu_hours": 700}),
        ("30B", "ml.g5.48xlarge", "auto", "smallest", {}),
        ("20B", P4D, "smp-v2", None, {"max_usd": 147_866}),  # above a number that is not within it
        pytest.param("20B", P4D, "smp-v2", None, {"max_days": 7.19}, marks=pytest.mark.release),  # as these around it
        pytest.param("20B", P4D, "smp-v2", "smallest", {"max_days": 7.19}, marks=pytest.mark.release),
        ("20B", [P4D, P5], "smp-v2", "smallest", {"max_days": 12}),
    ],
)
def test_the_answer_is_that_of_every_number_with_progress(model, machines, library, count, of_run):
    limits, steps, types = Limits(**of_run), [], machines if isinstance(machines, list) else [machines]
    more = {"tokens": "100B"} if model == "20B" else {"tokens": "20B", "sequence_length": 2048}
    question = question_of(Request.of(model, types[0], library=library, **more), Cluster(types[0], 1))
    open_places = places(machines, count, limits=limits, library=library)
    sizes = compare(question, open_places, limits, lambda *step: steps.append(step))
    assert [done for done, *_ in steps] == list(range(len(sizes.sizes) + 1))
    most = sizes.chosen.cluster.nodes * 5 // 4 + 8
    every = [best_on(question, Cluster(name, nodes)) for name in types for nodes in range(1, most)]
    assert choose(every, open_places.goal, limits).cluster == sizes.chosen.cluster


def test_fewer_nodes_neighbors_and_prices_are_named():
    wide = smpa.advise("350M", "ml.g4dn.xlarge", instance_count=8, global_batch_size=32, sequence_length=512)
    assert "1 node is as fast as 8" in wide.because
    odd = smpa.advise("llama-3.1-8b", P4D, instance_count=4, sequence_length=8192, global_batch_size=7)
    assert "A global batch of 8 samples would train" in odd.because
    compiled = smpa.advise("bert-large", "ml.p3.8xlarge", instance_count=2, library="training-compiler")
    assert "1 node is as fast as 2" in compiled.because
    assert any(size.fits and size.cluster == compiled.cluster for size in compiled.compare_clusters().sizes)
    with pytest.raises(NoPlanFitsError, match=r"1 x ml\.g6e\.xlarge, 2\.6\d USD/h") as error:
        smpa.advise("gemma-3-1b", "ml.g5.xlarge", sequence_length=1024, training="pretraining")
    offers = [way for way in error.value.ways_out.ways if way.change == "instance"]
    assert [way.size.cluster.usd_per_hour for way in offers] == sorted(way.size.cluster.usd_per_hour for way in offers)
