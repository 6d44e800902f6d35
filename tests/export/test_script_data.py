"""Data of the generated scripts: order and resumption with simulated processes, and the loss of conversations."""

import contextlib
import functools
import json
import math
import os
import re
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.export.script import companions, writable
from smp_advisor.export.template import render
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job
from tests.export.examples import P4D, TASKS


def namespace():
    """Names of the order of a script, with stand-ins for batches."""
    names = {"to_batch": lambda rows, _: rows, "np": np, "math": math, "functools": functools}
    names["ThreadPoolExecutor"] = ThreadPoolExecutor
    exec(render("data/batches.py.in", chats=False, full_batches=False), names)
    return SimpleNamespace(**names)


PART = namespace()


def arguments(batch_size, accumulation, seed=3, length=8):
    return SimpleNamespace(
        batch_size=batch_size, gradient_accumulation_steps=accumulation, seed=seed, sequence_length=length
    )


def batches_of(samples, layout):
    """Batches of all replicas over samples that are their own numbers."""
    replicas, batch_size, accumulation = layout
    given = arguments(batch_size, accumulation)
    return [PART.Batches(range(samples), given, replicas, replica) for replica in range(replicas)]


def steps(batches, number, accumulation):
    """Samples of some steps of all replicas, by step."""
    iterators = [iter(each) for each in batches]
    # All replicas, for each part of a step.
    return [
        [sample for _ in range(accumulation) for each in iterators for sample in next(each)[0]] for _ in range(number)
    ]


LAYOUTS = [(1, 6, 2), (2, 3, 2), (3, 2, 2), (3, 4, 1), (1, 12, 1)]
"""Replicas, batch size and accumulation, with 12 samples per step."""


@given(samples=st.integers(12, 90))
@settings(max_examples=25, deadline=None)
def test_each_sample_is_used_once_per_epoch_with_any_number_of_processes(samples):
    orders = [steps(batches_of(samples, layout), 2 * samples // 12, layout[2]) for layout in LAYOUTS]
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
        ({"max_steps": 20, "warmup_steps": 20.0}, None, 20, 19),  # the schedule of transformers divides by the rest
        ({"max_steps": 1}, "/data", 1, 0),
    ],
)
def test_steps_are_those_of_the_epochs_of_the_data(given, directory, steps, warmup):
    chosen = arguments(4, 1)
    vars(chosen).update({"max_steps": -1, "epochs": 1.0, "warmup_steps": 0.1} | given)
    PART.set_steps(chosen, PART.Batches(range(39), chosen, 1, 0), directory)
    assert (chosen.max_steps, chosen.warmup_steps) == (steps, warmup)
    with pytest.raises(SystemExit, match=r"has 3 samples; one step requires 4"):
        PART.set_steps(chosen, PART.Batches(range(3), chosen, 1, 0), "/data")


@pytest.mark.parametrize("resumed", LAYOUTS)
def test_a_job_with_another_number_of_processes_continues_with_the_next_sample(resumed):
    through = steps(batches_of(40, (1, 12, 1)), 5, 1)
    (first,) = batches_of(40, (1, 12, 1))
    steps([first], 2, 1)
    later = batches_of(40, resumed)
    for each in later:
        each.used = first.used
    assert steps(later, 3, resumed[2]) == through[2:]


@pytest.mark.parametrize(("replicas", "batch_size"), [(1, 4), (2, 4), (3, 4), (3, 5)])
def test_an_evaluation_uses_each_sample_once(replicas, batch_size):
    """Each process calls the model as often as the others."""
    batches = [list(each.once(0)) for each in batches_of(29, (replicas, batch_size, 1))]
    assert len({len(each) for each in batches}) == 1
    assert sorted(sample for each in batches for batch, count in each for sample in batch[:count]) == list(range(29))


