"""The magics in a shell as IPython makes it, and how their options reach the Python API."""

import re

import pytest
from IPython.core.error import UsageError

import smp_advisor.profiling
import smp_advisor.rehearsal
import smp_advisor.session.advise
from smp_advisor.errors import ProfileError
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.loading import MAGICS
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.rehearsal import Rehearsal
from smp_advisor.workload import Adapter

from .advice import PIPELINE, make_advice

ADVISE = "10B --instance ml.p4d.24xlarge --count 16"


@pytest.fixture
def asked(monkeypatch):
    """What the magics ask the Python API, which answers with one advice."""
    calls = []

    def advise(model, cluster, **settings):
        calls.append((model, cluster, settings))
        return make_advice(**{k: v for k, v in settings.items() if k in ("tokens", "sequence_length")})

    monkeypatch.setattr(smp_advisor.session.advise, "advise", advise)
    return calls


@pytest.fixture
def next_cells(shell, monkeypatch):
    texts = []
    monkeypatch.setattr(shell, "set_next_input", texts.append)
    return texts


def test_every_option_reaches_the_python_api(shell, asked, capsys):
    line = (
        f"{ADVISE} --sequence-length 1_024 --vocab 32k --precision bf16 --global-batch 512 --objective cost "
        "--tokens 300B --min-fit-probability 0.9 --script train.py --data s3://bucket/data --library auto "
        "--framework pytorch-1.13 --overheads checkpoints,restarts"
    )
    assert isinstance(shell.run_line_magic("smp_advise", line), Advisor)
    assert callable(asked[0][2].pop("on_progress"))  # the objective compares clusters
    job = {"sequence_length": 1024, "vocab": 32_000, "precision": "bf16", "global_batch_size": 512, "tokens": 300e9}
    job |= {"script": "train.py", "data": "s3://bucket/data", "overheads": "checkpoints,restarts"}
    terms = {"instance_count": 16, "objective": "cost", "min_fit_probability": 0.9, "library": "auto"}
    assert asked == [("10B", "ml.p4d.24xlarge", {**job, **terms, "framework": "pytorch-1.13"})]


def test_quotation_marks_are_no_part_of_a_value(shell, asked, capsys):
    shell.run_line_magic(
        "smp_advise", """'7 billion' --instance "2x p4d" --tokens='300 billion' --script "my train.py" """
    )
    assert asked[0][:2] == ("7 billion", "2x p4d")
    assert asked[0][2].items() >= {"tokens": 300e9, "script": "my train.py"}.items()


