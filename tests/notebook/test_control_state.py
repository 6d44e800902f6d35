"""Moving controls: what follows, what is refused with a repair, and what is said about it."""

from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise
from smp_advisor.advice.report import ladder_of
from smp_advisor.costs import estimate
from smp_advisor.errors import PlanError
from smp_advisor.libraries import Plan
from smp_advisor.notebook.view_state import glances, look_ahead, snapshot_of
from smp_advisor.session import control_state
from smp_advisor.session.control_state import describe
from smp_advisor.session.controls import controls, repairs, repairs_of
from smp_advisor.session.settings import plan_of, require_settings, settings_of, with_labels

from .advice import PIPELINE, make_advice

FITS, LESS, OVER = (33.1, 100.0, True), (39.9, 130.0, False), (41.0, 130.0, False)


@pytest.mark.parametrize(
    ("moved", "before", "after", "summary"),
    [
        (
            "Batch size",
            ("4|40||1,280", FITS),
            ("4|56||1,792", LESS),
            "Batch size 40 → 56 (global batch 1,280 → 1,792): memory +6.8{} (39.9{}); no longer fits.",
        ),
        ("Batch size", ("4|56||", LESS), ("4|40||", FITS), "Batch size 56 → 40: memory −6.8{} (33.1{}); now fits."),
        (
            "Batch size",
            ("4|64||", OVER),
            ("4|56||", LESS),
            "Batch size 64 → 56: memory −1.1{} (39.9{}); still does not fit.",
        ),
        (
            "Pipeline schedule",
            ("4|40||", FITS),
            ("4|40|simple|", (33.12, 95.0, True)),
            "Pipeline schedule none → simple: no change in memory (33.1 of 39.4 GiB), throughput −5.0 %.",
        ),
        (
            "",
            ("4|40||", FITS),
            ("2|20||", FITS),
            "Tensor parallel degree 4 → 2, batch size 40 → 20: no change in memory (33.1{1}), no change in throughput.",
        ),
        ("Batch size", ("4|40||", FITS), ("4|40||", FITS), ""),
    ],
)
def test_a_change_is_summarized(moved, before, after, summary):
    rows = ["Tensor parallel degree", "Batch size", "Pipeline schedule", "Global batch"]
    names = ("needed_gib", "tokens_per_second", "fits", "usable_gpu_memory_gib")
    plans = [SimpleNamespace(**dict(zip(names, (*figures, 39.4), strict=True))) for _, figures in (before, after)]
    expected = summary.format(" GiB per GPU", " of 39.4 GiB")
    was, now = (dict(zip(rows, texts.split("|"), strict=True)) for texts, _ in (before, after))
    assert describe(was, now, *plans, moved=moved) == expected


def test_another_kind_of_code_moves_the_estimate_and_comes_back(advice):
    start = control_state.recommended(advice)
    compiled = control_state.move(start, "stack", "torch-compile")
    assert compiled.plan == start.plan
    assert compiled.advice.job.stack == "torch-compile"
    assert compiled.estimate.step_seconds < start.estimate.step_seconds
    assert compiled.summary.startswith("Code exported script (inferred)")
    back = control_state.move(compiled, "stack", "auto")
    assert back.estimate == start.estimate
    refused = control_state.move(start, "stack", "jax")
    assert refused.problem.startswith("stack must be one of")
    code = by_name(advice)["stack"]
    assert (code.kind, code.values[0]) == ("select", "auto")
    assert "tensorflow" not in code.values
    assert code.texts[0] == "exported script (inferred): SMP v1 script"
    assert code.help.endswith("Setting of the job: stack.")


def test_what_cannot_be_combined_is_refused_in_one_sentence_and_loses_nothing(pipeline_advice):
    before = control_state.recommended(pipeline_advice)
    after = control_state.move(before, "sharding", "sharded_8")
    assert "exclude each other" in after.problem
    assert after.problem.count(". ") == 0
    assert (after.plan, after.estimate) == (before.plan, before.estimate)
    assert after.settings["sharding"] == "sharded_8"
    with pytest.raises(PlanError, match="exclude each other"):
        control_state.require(after)
    mended = control_state.move(after, "pipeline_parallel_degree", 1)  # another control puts it right
    assert mended.problem == ""
    assert mended.plan.sharded_data_parallel_degree == 16  # all of them, as before