def test_figures_go_to_tensorboard_and_mlflow(monkeypatch, tmp_path):
    """Each only where it is installed and wanted: TensorBoard is in the containers, MLflow has a tracking server."""
    flags = dict.fromkeys(("tensorflow", "image_classification", "small_copy", "chats"), False) | {"norms": True}
    meter = {"over_processes": lambda values: np.array([values]), "suppress": contextlib.suppress}
    meter |= {"np": np, "os": os, "json": json, "time": time, "Path": Path}
    for name in ("torch", "torch.utils", "torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    meter["torch"] = sys.modules["torch"]
    values = {"flops_per_sample": 1e12, "peak_tflops": 1.0, "sequence_length": 8}
    exec(render("metrics/meter.py.in", **values, **flags), meter)
    peaks = {"max_memory_allocated": lambda: 2**30, "max_memory_reserved": lambda: 2**31}
    meter["torch"].cuda = SimpleNamespace(**peaks)
    given, batches = SimpleNamespace(max_steps=9, sequence_length=8), SimpleNamespace(samples_per_step=4)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "board")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    plain = meter["Meter"](given, 0, batches, 0)
    assert (plain.board, plain.mlflow) == (None, None)
    scalars, calls = [], []
    sys.modules["torch.utils.tensorboard"].SummaryWriter = lambda directory, **_: SimpleNamespace(
        add_scalar=lambda *scalar: scalars.append((directory, *scalar))
    )

    def called(name, *values, **options):
        calls.append((name, *values, options))
        return SimpleNamespace(info=SimpleNamespace(run_id="run 1"))

    for name in ("start_run", "log_params", "log_metrics", "end_run"):
        setattr(sys.modules["mlflow"], name, functools.partial(called, name))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "arn:aws:sagemaker:tracking")
    monkeypatch.setenv("SM_MODEL_DIR", str(tmp_path))
    given.checkpoint_directory, given.checkpoint_every = tmp_path / "checkpoints", 3
    left = []
    meter |= {"atexit": SimpleNamespace(register=lambda *call: left.append(call)), "sys": sys}
    meter["signal"] = SimpleNamespace(SIGTERM=15, signal=lambda *_: None)
    meter["Meter"](given, 0, batches, 3).finish(9)
    assert [call[0] for call in calls] == ["start_run", "log_params", "end_run"]
    assert left == [(sys.modules["mlflow"].end_run, "FAILED")], "unless it finished before"
    resumed = len(calls)
    meter["Meter"](given, 0, batches, 3)
    assert calls[resumed:] == [("start_run", {"run_id": "run 1", "run_name": None})], "in its run"
    calls.clear()
    tracked = meter["Meter"](given, 0, batches, 0)
    tracked.log(7, 2.5, 0.1, 0.5)
    assert ("board", "loss", 2.5, 7) in scalars
    assert ("board", "gradient_norm", 0.5, 7) in scalars
    assert [name for name, *_ in calls[:2]] == ["start_run", "log_params"]
    assert calls[-1][0] == "log_metrics"
    assert calls[-1][1]["peak_reserved_gib"] == 2
    for loss, norm in ((math.nan, 0.5), (2.5, math.inf)):
        with pytest.raises(SystemExit, match="was not a number at step 8"):
            tracked.log(8, loss, 0.1, norm)


