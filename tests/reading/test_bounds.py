"""Hostile texts and files: each is answered in one sentence, with little work and memory."""

import json
import os
import resource
import subprocess
import sys

import pytest

from smp_advisor.estimators import check_estimator
from smp_advisor.review.scripts import check_script
from tests.steps import MOST_STEPS

pytestmark = pytest.mark.slow  # all of them together

_CHILD = """
import json, pathlib, resource, sys
import smp_advisor as smpa
from smp_advisor.errors import AdvisorError
from smp_advisor.review.scripts import check_script
sys.path.append("tests")
from steps import Steps
try:
    smpa.check_estimator({"partitions": 2, "microbatches": 4, "ddp": True})
    check_script("import torch\\n")
    smpa.check_estimator("trainer: {a: 1}\\nmodel: {b: 1}\\n")
except AdvisorError:
    pass
readers = {"estimator": smpa.check_estimator, "script": check_script, "model": smpa.Model.from_config}
results = {}
for name, reader, text, path in json.load(sys.stdin):
    before, work = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Steps()
    try:
        with work:
            report = readers[reader](pathlib.Path(path) if path else text)
        answer = [note.what for note in report.unresolved]
    except AdvisorError as error:
        answer = [str(error)]
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    results[name] = [work.count, used, answer]
print(json.dumps(results))
"""
_TAIL = "\nPyTorch(entry_point='t.py', instance_type='ml.p4d.24xlarge', instance_count=x, framework_version='1.13.1')\n"
_SMP = (
    "PyTorch(entry_point='t.py', instance_type='ml.p4d.24xlarge', instance_count=2, framework_version='1.13.1',"
    " distribution={{'mpi': {{'enabled': True, 'processes_per_host': 8}}, 'smdistributed': {{'modelparallel':"
    " {{'enabled': True, 'parameters': {{{}}}}}}}}})\n"
)


def _cell(code: str) -> str:
    return f"from sagemaker.pytorch import PyTorch\n{code}{_TAIL}"


def _laughs() -> str:
    lines, before = ["a: &a [x, x, x, x, x, x, x, x, x, x]"], "a"
    for name in "bcdefgh":
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]")
        before = name
    return "\n".join(lines) + "\n"


TEXTS = {
    "aliases": ("estimator", _laughs(), "more than 10,000 values"),
    "nested YAML": ("estimator", "run: " + "[" * 1000 + "]" * 1000, "more than 40 levels"),
    "nested Python": ("script", "x = " + "(" * 10_000 + "1" + ")" * 10_000 + "\n", "too many nested parentheses"),
    "long sum": ("script", "x = " + "+".join(["1"] * 50_000) + "\n", "nested too deeply"),
    "doubled text": ("estimator", _cell("x = 'ab' * 3000\nx = x + x"), "beyond 8,000 characters"),
    "doubled list": ("estimator", _cell("x = [1, 2]\n" + "x = x + x\n" * 24), "is not known"),
    "grown list": ("estimator", _cell("x = [1] * 2000\n" + "x = x + x\n" * 5), "beyond 20,000 items"),
    "nested list": ("estimator", _cell("x = []\n" + "x = [x, x]\n" * 24), "is not known"),
    "nested dictionary": ("estimator", _cell("x = {}\n" + "x = {'a': x, 'b': x}\n" * 24), "is not known"),
    "extended list": ("estimator", _cell("x = []\n" + "x.extend(x + [1])\n" * 26), "extend()"),
    "wide number": ("estimator", _cell("x = '%1000000000d' % 1"), "is not known"),
    "padded text": ("estimator", _cell("x = 'a'.ljust(10**9)"), "ljust"),
    "repeated list": ("estimator", _cell("x = [0] * 10**9"), "is not known"),
    "long range": ("estimator", _cell("x = list(range(10**12))"), "range"),
    "power": ("estimator", _cell("x = 10**10**10"), "is not known"),
    "comprehension": ("estimator", _cell("x = [a * b for a in range(2000) for b in range(2000)]"), "too much code"),
    "unknown parameters": ("estimator", _SMP.format(", ".join(f"'p{i}': {i}" for i in range(80))), "a part of"),
    "long text": ("script", "x = 1\n" * 200_000, "longer than 500,000 characters"),
}
TEXTS |= {
    "many parameters": ("estimator", _SMP.format(", ".join(f"'p{i}': {i}" for i in range(3000))), "at most 500"),
    "many jobs": ("estimator", _SMP.format("'microbatches': 4") * 120, "the first 100 are checked"),
    "long number": ("estimator", _cell("n = '" + "9" * 5000 + "'\nx = int(n)"), "is not known"),
}
SIZES = {"t.py": 200, "t.ipynb": 200, "t.yaml": 200, "config.json": 200}
MIB = 200


@pytest.fixture(scope="module")
def answers(tmp_path_factory, root) -> dict[str, list]:
    folder = tmp_path_factory.mktemp("bounds")
    cases = [[name, reader, text, ""] for name, (reader, text, _) in TEXTS.items()]
    for name, megabytes in SIZES.items():
        with (folder / name).open("wb") as file:
            file.truncate(megabytes * 10**6)
        reader = {"config.json": "model", "t.yaml": "estimator"}.get(name, "script")
        cases.append([name, reader, "", str(folder / name)])
    values = folder / "values" / "config.json"
    values.parent.mkdir()
    values.write_text('{"model_type": "gpt2", "x": [' + ",".join(["[]"] * 2_000_000) + "]}")
    cases.append(["many values", "model", "", str(values)])
    os.mkfifo(folder / "pipe.py")
    for path in ("/dev/zero", "/proc/kmsg", folder / "pipe.py"):
        cases += [[f"{reader} {path}", reader, "", str(path)] for reader in ("script", "estimator", "model")]
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30)),
    )
    assert child.returncode == 0, child.stderr
    results: dict[str, list] = json.loads(child.stdout)
    return results


def test_each_is_answered_in_one_sentence_with_little_work(answers):
    over = {name: used[:2] for name, used in answers.items() if used[0] > MOST_STEPS or used[1] > MIB}
    assert not over

    for sentences in (answer for _, _, answer in answers.values()):
        assert sentences
        assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)


def test_the_reason(subtests, answers):
    for name in TEXTS:
        with subtests.test(name):
            assert any(TEXTS[name][2] in sentence for sentence in answers[name][2]), answers[name]


def test_files_that_are_not_regular_or_too_large(answers):
    for name, (_, _, sentences) in answers.items():
        if "/" in name:
            assert "not a regular file" in sentences[0]
        elif name in SIZES:
            assert "larger than" in sentences[0]


def test_long_chains_and_large_variables():
    classes = "".join(f"class C{i + 1}(C{i}):\n    a = 1\n" for i in range(1100))
    assert not list(check_script(f"import torch\nclass C0(torch.nn.Module):\n    pass\n{classes}model = C1100()\n"))
    nested: list[object] = []
    nested.append(nested)
    report = check_estimator(_cell("n = 1"), variables={"x": nested, "y": [0] * 10**6, "z": [[[0] * 99] * 99] * 99})
    assert [note.what for note in report.unresolved]
