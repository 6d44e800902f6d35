"""Reports of the checker: text, JSON, SARIF, annotations, and what the check saw."""

import json

import pytest

from smp_advisor.command.__main__ import main
from smp_advisor.review.scripts import Finding, Report, check_script
from tests.scripts import samples

BROKEN = samples.PIPELINE.replace(", drop_last=True", "")
PLAN = samples.PIPELINE_PLAN


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BROKEN)
    return path


def test_a_report_is_a_list_of_findings():
    report = check_script(BROKEN, PLAN)
    assert isinstance(report, Report)
    assert len(report) == 1
    assert isinstance(report[0], Finding)
    assert list(report) == [report[0]] == list(report[:1])
    assert not check_script(samples.PIPELINE, PLAN)


def test_the_caret_stands_under_the_place():
    lines = str(check_script(BROKEN, PLAN)).splitlines()
    assert lines[0].startswith("<source>:63:14: error SMP109: ")
    assert lines[1][lines[2].index("^") :].startswith("DataLoader(")
    assert "<source>: 1 error." in lines


def test_the_caret_with_wide_letters_and_tabs():
    text = BROKEN.replace("    loader = DataLoader(dataset", "    名前 = dataset; loader = DataLoader(dataset")
    lines = str(check_script(text, PLAN)).splitlines()
    before = lines[1].partition("DataLoader(")[0]
    assert lines[2].index("^") == len(before) + 2  # two letters of double width


def test_a_very_long_line_is_cut_around_the_place():
    text = BROKEN.replace("loader = DataLoader(", f"loader = {'x' * 300} or DataLoader(")
    lines = str(check_script(text, PLAN)).splitlines()
    assert len(lines[1]) < 200
    assert lines[1][lines[2].index("^") :].startswith("DataLoader(")


def test_the_page_escapes_what_the_script_says():
    text = BROKEN.replace("sampler=sampler)", "sampler=sampler, timeout='<script>alert(1)</script>')")
    page = check_script(text, PLAN)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<details") == page.count("</details>") >= 1


def test_json_holds_everything_but_the_file():
    data = json.loads(check_script(BROKEN, PLAN).to_json())
    (finding,) = data["findings"]
    assert finding["id"] == "SMP109"
    assert finding["fix"] is None


@pytest.mark.parametrize(
    "comment",
    [
        ("sampler=sampler)", "sampler=sampler)  # smp: ignore[SMP109] the sampler drops it"),
        ("    loader = DataLoader", "    # smp: ignore[SMP109] the sampler drops it\n    loader = DataLoader"),
        (
            "    loader = DataLoader",
            "    # smp: ignore[EST501, smp109] two things\n    # and more words\n    loader = DataLoader",
        ),
        (
            "batch_size=64, sampler=sampler)",
            "batch_size=64,\n        sampler=sampler,  # smp: ignore[SMP109] dropped\n    )",
        ),
    ],
)
def test_a_comment_silences_a_finding_with_a_reason(comment):
    assert not check_script(BROKEN.replace(*comment), PLAN)


def test_a_comment_for_another_check_or_line_silences_nothing():
    commented = BROKEN.replace("sampler=sampler)", "sampler=sampler)  # smp: ignore[SMP110] no")
    for text in (commented, "# smp: ignore[SMP109] no\n" + BROKEN):
        assert [finding.id for finding in check_script(text, PLAN)] == ["SMP109"]
    assert (
        len(check_script(BROKEN.replace("sampler=sampler)", "sampler=sampler, x='# smp: ignore[SMP109] no')"), PLAN))
        == 1
    )


def test_a_comment_without_a_reason_is_not_heeded():
    report = check_script(BROKEN.replace("sampler=sampler)", "sampler=sampler)  # smp: ignore[SMP109]"), PLAN)
    assert [finding.id for finding in report] == ["SMP109"]


