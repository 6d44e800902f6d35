"""What comes from others passes one place: files, and words that leave."""

import ast
import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import smp_advisor
from smp_advisor.core import files
from smp_advisor.errors import AdvisorError
from smp_advisor.session.project import project_of
from smp_advisor.tools.interface import Caller, call
from smp_advisor.tools.server import _worked
from tests.sources import PACKAGE, trees

CUSTOM = {
    "gpu": "X1", "usable_gpu_memory_gib": 40, "peak_tflops": 300, "gpus_per_node": 8, "nodes": 1,
    "intra_node_gb_per_s": 600, "inter_node_gbps": 0,
}  # fmt: skip
OPENS = {"read_text", "read_bytes", "expanduser", "open"}
CHILDREN = ("profiling/", "rehearsal/", "sandbox/", "export/templates/")
"""Code of child processes, which reads what its parent wrote, and scripts of users."""


def _opened_elsewhere(file: Path, tree: ast.Module) -> list[str]:
    own = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(("files", "advice.written", "readers"))
        for name in node.names
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in OPENS - own and node.func.id in ("open", "expanduser"):
            found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in OPENS:
            receiver = ast.unparse(node.func.value)
            if "files(" in receiver or "resources." in receiver or receiver in ("files", "webbrowser"):
                continue  # data of the package, and the door itself
            mode = ast.unparse(node.args[0]) if node.args else ""
            if node.func.attr == "open" and ("w" in mode or "x" in mode):
                continue
            found.append(f"{file.relative_to(PACKAGE)}:{node.lineno} {receiver}.{node.func.attr}")
    return found


def test_files_of_others_are_opened_in_one_place():
    names = {file: str(file.relative_to(PACKAGE)) for file in trees()}
    modules = [file for file, name in names.items() if not name.startswith((*CHILDREN, "core/files.py"))]
    assert [place for file in modules for place in _opened_elsewhere(file, trees()[file])] == []


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder whose files may be read, next to one with a script, a log and a configuration that may not."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "train.py").write_text("SECRET = 'outside'\n")
    (outside / "train.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n")
    (outside / "config.json").write_text('{"model_type": "llama"}')
    (outside / "advice.json").write_text("{}")
    (inside / "linked.py").symlink_to(outside / "train.py")
    (inside / "linked").symlink_to(outside)
    os.link(outside / "train.py", inside / "other_name.py")
    (inside / "run").mkdir()
    (inside / "run" / "train.log").symlink_to(outside / "train.log")
    (inside / "beside").mkdir()
    (inside / "beside" / "train.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n")
    (inside / "beside" / "advice.json").symlink_to(outside / "advice.json")
    monkeypatch.chdir(inside)
    return inside


def _answer(root: Path, tool: str, **arguments: object) -> str:
    try:
        return str(call(tool, arguments, Caller(roots=(root,))))
    except AdvisorError as error:
        return f"refused: {error}"


def test_a_tool_reads_no_file_outside_of_its_root(root):
    outside = root.parent / "outside"
    refused = [
        ("check", {"path": "linked.py"}),
        ("check", {"path": str(outside / "train.py")}),
        ("check", {"path": "linked/train.py"}),
        ("check", {"path": "other_name.py"}),
        ("watch", {"run": "run"}),
        ("watch", {"run": "beside"}),
        ("watch", {"run": str(outside / "train.log")}),
        ("why", {"path": "../outside/train.log"}),
        *(("profile", {"config": f"../outside/config.json{end}"}) for end in ("", "/")),
        *(
            ("advise", {"model": model, "instance": "ml.p4d.24xlarge"})
            for model in (
                "../outside/config.json", "../outside/config.json/", "../outside", "linked", "linked/",
                "linked/config.json",
                str(outside), f"{outside}/missing", "../missing/config.json",
            )
        ),
    ]  # fmt: skip
    answers = [(tool, arguments, _answer(root, tool, **arguments)) for tool, arguments in refused]
    assert [row for row in answers if "only files" not in row[2]] == []


def test_text_that_looks_like_a_path_is_text(root):
    outside = root.parent / "outside"
    present, missing = (_answer(root, "check", text=str(outside / name)) for name in ("train.py", "missing.py"))
    assert present.replace("train.py", "missing.py") == missing
    assert "refused" not in _answer(root, "check", text="linked.py")


