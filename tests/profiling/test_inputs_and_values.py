"""Inputs inferred by trial, and forward passes that read values."""

import pytest

import smp_advisor
from smp_advisor.errors import ProfileError
from smp_advisor.workload import Model
from tests.deferred import Deferred
from tests.profiling.shared import net, profiled

pytestmark = pytest.mark.torch

example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
loss_of = Deferred("smp_advisor.profiling.step", "loss_of")
scaled_copy = Deferred("smp_advisor.profiling.scaled.copies", "scaled_copy")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
nn = Deferred("torch.nn")
values = Deferred("tests.profiling.models_that_read_values")
valid_ids = Deferred("smp_advisor.profiling.inputs", "valid_ids")
torch = Deferred("torch")


def test_a_loop_over_two_lists_keeps_all_layers_of_the_copy_in_use():
    def forward(self, x):
        for dilated, mixed in zip(self.dilated, self.mixed, strict=False):
            x = mixed(dilated(x))
        return x

    # Only the second list repeats equal layers.
    dilated = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(4))
    zipped = net(forward, dilated=dilated, mixed=nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4)))
    with scaled_copy(read_model(zipped), None, sequence=512, memory_bytes=2**30) as copy:
        assert not copy.idle


def test_labels_of_a_copy_are_below_its_number_of_classes():
    def forward(self, batch):
        return nn.functional.cross_entropy(self.out(self.embed(batch.text)[:, -1]), batch.label)

    assert valid_ids(net(forward, embed=nn.Embedding(500, 8), out=nn.Linear(8, 2))) == 2


def minimal_gpt(width=48, vocab=512, positions=256):
    """Positions in a parameter, whose number is an attribute; only logits returned."""

    def forward(self, idx):
        assert idx.shape[1] <= self.block_size, "Cannot forward, model block size is exhausted."
        return self.head(self.words(idx) + self.positions[:, : idx.shape[1], :])

    return net(
        forward, words=nn.Embedding(vocab, width), positions=nn.Parameter(torch.zeros(1, positions, width)),
        head=nn.Linear(width, vocab, bias=False), block_size=positions,
    )  # fmt: skip


def test_every_result_of_an_output_of_transformers_is_trained_and_no_state():
    import transformers

    scores, boxes, states = (torch.full((2, 3), value, requires_grad=True) for value in (1.0, 3.0, 50.0))
    output = transformers.models.yolos.modeling_yolos.YolosObjectDetectionOutput
    assert loss_of(output(logits=scores, pred_boxes=boxes, hidden_states=(states,))) == 2
    assert loss_of(transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)) == 50


def test_a_table_of_positions_limits_the_tokens():
    assert example_inputs(minimal_gpt()).longest == 256


def test_supplied_inputs_without_a_common_batch_are_never_resized():
    example = example_inputs(nn.GRU(8, 4), torch.zeros(3, 100, 8))  # time first
    assert not example.scales
    assert example.make(7, 512)[0].shape == (3, 100, 8)
    nodes = {"x": torch.zeros(100, 16), "edge_index": torch.zeros(2, 400, dtype=torch.long)}
    assert {name: tuple(v.shape) for name, v in example_inputs(nn.Linear(16, 4), nodes).make(2, 64).items()} == {
        "x": (100, 16), "edge_index": (2, 400)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("build", "shape", "forward_flops"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (3, 10, 10), 2 * 3 * 4 * 9 * 64),  # takes no batch of two
        (lambda: net(lambda self, x: sum(map(self.layer, x)), layer=nn.Linear(8, 4)), (5, 8), 2 * 5 * 8 * 4),
        (lambda: net(lambda self, x: self.layer(x) @ x.T, layer=nn.Linear(8, 8)), (5, 8), 2 * 5 * 8 * (8 + 5)),
    ],
)
def test_a_sample_is_a_call_where_the_first_dimension_is_no_batch(build, shape, forward_flops):
    profile = profiled(build(), precision="fp32", inputs=torch.zeros(shape))
    assert not profile.scales
    assert profile.forward_flops(1) == forward_flops
    assert profile.forward_flops(3) == 3 * profile.forward_flops(1)
    assert "a sample is one call with the inputs" in Model.from_profile(profile).note


