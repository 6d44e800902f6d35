"""Questions that `advise` answers in one call."""

from __future__ import annotations

from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.errors import JobError, NoPlanFitsError
from smp_advisor.search.sizes import saving

P4D = "ml.p4d.24xlarge"
SMALL = {"library": "fsdp", "sequence_length": 1024, "tokens": "20B"}


def test_the_smallest_number_of_nodes_is_one_question():
    advice = smpa.advise("30B", P4D, instance_count="smallest", library="fsdp", sequence_length=1024)
    nodes = advice.cluster.nodes
    assert nodes > 1
    assert advice.sizes.smallest.cluster == advice.cluster
    assert "is the smallest cluster that fits" in advice.because
    with pytest.raises(NoPlanFitsError):
        smpa.advise("30B", P4D, instance_count=nodes - 1, library="fsdp", sequence_length=1024)


def test_a_deadline_opens_the_number_of_nodes_and_is_met():
    advice = smpa.advise("1.3B", P4D, max_days=1, **SMALL)
    assert advice.estimate.days <= 1
    assert advice.cluster.nodes > 1
    assert advice.sizes.limits.max_days == 1
    assert "within 1 day, with its entire interval:" in advice.because
    later = smpa.advise("1.3B", P4D, max_days="30", **SMALL)
    assert later.cluster.nodes < advice.cluster.nodes
    # The same request again, for example after a calibration, has the same answer.
    assert advice.again().cluster == advice.cluster


def test_a_fixed_cluster_that_misses_the_deadline_gets_the_number_that_meets_it():
    with pytest.raises(NoPlanFitsError, match="would be enough") as error:
        smpa.advise("1.3B", P4D, instance_count=1, max_days=0.5, **SMALL)
    sentence = str(error.value)
    assert sentence.startswith(f"1 x {P4D} does not train")
    nodes = int(sentence.split("; ")[1].split(maxsplit=1)[0])
    assert smpa.advise("1.3B", P4D, instance_count=nodes, max_days=0.5, **SMALL).estimate.days <= 0.5


def test_a_limit_without_tokens_is_refused():
    with pytest.raises(JobError, match="max_days needs the tokens of the run"):
        smpa.advise("1.3B", P4D, max_days=30)


@pytest.mark.slow
def test_any_instance_is_one_question_with_progress():
    steps = []
    advice = smpa.advise("1.3B", "any", on_progress=lambda *step: steps.append(step), **SMALL)
    assert [done for done, _, _ in steps] == list(range(len(advice.sizes.sizes) + 1))
    assert {total for _, total, _ in steps} == {len(advice.sizes.sizes)}
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


def test_the_cost_objective_never_presents_a_saving_within_its_own_interval():
    advice = smpa.advise("1.3B", P4D, instance_count=8, objective="cost", **SMALL)
    chosen, own = advice.sizes.chosen, advice.sizes.own
    shares = saving(chosen, own) if chosen is not own else None
    assert shares is None or shares[1] > 0
    assert advice.cluster == chosen.cluster


def test_no_fit_is_no_dead_end():
    with pytest.raises(NoPlanFitsError) as error:
        smpa.advise("30B", P4D, sequence_length=4096, library="smp-v2", activation_checkpointing=False)
    ways = error.value.ways_out
    changes = [way.change for way in ways.ways]
    assert {"nodes", "instance", "adapter"} <= set(changes)
    order = ["setting", "library", "nodes", "instance", "batch", "optimizer", "sequence", "adapter"]
    assert changes == sorted(changes, key=order.index)
    frame = ways.to_frame()
    assert list(frame["change"]) == changes
    assert (frame["needed_gib"] > 0).all()
    assert (frame["fit_probability"] >= 0.95).all()
    nodes = ways.of("nodes")
    again = smpa.advise(
        "30B",
        P4D,
        instance_count=nodes.size.cluster.nodes,
        sequence_length=4096,
        library="smp-v2",
        activation_checkpointing=False,
    )
    assert again.estimate.needed_gib == pytest.approx(nodes.size.estimate.needed_gib)
    assert nodes.words in str(error.value)
    assert "QLoRA" in str(ways) or "LoRA" in str(ways)
    assert ways._repr_html_().count("<tr>") == 1 + len(changes)