def test_the_simple_schedule_keeps_all_microbatches_active(pipeline_advice):
    state = control_state.move(control_state.recommended(pipeline_advice), "active_microbatches", 2)
    assert (state.problem, state.plan.active_microbatches) == ("", 2)
    state = control_state.move(state, "pipeline", "simple")
    assert (state.problem, state.settings["active_microbatches"]) == ("", 4)
    state = control_state.move(state, "active_microbatches", 3)
    assert (state.problem, state.plan.pipeline) == ("", "interleaved")


@pytest.mark.parametrize(
    ("name", "there"), [("tensor_parallel_degree", 8), ("tensor_parallel_degree", 32), ("pipeline_parallel_degree", 4)]
)
def test_a_degree_that_goes_and_comes_back_leads_back(advice, name, there):
    start = control_state.move(control_state.recommended(advice), "sharding", "sharded_32")
    gone = control_state.move(start, name, there)
    assert gone.settings["sharding"] != "sharded_32"
    assert control_state.move(gone, name, start.settings[name]).settings == start.settings
    some = control_state.move(start, "sharding", "sharded_16")  # of these, shards are still made fewer only
    for degree, sharding in ((16, "sharded_8"), (8, "sharded_16")):
        some = control_state.move(some, "tensor_parallel_degree", degree)
        assert some.settings["sharding"] == sharding


@pytest.mark.parametrize(
    "settings", [{}, None, {**settings_of(PIPELINE), "extra": 1}, {**settings_of(PIPELINE), "batch_size": True}]
)
def test_incomplete_or_unknown_settings_are_refused(settings):
    with pytest.raises(PlanError, match="The advisor's setting"):
        require_settings(settings)


def test_the_look_ahead_table_holds_what_each_move_gives(advice, pipeline_advice):
    for recommendation in (advice, pipeline_advice):
        state = control_state.recommended(recommendation)
        table = look_ahead(recommendation, state.settings)
        for control in controls(recommendation, state.settings):  # each has a position for what is set
            assert state.settings[control.name] in control.values
            assert len(control.values) == len(set(control.values)) == len(control.texts)
        moves = [
            (c.name, value, *entry)
            for c in controls(recommendation, state.settings)
            for value, entry in zip(c.values, table.get(c.name, []), strict=False)
        ]
        assert len(moves) > 30
        for name, value, follows, entry in moves:
            moved = control_state.move(state, name, value)
            assert {**state.settings, **follows, name: value} == moved.settings
            if moved.problem:
                assert entry == with_labels("smp-v1", moved.problem)
            else:
                assert entry == snapshot_of(moved)["costs"]
                ladder = ladder_of(moved.advice, moved.plan)
                assert [gib for _, gib in entry["rungs"]] == [
                    None if rung.needed_gib is None else round(rung.needed_gib, 1) for rung in ladder.rungs
                ]


def test_the_edge_touches_the_wall_exactly_when_the_verdict_leaves_fits(advice):
    usable, fits = advice.estimate.usable_gpu_memory_gib, set()
    for required in (0.5, 0.8, 0.95, 0.999):
        asked = replace(advice, request=advice.request.changed(min_fit_probability=required))
        for _, costs in look_ahead(asked, control_state.recommended(asked).settings)["batch_size"]:
            fits.add(costs["fit"])
            assert (costs["fit"] == "fits") == (costs["edge"] <= usable and costs["gib"] <= usable)
            assert costs["gib"] <= costs["edge"] or required == 0.5
    assert fits == {"fits", "risk", "over"}


def test_the_page_rounds_memory_as_the_texts_do(advice):
    """A browser rounds decimals half up: those that are sent keep the digits that decide."""
    for needed in (515.5497, 50.74995):
        now = replace(advice.estimate, needed_gib=needed)
        (glance,) = glances(advice, [(advice.job, advice.plan, now)])
        browser = Decimal(repr(glance["gib"])).quantize(Decimal("0.1"), ROUND_HALF_UP)
        assert str(browser) == f"{needed:.1f}"


def test_the_first_step_of_the_ladder_grows_with_the_batch(advice):
    """A step takes one technique away: it keeps the number of microbatches, also where they do not divide the batch."""
    start = control_state.recommended(
        advise(
            "10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2"
        ).recommended
    )
    table = look_ahead(start.advice, start.settings)["batch_size"]
    for step in range(3):
        sizes = [costs["rungs"][step][1] for _, costs in table]
        assert sizes == sorted(sizes)


