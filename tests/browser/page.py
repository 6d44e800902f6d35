"""A notebook page, driven as a person would."""

import re

from playwright.sync_api import Locator, Page, expect

ADVISE = (
    "%load_ext smp_advisor\n"
    "advice = %smp_advise 10B --instance ml.p4d.24xlarge --count 2 --sequence-length 512 --library smp-v1"
)
"""Two instances: the search of AWS's 16 takes a second."""
REFERENCE = ADVISE.replace("--count 2", "--count 16")
# What runs before the kernel answers can be lost, whatever the page says of the kernel.
CONNECTED = """
async () => {
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  await context?.ready;
  await context?.session?.kernel?.info;
}
"""
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
        """Run a cell to its end."""
        if not self.code(cell).is_visible():
            self.page.evaluate(RUN_COLLAPSED, cell)
            return
        prompt = self.cells.nth(cell).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        ran = prompt.filter(has_text=re.compile(r"\[\d+\]:"), has_not_text=before)
        kernel = self.page.locator("dialog.jp-Dialog button.jp-mod-accept")  # a run without a kernel asks for one
        while not ran.count():
            self.page.evaluate(CONNECTED)
            self.code(cell).click()
            self.page.keyboard.press("Control+Enter")
            expect(ran.or_(kernel).first).to_be_visible()
            if kernel.count():
                kernel.click()

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