def test_a_comparison_without_any_fit_has_ways_out_on_the_nearest_cluster():
    with pytest.raises(NoPlanFitsError, match=r"changes that fit there: .*QLoRA") as error:
        smpa.advise("70B", ["g5.12xlarge", "g6.12xlarge"], instance_count=2, sequence_length=4096)
    assert error.value.ways_out.of("adapter") is not None


def test_other_clusters_are_compared_for_an_advice():
    advice = smpa.advise("1.3B", P4D, instance_count=3, **SMALL)
    sizes = advice.compare_clusters(counts=(1, 2), max_days=300)
    assert [size.cluster.nodes for size in sizes.sizes] == [1, 2, 3]
    assert sizes.own.estimate.days == pytest.approx(advice.estimate.days)
    assert sizes.limits.max_days == 300
    types = {size.cluster.instance.name for size in advice.compare_clusters(["p4d", "p5.48xlarge"], counts=(1,)).sizes}
    assert types == {P4D, "ml.p5.48xlarge"}
    with pytest.raises(smpa.errors.AdvisorError, match="made by advise"):
        replace(advice.recommended, question=None).compare_clusters()


def test_a_comparison_ranks_by_the_objective_of_the_request():
    advice = smpa.advise("1.3B", P4D, instance_count=2, objective="simplicity", max_days=3000, **SMALL)
    assert advice.sizes.chosen.estimate.days == pytest.approx(advice.estimate.days)


def test_a_model_far_too_large_gets_a_cluster_on_which_it_fits():
    with pytest.raises(NoPlanFitsError) as error:
        smpa.advise("405B", "ml.g5.xlarge")
    (way,) = error.value.ways_out.ways
    assert way.change == "instance"
    assert way.words in str(error.value)
    assert way.size.estimate.fits


def test_an_adapter_that_does_not_fit_gets_a_base_in_4_bits():
    with pytest.raises(NoPlanFitsError, match="QLoRA of rank 8") as error:
        smpa.advise("llama-3-8b", "ml.g5.xlarge", adapter=smpa.Adapter(rank=8), sequence_length=4096)
    assert error.value.ways_out.of("adapter").size.job.adapter == smpa.Adapter(rank=8, base_bits=4)


def test_adapters_train_without_the_model_of_smp_v2():
    adapter = smpa.Adapter(rank=16, targets="all-linear")
    advice = smpa.advise("llama-3-70b", "ml.p5.48xlarge", instance_count=2, adapter=adapter, sequence_length=4096)
    assert advice.plan.library == "fsdp"
    assert "AWS trains adapters with PEFT" in advice.library_because
    pinned = smpa.advise("llama-3-8b", "ml.p5.48xlarge", adapter=adapter, library="smp-v2", sequence_length=4096)
    assert pinned.plan.tensor_parallel_degree == pinned.plan.expert_parallel_degree == 1
    with pytest.raises(smpa.errors.PlanError, match="no tensor parallelism with an adapter"):
        smpa.advise("llama-3-8b", "ml.p5.48xlarge", adapter=adapter, library="smp-v2", tensor_parallel_degree=2)


def test_a_deadline_that_moves_the_cost_objective_presents_no_unresolved_saving():
    advice = smpa.advise("7B", P4D, instance_count=8, objective="cost", tokens="300B", library="smp-v2", max_days=30)
    own = next(size for size in advice.sizes.sizes if size.cluster.nodes == 8 and size.cluster.instance.name == P4D)
    chosen = next(size for size in advice.sizes.sizes if size.cluster == advice.cluster)
    shares = saving(chosen, own)
    assert ("It saves" in advice.because) == (chosen is not own and shares[1] > 0)


def test_the_nearest_plan_with_free_memory_has_its_probability():
    pins = {"batch_size": 4, "activation_checkpointing": False, "sharding_strategy": "full_shard"}
    with pytest.raises(NoPlanFitsError, match=r"leaves 6\.9 GiB free and fits with a probability of 77\.1 %"):
        smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp", min_fit_probability=0.99, **pins)
