"""The advisor in a notebook: the application's keys and theme, reports and profiles in outputs."""

import pytest
from playwright.sync_api import expect

from .page import ADVISE

SCRIPT = "import smdistributed.modelparallel.torch as smp\n\nrank = smp.rank()\n"


@pytest.mark.oldest("lab", "notebook")
def test_the_kernel_follows_the_keys_and_nothing_leaves_the_machine(open_notebook, refused):
    notebook = open_notebook(ADVISE, "advice.plan.batch_size")
    view = notebook.advise()
    slider = view.get_by_label("Batch size")
    slider.focus()
    for _ in range(3):
        notebook.page.keyboard.press("ArrowLeft")  # in command mode, it would collapse a heading
    shown = slider.get_attribute("data-value")
    expect(view).to_have_attribute("aria-busy", "false")
    notebook.run(1)
    expect(notebook.output(1)).to_have_text(shown.replace(",", ""))
    notebook.set_theme(dark=True)
    notebook.set_theme(dark=False)
    assert (notebook.errors, refused) == ([], [])


CURSOR = """
() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  const { line } = (content.editor ?? content.activeCell.editor).getCursorPosition();
  return line + 1;
}
"""


@pytest.mark.lab_only
def test_places_of_findings_are_copied_and_opened(open_notebook, server):
    (server.work / "sub").mkdir()
    (server.work / "sub/train.py").write_text("\n" * 200 + SCRIPT)
    notebook = open_notebook(ADVISE.splitlines()[0], f"%%smp_check\n{SCRIPT}", "%smp_check sub/train.py")
    for cell in range(3):
        notebook.run(cell)
    expect(notebook.output(1)).to_contain_text("SMP101")
    copy = notebook.output(1).get_by_role("button", name="Copy place of <cell>:4:8")
    copy.focus()
    notebook.page.keyboard.press("Enter")
    expect(notebook.output(1).get_by_role("status")).to_contain_text("Copied the place of <cell>:4:8.")
    assert notebook.page.evaluate("navigator.clipboard.readText()") == "<cell>:4:8"
    # Without a clipboard the text is there to be taken by hand.
    notebook.page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false; }"
    )
    notebook.output(1).get_by_role("button", name="Copy advice").click()
    expect(notebook.output(1).get_by_role("status")).to_contain_text("The text is selected")
    assert "smp.init()" in notebook.page.evaluate("String(getSelection())")
    notebook.page.evaluate("() => { delete navigator.clipboard.writeText; delete document.execCommand; }")
    notebook.output(1).get_by_role("button", name="Open <cell>:4:8").click()
    notebook.page.wait_for_function(f"({CURSOR})() === 4")
    assert notebook.cells.count() == 3  # the keys reached the buttons alone
    notebook.output(2).get_by_role("button", name="Open sub/train.py:203:8").click()
    notebook.page.wait_for_selector(".jp-FileEditor .cm-content")
    notebook.page.wait_for_function(f"({CURSOR})() === 203")


@pytest.mark.lab_only
def test_a_restarted_kernel_is_shown_and_the_cell_runs_again(advised):
    notebook, view = advised, advised.advisor
    view.get_by_label("Batch size").press("ArrowLeft")
    expect(view).to_have_attribute("aria-busy", "false")
    moved = view.get_by_label("Batch size").input_value()
    notebook.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(view.locator(".smp-kernel")).to_have_attribute("data-status", "gone")
    view.get_by_label("Batch size").evaluate(
        "slider => { slider.value = 0; slider.dispatchEvent(new Event('input')); }"
    )
    view.get_by_role("button", name="Run the cell again").click()
    expect(notebook.advisor.locator(".smp-kernel")).to_have_attribute("data-status", "live")
    notebook.advisor.get_by_role("button", name="Back to the plan before the restart").click()
    expect(notebook.advisor.get_by_label("Batch size")).to_have_value(moved)
    expect(notebook.advisor).to_have_attribute("aria-busy", "false")
    expect(notebook.advisor.locator(".smp-change")).to_contain_text("advice.move(")
    assert notebook.errors == []


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
LOCAL = """%%smp_local
print("<b>loss 0.25</b>")"""


@pytest.mark.lab_only
def test_results_are_shown_and_errors_point_at_the_cell(open_notebook, refused):
    broken, whole = MODULE.replace("<relu>", "relo"), MODULE.replace("<relu>", "relu")
    notebook = open_notebook(PROFILE, broken, whole, LOCAL)
    notebook.run(0)
    expect(notebook.output(0).last).to_contain_text("A copy of GPT2LMHeadModel")
    expect(notebook.output(0).filter(has_text="done")).to_have_count(1)  # warnings of transformers may come before it
    expect(notebook.page.get_by_role("progressbar", name="Profile of config")).to_have_count(0)
    notebook.run(1)
    expect(notebook.output(1).last).to_contain_text("line 10 of cell [2] (`x = block(x).relo()`): AttributeError")
    notebook.run(2)
    expect(notebook.output(2).last).to_contain_text("blocks 6 → 2")
    notebook.run(3)
    expect(notebook.output(3).last).to_contain_text("train.py: ran to the end")
    assert notebook.output(3).locator("b", has_text="loss").count() == 0
    assert refused == []
