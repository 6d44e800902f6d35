"""Misspelled fields and keywords are reported by a type checker, and completed in a notebook."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import smp_advisor as smpa
from scripts import keywords
from smp_advisor.export.options import JobOptions
from smp_advisor.libraries import libraries
from smp_advisor.libraries.library import plan_fields
from smp_advisor.session.options import keyword_names

if TYPE_CHECKING:
    from smp_advisor.session import Advice

ROOT = Path(__file__).parents[1]

SNIPPET = """\
import smp_advisor as smpa
from scripts import keywords

advice = smpa.advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, tensor_parallel_degree=4)
smpa.advise("10B", "ml.p4d.24xlarge", sequence_lenght=512)  # call-arg
smpa.advise("10B", "ml.p4d.24xlarge", tensor_paralel_degree=4)  # call-arg
smpa.advise("10B", "ml.p4d.24xlarge", tensor_parallel_degree="four")  # arg-type
degree: int = advice.plan.tensor_parallel_degree
advice.plan.tensor_paralel_degree  # attr-defined
job = smpa.Job(sequence_length=512, precision="bf16")
smpa.Job(sequence_lenght=512)  # call-arg
plan = smpa.Plan(tensor_parallel_degree=4, shard_optimizer_state=True, fp16=True)
live: int | None = plan.sdp_max_live_parameters
plan.tensor_paralel_degree  # attr-defined
smpa.Plan(tensor_paralel_degree=4)  # call-arg
shards: int = smpa.Plan(library="smp-v2", hybrid_shard_degree=8).hybrid_shard_degree
cell: str = advice.cell(sdk="v2", data="s3://bucket/data", spot=True, checkpoints="s3://bucket/checkpoints")
advice.cell(spott=True)  # call-arg
advice.quota_cell(job_name="train")
"""


@pytest.mark.release  # the stub is compared with the fields below; mypy reads the whole package
def test_a_type_checker_rejects_what_is_misspelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mypy import api

    monkeypatch.chdir(ROOT)  # for the cache and the configuration of `make check`
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET, "utf-8")
    output, errors, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", str(file)])
    assert not errors
    reported = {int(match[1]): match[2] for match in re.finditer(r"snippet\.py:(\d+): error: .*\[([\w-]+)\]", output)}
    expected = {
        number: line.partition("  # ")[2] for number, line in enumerate(SNIPPET.splitlines(), 1) if "  # " in line
    }
    assert reported == expected


@pytest.fixture(scope="module")
def advice() -> Advice:
    return smpa.advise("350M", "ml.p4d.24xlarge", library="ddp", sequence_length=512, global_batch_size=64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("smpa.advise('10B', instance_c", "instance_count="),
        ("smpa.advise('10B', sequence_l", "sequence_length="),
        ("smpa.advise('10B', tensor_par", "tensor_parallel_degree="),
        ("smpa.advise('10B', voc", "vocab="),
        ("smpa.Job(sequ", "sequence_length="),
        ("smpa.Plan(hybrid_sh", "hybrid_shard_degree="),
        ("smpa.Plan(library='smp-v1', shard_opt", "shard_optimizer_state="),
        ("advice.cell(sd", "sdk="),
        ("advice.cell(checkp", "checkpoints="),
        ("plan.gradient_acc", "gradient_accumulation_steps"),
        ("advice.plan.gradient_acc", "gradient_accumulation_steps"),
    ],
)
def test_a_notebook_completes_keywords(
    advice: Advice,
    typed: str,
    completed: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import jedi

    # A user without a home can write no cache there.
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path_factory.getbasetemp() / "jedi"))
    names = {
        entry.name
        for entry in jedi.Interpreter(typed, [{"smpa": smpa, "advice": advice, "plan": advice.plan}]).complete()
    }
    assert completed in names


def test_the_keywords_are_the_fields() -> None:
    assert keywords.STUB.read_text("utf-8") == keywords.text()
    plans = {name for record in libraries() for name in plan_fields(record.name)} - {"library"}
    job = {field.name for field in fields(smpa.Job)}
    shape = {"family", "layers", "hidden", "heads", "vocab", "activation"}
    names = {*keyword_names("AdviseSettings"), *keyword_names("PlanSettings")}
    assert names == plans | job | shape | {"usd_per_hour"}
    assert keyword_names("JobOptionSettings") == [field.name for field in fields(JobOptions)]
