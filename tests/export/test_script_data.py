"""Data of the generated scripts: order and resumption with simulated processes, and the loss of conversations."""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import jinja2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smp_advisor.export.template import render


def namespace():
    """Names of the order of a script, with stand-ins for batches."""
    names = {
        "accumulated": lambda arguments: arguments.gradient_accumulation_steps,
        "to_batch": lambda rows, _: rows,
        "with_targets": lambda rows, count: rows[:count],
    }
    exec(render("data/batches.py.in", values={}, flags={}), names)
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
    return [[sample for _ in range(accumulation) for each in iterators for sample in next(each)] for _ in range(number)]


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
    ],
)
def test_steps_are_those_of_the_epochs_of_the_data(given, directory, steps, warmup):
    chosen = arguments(4, 1)
    vars(chosen).update({"max_steps": -1, "epochs": 1.0, "warmup_steps": 0.1} | given)
    PART.set_steps(chosen, PART.Batches(range(39), chosen, 1, 0), directory)
    assert (chosen.max_steps, chosen.warmup_steps) == (steps, warmup)
    with pytest.raises(SystemExit, match=r"has 3 samples, fewer than one step requires \(4\)"):
        PART.set_steps(chosen, PART.Batches(range(3), chosen, 1, 0), directory)


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
    assert sorted(sample for each in batches for batch in each for sample in batch) == list(range(29))


def test_figures_go_to_tensorboard_and_mlflow(monkeypatch):
    """Each only where it is installed and wanted: TensorBoard is in the containers, MLflow has a tracking server."""
    trackers = {}
    exec(render("metrics/trackers.py.in", values={}, flags={}), trackers)
    settings = SimpleNamespace(tensorboard_directory="board", mlflow_tracking_uri="", mlflow_experiment="gpt2")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert trackers["trackers"](settings) == []
    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    values, board = [], types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = lambda directory, **_: SimpleNamespace(
        add_scalar=lambda *scalar: values.append((directory, *scalar))
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    settings.mlflow_tracking_uri = "arn:aws:sagemaker:tracking"
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
        found = list(re.finditer(r"<\|[^<>]*\|>|<[^<>\s]+>|.", text, re.DOTALL))
        ids = [-len(part[0]) if len(part[0]) > 1 else ord(part[0]) for part in found]
        return {"input_ids": ids, "offset_mapping": [part.span() for part in found]}


def conversations(template):
    """The class of a script that reads conversations, with a tokenizer."""
    flags = {"chats": True, "pairs": False, "masked": False, "padded": True}
    tree = ast.parse(render("data/text.py.in", values={"tuning_note": ""}, flags=flags))
    source = ast.unparse(next(node for node in tree.body if isinstance(node, ast.ClassDef)))
    names = {"np": np, "os": os, "functools": functools, "IGNORED": -100}
    exec(source, names)
    texts = names["Texts"].__new__(names["Texts"])
    texts.tokenizer = Characters(template)
    return texts


def marked(texts):
    """Labels of a conversation, and its parts that have a loss."""
    _, labels = texts.conversation(CHAT)
    rendered = texts.tokenizer.apply_chat_template(CHAT)
    spans = texts.tokenizer(rendered)["offset_mapping"]
    parts = (rendered[a:b] if label != -100 else "\0" for label, (a, b) in zip(labels, spans, strict=True))
    return labels, [part for part in "".join(parts).split("\0") if part]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_loss_of_a_conversation_is_that_of_the_assistant(name):
    template, wanted = TEMPLATES[name]
    texts = conversations(template)
    labels, turns = marked(texts)
    assert turns == wanted
    _, later = texts.conversation(CHAT, first=3)
    assert 0 < (later != -100).sum() < (labels != -100).sum()


@pytest.mark.torch
def test_the_templates_of_trl_show_the_turns_of_the_assistant():
    """Those without marks of their own; the ones of models for images have another kind of messages."""
    import trl
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    read, refused = set(), set()
    for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"):
        template = path.read_text()
        if path.stem.endswith("_training") or "generation %}" in template:
            continue
        texts = conversations(template)
        texts.tokenizer.apply_chat_template = lambda messages, add_generation_prompt=False, of=template, **_: (
            render_jinja_template([messages], chat_template=of, add_generation_prompt=add_generation_prompt, **tokens)[
                0
            ][0]
        )
        try:
            _, turns = marked(texts)
        except (SystemExit, jinja2.UndefinedError):
            refused.add(path.stem)
            continue
        read.add(path.stem)
        assert [answer in turn for turn, answer in zip(turns, ("one", "two"), strict=True)] == [True, True], path.stem
        assert "one?" not in "".join(turns), path.stem
        assert "one one" not in "".join(turns), path.stem
    assert refused == {"idefics3", "llava_next", "smolvlm"}
    assert {"qwen3", "gptoss", "phi3", "deepseekv3", "nemotron_3_nano", "gemma4", "glm4moe", "llama3"} <= read


def test_a_template_that_hides_a_turn_is_refused():
    texts = conversations(TURNS + "{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    with pytest.raises(SystemExit, match="does not show where turn 2"):
        texts.conversation(CHAT)
