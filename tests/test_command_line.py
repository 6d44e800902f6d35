"""``smp-advisor``: answers as text and JSON, with an exit status for CI."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import smp_advisor as smpa
from smp_advisor.command.__main__ import main, parse, settings_of
from smp_advisor.errors import AdvisorError
from smp_advisor.sandbox import run_isolated

PLAN = ("--instance", "ml.p4d.24xlarge", "--library", "ddp", "--sequence-length", "512")

CELL = (
    "from sagemaker.pytorch import PyTorch\n"
    "PyTorch(entry_point='t.py', instance_type='ml.p4d.24xlarge', instance_count=2, framework_version='1.13.1')\n"
)


@pytest.fixture
def run(capsys):
    """Status, output and errors of a call."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "advice.json"
    smpa.advise("350M", "ml.p4d.24xlarge", library="ddp", sequence_length=512, tokens="1B").save(path)
    return path


def test_a_recommendation_is_printed_and_saved(run, tmp_path):
    path = tmp_path / "advice.json"
    status, output, _ = run("advise", "350M", *PLAN, "--tokens", "1B", "--output", path)
    advice = smpa.load(path)
    assert status == 0
    assert len(output.splitlines()) <= 20
    assert {"Plan", "Batch", "Speed", "Cost", "Run", "More"} <= {line.split()[0] for line in output.splitlines()}
    assert advice.job.tokens == 1e9
    status, output, _ = run("advise", "350M", *PLAN, "--tokens", "1B", "--full")
    assert (status, output.strip()) == (0, str(advice).strip())


def test_json_is_compact_and_has_everything_on_request(run):
    status, output, _ = run("advise", "llama-3-70b", "-i", "ml.p5.48xlarge", "-n", "4", "--tokens", "300B", "--json")
    short = json.loads(output)
    assert (status, short["schema"], short["fits"]) == (0, 1, True)
    assert len(output.encode()) <= 4_000
    # The plan goes back as it is: its estimate has the same figures.
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in short["plan"].items()]
    status, output, _ = run(
        "estimate", "llama-3-70b", "-i", "ml.p5.48xlarge", "-n", "4", "--tokens", "300B", *settings, "--json"
    )
    again = json.loads(output)
    assert status == 0
    assert {name: again[name] for name in ("needed_gib_per_gpu", "step_seconds", "usd_total", "plan")} == {
        name: short[name] for name in ("needed_gib_per_gpu", "step_seconds", "usd_total", "plan")
    }
    document = json.loads(run("advise", "350M", *PLAN, "--json=full")[1])
    assert (document["schema"], document["verb"], document["value"]["kind"]) == (1, "advise", "Advice")


@pytest.mark.parametrize(("count", "status", "first"), [("1", 1, "No:"), ("2", 0, "Yes:")])
def test_whether_a_model_fits_takes_five_lines(run, count, status, first):
    # 70.6 B parameters with 16 bytes each are 1,052 GiB, more than one node of 8 x 79.1 GiB and less than two.
    answer = run("fits", "llama-3-70b", "--instance", "p5", "--count", count)
    lines = answer[1].splitlines()
    assert (answer[0], lines[0].split()[0], len(lines)) == (status, first, 4 + (count == "2"))
    assert "p5 is read as ml.p5.48xlarge" in lines[-1]
    data = json.loads(run("fits", "llama-3-70b", "-i", "ml.p5.48xlarge", "-n", count, "--json")[1])
    assert data["fits"] is not status
    ways = [change["what"] for change in data.get("changes_that_fit", [])]
    assert ("2 nodes" in ways) is bool(status)


def test_a_plan_without_a_generated_script_fits_all_the_same(run):
    status, text, _ = run("fits", "1.3B", "-i", "ml.p4d.24xlarge", "--library", "smp-v1-tensorflow")
    assert (status, text.split()[0]) == (0, "Yes:")
    assert "pass script= with your own script" in " ".join(text.split())


def test_a_model_of_images_is_answered_in_images(run):
    status, text, _ = run("fits", "resnet-50", "-i", "ml.g5.2xlarge")
    data = json.loads(run("advise", "resnet-50", "-i", "ml.g5.2xlarge", "--json")[1])
    assert status == 0
    assert "samples/s" in text
    assert not [name for name in data if "token" in name]
    assert {"samples_per_second", "usd_per_million_samples"} <= set(data)
    assert not re.search("token|sequence|accumulat", text)  # the plan trains its batch at once
    assert "samples/s" in run("compare", "resnet-50", "-i", "ml.g5.2xlarge", "--counts", "1,2")[1]
    repeated = parse(["advise", "7B", "-i", "ml.p4d.24xlarge", "-i", "ml.g5.48xlarge"])
    assert repeated.settings["cluster"] == ["ml.p4d.24xlarge", "ml.g5.48xlarge"]


def test_what_would_change_the_fit_is_true(run):
    data = json.loads(run("fits", "llama-3-70b", "-i", "p5.48xlarge", "-n", "4", "-s", "4096", "--json")[1])
    assert data["what_would_change_it"].startswith("2 nodes are also enough; sequences of 8,192 tokens fit, too.")
    assert run("fits", "llama-3-70b", "-i", "p5.48xlarge", "-n", "2", "-s", "4096")[0] == 0
    assert run("fits", "llama-3-70b", "-i", "p5.48xlarge", "-n", "4", "-s", "8192")[0] == 0


@pytest.mark.tools
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_the_command(run, shell):
    status, script, _ = run("completion", shell)
    assert status == 0
    assert {"--sequence-length", "advise", "throughput"} <= set(re.findall(r"[\w-]+", script))


