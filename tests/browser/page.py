"""A notebook page, driven as a person would."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

ADVISE = (
    "%load_ext smp_advisor\n"
    "advice = %smp_advise 10B --instance ml.p4d.24xlarge --count 2 --sequence-length 512 --library smp-v1"
)
"""Two instances: the search of AWS's 16 takes a second."""
REFERENCE = ADVISE.replace("--count 2", "--count 16")
RUN_COLLAPSED = """
async index => {
  const { shell, commands } = window.jupyterapp;
  shell.currentWidget.content.activeCellIndex = index;
  await commands.execute('notebook:run-cell');
}
"""


class NotebookPage:
    """One notebook in one browser tab."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell")

    @property
    def advisor(self) -> Locator:
        """The widget's view."""
        return self.page.locator(".smp").first

    def code(self, cell: int) -> Locator:
        return self.cells.nth(cell).locator(".cm-content")

    def source(self, cell: int) -> str:
        """The whole text of a cell."""
        script = "i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.getSource()"
        return self.page.evaluate(script, cell)

    def output(self, cell: int) -> Locator:
        return self.cells.nth(cell).locator(".jp-OutputArea-output")

    def run(self, cell: int) -> None:
        """Run a cell to its end; before the kernel is attached a run is lost, so until it has a number."""
        if not self.code(cell).is_visible():
            self.page.evaluate(RUN_COLLAPSED, cell)
            return
        prompt = self.cells.nth(cell).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        for _ in range(60):
            dialog = self.page.locator("dialog.jp-Dialog")
            if dialog.is_visible():
                # A run without a kernel asks which to start.
                dialog.locator("button.jp-mod-accept").click()
            self.code(cell).click()
            self.page.keyboard.press("Control+Enter")
            try:
                expect(prompt).not_to_have_text(before, timeout=5_000)
            except AssertionError:
                continue
            expect(prompt).not_to_have_text("[*]:")
            if re.fullmatch(r"\[\d+\]:", prompt.inner_text()) and prompt.inner_text() != before:
                return
        raise AssertionError(f"cell {cell} did not run: its prompt says {prompt.inner_text()}")

    def advise(self) -> Locator:
        """Run the first cell, which shows an advisor."""
        self.run(0)
        expect(self.advisor).to_be_visible()
        return self.advisor

    def set_theme(self, *, dark: bool) -> None:
        self.page.get_by_role("menuitem", name="Settings").click()
        self.page.locator(".lm-Menu-item", has_text="Theme").first.hover()
        self.page.locator(".lm-Menu-item", has_text=f"JupyterLab {'Dark' if dark else 'Light'}").first.click()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{'false' if dark else 'true'}']", state="attached")