def test_a_job_cell_says_what_its_batch_counts():
    for shape, unit in (((512, 8), "of 512 rows"), ((3, 16, 8), "with your inputs")):
        module = net(lambda self, x: (self.layer(x) + self.places).square().mean(), layer=nn.Linear(8, 8))
        module.places = nn.Parameter(torch.zeros(shape))
        profile = profiled(module, precision="fp32", inputs=torch.zeros(shape))
        cell = smp_advisor.advise(profile, "ml.p4d.24xlarge", library="fsdp").cell()
        assert f'"batch_size": 1,  # calls {unit}\n' in cell


def test_the_first_dimension_that_all_tensors_share_is_the_batch_and_shown_as_inferred():
    towers = net(
        lambda self, user, dense: self.tower(torch.cat([self.users(user), dense], 1)),
        users=nn.Embedding(1000, 8), tower=nn.Linear(11, 4),
    )  # fmt: skip
    profile = profiled(towers, precision="fp32", inputs=(torch.zeros(512, dtype=torch.long), torch.zeros(512, 3)))
    assert (profile.scales, profile.batch) == (True, 512)
    assert profile.forward_flops(1) == 2 * 11 * 4
    assert "batch inferred from the first dimension: 512 samples" in Model.from_profile(profile).note


def test_a_module_that_fails_in_16_bits_keeps_its_batch_in_autocast():
    casting = net(lambda self, x: self.layer(x.float()).square().mean(), layer=nn.Linear(8, 4))
    profile = profiled(casting, precision="mixed", inputs=torch.zeros(512, 8))
    assert (profile.precision, profile.scales, profile.batch) == ("amp", True, 512)


def test_a_name_that_says_sequence_has_three_dimensions():
    actor = net(lambda self, trajectories: self.layer(trajectories), layer=nn.Linear(17, 4))
    example = example_inputs(actor)
    assert tuple(example.make(2, 16)["trajectories"].shape) == (2, 16, 17)
    assert example.has_sequence


def test_functions_show_the_batch():
    model = nn.Linear(8, 4)
    tokens = example_inputs(model, lambda batch, sequence: torch.zeros(batch, sequence, 8))
    assert (tokens.scales, tokens.has_sequence) == (True, True)
    assert example_inputs(minimal_gpt(), lambda b, s: torch.zeros(b, s, dtype=torch.long)).longest == 256
    rows = example_inputs(model, lambda batch: (torch.zeros(batch, 8),))
    assert (rows.scales, rows.has_sequence) == (True, False)


def test_the_first_batch_of_a_data_loader_is_taken():
    data = torch.utils.data.TensorDataset(torch.zeros(32, 8), torch.zeros(32))
    example = example_inputs(nn.Linear(8, 4), torch.utils.data.DataLoader(data, batch_size=4))
    assert [tuple(part.shape) for part in example.make(4, 1)] == [(4, 8)]  # forward takes no target


def named(self, x, timesteps, lengths, coords):
    """Arguments whose names are usual."""
    return self.convs[0](x).mean() + self.time(timesteps[:, None]).mean() + lengths.float().mean() + coords.mean()


def flattened(self, pixels):
    """The example of MNIST: its second part reads all numbers of a map of one size."""
    return self.full(nn.functional.max_pool2d(self.conv(pixels), 2).flatten(1))


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 4)), {"input": (2, 8)}),
        (lambda: nn.Conv2d(3, 4, 3), {"input": (2, 3, 224, 224)}),
        (lambda: nn.Conv1d(80, 4, 3), {"input": (2, 80, 16)}),
        (lambda: nn.LSTM(8, 4), {"input": (16, 2, 8)}),
        (lambda: nn.GRU(8, 4, batch_first=True), {"input": (2, 16, 8)}),
        (minimal_gpt, {"idx": (2, 16)}),
        (lambda: nn.Sequential(nn.Conv3d(1, 4, 3)), {"input": (2, 1, 96, 96, 96)}),
        (
            lambda: net(named, convs=nn.ModuleList([nn.Conv1d(8, 8, 3)]), time=nn.Linear(1, 8)),
            {"x": (2, 8, 16), "timesteps": (2,), "lengths": (2,), "coords": (2, 16, 3)},
        ),
        (lambda: net(flattened, conv=nn.Conv2d(1, 4, 3), full=nn.Linear(676, 10)), {"pixels": (2, 1, 28, 28)}),
    ],
)
def test_inputs_are_those_of_their_names_and_of_the_first_layer(build, shapes):
    made = example_inputs(build()).make(2, 16)
    assert {name: tuple(value.shape) for name, value in made.items()} == shapes