def test_the_command_line_s_exit_status(script, tmp_path, capsys):
    assert main(["check", str(tmp_path / "nowhere.py")]) == 2
    assert main(["check", str(script), "--plan", str(tmp_path / "nowhere.json")]) == 2
    (tmp_path / "bad.json").write_text("[1]")
    assert main(["check", str(script), "--plan", str(tmp_path / "bad.json")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(["check", str(script), "--microbatches", "1"]) == 0
    warns = tmp_path / "sharded.py"
    warns.write_text(samples.SHARDED.replace(", backward_passes_per_step=ACCUMULATE", ""))
    assert main(["check", str(warns), "--sharded-data-parallel-degree", "16"]) == 0
    assert main(["check", str(warns), "--sharded-data-parallel-degree", "16", "--strict"]) == 1


PLAIN = """\
import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in batches:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def test_nothing_is_reported_only_with_what_was_seen():
    text = str(check_script(samples.PIPELINE, samples.PIPELINE_PLAN))
    head, *statement = text[text.index("<source>: no findings") :].splitlines()
    assert head == "<source>: no findings by the rules of SMP v1 (PyTorch)."
    assert statement[0] == "  Rules applied: SMP v1 (PyTorch)."
    assert "smp.DistributedModel (<source>:" in statement[1]
    assert "training loops: loop (<source>:" in statement[1]
    assert "savers: smp.save" in statement[1]


def test_what_was_not_seen_is_stated():
    report = check_script("import torch\n\nprint(torch.__version__)\n")
    assert "<source>: nothing was checked: it has no model" in str(report)
    assert "Rules applied: none of a library" in str(report)
    assert "models: none seen; optimizers: none seen; training loops: none seen; savers: none seen" in str(report)
    own = "from transformers import Trainer\nclass Own(Trainer):\n    pass\nOwn(model, args).train()\n"
    seen = "models: Own (<source>:4); optimizers: that of Trainer; training loops: Own(model, args).train()"
    assert seen in str(check_script(own))


def test_the_statement_is_in_every_form():
    report = check_script(samples.PIPELINE, samples.PIPELINE_PLAN)
    assert "Rules applied: SMP v1 (PyTorch)." in report._repr_html_()
    assert json.loads(report.to_json())["coverage"]["libraries"] == ["SMP v1 (PyTorch)"]
    (run,) = json.loads(report.to_sarif())["runs"]
    assert run["properties"]["coverage"]["<source>"]["parts"][0]["role"] == "models"


@pytest.mark.parametrize(
    ("plan", "missing"),
    [
        ({"library": "smp-v1", "microbatches": 4}, "smp.init(), torch.cuda.set_device(smp.local_rank())"),
        ({"microbatches": 4}, "smp.DistributedOptimizer and @smp.step"),
        ({"library": "smp-v2"}, "`import torch.sagemaker as tsm`, tsm.init() and FSDP around the model"),
        ({"library": "fsdp"}, "FullyShardedDataParallel or fully_shard"),
        ({"library": "training-compiler"}, "import torch_xla"),
    ],
)
def test_a_script_without_the_library_of_the_plan_is_the_first_finding(plan, missing):
    first = check_script(PLAIN, plan)[0]
    assert (first.id, first.severity) == ("SMP001", "error")
    assert missing in first.message


def test_every_call_that_is_missing_is_listed_at_once():
    half = "import smdistributed.modelparallel.torch as smp\n" + PLAIN
    first = check_script(half)[0]
    assert first.id == "SMP002"
    for call in ("smp.init()", "set_device", "smp.DistributedModel", "smp.DistributedOptimizer", "@smp.step"):
        assert call in first.message
    rest = check_script(half.replace("model = torch", "smp.init()\nmodel = torch"))[0]
    assert rest.id == "SMP002"
    assert "smp.init()" not in rest.message


def test_a_trainer_needs_no_calls_of_its_own():
    text = "from transformers import Trainer\n\ntrainer = Trainer(model)\ntrainer.train()\n"
    for library in ("smp-v1", "training-compiler", "fsdp"):
        assert not check_script(text, library=library)
    assert not check_script(f"import smdistributed.modelparallel.torch as smp\n{text}print(smp.rank())\n", PLAN)