def test_a_variable_is_taken_for_what_it_holds(shell, asked, capsys):
    config = {"model_type": "gpt2"}
    shell.user_ns["config"] = config
    shell.run_line_magic("smp_advise", "config -i ml.p4d.24xlarge")
    assert asked[0][0] is config


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("10B", "--instance"),
        (f"{ADVISE} --count few", "'few' is not a number"),
        (f"{ADVISE} --count 1.5", "not a whole number"),
        (f"{ADVISE} --count few", "for example 16"),
        (f"{ADVISE} --cout 16", "%smp_advise has no option --cout 16; did you mean --count?"),
        (f"{ADVISE} --nodes 16", "%smp_advise has no option --nodes 16; did you mean --count?"),
        ("10B --instances p4d", "%smp_advise has no option --instances; did you mean --count?"),
        (f"{ADVISE} --seq_len 512", "did you mean --sequence-length?"),
        (f"{ADVISE} --count -3", "at least 1 or 'smallest', not -3"),
        ("-5B --instance ml.p4d.24xlarge", "not '-5B'"),
        (f"{ADVISE} --global-batch-size 1000000000000000000", "at most 1,000,000,000"),
        (f"{ADVISE} --sequence-length 99999999999", "--sequence-length must be at most"),
        (f"{ADVISE} --precision fp8", "fp8"),
        ("nothing_here --instance ml.p4d.24xlarge", "no variable 'nothing_here'"),
        ("10B --instance ml.p4d.24xlarg", "ml.p4d.24xlarge"),
        ("10B --instance ml.p4d.24xlarge --count 0", "at least 1"),
        ("no/such/config.json --instance ml.p4d.24xlarge", "no/such/config.json"),
        ('"10B --instance ml.p4d.24xlarge', "quotation"),
        (f"{ADVISE} --lora --full-finetune", "--lora and --full-finetune contradict each other"),
        (f"{ADVISE} --adapter-targets attention", "add --lora or --qlora"),
        (f"--lora {ADVISE}", "he following arguments are required: model"),
        (f"{ADVISE} --lora 10B", "at most 1,024, not 10000000000. A model goes before"),
        (f"{ADVISE} --qlora 0", "at least 1"),
        (f"{ADVISE} --loss tiled", "--loss: invalid choice: 'tiled'"),
        ("%smp_export", "run %smp_advise first, or display the result of advise()"),
        ("%smp_clusters", "run %smp_advise first"),
        ("%smp_check", "."),
        ("%smp_check /nowhere/train.py", "/nowhere/train.py"),
        ("%smp_check --plan train.py", "."),
        ("%smp_profile nothing_here", "no variable 'nothing_here'"),
        ("%smp_profile 10B --memory much", "--memory must be a positive number of GiB, for example 8, not 'much'"),
        ("%smp_profile 10B --stage everything", "everything"),
        ("%smp_profile 10B --inputs nothing_here", "no variable 'nothing_here'"),
        ("%smp_profile 10B --plan", "run %smp_advise first"),
        ("%%smp_local --plan\npass", "run %smp_advise first"),
        ("%%smp_local -p lr\npass", "NAME=VALUE"),
        ("%%smp_local --name ../train.py\npass", "name of a Python file"),
        ("%%smp_local --source-dir /nowhere\npass", "no folder"),
    ],
)
def test_bad_input_is_one_sentence_without_a_trace(shell, capsys, line, said):
    shell.user_ns["before"] = "kept"
    result = shell.run_cell(line if line.startswith("%") else f"after = 1\n%smp_advise {line}")
    printed = "".join(capsys.readouterr())
    assert isinstance(result.error_in_exec, UsageError)
    assert printed.startswith("UsageError: ")
    assert said in printed
    assert "Traceback" not in printed
    assert shell.user_ns["before"] == "kept"


@pytest.mark.parametrize(
    "asking", ["smpa.advise('10B', 'ml.p4d.24xlage')", "smpa.check_script('nothere.py')", "smpa.Job(tokens=-1)"]
)
def test_a_call_that_cannot_be_answered_shows_its_line_and_one_sentence(shell, capsys, asking):
    shell.run_cell(f"import smp_advisor as smpa\n{asking}")
    line, sentence = capsys.readouterr().out.rstrip().splitlines()
    assert line == f"Line 2: {asking}"
    assert re.fullmatch(r"\w+Error: .*[.]", sentence)


def test_an_advisor_is_shown_once_and_can_be_kept(shell, asked, capsys):
    shell.run_cell(f"advice = %smp_advise {ADVISE}")
    assert capsys.readouterr().out.count("Techniques in the order of AWS") == 1
    assert isinstance(shell.user_ns["advice"], Advisor)
    shell.run_cell(f"%smp_advise {ADVISE}", store_history=True)
    assert capsys.readouterr().out.count("Techniques in the order of AWS") == 1
    shell.run_cell("advice", store_history=True)
    assert capsys.readouterr().out.count("Techniques in the order of AWS") == 1


def test_export_puts_the_cell_of_the_controls_as_they_stand(shell, asked, next_cells, capsys):
    advisor = shell.run_line_magic("smp_advise", ADVISE)
    advisor.move(batch_size=24)
    shell.run_line_magic("smp_export", "")
    assert '"batch_size": 24' in next_cells[0]
    assert "%smp_export script" in capsys.readouterr().out
    for what in ("--script", "script", "local", "monitoring", "permissions", "quota"):
        shell.run_line_magic("smp_export", what)
    starts = (
        *2 * ["%%writefile train_"],
        "%%smp_local",
        "# Monitor the",
        "# Permissions that",
        "# Query AWS for",
    )
    assert all(source.startswith(start) for source, start in zip(next_cells[1:], starts, strict=True))


