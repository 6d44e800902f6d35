"""Anything may be given; what cannot be checked is said in one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor.errors import AdvisorError
from smp_advisor.review.scripts import Report, check_script
from tests.scripts import samples
from tests.steps import Steps


def refusal(*arguments, **keywords) -> str:
    with pytest.raises(AdvisorError) as caught:
        check_script(*arguments, **keywords)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def attempt(text: str, plan) -> Report | AdvisorError:
    try:
        return check_script("\n" + text, plan)
    except AdvisorError as error:
        return error


def notebook(path, *cells):
    content = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": []} for cell in cells],
    }
    path.write_text(json.dumps(content))
    return path


def test_texts_that_are_no_scripts():
    assert "<source>, line 2" in refusal("x = 1\ny = (\n")

    assert "Python 2" in refusal("import torch\nprint 'loss', loss\n")
    assert "Python 2" in refusal("try:\n    pass\nexcept A, b:\n    pass\n")

    refusal("x = 1\0\n")
    refusal("x = " + "(" * 5000 + ")" * 5000 + "\n")
    refusal("x = " + "+".join(["a"] * 20_000) + "\n")

    assert "text or a path" in refusal(3)
    assert "smp-v3" in refusal("", library="smp-v3")
    assert "Plan" in refusal("", plan=7)


@given(st.text(max_size=300))
def test_any_text_gives_a_report_or_a_sentence(text):
    assert isinstance(attempt(text, None), Report | AdvisorError)


@given(st.integers(min_value=0, max_value=len(samples.TENSOR)), st.integers(min_value=0, max_value=200))
def test_a_script_with_a_piece_cut_out_gives_a_report_or_a_sentence(start, length):
    text = samples.TENSOR[:start] + samples.TENSOR[start + length :]
    report = attempt(text, samples.TENSOR_PLAN)
    assert str(report)
    if isinstance(report, Report):
        assert report._repr_html_()


def test_a_notebook_with_magics_and_its_fixes(tmp_path):
    path = notebook(
        tmp_path / "train.ipynb",
        "%load_ext smp_advisor\n!pip install torch\nfiles = !ls\n",
        "%%bash\nls -l | wc\n",
        "pip install something",
        "%%writefile train.py\n" + samples.PIPELINE.replace(", drop_last=True", ""),
    )
    report = check_script(path, samples.PIPELINE_PLAN)
    (finding,) = report
    assert finding.id == "SMP109"
    assert finding.path == f"{path}#cell-4"
    assert finding.text in samples.PIPELINE.replace(", drop_last=True", "").splitlines()
    assert samples.PIPELINE.splitlines()[finding.line - 2].startswith("    loader = DataLoader")
    assert [note.path for note in report.unresolved] == [f"{path}#cell-3"]

    broken = samples.PIPELINE.replace(", drop_last=True", "").replace("rank=smp.dp_rank()", "rank=smp.rank()")
    path = notebook(tmp_path / "train.ipynb", "!pip install torch\nprint(1)\n", "%%writefile train.py\n" + broken)
    report = check_script(path, samples.PIPELINE_PLAN)
    assert [finding.id for finding in report] == ["SMP111", "SMP109"]
    (finding,) = check_script("%%smp_check\n" + samples.PIPELINE.replace(", drop_last=True", ""), samples.PIPELINE_PLAN)
    assert finding.path == "<cell>"


def test_files_that_are_no_scripts(tmp_path):
    assert "nowhere.py" in refusal(tmp_path / "nowhere.py")
    assert "nowhere.py" in refusal("nowhere.py")

    assert "folder" in refusal(tmp_path)

    path = tmp_path / "model.py"
    path.write_bytes(bytes(range(256)) * 40)
    assert "not text" in refusal(path)
    path.write_bytes(b"x = '\xff\xfe'\n")
    assert "not text" in refusal(path)

    (tmp_path / "a.ipynb").write_text("{}")
    assert "notebook" in refusal(tmp_path / "a.ipynb")

    assert list(check_script("")) == []
    (tmp_path / "empty.py").write_text("")
    assert list(check_script(tmp_path / "empty.py")) == []


def test_encodings_and_line_ends(tmp_path):
    path = tmp_path / "train.py"
    text = samples.PIPELINE.replace(", drop_last=True", "").replace("import argparse", "# größer – 大\nimport argparse")
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (finding,) = check_script(path, samples.PIPELINE_PLAN)
    assert finding.text == "    loader = DataLoader(dataset, batch_size=64, sampler=sampler)"


@pytest.mark.slow
def test_the_work_grows_with_the_lines():
    functions = samples.PIPELINE.partition("if __name__")[0].partition("def train(")[2]
    parts = [samples.PIPELINE]
    number = 0
    while sum(part.count("\n") for part in parts) < 5_000:
        number += 1
        parts.append(f"\n\ndef train{number}(" + functions.replace("def main(", f"def main{number}("))
    text = "".join(parts)
    with Steps() as work:
        check_script(text, samples.PIPELINE_PLAN)
    assert work.count < 1_000 * text.count("\n")
