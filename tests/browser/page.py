"""A notebook page, driven as a person would."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

ADVISE = "%load_ext smp_advisor\nadvice = %smp_advise 10B --instance ml.p4d.24xlarge --count 16 --sequence-length 512"


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

    def output(self, cell: int) -> Locator:
        return self.cells.nth(cell).locator(".jp-Cell-outputArea")

    def run(self, cell: int) -> None:
        """Run a cell; until the kernel is attached a run is lost, so this is repeated until the prompt changes."""
        prompt = self.cells.nth(cell).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        for _ in range(60):
            self.code(cell).click()
            self.page.keyboard.press("Control+Enter")
            try:
                expect(prompt).not_to_have_text(before, timeout=500)
            except AssertionError:
                continue
            break
        expect(prompt).not_to_have_text("[*]:", timeout=60_000)

    def advise(self) -> Locator:
        """Run the first cell, which shows an advisor."""
        self.run(0)
        expect(self.advisor).to_be_visible(timeout=20_000)
        return self.advisor

    def set_theme(self, *, dark: bool) -> None:
        self.page.get_by_role("menuitem", name="Settings").click()
        self.page.locator(".lm-Menu-item", has_text="Theme").first.hover()
        self.page.locator(".lm-Menu-item", has_text=f"JupyterLab {'Dark' if dark else 'Light'}").first.click()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{'false' if dark else 'true'}']", state="attached")
