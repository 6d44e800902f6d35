"""Take the pictures of the page: docs/images/advisor.png and advisor-dark.png, and two more frames of the tutorial.

Run it with ``make image`` after a change of the view or its figures. It requires the tools of the browser tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parents[1]
# Server and page of the browser tests. Some installed packages also contain a `tests` package.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(ROOT / "tests")]

import smp_advisor as smpa  # noqa: E402
from tests.browser.conftest import launch  # noqa: E402
from tests.browser.host import Site, open_host  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from smp_advisor.session import Advice

IMAGES = ROOT / "docs" / "images"
FRAMES = (("advisor", 64), ("advisor-step-2", 256), ("advisor-step-3", 124))
"""Name of each picture, and the batch that it shows: recommended, beyond the memory, the largest that fits."""


def take(site: Site, page: Page, advice: Advice, image: Path, batch: int, *, dark: bool = False) -> None:
    """Save the page of an advice at a batch, 1200 x 630 pixels."""
    host = open_host(site, page, width=1216, height=646, dark=dark)
    host.show(advice)
    host.settle()
    if batch != advice.plan.batch_size:
        host.advisor.move(batch_size=batch)
        expect(host.view.get_by_label("Batch size")).to_have_attribute("data-value", str(batch))
        host.settle()
    page.evaluate("document.fonts.ready")
    clip = {"x": 8, "y": 8, "width": 1200, "height": 630}
    page.screenshot(path=str(image), clip=clip, animations="disabled")
    host.close()


def main(folder: Path) -> None:
    """Take all pictures of AWS's 10 billion parameters on 16 instances."""
    advice = smpa.advise(
        "10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512, library="smp-v1", family="gpt2"
    ).recommended
    site = Site()
    with sync_playwright() as play:
        page = launch(play).new_page()
        for name, batch in FRAMES:
            take(site, page, advice, folder / f"{name}.png", batch)
        take(site, page, advice, folder / "advisor-dark.png", FRAMES[0][1], dark=True)
    site.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