TURNS = "{% for m in messages %}"
TEMPLATES = {
    # Template, and the text of both turns with a loss; None if a turn looks different when others follow.
    "marks of turns": (
        TURNS + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ["one<|im_end|>\n", "two<|im_end|>\n"],
    ),
    "no header": (
        TURNS + "<|{{ m.role }}|>{{ m.content | trim }}<|eos|>{% endfor %}",
        ["<|assistant|>one<|eos|>", "<|assistant|>two<|eos|>"],
    ),
    "drops earlier thoughts": (
        TURNS
        + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        None,
    ),
    "another end of the last turn": (
        TURNS + "<|start|>{{ m.role }}<|message|>{{ m.content }}"
        "{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        None,
    ),
    "hides the assistant": (TURNS + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", []),
}
CHAT = [
    {"role": role, "content": text}
    for role, text in (("user", "one?"), ("assistant", "one"), ("user", "one one"), ("assistant", "two"))
]


class Characters:
    """Tokenizer of characters and special tokens, with a chat template."""

    def __init__(self, template):
        self.chat_template = template

    def apply_chat_template(self, messages, add_generation_prompt=False, **_):
        text, places = rendered(messages, self.chat_template, add_generation_prompt)
        found = list(re.finditer(r"<\|[^<>]*\|>|<[^<>\s]+>|.", text, re.DOTALL))
        return {
            "input_ids": [ord(part[0]) if len(part[0]) == 1 else hash(part[0]) for part in found],
            "assistant_masks": [any(begin <= part.start() < end for begin, end in places) for part in found],
            "parts": [part[0] for part in found],
        }


def rendered(messages, template, prompt=False):
    """Text of a conversation, and the places that the template marks as the assistant's."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    marks = {"return_assistant_tokens_mask": True} if "generation %}" in template else {}
    texts, places = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=prompt, **marks, **tokens
    )
    return texts[0], places[0] if marks else []


def reader(*, preferences=False):
    """Names of the file next to a script that reads rows."""
    names = {"__name__": "rows"}
    exec(render("rows.py.in", chats=True, pairs=False, reads_ids=False, preferences=preferences), names)
    return SimpleNamespace(**names)


ROWS, ROWS_OF_PAIRS = reader(), reader(preferences=True)


def turns_of(template, first=0):
    """Parts of a conversation that have a loss, of the turns from this one on."""
    tokenizer = Characters(template)
    _, labels = ROWS.encode_turns(tokenizer, CHAT, ROWS.options_of({}, None), first)
    parts = tokenizer.apply_chat_template(CHAT)["parts"]
    marked = (part if label != -100 else "\0" for label, part in zip(labels, parts, strict=True))
    return [part for part in "".join(marked).split("\0") if part]


CORPUS = ["The capital of France is Paris.", "The sentiment is positive", "one two three", "The capital is Paris"] * 30


def tokenizers_of_six_kinds():
    """Tokenizers as of GPT-2, Llama 3, Llama 2 with its end token, T5, BERT, and of bytes in Python."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "[PAD]"]

    def trained(model, trainer, before, added=""):
        core = Tokenizer(model)
        core.pre_tokenizer = before
        core.train_from_iterator(CORPUS, trainer(special_tokens=special, vocab_size=200))
        if added:
            ids = [("<s>", 1), ("</s>", 2)]
            core.post_processor = processors.TemplateProcessing(single=added, special_tokens=ids)
        names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}
        return PreTrainedTokenizerFast(tokenizer_object=core, **names)

    bytes_of = lambda **more: pre_tokenizers.ByteLevel(add_prefix_space=False, **more)  # noqa: E731
    words, bpe, whole = pre_tokenizers.Metaspace(), trainers.BpeTrainer, models.BPE(unk_token="<unk>")
    wordpiece = models.WordPiece(unk_token="<unk>")
    return {
        "GPT-2": trained(models.BPE(), bpe, bytes_of()),
        "Llama 3": trained(models.BPE(), bpe, bytes_of(), "<s> $A"),
        "Llama 2, adds its end": trained(whole, bpe, words, "<s> $A </s>"),
        "T5": trained(models.Unigram(), trainers.UnigramTrainer, words, "$A </s>"),
        "BERT": trained(wordpiece, trainers.WordPieceTrainer, pre_tokenizers.BertPreTokenizer()),
        "bytes, in Python": ByT5Tokenizer(),
    }


def test_a_pair_of_conversations_parts_where_its_texts_do():
    """As TRL divides it, with any template: this one opens a thought that the answers do not have."""

    class Tokenizer:
        def apply_chat_template(self, turns, *, add_generation_prompt=False, tools, **_):
            text = "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)
            text = f"{tools[0]['name'] if tools else ''}{text}" + "<assistant><think>" * add_generation_prompt
            return {"input_ids": [ord(letter) for letter in text]}

    pair = {
        "prompt": [{"role": "user", "content": "2+2"}],
        "chosen": [{"role": "assistant", "content": "4"}],
        "rejected": [{"role": "assistant", "content": "5"}],
        "tools": '[{"name": "add"}]',
        "messages": [{"role": "user", "content": "of another trainer"}],
    }
    encoded = ROWS_OF_PAIRS.encode_pair(pair, 0, 64, tokenizer=Tokenizer(), column="text", template=None)
    texts = ["".join(map(chr, encoded[name])) for name in ("prompt_ids", "chosen_ids", "rejected_ids")]
    assert texts == ["add<user>2+2<assistant>", "4", "5"]
    assert encoded["targets"] == 1
    with pytest.raises(SystemExit, match="Row 3 of the data cannot be read"):
        ROWS_OF_PAIRS.encode_pair({**pair, "tools": "["}, 3, 64, tokenizer=Tokenizer(), column="text", template=None)


