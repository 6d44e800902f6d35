"""Any module: every product counts, and what is not counted is named."""

import pytest

import smp_advisor
from smp_advisor.errors import ProfileError
from tests.deferred import Deferred, deferred
from tests.profiling.shared import confidence, plain_profile, profiled

pytestmark = pytest.mark.torch

torch = Deferred("torch")
PlainGPT, PlainGPTOfOneSize, Scanning = deferred(
    "tests.profiling.plain_models", "PlainGPT", "PlainGPTOfOneSize", "Scanning"
)
stacks = Deferred("smp_advisor.profiling.structure", "stacks")
models = Deferred("tests.profiling.models_of_any_kind")


def images(batch):
    return torch.zeros(batch, 3, 32, 32)


# Gates, inputs and outputs of each direction of each layer: torch.nn.LSTM, GRU, RNN.
LAYERS = [
    ("LSTM", {"batch_first": True, "bidirectional": True}, 2 * [(4 * 32, 16 + 32), (4 * 32, 64 + 32)], 64),
    ("GRU", {"dropout": 0.1}, [(3 * 32, 16 + 32), (3 * 32, 32 + 32)], 32),
    ("RNN", {"bias": False}, [(32, 16 + 32), (32, 32 + 32)], 32),
    ("LSTM", {"proj_size": 8}, [(4 * 32, 16 + 8), (8, 32), (4 * 32, 8 + 8), (8, 32)], 8),
]


@pytest.mark.parametrize(("layer", "precision"), [*zip(LAYERS, ("bf16", "bf16", "amp", "fp32"), strict=True)])
def test_recurrent_layers_count_the_products_of_their_formulas(layer, precision):
    kind, settings, products, outputs = layer
    profile = profiled(models.recurrent(kind, outputs, **settings), precision=precision)
    per_token = 2 * sum(rows * columns for rows, columns in products) + 2 * outputs * 100
    assert profile.forward_flops(2, 64) == 2 * 64 * per_token
    assert profile.backward_flops(2, 64) == 2 * profile.forward_flops(2, 64)
    assert confidence(profile, "FLOPs") == "exact"
    assert confidence(profile, "saved bytes") == "high"  # cuDNN does not publish the size of its reserve


def test_an_operator_without_a_formula_is_named_and_lowers_the_confidence():
    profile = profiled(models.opaque())
    assert profile.uncounted == ("smp_advisor_tests.opaque_product",)
    assert confidence(profile, "FLOPs") == "low"
    assert confidence(profile, "saved bytes") == "exact"
    assert "a lower bound: no FLOP formula for smp_advisor_tests.opaque_product" in profile.details()
    note = smp_advisor.Model.from_profile(profile).note
    assert "exclude smp_advisor_tests.opaque_product" in note


def test_a_failing_copy_keeps_the_trace_and_is_an_error_if_only_it_was_requested():
    with torch.device("meta"):
        model = PlainGPTOfOneSize()  # two of its blocks do not fit in the memory of the copy
    profile = smp_advisor.profile(model, sequence_length=64, memory_bytes=2**29)
    assert profile.is_traced
    assert len(profile.blocks) == 6
    assert profile.scaled is None
    (verdict,) = [text for text in profile.verdicts if "scaled copy failed" in text]
    assert "over the limit of 13 million for the available memory (memory_bytes=)" in verdict
    with pytest.raises(ProfileError, match="over the limit"):
        smp_advisor.profile(model, stages=("copy",), sequence_length=64, memory_bytes=2**29)


def test_blocks_in_nested_lists_are_the_parts_that_ran():
    nested, joined = (profiled(build(depth=4), inputs=images) for build in (models.NestedViT, models.JoinedViT))
    assert [block.kind for block in nested.blocks] == 4 * ["Attention + FeedForward"]
    assert nested.blocks[3].name == "layers.1"  # the first of its kind
    assert nested.timeline
    for figure in ("saved_bytes", "forward_flops", "backward_flops"):
        assert getattr(nested, figure) == getattr(joined, figure)
        assert getattr(nested.blocks[3], figure) == getattr(joined.blocks[3], figure)
    # Each part saves its own input.
    assert nested.checkpointed_bytes(2, 1) - joined.checkpointed_bytes(2, 1) == 4 * 2 * 16 * 64 * 2


