"""Inputs inferred by trial, and forward passes that read values."""

import contextlib
from contextlib import ExitStack

import pytest

from smp_advisor.errors import ProfileError
from smp_advisor.workload import Job
from tests.deferred import Deferred

pytestmark = pytest.mark.torch

constructed_copy = Deferred("smp_advisor.profiling.scaled.narrow", "constructed_copy")
call_model = Deferred("smp_advisor.profiling.step", "call_model")
copy_run = Deferred("smp_advisor.profiling.scaled.run")
fake_mode = Deferred("smp_advisor.profiling.fake", "fake_mode")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
filled = Deferred("smp_advisor.profiling.inputs", "filled")
forms = Deferred("tests.profiling.modules_with_batches")
loss_of = Deferred("smp_advisor.profiling.step", "loss_of")
make_copy = Deferred("smp_advisor.profiling.scaled.build", "make_copy")
idle_layers = Deferred("smp_advisor.profiling.input_trial", "idle_layers")
profile_with_fallbacks = Deferred("smp_advisor.profiling.fallback", "profile_with_fallbacks")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
Settings = Deferred("smp_advisor.profiling.traced_steps", "Settings")
nn = Deferred("torch.nn")
users = Deferred("tests.profiling.modules_of_users")
widths = Deferred("tests.profiling.modules_with_odd_widths")
values = Deferred("tests.profiling.models_that_read_values")
token_count = Deferred("smp_advisor.profiling.scaled.build", "token_count")
torch = Deferred("torch")

INPUTS = {
    "WordLSTM": "input: tokens, hidden=None (inferred)",
    "Translator": "src: tokens, tgt, src_mask=None, tgt_mask=None (inferred)",
    "ClickModel": "dense_features: numbers, sparse_features (inferred)",
    "TwoTowers": "user_ids: ids, item_ids (inferred)",
    "DenseGCN": "x: numbers of a sequence, adj (inferred)",
    "DiffusionLoss": "x0: images of 32 x 32 (inferred)",
    "SpeechCTC": "spectrogram: numbers, lengths (inferred)",
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_users_modules_are_inferred(name):
    assert example_inputs(getattr(users, name)()).description == INPUTS[name]


def test_the_input_layer_may_be_registered_last():
    class Continuous(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Embedding(64, 16)
            self.layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
            self.project_in = nn.Linear(5, 16)

        def forward(self, x):
            return self.layers(self.project_in(x) + self.positions.weight[: x.shape[1]])

    example = example_inputs(Continuous())
    assert example.make(2, 8)["x"].shape == (2, 8, 5)


def test_a_copy_that_crashes_while_it_is_extrapolated_keeps_its_result(monkeypatch):
    calls = []

    def crashing(function, planned, **_):
        calls.append(function)
        if len(calls) == 1:
            raise ProfileError("The scaled copy crashed (SIGSEGV).", kind="crash")
        return function(planned)

    monkeypatch.setitem(copy_run.run.__globals__, "run_isolated", crashing)
    copy = copy_run.run(read_model(users.VAE()), Job(precision="fp32"))
    assert copy.ok
    assert copy.full_size is None
    assert "No figures were extrapolated to the full model: The scaled copy crashed (SIGSEGV)." in copy.notes


def test_a_loop_over_two_lists_keeps_all_layers_of_the_copy_in_use():
    with ExitStack() as stack:
        copy = make_copy(read_model(forms.Zipped()), stack, memory_bytes=2**30, dtype=torch.float32)
        assert not idle_layers(copy.model, example_inputs(copy.model))


def test_labels_of_a_copy_are_below_its_number_of_classes():
    with ExitStack() as stack:
        copy = make_copy(read_model(forms.Sentiment()), stack, memory_bytes=2**30, dtype=torch.float32)
        assert token_count(copy) == 2


FORMS = {
    "DictBatch": "batch.input_ids: tokens, batch.labels (inferred)",
    "PassedOn": "input_ids: tokens, labels (inferred)",
    "Positions": "input: tokens (inferred)",
    "NamedFields": "batch.tokens: tokens, batch.targets (inferred)",
    "PairStep": "batch.x: tokens, batch.y (inferred)",
    "PairOrNodes": "x: nodes, edge_index (inferred)",
    "GraphBatch": "data.x: nodes, data.edge_index (inferred)",
    "Forecast": "static: numbers, history, future (inferred)",
    "Clicks": "x.user_id: ids, x.item_id, x.dense (inferred)",
    "Columns": "x: 3 categories (inferred)",
}


@pytest.mark.parametrize("name", FORMS)
def test_batches_are_read_as_the_source_of_the_forward_method_reads_them(name):
    model = getattr(forms, name)()
    example = example_inputs(model)
    assert example.description == FORMS[name]
    loss = loss_of(call_model(model, filled(example.make(2, 8), 50)))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_every_result_of_an_output_of_transformers_is_trained_and_no_state():
    import transformers

    scores, boxes, states = (torch.full((2, 3), value, requires_grad=True) for value in (1.0, 3.0, 50.0))
    output = transformers.models.yolos.modeling_yolos.YolosObjectDetectionOutput
    assert loss_of(output(logits=scores, pred_boxes=boxes, hidden_states=(states,))) == 2
    assert loss_of(transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)) == 50


@pytest.mark.parametrize(("name", "most"), [("MinimalGPT", 256), ("SmallLlama", 256), ("ComplexRope", 512)])
def test_tables_of_positions_and_rotations_limit_the_tokens(name, most):
    assert example_inputs(getattr(users, name)()).longest == most


@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("Checked", "high"),
        ("Counted", "exact"),
        ("Padded", "exact"),
        ("Looped", "exact"),
        ("Resized", "exact"),
        ("Dropped", "high"),
    ],
)
def test_values_that_are_known_or_checked_leave_an_exact_trace(name, confidence):
    settings = Settings(precision="fp32", attention="fused", sequence=64, checkpointing=False)
    profile = profile_with_fallbacks(read_model(getattr(values, name)()), settings)
    source = next(source for source in profile.provenance if source.figure == "FLOPs")
    assert (source.method, source.confidence) == ("traced", confidence)
    tokens = 1 if name in {"Checked", "Counted", "Resized", "Dropped"} else 64  # rows of numbers, or nodes
    assert profile.forward_flops(2, 64) == 2 * tokens * 4 * 2 * 16 * 16


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("TiedGPT", {"n_layer": (6, 2), "n_head": (6, 3), "n_embd": (384, 192)}),
        ("SmallLlama", {"n_layers": (6, 2), "n_heads": (6, 3), "n_kv_heads": (2, 1), "dim": (288, 144)}),
    ],
)
def test_a_module_that_stores_its_arguments_is_constructed_smaller(name, sizes):
    narrowed = constructed_copy(getattr(users, name)(), 4_000_000)
    assert {part.name: (part.full, part.copy) for part in narrowed.reductions} == sizes
    assert 0 < sum(p.numel() for p in narrowed.model.parameters()) <= 4_000_000


