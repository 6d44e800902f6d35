"""What people type means the same in Python, on the command line and for assistants; wrong words get their meaning."""

import io
import json
from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.advice.choice import missing_kernels
from smp_advisor.arguments import hint
from smp_advisor.arguments.amounts import number_in
from smp_advisor.cluster.table import meant_instance
from smp_advisor.command.__main__ import main
from smp_advisor.errors import AdvisorError
from smp_advisor.tools.interface import Caller, call

P5 = "ml.p5.48xlarge"


def test_amounts():
    for text, unit, value in (
        ("7 billion", "parameters", 7e9), ("350 million", "parameters", 350e6), ("1.5 bn", "parameters", 1.5e9),
        ("7B params", "parameters", 7e9), ("1,300,000,000", "", 1.3e9), ("$500", "USD", 500), ("20k USD", "USD", 20e3),
        ("48h", "days", 2), ("2 weeks", "days", 14), ("30", "days", 30), ("5 min", "seconds", 300),
        ("24 GiB", "GiB", 24), ("300B tokens", "tokens", 3e11),
        ("1,5B", "", None), ("7 apples", "parameters", None), ("seven", "", None), ("48h", "USD", None),
    ):  # fmt: skip
        assert number_in(text, unit) == value, text
    assert number_in("4k", "tokens", binary=True) == 4096
    assert number_in("4k", "tokens") == 4000


def test_clusters():
    for text, name, count in (
        ("p5", P5, None), ("2x p5", P5, 2), ("h100", P5, None), ("8xH100", P5, 1), ("16 H100", P5, 2),
        ("p5.48xl", P5, None), ("A100 80GB", "ml.p4de.24xlarge", None), ("2 x ml.g5.12xlarge", "ml.g5.12xlarge", 2),
    ):  # fmt: skip
        machine, nodes, note = meant_instance(text)
        assert (machine.name, nodes) == (name, count), text
        assert bool(note) == ("48xl" not in text and "12xl" not in text)
    with pytest.raises(AdvisorError, match=r"A100 40 GB \(ml.p4d.24xlarge\) or A100 80 GB"):
        meant_instance("a100")


def test_one_reader_for_every_surface(capsys, tmp_path):
    typed = {"sequence_length": "4k", "library": "FSDP", "precision": "bfloat16", "tokens": "2 billion"}
    advice = smpa.advise("7 billion", "2x p5", max_days="2 weeks", **typed)
    assert advice.job.sequence_length == 4096
    assert advice.cluster == smpa.Cluster(P5, 2)
    assert "2x p5 is read as 2 x ml.p5.48xlarge, its largest size" in advice.defaults
    answer = call("advise", {"model": "7 billion", "instance": "2x p5", "max_days": "2 weeks", **typed}, Caller())
    assert (answer["needed_gib_per_gpu"], answer["count"]) == (round(advice.estimate.needed_gib, 1), 2)
    words = ["--sequence-length", "4k", "--library", "FSDP", "--precision", "bfloat16", "--tokens", "2 billion"]
    assert main(["advise", "7 billion", "-i", "2x p5", "--max-days", "2 weeks", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needed_gib_per_gpu"] == answer["needed_gib_per_gpu"]


def test_wrong_words_get_their_meaning_with_its_unit_or_nothing():
    names = {"max_days", "global_batch_size", "batch_size", "precision", "sequence_length", "cluster"}
    assert hint("hours", names, 48) == "did you mean max_days=2 (days)?"
    assert hint("micro_batch_size", names) == "did you mean batch_size (samples per GPU and pass)?"
    assert "global_batch_size is" in hint("batch", names)
    assert hint("sequence_lenght", names) == "did you mean sequence_length (tokens)?"
    assert hint("region", names) == hint("spot", names) == ""
    with pytest.raises(AdvisorError, match=r"did you mean batch_size in settings"):
        call("advise", {"model": "7B", "instance": "p5", "micro_batch_size": 2}, Caller())
    with pytest.raises(AdvisorError, match=r"called 'claude-3'; a parameter count"):
        smpa.advise("claude-3", P5)


def test_each_option_of_a_verb_changes_its_answer_or_is_refused(capsys, tmp_path, monkeypatch):
    advice, script = tmp_path / "advice.json", tmp_path / "train.py"
    smpa.advise("7B", P5).save(advice)
    script.write_text("print(1)\n")
    for words, sentence in (
        (["fits", "7B", "-i", "p5", "--libary", "fsdp"], "fits has no option --libary; did you mean --library?"),
        (["advise", "7B", "--instance-type", "p5"], "did you mean --instance?"),
        (["compare", "7B", "-i", "p5", "--counts", "1", "2"], "belongs to no option"),
        (["fits", "7B", "-i", "p5", "--library", "foo"], "--library: invalid choice: 'foo'"),
        (["fits", advice, "--tensor-parallel-degree", "2"], "has no use for --tensor-parallel-degree"),
        (["estimate", "7B", "-i", "p5", "--library", "fsdp", "--max-days", "3"], "has no use for --max-days"),
        (["check", script, "--model", "7B"], "check of a script has no use for --model"),
        (["export", advice, "--what", "quota", "--sdk", "v3"], "leave it out"),
        (["advise", "7B", "-i", "p5", "--output", "a.txt"], ".json, .html"),
    ):
        assert main([*map(str, words)]) == 2, words
        error = capsys.readouterr().err
        assert sentence in error, error
        assert len(error.splitlines()) <= 3
    assert main(["fits", str(advice)]) == 0
    assert main(["fits", str(advice), "-s", "131072"]) == 1
    assert main(["advise", "7B", "-i", "ml.nope", "--json"]) == 2
    captured = capsys.readouterr()
    assert "ml.nope" in json.loads(captured.out.splitlines()[-1])["error"]
    assert "smp_advisor.toml" in captured.err
    monkeypatch.setattr("sys.stdin", io.StringIO("torch.OutOfMemoryError: CUDA out of memory.\n"))
    assert main(["why", "-"]) == 0


def test_an_own_price_is_that_of_the_answer(capsys, tmp_path):
    usual, own = (smpa.advise("7B", P5, tokens="1B", **price) for price in ({}, {"usd_per_hour": "$31.46"}))
    ratio = usual.cluster.usd_per_hour / 31.46
    assert own.estimate.usd_total == pytest.approx(usual.estimate.usd_total / ratio)
    own.save(tmp_path / "own.json")
    assert smpa.load(tmp_path / "own.json").estimate.usd_per_hour == 31.46
    answer = call("advise", {"model": "7B", "instance": P5, "tokens": "1B", "usd_per_hour": 31.46}, Caller())
    assert answer["usd_per_hour"] == 31.46
    assert answer["gpu_hours"]["value"] == pytest.approx(24 * 8 * answer["days"]["value"], rel=1e-3)
    assert answer["checkpoint_gib"] > 10
    with pytest.raises(AdvisorError, match="one instance type"):
        smpa.advise("7B", "any", usd_per_hour=3)


def test_notes_on_positions_and_on_kernels_that_are_missing():
    long = smpa.advise("llama-3-8b", P5, instance_count=4, sequence_length=131_072)
    assert "trained on sequences of up to 8,192 tokens" in str(long)
    assert "up to 8,192" not in str(smpa.advise("llama-3-8b", P5, sequence_length=8_192))
    traced = replace(smpa.Model.from_parameters("1B", family="gpt2"), origin="measured", family="mamba")
    assert "mamba-ssm" in missing_kernels(traced)
    assert missing_kernels(long.model) == ""