def test_export_takes_the_jobs_options_and_refuses_in_a_sentence(shell, asked, next_cells, capsys):
    shell.run_line_magic("smp_advise", ADVISE)
    network = "--subnet subnet-1 --security-group sg-1"
    shell.run_line_magic("smp_export", f"--sdk v3 --data fsx://fs-0123456789abcdef0/fsx --keep-alive 600 {network}")
    for written in ("ModelTrainer(", "FileSystemDataSource(", "keep_alive_period_in_seconds=600", '"subnet-1"'):
        assert written in next_cells[0]
    shell.run_line_magic("smp_export", "--sdk v2 --spot --option region=eu-west-1 --option max_run_seconds=7200")
    for written in ('region_name="eu-west-1"', "max_run=7200", "use_spot_instances=True", "default_bucket()"):
        assert written in next_cells[-1]
    shell.run_cell("%smp_export --spot --option checkpoints=False")
    assert "starts from the beginning without checkpoints" in "".join(capsys.readouterr())
    shell.run_cell("%smp_export --option region")
    assert "--option takes NAME=VALUE" in "".join(capsys.readouterr())


SCRIPT = "import smdistributed.modelparallel.torch as smp\n\nrank = smp.rank()\n"  # without smp.init()


def test_a_check_against_the_plan_passes_the_kind_of_code_on(shell, asked, tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nmodel = torch.compile(torch.nn.Linear(2, 2))\n")
    advisor = shell.run_line_magic("smp_advise", ADVISE)
    before = advisor.estimate.step_seconds
    shell.run_line_magic("smp_check", f"--plan {path}")
    assert advisor.state["settings"]["stack"] == "torch-compile"
    assert advisor.estimate.step_seconds < before
    assert "line 3 compiles the model" in capsys.readouterr().out


def test_a_script_is_checked_by_its_path_and_a_cell_without_being_run(shell, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    report = shell.run_line_magic("smp_check", str(path))
    assert "SMP101" in [finding.id for finding in report]
    assert {finding.path for finding in report} == {str(path)}
    report = shell.run_cell_magic("smp_check", "", SCRIPT)
    # As the notebook counts: the magic's own line is the first.
    assert [finding.line for finding in report if finding.id == "SMP101"] == [
        number for number, line in enumerate(f"%%smp_check\n{SCRIPT}".splitlines(), 1) if "smp.rank" in line
    ]
    assert "rank" not in shell.user_ns


@pytest.mark.slow
def test_options_and_their_values_are_completed(shell):
    def completed(line):
        return shell.complete("", line, len(line))[1]

    assert "--instance" in completed("%smp_advise 10B ")
    assert "--instance" not in completed("%smp_advise 10B --instance ml.p4d.24xlarge ")
    assert "ml.p4d.24xlarge" in completed("%smp_advise 10B --instance ")
    assert set(completed("%smp_advise 10B --precision ")) >= {"fp16", "bf16", "fp32"}
    assert "--sdk" in completed("%smp_export --s")
    assert set(completed("%smp_profile model --stage ")) >= {"trace", "copy"}
    assert "--processes" in completed("%%smp_local ")


def test_magics_document_themselves_load_once_and_are_unloaded(shell):
    before = shell.find_magic("smp_advise")
    assert all("::" in (shell.find_magic(name) or shell.find_magic(name, "cell")).__doc__ for name in MAGICS)
    assert shell.extension_manager.load_extension("smp_advisor") == "already loaded"
    smp_advisor.load_ipython_extension(shell)
    assert shell.find_magic("smp_advise") == before
    shell.run_line_magic("unload_ext", "smp_advisor")
    kinds = [(name, kind) for name in MAGICS for kind in ("line", "cell")]
    assert [shell.find_magic(name, kind) for name, kind in kinds] == [None] * len(kinds)
    shell.run_line_magic("load_ext", "smp_advisor")
    assert shell.find_magic("smp_advise") is not None


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("--pipeline-parallel-degree 4 --microbatches 8", {"pipeline_parallel_degree": 4, "microbatches": 8}),
        ("--lora", {"adapter": Adapter(rank=16, targets="all-linear")}),
        ("--lora 8 --adapter-targets attention", {"adapter": Adapter(rank=8, targets="attention")}),
        ("--qlora", {"adapter": Adapter(rank=16, targets="all-linear", base_bits=4, double_quantization=True)}),
        ("--full-finetune", {"training": "fine-tuning"}),
        ("--loss chunked --state-precision 16-bit", {"loss": "chunked", "state_precision": "16-bit"}),
        ("--optimizer-step fused --activation gelu", {"optimizer_step": "fused", "activation": "gelu"}),
        ("--activation-checkpointing every_2", {"activation_checkpointing": "every_2"}),
        ("--paged-optimizer", {"paged_optimizer": True}),
    ],
)
def test_an_option_is_a_keyword_and_the_others_are_left_to_the_api(shell, asked, options, settings):
    shell.run_line_magic("smp_advise", f"{ADVISE} {options}")
    assert callable(asked[0][2].pop("on_progress"))
    assert asked[0][2] == {"instance_count": 16, **settings}