@pytest.mark.slow
@given(data=st.data())
def test_any_walk_over_the_controls_ends_in_an_estimate_of_its_plan_or_a_reason(data, pipeline_advice):
    state = control_state.recommended(pipeline_advice)
    for _ in range(data.draw(st.integers(1, 6))):
        control = data.draw(st.sampled_from(controls(pipeline_advice, state.settings)))
        value = data.draw(st.sampled_from(control.values))
        state = control_state.move(state, control.name, value)
        assert state.settings[control.name] == value
    # Controls of the job change its settings along with the plan.
    expected = estimate(pipeline_advice.model, pipeline_advice.cluster, state.advice.job, state.plan)
    assert state.estimate.needed_gib == pytest.approx(expected.needed_gib)
    if not state.problem:
        assert plan_of(state.advice, state.settings) == state.plan


def test_settings_of_the_training_script_are_controls_of_the_libraries_that_have_them():
    state = control_state.recommended(make_advice(Plan(library="fsdp"), precision="bf16", attention="fused"))
    by_name = {control.name: control for control in controls(state.advice, state.settings)}
    assert by_name["loss"].values == ("plain", "chunked", "fused")
    assert by_name["paged_optimizer"].kind == "checkbox"
    assert "12 bytes per logit" in by_name["loss"].help
    moved = control_state.move(state, "state_precision", "16-bit")
    assert moved.problem == ""
    assert moved.estimate.memory.peak.optimizer_state_gib < state.estimate.memory.peak.optimizer_state_gib
    assert "unsharded_accumulation" not in control_state.recommended(make_advice()).settings


def by_name(advice):
    return {control.name: control for control in controls(advice, settings_of(advice.plan, advice.job))}


def test_values_divide_what_they_are_of_and_a_schedule_needs_a_pipeline(advice, pipeline_advice):
    found, piped = by_name(advice), by_name(pipeline_advice)
    assert found["tensor_parallel_degree"].values == (1, 2, 4, 8, 16, 32)
    assert all(32 % degree == 0 for degree in found["pipeline_parallel_degree"].values)
    assert max(found["pipeline_parallel_degree"].values) <= advice.model.layer_count
    assert piped["microbatches"].values == (1, 2, 4, 8, 16)
    assert all(size % 4 == 0 for size in piped["batch_size"].values)
    for name in ("active_microbatches", "pipeline"):
        assert (len(found[name].values), found[name].fixed_because) == (1, "Only with pipeline stages.")
    assert piped["active_microbatches"].values == (1, 2, 3, 4)


SHARDED = Plan(sharded_data_parallel_degree=8, bf16=True, batch_size=16, activation_checkpointing="each")


@pytest.fixture(scope="module")
def sharded():
    """Sharding in bf16, which excludes every pipeline and every plan without sharding."""
    return make_advice(SHARDED, precision="bf16")


def test_every_position_leads_to_a_plan_or_has_a_reason_with_repairs_that_lead_to_it(sharded):
    experts = advise("mixtral-8x7b", "ml.p5.48xlarge", instance_count=4, library="smp-v2", precision="fp32").recommended
    for advice in (sharded, experts):
        base = settings_of(advice.plan, advice.job)
        unreachable = [
            (name, control.values[place])
            for control in controls(advice, base)
            for name, row in look_ahead(advice, base).items()
            for place, (_, entry) in enumerate(row)
            if name == control.name and isinstance(entry, str)
        ]
        assert len(unreachable) > 1
        for name, value in unreachable:
            offers = repairs(advice, base, name, value)
            assert offers, (name, value)
            for offer in offers:
                after = offer.state
                assert after.settings[name] == value
                assert plan_of(after.advice, after.settings) == after.plan
                state = control_state.apply(control_state.recommended(advice), after.settings)
                assert (state.problem, state.plan, state.estimate) == ("", after.plan, after.estimate)