@pytest.mark.torch
def test_a_completion_and_one_end_token_are_trained_with_six_kinds_of_tokenizer():
    """The reader of rows is one file, so both trainers of a plan train the same tokens."""
    for name, tokenizer in tokenizers_of_six_kinds().items():
        for row in (
            {"prompt": "The sentiment is ", "completion": "positive"},  # a token over the end of the prompt
            {"prompt": "The capital of France is", "completion": " Paris."},
            {"text": "one two three"},
        ):
            encoded = ROWS.encode_row(row, 0, tokenizer, 64, "text", None)
            trained = [token for token in encoded["labels"] if token != -100]
            assert trained.count(tokenizer.eos_token_id) == 1, name
            text = re.sub("[Ġ▁ ]", "", tokenizer.decode(trained, skip_special_tokens=True))
            assert text == row.get("completion", row.get("text")).replace(" ", ""), name
            assert encoded["targets"] >= 2, name
        pair = {"prompt": "The sentiment is ", "chosen": "positive", "rejected": "one two"}
        options = {"tokenizer": tokenizer, "column": "text", "template": None}
        encoded = ROWS_OF_PAIRS.encode_pair(pair, 0, 64, **options)
        for side in ("chosen", "rejected"):
            tokens = encoded["prompt_ids"] + encoded[f"{side}_ids"]
            assert tokens.count(tokenizer.eos_token_id) == 1, name
            assert re.sub("[Ġ▁ ]", "", tokenizer.decode(encoded[f"{side}_ids"], skip_special_tokens=True)) in (
                pair[side].replace(" ", ""),
                "is" + pair[side].replace(" ", ""),
            ), name  # a token may join the end of the prompt
        other_columns = {**pair, "messages": [{"role": "user", "content": "of another trainer"}]}
        assert ROWS_OF_PAIRS.encode_pair(other_columns, 0, 64, **options) == encoded, name
    files = [companions(parts) for parts in two_trainers()]
    assert files[1]["rows.py"].startswith(files[0]["rows.py"]), "the plain script reads token ids, too"


def two_trainers():
    job, plan = Job(sequence_length=8, training="fine-tuning"), Plan(library="ddp", batch_size=4, precision="fp32")
    parts = TASKS["llama"], Cluster(P4D, 1), job, plan
    return [writable(*parts, trainer=trainer) for trainer in ("trl", "plain")]