def test_an_open_cluster_is_an_option(shell, asked):
    line = "10B --instance p4d.24xlarge,p5.48xlarge --count smallest --tokens 300B --max-days 30 --max-usd 250k"
    shell.run_line_magic("smp_advise", line)
    ((_, cluster, settings),) = asked
    assert cluster == ["p4d.24xlarge", "p5.48xlarge"]
    assert callable(settings.pop("on_progress"))
    assert settings == {"instance_count": "smallest", "tokens": 3e11, "max_days": 30.0, "max_usd": 250e3}
    shell.run_line_magic("smp_advise", "10B --instance any")
    assert asked[1][1] == "any"
    assert set(asked[1][2]) == {"on_progress"}


def test_a_model_that_does_not_fit_shows_what_would(shell, capsys):
    with pytest.raises(UsageError, match="nodes would be enough"):
        shell.run_line_magic("smp_advise", "70B -i ml.p4d.24xlarge --library smp-v2")
    titles, *lines = capsys.readouterr().out.splitlines()
    assert titles.startswith("Change that fits")
    rates = [float(re.search(r"\$([\d,.]+) per hour", line)[1].replace(",", "")) for line in lines]
    assert rates == sorted(rates)  # cheapest first
    line = next(line.partition("%smp_advise ")[2] for line in lines if re.match(r"\d+ nodes", line))
    assert shell.run_line_magic("smp_advise", line).estimate.fits


def test_clusters_are_compared_for_the_advice_displayed_last(shell, capsys):
    shell.run_line_magic("smp_advise", "1.3B -i ml.p4d.24xlarge --library fsdp --tokens 20B")
    sizes = shell.run_line_magic("smp_clusters", "--counts 1,2 --instance p4d.24xlarge,p5.48xlarge --max-days 30")
    compared = [(size.cluster.instance.name, size.cluster.nodes) for size in sizes.sizes]
    assert compared == [(name, count) for name in ("ml.p4d.24xlarge", "ml.p5.48xlarge") for count in (1, 2)]
    assert sizes.requested.nodes == 1
    with pytest.raises(UsageError, match="--max-usd must be a positive number"):
        shell.run_line_magic("smp_clusters", "--max-usd lots")


def ran(outcome="ran to the end"):
    return Rehearsal(script="train.py", processes=2, outcome=outcome, updates=0, findings=())


@pytest.fixture
def calls(monkeypatch):
    """Calls of the profiler by the magics; it returns at once."""
    recorded = []

    def profile(model, **settings):
        settings["on_line"]("a line")
        settings["on_progress"](1, 2, "half")
        recorded.append((model, {k: v for k, v in settings.items() if not k.startswith("on_")}))
        return "profile"

    def rehearse(script, job, **settings):
        files = {path.name: path.read_text() for path in script.parent.iterdir()}
        recorded.append((script, {**settings, "job": job, "files": files}))
        return ran()

    monkeypatch.setattr(smp_advisor.profiling, "profile", profile)
    monkeypatch.setattr(smp_advisor.rehearsal, "rehearse", rehearse)
    return recorded