def test_without_a_layer_the_sentence_has_the_line_to_write():
    opaque = net(lambda self, state, action: self.layer(state) @ action, layer=nn.Linear(6, 3))
    with pytest.raises(ProfileError, match=r"\(state, action\): write .*batch: \(torch.zeros\(batch, 6\), ") as caught:
        example_inputs(opaque)
    line = str(caught.value).partition("write ")[2].partition(" with its sizes")[0].replace("batch, ...", "batch, 3")
    assert eval(line.partition("inputs=")[2][:-1])(4)[1].shape == (4, 3)


def test_the_sentence_says_whether_the_inputs_or_the_module_are_at_fault():
    broken = net(lambda self, x: self.missing_layer(self.layer(x)), layer=nn.Linear(8, 8))
    with pytest.raises(ProfileError, match="The module is at fault, with any inputs"):
        profiled(broken, precision="fp32", inputs=torch.zeros(2, 8))
    with pytest.raises(ProfileError, match="forward fails with the inputs that you passed"):
        profiled(nn.Linear(8, 8), precision="fp32", inputs=torch.zeros(2, 9))


def _padded(batch, sequence):
    return torch.empty(batch, sequence, 16, device="meta"), torch.full((batch,), sequence)


def _graph(batch, sequence):
    nodes = torch.arange(batch * sequence)
    return torch.empty(len(nodes), 16, device="meta"), torch.stack([nodes, nodes.roll(1)])


SUPPLIED = {"Padded": _padded, "Looped": _graph}


KNOWN = dict.fromkeys(("Counted", "Padded", "Looped", "Resized"), "exact") | {"Checked": "high", "Dropped": "high"}


@pytest.mark.parametrize(("name", "confidence"), KNOWN.items())
def test_values_that_are_known_or_checked_leave_an_exact_trace(name, confidence):
    profile = profiled(getattr(values, name)(), precision="fp32", inputs=SUPPLIED.get(name))
    source = next(source for source in profile.provenance if source.figure == "FLOPs")
    assert (source.method, source.confidence) == ("traced", confidence)
    tokens = 1 if name in {"Checked", "Counted", "Resized", "Dropped"} else 64  # rows of numbers, or nodes
    assert profile.forward_flops(2, 64) == 2 * tokens * 4 * 2 * 16 * 16


def test_packed_sequences_of_known_lengths_are_traced():
    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(tokens, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return padded.square().mean()

    module = net(forward, layer=nn.GRU(8, 16, batch_first=True))
    for lengths, tokens in ((torch.full((4,), 10), 10), (torch.tensor([10, 4, 6, 10]), 7.5)):
        profile = profiled(module, precision="fp32", inputs=(torch.zeros(4, 10, 8), lengths))
        assert profile.forward_flops(4) == 4 * tokens * 2 * 3 * 16 * (8 + 16)
        assert next(row for row in profile.provenance if row.figure == "FLOPs").method == "traced"


def test_the_copy_takes_tensors_as_they_are_where_the_trace_showed_no_batch():
    profile = smp_advisor.profile(nn.Conv2d(3, 4, 3), inputs=torch.zeros(3, 10, 10))
    assert (profile.scales, profile.failures) == (False, ())
    assert profile.scaled.inputs == "a tensor of 3 x 10 x 10 (supplied)"