def test_a_pipeline_without_sharding_is_offered_as_an_instruction_with_its_effect(sharded):
    refused = control_state.move(control_state.recommended(sharded), "pipeline_parallel_degree", 8)
    assert "exclude each other" in refused.problem
    first = repairs_of(refused)[0]
    assert first["text"] == "Turn sharding off, train in fp16 and use pipeline parallel degree 8"
    assert first["effect"].endswith(" %")
    assert " of 39.4 GiB per GPU, fits; throughput \N{MINUS SIGN}" in first["effect"]
    assert repairs_of(control_state.recommended(sharded)) == []
    still = control_state.move(refused, "tensor_parallel_degree", 2)  # valid, and its own repair
    assert still.problem
    assert repairs_of(still)[0]["text"] == "Use tensor parallel degree 2"


def test_a_precision_that_excludes_the_pipeline_is_repaired_with_two_degrees(pipeline_advice):
    base = settings_of(pipeline_advice.plan, pipeline_advice.job)
    best = repairs(pipeline_advice, base, "precision", "bf16")[0]
    assert set(best.changed) == {"pipeline_parallel_degree", "sharding"}
    assert (best.state.plan.precision, best.state.plan.pipeline_parallel_degree) == ("bf16", 1)


def test_a_step_in_the_backward_pass_is_possible_once_nothing_accumulates():
    advice = make_advice(Plan(library="fsdp", gradient_accumulation_steps=4), precision="bf16", attention="fused")
    start = control_state.recommended(advice)
    assert control_state.move(start, "optimizer_step", "backward").problem
    once = control_state.move(start, "gradient_accumulation_steps", 1)
    assert control_state.move(once, "optimizer_step", "backward").problem == ""


def test_the_batch_has_a_position_for_the_largest_that_fits_and_two_that_do_not():
    capped = make_advice(max_tokens_per_step=512 * 32 * 24)
    sizes, start = by_name(capped)["batch_size"].values, control_state.recommended(capped)
    fitting = [control_state.move(start, "batch_size", size).estimate.fits for size in sizes]
    assert max(sizes) > 24
    assert fitting == [True] * (len(sizes) - 2) + [False] * 2
    advice = make_advice()
    batch = by_name(advice)["batch_size"]

    def likely(size):
        moved = control_state.move(control_state.recommended(advice), "batch_size", size)
        return moved.estimate.fit_probability >= advice.min_fit_probability

    largest = max(size for size in batch.values if likely(size))
    assert largest in range(57, 64)
    assert not likely(largest + 1)
    assert list(batch.values) == sorted(set(batch.values))


def test_a_single_value_has_its_reason():
    advice = make_advice(global_batch_size=640)
    batch = by_name(advice)["batch_size"]
    assert batch.values == (20,)
    assert batch.fixed_because == "The job requires a global batch of 640 samples, which decides the batch size."
    dense = advise("1B", "ml.p4d.24xlarge", library="smp-v2", family="llama", sequence_length=512)
    expert = by_name(dense)["expert_parallel_degree"]
    assert expert.fixed_because == "SMP v2 has expert parallelism for the families mixtral only, not for llama."


def test_a_fixed_global_batch_is_kept_by_the_batch_and_its_accumulation():
    plan = Plan(library="fsdp", batch_size=2, gradient_accumulation_steps=4)
    advice = make_advice(plan, precision="bf16", attention="fused", global_batch_size=1024)
    state = control_state.move(control_state.recommended(advice), "batch_size", 8)
    assert (state.problem, state.plan.gradient_accumulation_steps) == ("", 1)
    assert state.estimate.global_batch_size == 1024
    (batch,) = (c for c in controls(advice, state.settings) if c.name == "batch_size")
    assert batch.values == (1, 2, 4, 8)


def test_the_precision_moves_plan_and_job_and_comes_back(sharded, advice):
    start = control_state.recommended(sharded)
    half = control_state.move(start, "precision", "fp16")
    assert (half.plan.precision, half.advice.job.precision, half.problem) == ("fp16", "fp16", "")
    assert control_state.move(half, "precision", "bf16").plan == start.plan
    refused = control_state.move(control_state.recommended(advice), "precision", "bf16")
    assert "bf16 works with sharded data parallelism only" in refused.problem
    assert repairs_of(refused)[0]["settings"]["sharding"].startswith("sharded_")
    first_sharded = control_state.move(control_state.recommended(advice), "sharding", "sharded_8")
    assert control_state.move(first_sharded, "precision", "bf16").plan.precision == "bf16"
    old = advise("350M", "ml.p3.16xlarge", library="ddp", sequence_length=512)
    assert set(by_name(old)["precision"].values) == {"fp16", "fp32"}