def test_special_files_and_impossible_names_are_refused_in_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    for path in (tmp_path / "pipe.log", tmp_path, Path("/proc/self/environ"), Path("a\0b"), tmp_path / "missing"):
        with pytest.raises(AdvisorError, match="cannot be read"):
            files.read_text(path, 1000, AdvisorError)
    os.mkfifo(tmp_path / "smp_advisor.toml")
    with pytest.raises(AdvisorError, match="cannot be read"):
        project_of(tmp_path)
    for name in ("~nobody-has-this-name/x.py", "a\0b", 5):
        with pytest.raises(AdvisorError, match="cannot be found"):
            files.user_path(name, AdvisorError)


def test_json_of_too_many_or_too_deep_values_is_an_error_of_its_text(tmp_path):
    log, calibration, config = tmp_path / "train.log", tmp_path / "calibration.json", tmp_path / "config.json"
    for text in ("[" * 100_000, f"[{'1,' * 1_000_001}1]", '{"a":' * 100_000):
        with pytest.raises(ValueError, match="too "):
            files.json_values(text)
        for file, read in ((calibration, smp_advisor.load_calibration), (config, smp_advisor.Model.from_config)):
            file.write_text(text)
            with pytest.raises(AdvisorError, match=re.escape(str(tmp_path))):
                read(file)
        log.write_text(f"step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n{text}\n")
        assert smp_advisor.watch(log).step == 7


def test_the_file_that_is_read_is_the_one_that_was_tested(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "inside" / "plain").write_text("plain")
    real = os.path.realpath
    # Between the opening and the test, the name gets another file.
    monkeypatch.setattr(
        os.path, "realpath", lambda path: real(tmp_path / "inside" / "plain" if "linked" in str(path) else path)
    )
    (tmp_path / "inside" / "linked").symlink_to(tmp_path / "secret")
    with files.confined([tmp_path / "inside"]):
        assert files.read_bytes(tmp_path / "inside" / "plain", 100) == b"plain"
        with pytest.raises(OSError, match="only files"):
            files.read_bytes(tmp_path / "inside" / "linked", 100)


def test_runs_shared_through_links_to_one_file_are_all_kept(tmp_path):
    real = tmp_path / "team.json"
    for number in range(3):
        (tmp_path / f"link{number}.json").symlink_to(real)
    code = (
        "import sys, smp_advisor as smpa\n"
        "advice = smpa.advise('1.3B', 'ml.p4d.24xlarge', library='fsdp')\n"
        "for run in range(6):\n"
        "    seconds = 5.2 + int(sys.argv[2]) / 10 + run / 100\n"
        "    advice.calibrate(step_seconds=seconds).job.calibration.share(sys.argv[1])\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / f"link{number}.json"), str(number)])
        for number in range(3)
    ]
    assert [child.wait() for child in children] == [0] * 3
    assert len(smp_advisor.load_calibration(real).runs) == 18
    assert real.is_file()
    assert not real.is_symlink()
    os.link(real, tmp_path / "other_name.json")
    with pytest.raises(AdvisorError, match="another name"):
        smp_advisor.load_calibration(real).share(real)
    shared = smp_advisor.load_calibration(real)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(AdvisorError, match=r"other\.json"):
        shared.share(tmp_path / "other.json")
    assert (tmp_path / "other.json").read_text() == "{}", "a file of others is kept"


HOSTILE = "m\x1b]0;title\x07\x00\x9b31m\u202e\u200b\ufeff\U000e0041"
HOSTILE += "<img src=x onerror=alert(1)>[a](http://b.example)`c` www.d.example"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\U000e0041]")


