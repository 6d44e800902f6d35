"""Data of the generated scripts: order, packing, files and resumption, with simulated processes and without PyTorch."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import sys
import types
from types import SimpleNamespace

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smp_advisor.export.template import render

FLAGS = {"text_classification": False, "sequence_to_sequence": False}
PARTS = ("order", "rows", "packing", "token_ids")


def namespace(process=0, processes=1):
    """Names of the data parts of a script, with stand-ins for collectives and batches."""
    source = "\n".join(render(f"data/{part}.py.in", values={}, flags=FLAGS) for part in PARTS)
    names = {
        "accumulated": lambda arguments: arguments.gradient_accumulation_steps,
        "to_batch": lambda rows, _: rows,
        "with_targets": lambda rows, count: rows[:count],
        "process": lambda: (process, processes),
        "largest": lambda values: values,
    }
    exec(source, names)
    return SimpleNamespace(**names)


PART = namespace()


class Numbers:
    """Samples that are their own numbers, in blocks."""

    def __init__(self, counts):
        self.counts = counts
        self.firsts = np.cumsum([0, *counts])

    def sample(self, block, row):
        assert row < self.counts[block]
        return int(self.firsts[block]) + row

    tokens = sample


class Words(Numbers):
    """Rows of texts: row n has n % 7 tokens, which are its number."""

    def tokens(self, block, row):
        number = self.sample(block, row)
        tokens = np.full(number % 7, number)
        return tokens, tokens


def arguments(batch_size, accumulation, seed=3, length=8):
    return SimpleNamespace(
        batch_size=batch_size, gradient_accumulation_steps=accumulation, seed=seed, sequence_length=length
    )


def steps(batches, number, accumulation):
    """Samples of some steps of all replicas, by step."""
    iterators = [iter(each) for each in batches]
    # All replicas, for each part of a step.
    taken = [
        [sample for _ in range(accumulation) for each in iterators for sample in next(each)] for _ in range(number)
    ]
    for each in iterators:
        each.close()
    return taken


LAYOUTS = [(1, 6, 2), (2, 3, 2), (3, 2, 2), (3, 4, 1), (1, 12, 1)]
"""Replicas, batch size and accumulation, with 12 samples per step."""


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda counts: sum(counts) >= 12))
@settings(max_examples=25, deadline=None)
def test_each_sample_is_used_once_per_epoch_with_any_number_of_processes(counts):
    samples, orders = sum(counts), []
    for replicas, batch_size, accumulation in LAYOUTS:
        batches = [
            PART.Batches(Numbers(counts), arguments(batch_size, accumulation), replicas, replica)
            for replica in range(replicas)
        ]
        orders.append(steps(batches, 2 * samples // 12, accumulation))
    assert all(order == orders[0] for order in orders), "the same samples in every step"
    stream = [sample for step in orders[0] for sample in step]
    assert sorted(stream[:samples]) == list(range(samples))
    if len(stream) >= 2 * samples:
        assert sorted(stream[samples : 2 * samples]) == list(range(samples))


@pytest.mark.parametrize(
    ("given", "directory", "steps", "warmup"),
    [
        ({}, "/data", 10, 1),
        ({"epochs": 2.5}, "/data", 25, 3),
        ({}, None, 100, 10),
        ({"max_steps": 7, "warmup_steps": 2.0}, "/data", 7, 2),
    ],
)
def test_steps_are_those_of_the_epochs_of_the_data(given, directory, steps, warmup):
    chosen = arguments(4, 1)
    vars(chosen).update({"max_steps": None, "epochs": 1.0, "warmup_steps": 0.1} | given)
    PART.set_steps(chosen, PART.Batches(Numbers([20, 19]), chosen, 1, 0), directory)
    assert (chosen.max_steps, chosen.warmup_steps) == (steps, warmup)


@pytest.mark.parametrize("resumed", LAYOUTS)
def test_a_job_with_another_number_of_processes_continues_with_the_next_sample(resumed):
    counts, (replicas, batch_size, accumulation) = [20, 0, 13, 7], resumed
    alone = PART.Batches(Numbers(counts), arguments(12, 1), 1, 0)
    through = steps([alone], 5, 1)
    first = PART.Batches(Numbers(counts), arguments(12, 1), 1, 0)
    steps([first], 2, 1)
    later = [
        PART.Batches(Numbers(counts), arguments(batch_size, accumulation), replicas, replica)
        for replica in range(replicas)
    ]
    for each in later:
        each.restore(json.loads(json.dumps(first.state())))
    assert steps(later, 3, accumulation) == through[2:]


@pytest.mark.parametrize(("replicas", "batch_size"), [(1, 4), (2, 4), (3, 4), (3, 5)])
def test_an_evaluation_uses_each_sample_once(replicas, batch_size):
    """Each process calls the model as often as the others."""
    batches = [
        list(PART.Batches(Numbers([20, 9]), arguments(batch_size, 1), replicas, replica).once(0))
        for replica in range(replicas)
    ]
    assert len({len(each) for each in batches}) == 1
    assert sorted(sample for each in batches for batch in each for sample in batch) == list(range(29))


def packed(layout, texts):
    replicas, batch_size, accumulation = layout
    return [
        PART.PackedBatches(texts, arguments(batch_size, accumulation), replicas, replica) for replica in range(replicas)
    ]


def test_packing_uses_every_token_once_per_epoch_with_any_number_of_processes():
    counts = [40, 0, 25, 31]
    taken = [steps(packed(layout, Words(counts)), 3, layout[2]) for layout in LAYOUTS]
    for each in taken[1:]:
        for ours, theirs in zip(each, taken[0], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    # One stream has all rows in turn, one epoch after the other.
    lengths = {number: number % 7 for number in range(96) if number % 7}
    total = sum(lengths.values())
    (alone,) = packed((1, 1, 1), Words(counts))
    tokens = np.concatenate([tokens for step in steps([alone], 2 * total // 8, 1) for tokens, _ in step])
    numbers, occurrences = np.unique(tokens[:total], return_counts=True)
    assert dict(zip(numbers.tolist(), occurrences.tolist(), strict=True)) == lengths
    numbers, occurrences = np.unique(tokens[total:], return_counts=True)
    assert all(count <= lengths[number] for number, count in zip(numbers, occurrences, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_text_continues_with_the_next_token(layout):
    counts = [40, 0, 25, 31]
    through = steps(packed((2, 6, 1), Words(counts)), 5, 1)
    first = packed((2, 6, 1), Words(counts))
    steps(first, 2, 1)
    # What the collective over all processes gives.
    state = {"streams": np.maximum(*[np.array(each.state()["streams"]) for each in first]).tolist()}
    later = packed(layout, Words(counts))
    for each in later:
        each.restore(json.loads(json.dumps(state)))
    for ours, theirs in zip(steps(later, 3, layout[2]), through[2:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_packed_progress_of_another_global_batch_is_refused():
    (batches,) = packed((1, 4, 1), Words([40]))
    with pytest.raises(SystemExit, match="12 samples per step, and this job has 4 streams"):
        batches.restore({"streams": [[0, 0]] * 12})
    with pytest.raises(SystemExit, match="fewer than the 12 samples of a step"):
        packed((1, 12, 1), Words([5]))


ROWS = [{"text": f"row {number} " + "ä" * (number % 50), "n": number} for number in range(500)]


@pytest.fixture
def files(tmp_path):
    """The same rows in each format, by suffix."""
    for suffix in ("jsonl", "parquet", "arrow", "stream"):
        (tmp_path / suffix).mkdir()
    halves = [ROWS[:260], ROWS[260:]]
    for place, rows in enumerate(halves):
        lines = [json.dumps(row, ensure_ascii=place == 0) for row in rows]
        # An empty line, and a last line without an end.
        (tmp_path / "jsonl" / f"{place}.jsonl").write_text("\n".join([*lines[:7], "", *lines[7:]]))
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, tmp_path / "parquet" / f"{place}.parquet", row_group_size=64)
        with pa.ipc.new_file(tmp_path / "arrow" / f"{place}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
        with pa.ipc.new_stream(tmp_path / "stream" / f"{place}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    (tmp_path / "stream" / "state.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow", "stream"])
@pytest.mark.parametrize("block_bytes", [64, 1000, 2**23])
def test_each_format_has_the_same_rows(files, form, block_bytes):
    part = namespace()
    part.JsonLines.__init__.__globals__["BLOCK_BYTES"] = block_bytes
    rows = part.rows_of(files / form)
    read = [rows.read(block)(row) for block, count in enumerate(rows.counts) for row in range(count)]
    assert read == ROWS
    assert part.rows_of(files / "empty") is None


def test_lines_are_counted_by_all_processes_together(files):
    counts = []
    for process in range(3):
        part = namespace(process, 3)
        part.JsonLines.__init__.__globals__["BLOCK_BYTES"] = 1000
        counts.append(part.rows_of(files / "jsonl").counts)
    assert np.max(counts, axis=0).sum() == 500
    assert all(each.sum() < 250 for each in counts)


def test_rows_that_cannot_be_read_are_refused_in_a_sentence(files, monkeypatch):
    with pytest.raises(SystemExit, match="files of several formats"):
        PART.rows_of(files)
    part = namespace()
    part.Parquet.__init__.__globals__["LARGEST_ROW_GROUP"] = 100
    with pytest.raises(SystemExit, match="write the file with a smaller row_group_size"):
        part.rows_of(files / "parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(SystemExit, match="requires pyarrow"):
        PART.rows_of(files / "parquet")


def test_figures_go_to_tensorboard_and_mlflow(monkeypatch):
    """Each only where it is installed and wanted: TensorBoard is in the containers, MLflow has a tracking server."""
    trackers = {}
    exec(render("metrics/trackers.py.in", values={}, flags={}), trackers)
    settings = SimpleNamespace(tensorboard_directory="board", mlflow_tracking_uri=None, mlflow_experiment="gpt2")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert trackers["trackers"](settings) == []
    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    values, board = [], types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = lambda directory: SimpleNamespace(
        add_scalar=lambda *scalar: values.append((directory, *scalar)), flush=lambda: None
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    settings.mlflow_tracking_uri = "arn:aws:sagemaker:tracking"
    with pytest.raises(SystemExit, match="requires mlflow"):
        trackers["trackers"](settings)
    calls = []
    mlflow = types.ModuleType("mlflow")
    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics"):
        setattr(mlflow, name, lambda *values, name=name, **options: calls.append((name, *values, options)))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for track in trackers["trackers"](settings):
        track(7, {"loss": 2.5})
    assert values == [("board", "loss", 2.5, 7)]
    assert calls[0] == ("set_tracking_uri", "arn:aws:sagemaker:tracking", {})
    assert calls[-1] == ("log_metrics", {"loss": 2.5}, {"step": 7})


TURNS = "{% for m in messages %}"
TEMPLATES = {
    # Template, and the text of both turns with a loss.
    "drops earlier thoughts": (
        TURNS
        + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ["one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"],
    ),
    "another end of the last turn": (
        TURNS
        + "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}"
        "{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ["<|channel|>final<|message|>one<|end|>", "<|channel|>final<|message|>two<|return|>"],
    ),
    "prompt only with an end": (
        TURNS + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|eos|>{% endif %}",
        ["one<|end|>", "two<|end|>"],
    ),
    "no header": (TURNS + "<|{{ m.role }}|>{{ m.content | trim }}<|eos|>{% endfor %}", ["one<|eos|>", "two<|eos|>"]),
}
CHAT = [
    {"role": role, "content": text}
    for role, text in (("user", "one?"), ("assistant", "one"), ("user", "one one"), ("assistant", "two"))
]


class Characters:
    """Tokenizer of characters and special tokens, with a chat template."""

    all_special_ids = ()
    eos_token_id = None

    def __init__(self, template):
        self.chat_template = template
        self.added_tokens_decoder = range(-99, 0)

    def apply_chat_template(self, messages, add_generation_prompt=False, **_):
        template = jinja2.Template(self.chat_template)
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt)

    def __call__(self, text, **_):
        found = list(re.finditer(r"<\|.*?\|>|.", text, re.DOTALL))
        ids = [-len(part[0]) if len(part[0]) > 1 else ord(part[0]) for part in found]
        return {"input_ids": ids, "offset_mapping": [part.span() for part in found]}


def conversations(template):
    """The class of a script that reads conversations, with a tokenizer."""
    flags = {"chats": True, "pairs": False, "masked": False, "padded": False, "sequence_to_sequence": False}
    tree = ast.parse(render("data/text.py.in", values={}, flags=flags))
    source = ast.unparse(next(node for node in tree.body if isinstance(node, ast.ClassDef)))
    names = {"np": np, "os": os, "functools": functools, "IGNORED": -100, "lru_cache": functools.lru_cache}
    exec(source, names)
    texts = names["Texts"].__new__(names["Texts"])
    texts.tokenizer, texts.special = Characters(template), set(range(-99, 0))
    return texts


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_loss_of_a_conversation_is_that_of_the_assistant(name):
    template, wanted = TEMPLATES[name]
    texts = conversations(template)
    _, labels = texts.conversation(CHAT)
    rendered = texts.tokenizer.apply_chat_template(CHAT)
    spans = texts.tokenizer(rendered)["offset_mapping"]
    marked = "".join(
        rendered[first:last] if label != -100 else "\0" for label, (first, last) in zip(labels, spans, strict=True)
    )
    assert [part for part in marked.split("\0") if part] == wanted
    _, later = texts.conversation(CHAT, first=3)
    assert 0 < (later != -100).sum() < (labels != -100).sum()


def test_a_template_that_hides_a_turn_is_refused():
    texts = conversations(TURNS + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    with pytest.raises(SystemExit, match="does not show where turn 2"):
        texts.conversation(CHAT)