def test_registered_blocks_that_never_run_leave_the_trace_of_the_full_model():
    profile = profiled(models.Unused(), inputs=images)
    assert not profile.blocks
    assert confidence(profile, "FLOPs") == "exact"
    assert profile.forward_flops(1, 1) == 2 * (16 * 64 * 3 * 64 + 6 * 16 * 64 * 64 + 64 * 10)


def test_a_model_that_loops_over_tokens_is_traced_at_short_sequences(monkeypatch):
    monkeypatch.setattr("smp_advisor.profiling.traced_steps._LONG_OPERATIONS", 800)
    profile, short = profiled(Scanning(6), sequence=2048), profiled(Scanning(3), sequence=16)
    assert any("too many operations" in warning for warning in profile.warnings)
    assert not short.warnings
    block = short.blocks[1].saved_bytes
    assert profile.saved_bytes(4, 2048) == short.saved_bytes(4, 2048) + 3 * block(4, 2048)


def test_the_figures_are_returned_when_there_are_too_many_operations_for_checks(monkeypatch):
    whole = plain_profile()
    monkeypatch.setattr("smp_advisor.profiling.trace._MOST_OPERATIONS", 1000)
    profile = profiled(PlainGPT(layers=6), sequence=256)
    assert any("operations, so the check at an unseen size" in warning for warning in profile.warnings)
    assert profile.saved_bytes == whole.saved_bytes


def test_a_model_that_fails_in_16_bits_is_traced_with_autocast():
    profile = profiled(models.mixed(), precision="fp16")
    assert profile.precision == "amp"
    assert "fails in fp16: RuntimeError:" in " ".join(profile.warnings)
    assert confidence(profile, "FLOPs") == "exact"


def test_copies_of_modules_with_a_fixed_depth_and_of_mixed_types_train():
    copy = smp_advisor.profile(models.fixed_depth(), stages=("copy", "copy"), sequence_length=64).scaled
    assert copy.ok
    assert [(reduction.full, reduction.copy) for reduction in copy.reductions] == [(6, 2)]
    copy = smp_advisor.profile(models.mixed(), stages=("copy",), sequence_length=64).scaled
    assert copy.ok


def test_a_container_that_is_registered_twice_is_one_stack():
    model = models.fixed_depth()
    model.same = model.layers
    assert [stack.path for stack in stacks(model)] == ["layers"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"batch": -5}, "requires for batch a whole number or None of at least 0"),
        ({"batch": True}, "requires for batch a whole number"),
        ({"seconds": float("nan")}, "requires for seconds a number or None, not nan"),
        ({"memory_bytes": "16 GiB"}, "requires for memory_bytes a whole number"),
        ({"plan": "ddp"}, "requires for plan a Plan"),
        ({"stages": 3}, "requires for stages"),
        ({"inputs": 7}, "inputs must contain tensors"),
        ({"stages": ("dream",)}, "requires for stages one of 'trace'"),
        ({"attention": "fast"}, "attention must be fused or eager"),
        ({"precision": "fp4"}, "precision must be one of"),
        ({"sequence": 3}, "no setting 'sequence'"),
    ],
)
def test_wrong_arguments_are_refused_before_a_process_starts(arguments, reason, monkeypatch):
    monkeypatch.setattr("os.fork", lambda: pytest.fail("a process was started"))
    with pytest.raises(smp_advisor.errors.AdvisorError, match=reason):
        smp_advisor.profile({"model_type": "gpt2"}, **arguments)


def test_numbered_attributes_are_blocks():
    profile = profiled(models.numbered())
    assert [block.name for block in profile.blocks] == ["block_0", "block_1", "block_2", "block_3"]
    assert len({(block.parameters, block.saved_bytes, block.forward_flops) for block in profile.blocks}) == 1
    assert profile.checkpointed_bytes(2, 64) < profile.saved_bytes(2, 64)
