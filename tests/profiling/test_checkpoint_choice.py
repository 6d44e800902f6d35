"""Blocks to checkpoint for a given memory: few, and as traced with exactly these blocks checkpointed."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.errors import ProfileError
from smp_advisor.profiling.checkpoint_choice import Interval, cheapest_first, peak_bytes
from tests.deferred import Deferred, deferred

torch = Deferred("torch")
transformers = Deferred("transformers")
build_fake, fake_inputs, fake_mode = deferred("smp_advisor.profiling.fake", "build_fake", "fake_inputs", "fake_mode")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
make_optimizer = Deferred("smp_advisor.profiling.step", "make_optimizer")
profile_with_fallbacks = Deferred("smp_advisor.profiling.fallback", "profile_with_fallbacks")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
step = Deferred("smp_advisor.profiling.step")
Settings, compute_dtype = deferred("smp_advisor.profiling.traced_steps", "Settings", "compute_dtype")

SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 512}
MODELS = {
    "gpt2": lambda: transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=512),
    "llama": lambda: transformers.LlamaConfig(**SMALL, intermediate_size=384, num_key_value_heads=2),
}
BATCH, SEQUENCE = 4, 256


@st.composite
def steps(draw):
    """Intervals of a step of up to seven blocks, and the FLOPs of each block."""
    count = draw(st.integers(0, 7))
    small, large = st.integers(0, 6), st.integers(0, 40)
    gap = st.lists(st.tuples(small, large), max_size=1)

    def gaps():
        return [Interval(None, True, (change, change), (rise, rise)) for change, rise in draw(gap)]

    forward, backward = gaps(), []
    for block in range(count):
        saved, kept, gradient = draw(large), draw(small), draw(small)
        forward.append(Interval(block, True, (saved, kept), (saved + draw(small), kept + draw(large))))
        forward += gaps()
        backward.append(Interval(block, False, (gradient - saved, gradient - kept), (draw(small), draw(large))))
    return [*forward, *gaps(), *reversed(backward)], [draw(small) for _ in range(count)]


@given(steps(), st.integers(0, 200))
def test_a_choice_is_within_the_limit_and_has_no_block_too_many(drawn, limit):
    intervals, flops = drawn
    choice = cheapest_first(intervals, flops, limit)
    if choice is None:
        assert peak_bytes(intervals, [True] * len(flops)) > limit
    else:
        assert peak_bytes(intervals, choice) <= limit
        assert any(choice) == (peak_bytes(intervals, [False] * len(flops)) > limit)


@given(st.integers(1, 8), st.integers(0, 400))
def test_of_equal_blocks_the_fewest_are_recomputed(count, limit):
    forward = [Interval(block, True, (40, 4), (45, 44)) for block in range(count)]
    backward = [Interval(block, False, (-40, -4), (6, 46)) for block in reversed(range(count))]
    choices = itertools.product([False, True], repeat=count)
    fitting = [sum(choice) for choice in choices if peak_bytes([*forward, *backward], choice) <= limit]
    choice = cheapest_first([*forward, *backward], [7] * count, limit)
    assert (None if choice is None else sum(choice)) == min(fitting, default=None)


@cache
def profiled(name):
    setting = Settings(precision="bf16", attention="fused", sequence=SEQUENCE, batch=BATCH)
    return profile_with_fallbacks(read_model(MODELS[name]()), setting)


def traced_peak_gib(name, blocks):
    """Peak of the second of two steps with these blocks checkpointed."""
    mode, described = fake_mode(), read_model(MODELS[name]())
    dtype = compute_dtype(Settings(precision="bf16", attention="fused").training_precision)
    model = build_fake(lambda: described.build(attention="fused"), mode, dtype).train()
    inputs = fake_inputs(example_inputs(model).make(BATCH, SEQUENCE), mode, dtype)
    with mode:
        measure = step.measure_step(
            model,
            inputs,
            precision="bf16",
            attention="fused",
            blocks=blocks,
            optimizer=make_optimizer(list(model.parameters()), "adam"),
            steps=2,
            checkpointing=True,
        )
    return measure.peak_bytes / 2**30


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_that_of_a_step_with_these_blocks_checkpointed(name):
    profile = profiled(name)
    plain, full = (profile.peak_memory(BATCH, SEQUENCE, checkpointing=on).peak_gib for on in (False, True))
    assert full < plain
    for share in (0.3, 0.6):
        choice = profile.checkpoint_for(full + share * (plain - full))
        assert 0 < len(choice.modules) < choice.blocks
        assert choice.peak_gib <= choice.memory_gib
        assert choice.peak_gib == pytest.approx(traced_peak_gib(name, choice.modules), rel=0.01)
        assert 0 < choice.time_share < choice.full_time_share


@pytest.mark.torch
def test_limits_of_the_choice():
    profile = profiled("gpt2")
    generous = profile.checkpoint_for(1000)
    assert generous.modules == ()
    assert "needs no activation checkpointing" in str(generous)
    tight = profile.checkpoint_for(profile.peak_memory(BATCH, SEQUENCE, checkpointing=True).peak_gib + 1e-4)
    assert tight.ranges.startswith("transformer.h.0")
    assert tight.modules[0] in tight.as_html() or tight.ranges in tight.as_html()
    with pytest.raises(ProfileError, match="No choice of checkpointed blocks fits"):
        profile.checkpoint_for(0.001)
    for wrong in (0, -1, float("nan"), "40", True):
        with pytest.raises(ProfileError, match="memory_gib"):
            profile.checkpoint_for(wrong)
    with pytest.raises(ProfileError, match="batch must be"):
        profile.checkpoint_for(40, batch=0)


@pytest.mark.torch
def test_modules_add_up_to_the_model():
    profile = profiled("gpt2")
    frame = profile.modules()
    assert frame["parameters"].sum() == profile.parameter_count
    assert frame["saved_bytes"].sum() == profile.saved_bytes(BATCH, SEQUENCE)
    assert frame["forward_flops"].sum() == profile.forward_flops(BATCH, SEQUENCE)
    assert frame["saved_share"].sum() == pytest.approx(1)
    assert frame["count"].sum() == len(profile.blocks) + 1
    assert profile.modules(sort="saved_bytes")["saved_bytes"].is_monotonic_decreasing
    assert frame.loc["transformer.h.0", "kind"] == "GPT2Block"
    with pytest.raises(ProfileError, match="sort must be one of"):
        profile.modules(sort="name")
