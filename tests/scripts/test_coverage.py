"""Each report states what was seen, what was assumed and what was not followed; a plan's library comes first."""

from __future__ import annotations

import json

import pytest

from smp_advisor.scripts import check_script
from tests.scripts import samples

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
    head, *statement = text[text.index("<source>: no findings.") :].splitlines()
    assert head == "<source>: no findings."
    assert statement[0] == "  Rules applied: SMP v1 (PyTorch)."
    assert "smp.DistributedModel (<source>:" in statement[1]
    assert "training loops: loop (<source>:" in statement[1]
    assert "savers: smp.save" in statement[1]


def test_what_was_not_seen_is_stated():
    report = check_script("import torch\n\nprint(torch.__version__)\n")
    assert "Rules applied: none of a library" in str(report)
    assert "models: none seen; optimizers: none seen; training loops: none seen; savers: none seen" in str(report)


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
