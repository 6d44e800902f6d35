"""Any module: every product counts, and what is not counted is named."""

import pytest

import smp_advisor
from smp_advisor.errors import ProfileError
from tests.deferred import Deferred, deferred

pytestmark = pytest.mark.torch

profile_with_fallbacks = Deferred("smp_advisor.profiling.fallback", "profile_with_fallbacks")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
Settings = Deferred("smp_advisor.profiling.trace", "Settings")
torch = Deferred("torch")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")
Odd = Deferred("tests.profiling.models_hard_to_trace", "Odd")
JoinedViT, NestedViT, Opaque, Recurrent, Unused = deferred(
    "tests.profiling.models_of_any_kind", "JoinedViT", "NestedViT", "Opaque", "Recurrent", "Unused"
)


def profiled(model, **settings):
    values = {"precision": "bf16", "attention": "fused", "sequence": 64, "checkpointing": False} | settings
    return profile_with_fallbacks(read_model(model), Settings(**values))


def confidence(profile, figure):
    return next(source.confidence for source in profile.provenance if source.figure == figure)


# Gates, inputs and outputs of each direction of each layer: torch.nn.LSTM, GRU, RNN.
LAYERS = [
    ("LSTM", {}, [(4 * 32, 16 + 32), (4 * 32, 32 + 32)], 32),
    ("LSTM", {"batch_first": True, "bidirectional": True}, 2 * [(4 * 32, 16 + 32), (4 * 32, 64 + 32)], 64),
    ("GRU", {"dropout": 0.1}, [(3 * 32, 16 + 32), (3 * 32, 32 + 32)], 32),
    ("RNN", {"bias": False}, [(32, 16 + 32), (32, 32 + 32)], 32),
    ("LSTM", {"proj_size": 8}, [(4 * 32, 16 + 8), (8, 32), (4 * 32, 8 + 8), (8, 32)], 8),
]


@pytest.mark.parametrize(("kind", "settings", "products", "outputs"), LAYERS)
@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
def test_recurrent_layers_count_the_products_of_their_formulas(kind, settings, products, outputs, precision):
    profile = profiled(Recurrent(kind, **settings), precision=precision)
    per_token = 2 * sum(rows * columns for rows, columns in products) + 2 * outputs * 100
    assert profile.forward_flops(2, 64) == 2 * 64 * per_token
    assert profile.backward_flops(2, 64) == 2 * profile.forward_flops(2, 64)
    assert confidence(profile, "FLOPs") == "exact"
    assert confidence(profile, "saved bytes") == "high"  # cuDNN does not publish the size of its reserve


def test_an_operator_without_a_formula_is_named_and_lowers_the_confidence():
    profile = profiled(Opaque())
    assert profile.uncounted == ("smp_advisor_tests.opaque_product",)
    assert confidence(profile, "FLOPs") == "low"
    assert confidence(profile, "saved bytes") == "exact"
    assert "a lower bound: no FLOP formula for smp_advisor_tests.opaque_product" in str(profile)
    note = smp_advisor.Model.from_profile(profile).note
    assert "exclude smp_advisor_tests.opaque_product" in note


def test_a_failing_copy_keeps_the_trace():
    # Two of its blocks do not fit in the memory of the copy.
    with torch.device("meta"):
        model = PlainGPT(layers=6, width=1024, vocab=8192)
    profile = smp_advisor.profile(model, sequence_length=64, memory_bytes=2**29)
    assert profile.is_traced
    assert len(profile.blocks) == 6
    assert profile.scaled is None
    (warning,) = [text for text in profile.warnings if "scaled copy failed" in text]
    assert "over the limit of 13 million for the available memory (memory_bytes=)" in warning


def test_the_only_requested_stage_and_the_first_of_several_failures_are_raised():
    with pytest.raises(ProfileError, match="over the limit"):
        smp_advisor.profile(PlainGPT(width=512), stages=("copy",), sequence_length=64, memory_bytes=2**27)
    with pytest.raises(ProfileError, match="can't be inferred: pass inputs="):
        smp_advisor.profile(Odd())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_blocks_in_nested_lists_are_the_parts_that_ran(checkpointing):
    image = torch.zeros(2, 3, 32, 32)
    nested, joined = (
        profiled(build(), inputs=(image,), checkpointing=checkpointing) for build in (NestedViT, JoinedViT)
    )
    assert [block.kind for block in nested.blocks] == 6 * ["Attention + FeedForward"]
    assert nested.blocks[3].name == "layers.1"  # the first of its kind
    assert nested.timeline
    for figure in ("saved_bytes", "forward_flops", "backward_flops"):
        assert getattr(nested, figure) == getattr(joined, figure)
        assert getattr(nested.blocks[3], figure) == getattr(joined.blocks[3], figure)
    if checkpointing:  # each part saves its own input
        assert nested.checkpointed_bytes(2, 1) - joined.checkpointed_bytes(2, 1) == 6 * 2 * 16 * 64 * 2


def test_registered_blocks_that_never_run_leave_the_trace_of_the_full_model():
    profile = profiled(Unused(), inputs=(torch.zeros(2, 3, 32, 32),))
    assert not profile.blocks
    assert confidence(profile, "FLOPs") == "exact"
    assert profile.forward_flops(1, 1) == 2 * (16 * 64 * 3 * 64 + 6 * 16 * 64 * 64 + 64 * 10)
