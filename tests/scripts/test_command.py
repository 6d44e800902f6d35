"""The command on folders, patterns and the standard input, with its configuration, formats and exit status."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from smp_advisor.command.__main__ import main
from smp_advisor.core.files import data_file
from tests.scripts import samples

BASES = data_file("review.findings", "bases")
BROKEN = samples.PIPELINE.replace(", drop_last=True", "")
NUMBERS = ["--microbatches", "4", "--pipeline-parallel-degree", "2"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a broken script, a correct one, and files that no check is for."""
    folder = tmp_path / "project"
    for name, text in {
        "train.py": BROKEN,
        "deeper/other.py": samples.PIPELINE,
        "setup.py": "print('hello')\n",
        ".hidden/train.py": "(",
        "venv/lib/train.py": "(",
        "__pycache__/train.py": "(",
        "notes.txt": "(",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(folder)
    return folder


def run(capsys, *arguments):
    status = main(["check", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def ids(text):
    """Ids in a list of JSON reports."""
    documents = json.loads(text)
    return [finding["id"] for document in documents for finding in document["findings"]]


def test_a_folder_is_checked_without_what_is_not_of_the_project(project, capsys):
    status, shown, complaints = run(capsys, ".", *NUMBERS)
    assert status == 1
    assert not complaints
    assert "train.py:63:14: error SMP109" in shown
    assert "deeper/other.py: no findings by the rules of SMP v1 (PyTorch).\n  Rules applied: SMP v1 (PyTorch)." in shown
    assert (
        "1 file without a library, model, optimizer, training loop or saver that a check applies to: setup.py." in shown
    )
    assert shown.rstrip().endswith("3 files checked: 1 error.")


def test_a_folder_has_jobs_and_scripts(project, capsys):
    Path("launch.py").write_text(BASES["estimator"].replace("2.8.0", "2.99.0"))
    status, shown, _ = run(capsys, ".", "--format", "json")
    found = ids(shown)
    assert status == 1
    assert "EST506" in found
    assert "SMP109" in ids(run(capsys, ".", *NUMBERS, "--format", "json")[1])


@pytest.mark.parametrize("pattern", ["**/train.py", "tr*.py", "train.p[y]"])
def test_a_pattern_that_the_shell_did_not_expand(project, capsys, pattern):
    status, shown, _ = run(capsys, pattern, *NUMBERS, "--exclude", "venv", "--exclude", ".hidden", "--format", "json")
    assert status in (1, 2)
    assert "SMP109" in shown


def test_each_file_is_checked_once(project, capsys):
    status, shown, _ = run(capsys, "train.py", ".", "./train.py", str(project), *NUMBERS, "--format", "json")
    assert status == 1
    assert ids(shown) == ["SMP109"]


@pytest.mark.parametrize("path", ["empty", "nothing*.py", "nowhere.py"])
def test_nothing_to_check_is_no_success(project, capsys, path):
    (project / "empty").mkdir()
    status, shown, complaints = run(capsys, path)
    assert status == 2
    assert "no findings" not in shown
    assert complaints.count("\n") == 1


def test_the_standard_input(project, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BROKEN.encode())))
    status, shown, _ = run(capsys, "-", "--stdin-filename", "src/train.py", *NUMBERS)
    assert status == 1
    assert shown.startswith("src/train.py:63:14: error SMP109")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00")))
    assert run(capsys, "-")[::2] == (
        2,
        "smp-advisor: The standard input is not text in UTF-8: pass the path of the script instead.\n",
    )


def test_modules_next_to_the_standard_input_are_followed(project, capsys, monkeypatch):
    (project / "sizes.py").write_text("microbatches = 4\n")
    text = "import sizes\nimport smdistributed.modelparallel.torch as smp\n"
    text += "smp.init({'microbatches': sizes.microbatches})\n"
    text += BROKEN.partition("\n\n")[2].replace("    smp.init()\n", "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert "SMP109" in run(capsys, "-", "--stdin-filename", "train.py")[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"SMP109", "SMP133"}),
        (["--select", "SMP109"], {"SMP109"}),
        (["--select", "stc,SMP133"], {"SMP133"}),
        (["--ignore", "SMP1"], set()),
        (["--ignore", "SMP1", "--select", "SMP109"], {"SMP109"}),
        (["--select", "ALL", "--ignore", "SMP133"], {"SMP109"}),
    ],
)
def test_checks_by_id_and_prefix(project, capsys, options, expected):
    Path("train.py").write_text(BROKEN.replace("args, _ = parser.parse_known_args()", "args = parser.parse_args()"))
    status, shown, _ = run(capsys, "train.py", *NUMBERS, "--format", "json", *options)
    assert {finding["id"] for finding in json.loads(shown)["findings"]} == expected
    assert status == bool(expected)