def test_a_module_that_can_be_cut_in_depth_is_still_constructed_smaller():
    with contextlib.ExitStack() as stack:
        copy = make_copy(read_model(users.TiedGPT()), stack, memory_bytes=160_000_000, dtype=torch.float32)
    assert copy.how == "constructed with smaller sizes"


def test_a_module_that_does_not_store_its_arguments_is_not_constructed():
    assert constructed_copy(users.ComplexRope(), 1_000_000) is None


def test_a_branch_is_traced_with_both_values():
    settings = Settings(precision="fp32", attention="fused", sequence=64, checkpointing=False)
    profile = profile_with_fallbacks(read_model(values.Branched()), settings)
    source = next(source for source in profile.provenance if source.figure == "FLOPs")
    assert (source.method, source.confidence) == ("guided trace", "low")
    assert profile.forward_flops(2, 64) == 2 * 4 * 2 * 16 * 16


def test_a_detector_gets_boxes_whose_values_are_known():
    settings = Settings(precision="fp32", attention="fused", sequence=64, checkpointing=False)
    profile = profile_with_fallbacks(read_model(values.Detector()), settings)
    source = next(source for source in profile.provenance if source.figure == "FLOPs")
    assert profile.inputs.startswith("images: a list of images of 256 x 256, targets: one box per image")
    assert (source.method, source.confidence) == ("traced", "high")
    assert profile.forward_flops(2, 64) == 2 * 256 * 2 * (3 * 16 * 16 * 16 + 4 * 16 * 16 + 16 * 4)


def test_trials_of_a_loop_over_tokens_end_by_count(monkeypatch):
    monkeypatch.setattr("smp_advisor.profiling.input_trial._MOST_OF_LIMITS", 1000)
    modes = []
    monkeypatch.setattr("smp_advisor.profiling.input_trial.fake_mode", lambda: modes.append(fake_mode()) or modes[-1])
    example = example_inputs(widths.MODULES["LongLoop"]())
    (mode,) = modes
    assert example.has_sequence
    assert not example.longest
    assert 1000 < mode.operators < 1500  # not those of 400,000 tokens, as many as a table has rows


def test_candidates_end_by_count(monkeypatch):
    monkeypatch.setattr("smp_advisor.profiling.input_trial._MOST_OPERATORS", 0)
    assert example_inputs(users.VAE()).description == "x: numbers (inferred)"  # the first candidate works
    with pytest.raises(ProfileError, match="Translator does not accept"):
        example_inputs(users.Translator())


def test_an_image_has_the_size_that_the_table_of_positions_fits():
    assert example_inputs(widths.MODULES["SlicedTable"]()).description == "img: images of 256 x 256 (inferred)"


def test_inputs_of_the_user_are_never_changed():
    model = widths.MODULES["Coded"]()
    codes = torch.zeros(2, 12, dtype=torch.long)
    assert example_inputs(model, (codes, torch.zeros(2, 13))).description == "2 tensors (supplied)"
    with pytest.raises(ProfileError, match="pass inputs that its forward accepts"):
        example_inputs(model, (codes, torch.zeros(2, 11)))


def test_a_layer_of_no_dimensions_leads_to_a_sentence():
    with pytest.raises(ProfileError, match="OfOneNumber does not accept"):
        example_inputs(widths.MODULES["OfOneNumber"]())
