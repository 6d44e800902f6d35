"""``%smp_profile`` and ``%%smp_local``: how their options reach the Python API."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

import smp_advisor.profiling
import smp_advisor.profiling.local_run
from smp_advisor.errors import ProfileError
from smp_advisor.notebook import Advisor
from smp_advisor.notebook.shown import set_displayed_last
from smp_advisor.profiling.local_run import LocalRun

from .advice import PIPELINE, make_advice


def ran(script="train.py", **fields):
    return LocalRun(script=script, command="", variables={}, folder="", seconds=0, peak_bytes=0, **fields)


@pytest.fixture
def calls(monkeypatch):
    """Calls of the profiler by the magics; it returns at once."""
    recorded = []

    def profile(model, **settings):
        settings["on_line"]("a line")
        settings["on_progress"](1, 2, "half")
        recorded.append((model, {k: v for k, v in settings.items() if not k.startswith("on_")}))
        return "profile"

    def run(script, **settings):
        files = {path.name: path.read_text() for path in settings["source_dir"].iterdir()}
        recorded.append((script, {**settings, "files": files}))
        return ran(script)

    monkeypatch.setattr(smp_advisor.profiling, "profile", profile)
    monkeypatch.setattr(smp_advisor.profiling.local_run, "run", run)
    return recorded


def test_options_of_a_profile_reach_the_python_api(shell, calls, capsys):
    shell.user_ns |= {"model": "held", "batch": {"x": 1}}
    line = (
        "model --sequence-length 512 --precision bf16 --attention fused --library smp-v2 --batch 4 --stage trace "
        "--stage copy --inputs batch --memory 1.5 --seconds 30 --script train.py"
    )
    assert shell.run_line_magic("smp_profile", line) == "profile"
    assert calls == [
        (
            "held",
            {
                "sequence_length": 512,
                "precision": "bf16",
                "attention": "fused",
                "library": "smp-v2",
                "batch": 4,
                "stages": ("trace", "copy"),
                "inputs": {"x": 1},
                "memory_bytes": 1536 * 2**20,
                "seconds": 30.0,
                "script": "train.py",
            },
        )
    ]
    assert "a line" in capsys.readouterr().out


def test_the_advisor_shown_last_gives_plan_and_job(shell, calls):
    advisor = Advisor(make_advice(PIPELINE))
    set_displayed_last(shell, advisor)
    shell.run_line_magic("smp_profile", "10B --plan --sequence-length 64")
    _, settings = calls[0]
    assert settings["plan"] == advisor.plan
    assert settings["job"].sequence_length == 64
    assert settings["job"].precision == advisor.advice.job.precision
    shell.run_cell_magic("smp_local", "--plan --processes 2 -p batch_size=1", "pass")
    _, settings = calls[1]
    assert settings["parameters"] == advisor.plan.parameters
    assert settings["hyperparameters"] == advisor.plan.hyperparameters | {"batch_size": 1}
    assert settings["processes"] == 2


def test_a_cell_becomes_a_script_beside_its_folder(shell, calls, tmp_path):
    (tmp_path / "helper.py").write_text("x = 1")
    line = f"--name run.py --source-dir {tmp_path} -p lr=1e-4 -p note=text -c train={tmp_path} -c more=1e3"
    shell.run_cell_magic("smp_local", f"{line} --steps 3 --seconds 9", "import helper")
    script, settings = calls[0]
    assert script == "run.py"
    assert settings["files"] == {"run.py": "import helper", "helper.py": "x = 1"}
    assert not settings["source_dir"].parent.exists()
    assert settings["hyperparameters"] == {"lr": 1e-4, "note": "text"}
    assert settings["channels"] == {"train": str(tmp_path), "more": "1e3"}
    assert (settings["steps"], settings["seconds"]) == (3, 9.0)


@pytest.mark.parametrize(
    ("magic", "line", "message"),
    [
        ("smp_profile", "nothing_here", "no variable 'nothing_here'"),
        ("smp_profile", "10B --memory much", "--memory must be a positive number, for example 8, not 'much'"),
        ("smp_profile", "10B --stage everything", "everything"),
        ("smp_profile", "10B --inputs nothing_here", "no variable 'nothing_here'"),
        ("smp_profile", "10B --plan", "run %smp_advise first"),
        ("smp_local", "--plan", "run %smp_advise first"),
        ("smp_local", "-p lr", "NAME=VALUE"),
        ("smp_local", "--name ../train.py", "name of a Python file"),
        ("smp_local", "--source-dir /nowhere", "no folder"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(shell, calls, magic, line, message):
    run = shell.run_line_magic if magic == "smp_profile" else lambda *words: shell.run_cell_magic(*words, "pass")
    with pytest.raises(UsageError, match=message):
        run(magic, line)


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
    assert "--seconds" in capsys.readouterr().out
    assert calls == []


def test_an_error_of_the_profiler_is_shown_without_a_trace(shell, capsys, monkeypatch):
    def fails(*_, **__):
        raise ProfileError("The trace failed.", log=("last words",))

    monkeypatch.setattr(smp_advisor.profiling, "profile", fails)
    shell.run_cell("%smp_profile 10B")
    printed = "".join(capsys.readouterr())
    assert "UsageError: The trace failed.\nThe last lines of its log:\n  last words" in printed
    assert "Traceback" not in printed


def test_a_script_that_fails_is_not_called_done(shell, monkeypatch):
    shown = []

    class Handle:
        def update(self, data, **_):
            shown.append(data["text/plain"])

    monkeypatch.setattr(smp_advisor.profiling.local_run, "run", lambda script, **_: ran(script, error="It fails."))
    monkeypatch.setattr("smp_advisor.notebook.shown.display", lambda *_, **__: Handle())
    monkeypatch.setattr(type(shell), "kernel", None, raising=False)
    assert not shell.run_cell_magic("smp_local", "", "raise SystemExit(1)").ok
    assert shown[-1] == "train.py: failed"