def _outputs(tmp_path):
    """Text of every output of the public interface that can show a name, a line or a path of others."""
    shape = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1000}
    model = smp_advisor.Model.from_shape(**shape, name=HOSTILE)
    named = dataclasses.replace(smp_advisor.Cluster("ml.p4d.24xlarge", 2).instance, name=HOSTILE, custom=True)
    cluster = smp_advisor.Cluster(named, 2)
    advice = smp_advisor.advise(model, cluster, sequence_length=512, library="fsdp")
    yield from map(str, (advice, advice.ladder(), advice.rank_map()))
    yield from map(repr, (advice, model, cluster, advice.job, advice.plan))
    yield advice.report(details=True)
    yield advice.alternatives.to_string()
    for name in ("report.html", "advice.json"):
        advice.save(tmp_path / name)
        yield (tmp_path / name).read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(
        f"import torch\nx = {HOSTILE!r}\n# {HOSTILE.replace(chr(0), '')}\nmodel = torch.nn.DataParallel(x)\n"
    )
    yield str(smp_advisor.check_script(script))
    named = tmp_path / f"{HOSTILE.replace(chr(0), '').replace('/', '')}.py"
    named.write_text(script.read_text())
    yield from (str(smp_advisor.check_script(named)), smp_advisor.check_script(named)._repr_html_())
    yield str(smp_advisor.check_estimator({"instance_type": HOSTILE, "distribution": {"torch_distributed": HOSTILE}}))
    yield str(smp_advisor.read_failure(f"ValueError: {HOSTILE}\nRuntimeError: CUDA error: {HOSTILE}"))
    (tmp_path / "train.log").write_text(f"step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n{HOSTILE}\n")
    yield str(smp_advisor.watch(tmp_path / "train.log"))
    with pytest.raises(AdvisorError) as error:
        smp_advisor.advise(model, HOSTILE)
    yield str(error.value)
    yield _worked("why", {"text": f"RuntimeError: CUDA out of memory. {HOSTILE}"}, Caller(), threading.Event())
    (tmp_path / "smp_advisor.toml").write_text(f"[policy]\ninstances = [{json.dumps(HOSTILE.replace(chr(127), ''))}]\n")
    run = subprocess.run(
        [sys.executable, "-m", "smp_advisor.command", "advise", "1B", "--instance", "ml.p4d.24xlarge"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    yield run.stdout + run.stderr


def test_a_hostile_name_reaches_no_terminal_and_no_page_as_it_is(tmp_path):
    outputs = list(_outputs(tmp_path))
    assert [text[:200] for text in outputs if CONTROL.search(text)] == []
    assert [text[:200] for text in outputs if text.startswith("<section") and "<img src=x" in text] == []
    assert "<img src=x" not in next(text for text in outputs if text.startswith("<!doctype"))


def test_an_argument_of_another_type_is_named_in_one_sentence():
    advice = smp_advisor.advise("350M", "ml.p4d.24xlarge", library="fsdp", sequence_length=512)
    calls = [
        (lambda: advice.calibrate(step_seconds=5, plan="fsdp"), "plan a Plan or None, not 'fsdp'"),
        (lambda: advice.calibrate(step_seconds=5, cluster="ml.p4d.24xlarge"), "cluster a Cluster or None"),
        (lambda: advice.permissions_cell("v2"), "plan a Plan or None, not 'v2'"),
        (lambda: advice.terms(tags=["a"]), "tags must be a dictionary of strings"),
        (lambda: advice.save(5), "path text or a path, not 5"),
        (lambda: advice.ladder("x"), "plan a Plan, a whole number or None, not 'x'"),
        (lambda: advice.undo("1"), "steps a whole number, not '1'"),
        (lambda: advice.report(details=1), "details True or False, not 1"),
        (lambda: advice.diff(advice.plan), "advice an Advice"),
        (lambda: smp_advisor.Cluster.custom(**CUSTOM | {"peak_tflops": 10**400}), "not a number with over 60 digits"),
        *(
            (lambda name=name, value=value: dataclasses.replace(advice.cluster.instance, **{name: value}), name)
            for name, value in (("gpus", 0), ("gpus", -8), ("usd_per_hour", -5), ("usd_per_hour", "25"),
                                ("usable_gpu_memory_gib", float("inf")), ("peak_tflops", float("nan")))
        ),
    ]  # fmt: skip
    for call_, sentence in calls:
        with pytest.raises(AdvisorError, match=re.escape(sentence)):
            call_()


def test_a_negotiated_price_makes_no_other_instance():
    machine = dataclasses.replace(smp_advisor.Cluster("ml.p4d.24xlarge").instance, usd_per_hour=20.0)
    advice = smp_advisor.advise("1B", smp_advisor.Cluster(machine, 2), library="fsdp")
    assert advice.estimate.usd_per_hour == 40.0