def test_one_plan_is_estimated_in_its_own_precision(run):
    plan = ("--library", "fsdp", "--batch-size", "4", "--count", "16", "-s", "2048")
    assert run("estimate", "10B", "-i", "ml.p4d.24xlarge", *plan)[0] == 1
    assert run("estimate", "10B", "-i", "ml.p4d.24xlarge", *plan, "--activation-checkpointing", "each")[0] == 0

    status, output, _ = run("estimate", "350M", *PLAN, "--batch-size", "4", "--json")
    cluster, plan = smpa.Cluster("ml.p4d.24xlarge"), smpa.Plan(library="ddp", batch_size=4)
    job = smpa.Job(sequence_length=512, precision="bf16", attention="fused")
    expected = smpa.estimate(smpa.advise("350M", cluster, library="ddp").model, cluster, job, plan)
    assert status == 0
    assert json.loads(output)["needed_gib_per_gpu"] == round(expected.needed_gib, 1)


def test_a_saved_advice_exports_and_still_fits(run, saved, tmp_path):
    path = tmp_path / "train.py"
    assert run("export", saved, "--what", "script", "--output", path)[0] == 0
    compile(path.read_text(), str(path), "exec")

    assert run("fits", saved)[0] == 0
    cell = tmp_path / "cell.py"
    status, output, _ = run("export", saved, "--sdk", "v2", "--output", cell)
    assert (status, output) == (0, f"Wrote {cell}.\n")
    status, output, _ = run("fits", cell, "--json")
    assert (status, json.loads(output)["fits"]) == (0, True)
    cell.write_text(re.sub('"SMP_ADVISOR_PREDICTION.*\n', "\n", cell.read_text()))
    status, output, _ = run("fits", cell, "--model", "350M", "--json")
    assert (status, json.loads(output)["fits"]) == (0, True)
    status, _, error = run("fits", cell)
    assert status == 2
    assert "pass --model" in error
    assert run("export", saved, "--sdk", "v2", "--output", cell)[0] == 0
    status, output, _ = run("check", cell, "--json")
    assert (status, json.loads(output)["answer"]) == (0, f"{cell}: no findings")


@pytest.mark.slow
def test_no_is_status_1(run, tmp_path):
    status, output, _ = run("advise", "70B", *PLAN)
    assert status == 1
    assert output.startswith("None of")
    status, output, _ = run("fits", "70B", *PLAN)
    assert status == 1
    assert output.startswith("No:")

    script = tmp_path / "train.py"
    script.write_text("import smdistributed.modelparallel.torch as smp\n\nmodel = smp.DistributedModel(net)\n")
    status, output, _ = run("check", script)
    assert (status, "error" in output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("advise", "10B", "-i", "ml.p9"), "ml.p9"),
        (("advise", "10B", "-i", "ml.p4d.24xlarge", "--seqlen", "4"), "did you mean --sequence-length"),
        (("advise", "10B", "-i", "ml.p4d.24xlarge", "--count", "two"), "--count: 'two' is not a number"),
        (("advise", "missing.json", "-i", "ml.p4d.24xlarge"), "cannot be read"),
        (("estimate", "10B", "-i", "ml.p4d.24xlarge"), "requires one instance and a library"),
        (("fits", "missing.yaml"), "cannot be read"),
        (("fits", "/dev/zero.json"), "cannot be read"),
        (("check", "missing.py"), "cannot be read|does not exist|no file"),
        (("export", "missing.json"), "cannot be read"),
        (("export", "advice.json", "--spot"), "no option --spot"),
        (("advise", "10B", "-i", "ml.p4d.24xlarge", "word"), "belongs to no option"),
    ],
)
def test_a_wrong_input_is_status_2_with_one_sentence(run, arguments, reason):
    status, output, error = run(*arguments)
    assert (status, output) == (2, "")
    assert error.startswith("smp-advisor: ")
    assert error.count("\n") == 1
    assert re.search(reason, error)


def test_settings_are_read_as_numbers_and_words():
    words = ["--a", "1", "--b=2.5", "--c", "none", "--d", "x y", "--e-f", "--g=--h"]
    assert settings_of(words) == {"a": 1, "b": 2.5, "c": None, "d": "x y", "e_f": True, "g": "--h"}
    assert settings_of(["--a", "9" * 60]) == {"a": int("9" * 60)}  # which the signature of the verb refuses
    with pytest.raises(AdvisorError, match="belongs to no option"):
        settings_of(["--a", "1", "2"])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["script", "module"])
def test_the_command_imports_nothing_from_the_folder_it_runs_in(tmp_path, root, form):
    folder, entry = tmp_path / "checked", tmp_path / "smp-advisor"
    folder.mkdir()
    for name in ("json", "argparse", "numpy", "typing", "difflib", "yaml", "torch", "sitecustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from the checked folder')\n")
    (folder / "job.py").write_text(CELL)
    entry.write_text("import sys\nfrom smp_advisor.command.__main__ import main\nsys.exit(main())\n")
    start = [str(entry)] if form == "script" else ["-m", "smp_advisor.command"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, *start, "check", "job.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "job.py" in done.stdout, done.stderr
    assert done.returncode < 2


def test_a_child_process_imports_nothing_from_the_folder_it_runs_in(tmp_path, monkeypatch):
    for name in ("json", "typing", "dataclasses", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n")
    monkeypatch.chdir(tmp_path)
    assert run_isolated("operator:add", 1, 2, what="the sum") == 3