def test_an_unknown_check_is_one_sentence(project, capsys):
    status, _, complaints = run(capsys, ".", "--select", "SMP19")
    assert (status, complaints.count("\n")) == (2, 1)
    assert "'SMP19'" in complaints


def test_output_is_written_in_one_step(project, capsys, monkeypatch):
    assert run(capsys, "train.py", *NUMBERS, "--format", "json", "--output", "report.json")[:2] == (1, "")
    assert json.loads(Path("report.json").read_text())["findings"]
    before = Path("report.json").read_bytes()

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        status, _, complaints = run(capsys, ".", "--output", "report.json")
    assert (status, complaints) == (
        2,
        "smp-advisor: 'report.json' cannot be written: No space left on device.\n",
    )
    assert Path("report.json").read_bytes() == before
    assert not list(project.glob(".smp_advisor*"))
    assert run(capsys, ".", "--output", "deeper")[0] == 2


def test_annotations_of_a_workflow_are_escaped(project, capsys):
    script = Path("a,b:c%.py")
    script.write_text(BROKEN)
    status, shown, _ = run(capsys, str(script), *NUMBERS, "--format", "github")
    assert status == 1
    head, _, message = shown.rstrip("\n").rpartition("::")
    assert head == "::error file=a%2Cb%3Ac%25.py,title=SMP109,line=63,col=14,endLine=63,endColumn=64"
    assert "\n" not in message
    broken = Path("broken.py")
    broken.write_text("print 'x'\n")
    status, shown, _ = run(capsys, str(broken), "--format", "github")
    assert status == 2
    assert shown.startswith("::error title=smp_advisor::broken.py, line 1: ")


def test_one_file_that_is_not_python_does_not_hide_the_others(project, capsys):
    Path("broken.py").write_text("(\n")
    status, shown, complaints = run(capsys, ".", *NUMBERS)
    assert status == 2
    assert "SMP109" in shown
    assert "3 files checked: 1 error; 1 file could not be checked." in shown
    assert complaints.startswith("broken.py, line 1: ")


def test_a_check_is_explained_without_a_file(capsys):
    with pytest.raises(SystemExit) as left:
        main(["check", "--explain", "smp109"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("SMP109: The last, partial batch is used\n")
    assert main(["check", "--explain", "SMP999"]) == 2


def test_a_module_is_judged_where_the_script_calls_it(project, capsys):
    head, _, tail = BROKEN.partition("def main():")
    Path("train.py").write_text(
        "from engine import train_step, train, Net\n" + head.partition("class Net")[0] + "def main():" + tail
    )
    Path("engine.py").write_text(
        head.replace("model.backward(loss)", "loss.backward()")
        + "\n\ndef save(model):\n    torch.save(model.state_dict(), 'x')\n"
    )
    status, shown, _ = run(capsys, ".", *NUMBERS)
    assert status == 1
    assert shown.count("error SMP106") == 1
    assert "engine.py:27:5: error SMP106" in shown
    assert "SMP101" not in shown  # the script initializes the library, the module alone does not
    assert "Judged with the scripts that import them: engine.py." in shown
    assert "engine.py:50: No checked script calls save: not judged in this module." in shown
    Path("evaluate.py").write_text(Path("train.py").read_text())
    status, shown, _ = run(capsys, ".", *NUMBERS)
    assert shown.count("error SMP106") == 1
    Path("engine.py").write_text(Path("engine.py").read_text() + "\nif __name__ == '__main__':\n    save(Net())\n")
    assert "Judged with" not in run(capsys, ".", *NUMBERS)[1]


def test_files_of_a_suite_of_commands_are_judged_each(project, capsys):
    names = "abce"
    calls = ", ".join(f"'{name}': {name}.run" for name in names)
    Path("main.py").write_text(f"import {', '.join(names)}\nfrom jsonargparse import CLI\nCLI({{{calls}}})\n")
    for name in names:
        text = "import torch.distributed as d\ndef run(loss, rank):\n    loss.backward()\n    rank or d.barrier()\n"
        Path(f"{name}.py").write_text(text)
    assert run(capsys, ".", "--format", "json")[1].count('"DDP606"') == len(names)


@pytest.mark.slow
def test_a_deleted_folder_is_one_sentence(tmp_path):
    (tmp_path / "gone").mkdir()
    words = ["sh", "-c", 'rmdir "$PWD" && exec "$0" -m smp_advisor.command check train.py', sys.executable]
    ended = subprocess.run(words, cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "The working directory no longer exists" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