def test_options_of_a_profile_reach_the_python_api(shell, calls, capsys):
    shell.user_ns |= {"model": "held", "batch": {"x": 1}}
    line = (
        "model --sequence-length 512 --precision bf16 --attention fused --library smp-v2 --batch 4 --stage trace "
        "--stage copy --inputs batch --memory 1.5 --seconds 30"
    )
    assert shell.run_line_magic("smp_profile", line) == "profile"
    job = {"sequence_length": 512, "precision": "bf16", "attention": "fused", "library": "smp-v2", "batch": 4}
    stages = {"stages": ("trace", "copy"), "inputs": {"x": 1}, "memory_bytes": 1536 * 2**20, "seconds": 30.0}
    assert calls == [("held", {**job, **stages})]
    assert "a line" in capsys.readouterr().out


def test_the_advisor_shown_last_gives_plan_and_job(shell, calls):
    advisor = Advisor(make_advice(PIPELINE))
    set_displayed_last(shell, advisor)
    shell.run_line_magic("smp_profile", "10B --plan --sequence-length 64")
    _, settings = calls[0]
    assert settings["plan"] == advisor.plan
    assert settings["job"].sequence_length == 64
    assert settings["job"].precision == advisor.advice.job.precision
    shell.run_cell_magic("smp_local", "--plan --processes 3", "pass")
    _, settings = calls[1]
    assert (settings["job"], settings["processes"]) == (advisor.plan, 3)


def test_a_cell_becomes_a_script_beside_its_folder(shell, calls, tmp_path):
    (tmp_path / "helper.py").write_text("x = 1")
    line = f"--name run.py --source-dir {tmp_path} -p lr=1e-4 -p note=text -c train={tmp_path} -c more=1e3"
    shell.run_cell_magic("smp_local", f"{line} --steps 3", "import helper")
    script, settings = calls[0]
    assert script.name == "run.py"
    assert settings["files"] == {"run.py": "import helper", "helper.py": "x = 1"}
    assert not script.parent.exists()
    assert settings["job"] == {"hyperparameters": {"lr": 1e-4, "note": "text"}}
    assert settings["data"] == {"train": str(tmp_path), "more": "1e3"}
    assert settings["steps"] == 3


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    "cell", ["%smp_profile 10B", "p = %smp_profile 10B", "p = %smp_profile 10B\np2 = p", "p = %smp_profile 10B\np"]
)
def test_a_profile_is_shown_once_also_if_it_is_assigned(shell, capsys, cell):
    shell.run_cell(cell, store_history=True)
    shown = capsys.readouterr().out.count("'profile'")
    assert shown == (2 if cell.endswith("\np") else 1)


@pytest.mark.parametrize("text", ["%smp_profile --help", "%%smp_local --help\npass"])
def test_help_names_the_options_and_runs_nothing(shell, calls, capsys, text):
    shell.run_cell(text)
    assert "--processes" in (shown := capsys.readouterr().out) or "--seconds" in shown
    assert calls == []


def test_an_error_of_the_profiler_is_shown_without_a_trace(shell, capsys, monkeypatch):
    def fails(*_, **__):
        raise ProfileError("The trace failed.", log=("last words",))

    monkeypatch.setattr(smp_advisor.profiling, "profile", fails)
    shell.run_cell("%smp_profile 10B")
    printed = "".join(capsys.readouterr())
    assert "UsageError: The trace failed.\nThe last lines of its log:\n  last words" in printed
    assert "Traceback" not in printed
    shell.run_cell("1 / 0")
    assert "Traceback" in capsys.readouterr().out  # other errors keep theirs


def test_a_script_that_fails_is_not_called_done(shell, monkeypatch):
    shown = []
    monkeypatch.setattr(
        smp_advisor.rehearsal, "rehearse", lambda *_, **__: ran("stopped at the start because it fails")
    )
    monkeypatch.setattr(
        "smp_advisor.notebook.shown.display",
        lambda value, **_: shown.append(value["text/plain"]) if isinstance(value, dict) else None,
    )
    monkeypatch.setattr(type(shell), "kernel", None, raising=False)
    assert not shell.run_cell_magic("smp_local", "", "raise SystemExit(1)").ok
    assert shown[-1] == "train.py: failed"