def test_empty_fields_of_parquet_are_no_part_of_a_conversation():
    """A column has the fields of all its rows: calls of other tools, and other arguments."""
    call = {"function": {"name": "weather", "arguments": {"city": "Rome", "zone": None}}}
    turns = [
        {"role": "user", "content": "Rome?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    row = {"tools": [{"name": "weather", "unit": None}], "chat_template_kwargs": {"thinking": False, "date": None}}
    assert ROWS.present(turns)[0] == {"role": "user", "content": "Rome?"}
    (call,) = ROWS.present(turns)[1]["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Rome"}
    options = ROWS.options_of(row, "template")
    assert options["tools"] == [{"name": "weather"}]
    assert options["thinking"] is False
    assert "date" not in options


@pytest.mark.torch
def test_rows_without_a_target_are_left_out_and_counted(capsys):
    from datasets import Dataset

    tokenizer = tokenizers_of_six_kinds()["GPT-2"]
    pairs = [("one two three one two three", " Paris"), ("one", " two"), ("one two", " three " * 9), ("", "")]
    rows = Dataset.from_list([{"prompt": prompt, "completion": completion} for prompt, completion in pairs])
    kept = ROWS.encode_rows(rows, tokenizer, 5)
    assert len(kept) == 2
    assert max(map(len, kept["input_ids"])) <= 5
    assert "2 of 4 rows are used: 2 are longer than 5 tokens, 2 have nothing to train on" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="No row has a token to train on"):
        ROWS.encode_rows(rows.select([0, 3]), tokenizer, 5)
    with pytest.raises(SystemExit, match=r"Row 0 of the data cannot be read \(TypeError: .*see the top of the script"):
        ROWS.encode_rows(Dataset.from_list([{"prompt": 3, "completion": "x"}]), tokenizer, 5)


def test_token_ids_of_another_type_are_refused(tmp_path):
    names = {"np": np, "Path": Path}
    exec(render("data/token_ids.py.in"), names)
    np.arange(2000, dtype=np.uint32).tofile(tmp_path / "a.bin")
    with pytest.raises(SystemExit, match="ids of 4 bytes, not of uint16: pass --token_dtype uint32"):
        names["token_files"](tmp_path, "uint16")
    assert len(names["token_files"](tmp_path, "uint32")["a.bin"]) == 2000
    # The index of Megatron-LM names the type: int32.
    (tmp_path / "a.idx").write_bytes(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([4]))
    assert names["token_files"](tmp_path, "uint16")["a.bin"].tolist() == list(range(2000))


@pytest.mark.torch
def test_files_that_cannot_be_read_are_named_with_the_line_and_the_remedy(tmp_path, capsys, monkeypatch):
    read = functools.partial(ROWS.read_rows, cache_dir=str(tmp_path.with_name("cache of rows")))
    good, broken = tmp_path / "train.jsonl", tmp_path / "more.jsonl"
    with pytest.raises(SystemExit, match="has rows in no files: use one of json, parquet"):
        read(tmp_path)
    good.write_text('{"text": "one"}\n')
    (tmp_path / "empty.jsonl").touch()
    # What save_to_disk writes next to rows, and a copy of JupyterLab's, are no rows.
    for name in ("dataset_info.json", "parquet/state.json", ".ipynb_checkpoints/train-checkpoint.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{\n"text": "no row"}')
    for name in ("validation.jsonl", "my-test-set.JSONL"):
        (tmp_path / name).write_text('{"text": "held out"}\n' * 2)
    assert read(tmp_path)["text"][:] == ["one"]
    others = f"{tmp_path / 'my-test-set.JSONL'} {tmp_path / 'validation.jsonl'}"
    assert capsys.readouterr().out == f"Rows of {good} and not of {others}\n"
    monkeypatch.setenv("SM_CHANNEL_VALIDATION", str(tmp_path))
    assert len(read(tmp_path)) == 5, "a channel of held-out rows has them all"
    monkeypatch.delenv("SM_CHANNEL_VALIDATION")
    broken.write_text('{"text": "two"}\n{"text": \n')
    with pytest.raises(SystemExit, match=r"more.jsonl, line 2: .*Write one object in UTF-8 per line"):
        read(tmp_path)
    broken.rename(tmp_path / "rows.csv")
    with pytest.raises(SystemExit, match="has rows in json and csv files"):
        read(tmp_path)


ROW = '{"text": "row"}\n'
ABOUT = '{"files": ["train.jsonl"],\n "rows": 1}'


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rows", "others"),
    [
        ({"a.jsonl": ROW}, {"dataset_infos.json": ABOUT}),
        ({"a.jsonl": ROW}, {"manifest.json": ABOUT, "files.json": '["a.jsonl"]'}),
        ({"a.jsonl": ROW, "b.json": ROW * 2, "c.json": f"[{ROW}]"}, {}),
        ({"a.csv": "text\nrow\n"}, {"metadata.json": ABOUT, "dataset_infos.json": ABOUT}),
        ({"jsonl/part-00000": ROW, "jsonl/part-00001": ROW}, {"jsonl/LICENSE": ABOUT}),
        ({"data-0.arrow": None}, {"cache-1a2b3c.arrow": None, "cache-1a2b_00000_of_00002.arrow": None}),
    ],
)
def test_files_about_the_rows_are_no_rows(rows, others, tmp_path, capsys):
    from datasets import Dataset

    for name, text in (rows | others).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if text is None:
            Dataset.from_list([{"text": "row"}]).save_to_disk(tmp_path.with_name(f"{tmp_path.name} rows"))
            (written,) = tmp_path.with_name(f"{tmp_path.name} rows").glob("*.arrow")
            written.rename(path)
        else:
            path.write_text(text)
    found = ROWS.read_rows(tmp_path, cache_dir=str(tmp_path.with_name("cache of rows")))["text"][:]
    assert found == ["row"] * (len(rows) + ("b.json" in rows))
    printed = capsys.readouterr().out
    ignored = [name for name in others if name in ("manifest.json", "files.json", "metadata.json")]
    assert [name for name in others if name in printed] == ignored, "the log names what may be rows"


@pytest.mark.torch
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_loss_of_a_conversation_is_that_of_the_assistant_or_it_is_refused(name):
    template, wanted = TEMPLATES[name]
    if wanted is None:
        with pytest.raises(ValueError, match="use one of TRL's templates for training"):
            turns_of(template)
    else:
        assert turns_of(template) == wanted
        assert turns_of(template, 3) == wanted[1:], "a prompt of several turns has no loss"


@pytest.mark.torch
def test_a_batch_of_conversations_is_as_long_as_its_longest_row():
    """A multiple of 64 tokens, but never more than a sequence; the padding has no loss."""
    import torch

    flags = dict.fromkeys(("image_classification", "text_classification", "masked", "sequence_to_sequence"), False)
    flags |= dict.fromkeys(
        ("reads_text", "half_inputs", "causal", "pairs", "tunes", "weighted", "encodes", "small_copy"), False
    )
    names = {"torch": torch, "np": np, "math": math}
    source = render("data/dataset.py.in", **flags | {"chats": True})
    exec(source[source.index("def to_batch") :], names)
    for rows, length in (((3, 70), 128), ((3, 5), 64), ((3, 160), 160)):
        pairs = [(np.arange(1, row + 1), np.arange(1, row + 1)) for row in rows]
        tokens, mask, labels = names["to_batch"](pairs, arguments(2, 1, length=160)).values()
        assert tokens.shape == mask.shape == labels.shape == (2, length)
        assert [int((row != -100).sum()) for row in labels] == list(rows)
        assert int(labels[1, rows[1] - 1]) == rows[1]


@pytest.mark.torch
def test_the_templates_for_training_show_the_turns_of_the_assistant(monkeypatch):
    """Those that TRL takes for the usual templates without marks, in the script on TRL and in the plain one."""
    import trl
    from trl import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "supports_tool_calling", lambda _: False)
    right, wrong, refused = set(), set(), set()
    for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"):
        if path.stem.endswith("_training"):
            continue
        try:
            template = chat_template_utils.get_training_chat_template(SimpleNamespace(chat_template=path.read_text()))
            text, places = rendered(CHAT, template)
        except Exception:  # noqa: BLE001
            refused.add(path.stem)
            continue
        turns = [text[first:end] for first, end in places]
        answers = [answer in turn for turn, answer in zip(turns, ("one", "two"), strict=False)] == [True, True]
        asked = "one?" in "".join(turns) or "one one" in "".join(turns)
        (right if answers and not asked and "".join(turns_of(template)) == "".join(turns) else wrong).add(path.stem)
    families = {"qwen3", "qwen3_instruct_2507", "gptoss", "phi3", "phi3_5", "deepseekv3", "deepseek_r1_distill"}
    assert right >= families | {"nemotron_3_nano", "nemotron_3_super", "glm4moe", "gemma3", "llama3", "cohere2"}
    assert wrong == {"diffusion_gemma", "idefics3", "smolvlm"}, "their messages have images, or other parts"
    assert not refused & families
