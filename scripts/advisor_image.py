"""Take docs/images/advisor.png: the advisor in JupyterLab after a move of one slider.

Run it with ``make image`` after a change of the view or its figures. It requires the tools of the browser tests.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import ModuleType

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parents[1]
# Server and page of the browser tests. Some installed packages also contain a `tests` package.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.browser.application import Application  # noqa: E402
from tests.browser.conftest import launch  # noqa: E402
from tests.browser.page import REFERENCE  # noqa: E402
from tests.browser.server import serve, write_notebook  # noqa: E402

IMAGE = ROOT / "docs" / "images" / "advisor.png"
SIZE = {"width": 1200, "height": 1200}


def take(image: Path) -> None:
    """Advise on the README's model, move the batch size one step down, and save a screenshot."""
    with tempfile.TemporaryDirectory() as folder, serve("lab", ROOT, Path(folder)) as server, sync_playwright() as play:
        browser = launch(play)
        write_notebook(server.work / "quickstart.ipynb", REFERENCE)
        notebook = Application(browser.new_context(viewport=SIZE), server).open("quickstart.ipynb")
        notebook.page.keyboard.press("Control+b")  # closes the file browser
        advisor = notebook.advise()
        slider = advisor.get_by_label("Batch size")
        slider.focus()
        notebook.page.keyboard.press("ArrowLeft")
        expect(advisor).to_have_attribute("aria-busy", "false")
        expect(advisor.locator(".smp-change")).to_contain_text("Batch size")
        expect(advisor.locator("[aria-busy='true'], .smp-older")).to_have_count(0)
        notebook.page.evaluate("document.fonts.ready")
        notebook.page.screenshot(path=str(image))
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGE)
