"""`smp_advisor.toml`: a team's calibration, hardware and policy, in each answer that used them."""

import json

import pytest

import smp_advisor as smpa
from smp_advisor.command.__main__ import main
from smp_advisor.errors import AdvisorError
from smp_advisor.session.project import project_of
from smp_advisor.tools.interface import Caller, call

POLICY = """
instances = ["ml.p4d.24xlarge", "p5.48xlarge"]
max_count = 4
max_usd = "20k"
containers = ["123456789012.dkr.ecr.us-west-2.amazonaws.com/training:7"]
tags = { team = "language" }
"""
HARDWARE = """
[hardware.lab]
gpu = "H100-80GB"
gpus_per_node = 8
intra_node_gb_per_s = 900
inter_node_gbps = 400
usd_per_hour = 60
"""


@pytest.fixture
def project(tmp_path):
    """A folder below that of a project."""
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp").calibrate(step_seconds=5.2)
    advice.job.calibration.save(tmp_path / "calibration.json")
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "smp_advisor.toml").write_text(f'calibration = "calibration.json"\npolicy = "policy.toml"\n{HARDWARE}')
    folder = tmp_path / "experiments" / "one"
    folder.mkdir(parents=True)
    return folder


def test_the_calibration_changes_the_figures_and_is_named(project, tmp_path, monkeypatch, capsys):
    request = {"model": "1.3B", "instance": "p4d", "library": "fsdp"}
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".git").mkdir()
    without = call("advise", request, Caller(roots=(outside,)))
    within = call("advise", request, Caller(roots=(project,)))
    assert "notes" not in without
    assert within["step_seconds"]["value"] > without["step_seconds"]["value"]
    assert "calibration calibration.json, policy (instances, max_count" in within["notes"][0]
    monkeypatch.chdir(project)
    assert main(["advise", "1.3B", "-i", "p4d", "--library", "fsdp"]) == 0
    text = capsys.readouterr().out
    assert "calibration calibration.json" in text
    assert len(text.splitlines()) <= 20
    assert main(["fits", "1.3B", "-i", "p4d", "--library", "fsdp"]) == 0
    text = capsys.readouterr().out
    assert "calibration calibration.json" in text
    assert len(text.splitlines()) <= 5


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"instance": "p4de"}, "allows the instances ml.p4d.24xlarge, ml.p5.48xlarge, not ml.p4de.24xlarge"),
        ({"instance": "p4d", "count": 8}, "allows at most 4 instances, not 8"),
        ({"instance": "p4d", "tokens": "1B", "max_usd": "30k"}, "allows max usd of 20,000, not 30,000"),
    ],
)
def test_the_policy_refuses(project, request_, sentence):
    with pytest.raises(AdvisorError) as error:
        call("advise", {"model": "8B", **request_}, Caller(roots=(project,)))
    assert sentence in str(error.value)


@pytest.mark.slow
def test_the_policy_decides_what_is_open_compared_and_exported(project):
    data = call("advise", {"model": "8B", "tokens": "2B"}, Caller(roots=(project,)))
    assert data["instance"] in ("ml.p4d.24xlarge", "ml.p5.48xlarge")
    assert (data["count"] <= 4, data["usd_total"]["value"] <= 20_000) == (True, True)
    data = call("advise", {"model": "llama-3-70b", "instance": "p4d"}, Caller(roots=(project,)))
    assert not data["fits"]
    # 5 nodes of p4d would be enough, and are more than the policy allows; so is an instance of another type.
    # An adapter fits with SMP v2 alone, for which no script trains adapters.
    assert not data["changes_that_fit"]

    data = call("compare", {"model": "8B", "instance": "p4d", "counts": [1, 2, 8]}, Caller(roots=(project,)))
    assert {row["cluster"] for row in data["rows"]} == {"1 x ml.p4d.24xlarge", "2 x ml.p4d.24xlarge"}
    plan = {"model": "8B", "instance": "p4d", "library": "fsdp", "count": 8}
    with pytest.raises(AdvisorError, match="allows at most 4 instances, not 8"):
        call("estimate", plan, Caller(roots=(project,)))

    data = call(
        "export", {"model": "8B", "instance": "p4d", "library": "fsdp", "details": ["code"]}, Caller(roots=(project,))
    )
    assert "123456789012.dkr.ecr.us-west-2.amazonaws.com/training:7" in data["code"]
    assert '"team"' in data["code"]

    data = call("advise", {"model": "8B", "instance": "lab", "count": 2, "library": "fsdp"}, Caller(roots=(project,)))
    assert (data["instance"], data["gpus"], data["usd_per_hour"]) == ("lab", 16, 120.0)
    assert "hardware lab" in data["notes"][0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("calibraton = 'a.json'", "did you mean calibration?"),
        ("calibration = '../a.json'", "a path of a file in its folder is required"),
        ("policy = 'missing.toml'", "cannot be read"),
        ("policy = 3", "a path of a file in its folder"),
        ("[policy]\ninstances = 'p4d'", "instances cannot be 'p4d'"),
        ("[policy]\ninstances = ['p9']", "Unknown instance type 'p9'"),
        ("[policy]\nmax_usd = 'much'", "max_usd must be a positive number"),
        ("[hardware.lab]\ngpu = 'H100-80GB'", "the hardware 'lab' is not complete"),
        ("calibration = ", "is not TOML"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, text, sentence):
    (tmp_path / "smp_advisor.toml").write_text(text)
    with pytest.raises(AdvisorError) as error:
        project_of(tmp_path)
    assert sentence in str(error.value)


def test_the_skill_is_short_names_every_tool_and_is_installed(tmp_path, capsys):
    assert main(["skill", "--install", str(tmp_path)]) == 0
    text = (tmp_path / "smp-advisor" / "SKILL.md").read_text()
    capsys.readouterr()
    assert main(["skill"]) == 0
    assert capsys.readouterr().out.strip() == text.strip()
    assert len(text.splitlines()) <= 40
    from smp_advisor.tools.interface import TOOLS

    named = {word for word in TOOLS if f"`{word}`" in text}
    assert named == set(TOOLS)
    details = {detail for tool in TOOLS.values() for detail in tool.details}
    assert {"ladder", "alternatives", "memory", "changes"} <= details
    assert json.dumps(text)
