"""``%smp_profile`` and ``%%smp_local`` as a person sees them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

PROFILE = """%load_ext smp_advisor
config = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 1000}
%smp_profile config --sequence-length 128 --stage copy"""
MODULE = """from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).<relu>()
        return x.sum()

model = Net()
%smp_profile model --stage copy --precision fp32"""
SCRIPT = """%%smp_local
print("<b>loss 0.25</b>")"""


@pytest.mark.lab_only
def test_results_are_shown_and_errors_point_at_the_cell(open_notebook, screenshot, refused):
    broken, whole = MODULE.replace("<relu>", "relo"), MODULE.replace("<relu>", "relu")
    notebook = open_notebook(PROFILE, broken, whole, SCRIPT)
    notebook.run(0)
    expect(notebook.output(0).last).to_contain_text("A copy of GPT2LMHeadModel")
    expect(notebook.output(0).first).to_contain_text("done")
    expect(notebook.page.get_by_role("progressbar", name="Profile of config")).to_have_count(0)
    notebook.run(1)
    expect(notebook.output(1).last).to_contain_text("line 10 of cell [2] (`x = block(x).relo()`): AttributeError")
    notebook.run(2)
    expect(notebook.output(2).last).to_contain_text("blocks 6 → 2")
    notebook.run(3)
    expect(notebook.output(3).last).to_contain_text("train.py ran to its end")
    expect(notebook.output(3).last).to_contain_text("not in SageMaker's container")
    assert notebook.output(3).locator("b", has_text="loss").count() == 0
    screenshot(notebook, "profile")
    assert refused == []
