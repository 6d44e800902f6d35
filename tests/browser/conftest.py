"""One browser for all tests, and one server, one page and one kernel for the tests of each application."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, Playwright, Request, expect, sync_playwright

from scripts import browser

from .application import VIEWPORT, Application
from .host import Host, Site, open_host
from .page import ADVISE, NotebookPage
from .server import Server, serve, write_notebook

if TYPE_CHECKING:
    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.session import Advice

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Letters look the same whatever the settings of the machine's fonts and screen are.
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
    # Routes of Playwright would have the same effect, and switch the cache of files and of compiled code off.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
"""No page reaches more than this machine."""

PATIENCE_MS = 600_000
"""Far beyond what a machine ten times slower needs: what is there at once is not waited for."""
expect.set_options(timeout=PATIENCE_MS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-pictures", action="store_true", help="write the pictures of test_pictures.py anew")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "oldest(*applications): runs in their oldest supported versions, too")
    config.addinivalue_line("markers", "lab_only: what this tests is the same code in Notebook 7, or not there")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        only_lab = metafunc.definition.get_closest_marker("lab_only") is not None
        # Notebook 7 loads the same extension.
        applications = ["lab", *[pytest.param("notebook", marks=pytest.mark.release)] * (not only_lab)]
        if (oldest := metafunc.definition.get_closest_marker("oldest")) is not None:
            applications += [f"oldest_{application}" for application in oldest.args]
        metafunc.parametrize("server", applications, indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.browser)


def require_front_end(root: Path) -> None:
    if not (root / "smp_advisor/static/widget.js").is_file():
        pytest.fail("the front end is not built: run npm run build in js/")


@pytest.fixture(scope="session")
def server(request, root: Path, tmp_path_factory) -> Iterator[Server]:
    require_front_end(root)
    python = sys.executable
    if request.param.startswith("oldest_"):
        python = str(root / ".venv-lab/oldest/bin/python")
        if not Path(python).is_file():
            pytest.fail("there is no environment with the oldest JupyterLab: run scripts/oldest_jupyter.sh")
    application = request.param.removeprefix("oldest_")
    with serve(application, root, tmp_path_factory.mktemp(request.param), python=python) as running:
        yield running


def launch(playwright: Playwright) -> Browser:
    """The browser of the machine, without a window."""
    return playwright.chromium.launch(executable_path=browser.installed(), headless=True, args=ARGUMENTS)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture(scope="session")
def requested_elsewhere() -> list[str]:
    """Addresses beyond the server that a page requested."""
    return []


@pytest.fixture
def refused(requested_elsewhere: list[str]) -> list[str]:
    """Addresses beyond the server that the test's page requested."""
    requested_elsewhere.clear()
    return requested_elsewhere


@pytest.fixture(scope="session")
def application(chromium: Browser, server: Server, requested_elsewhere: list[str]) -> Iterator[Application]:
    """One person's page, whose requests beyond the server are noted."""
    context = chromium.new_context(viewport=VIEWPORT)
    context.set_default_timeout(PATIENCE_MS)

    def note(request: Request) -> None:
        if not request.url.startswith((server.url, "data:", "blob:")):
            requested_elsewhere.append(request.url)

    context.on("request", note)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Application(context, server)
    context.close()


def write(server: Server, request: pytest.FixtureRequest, cells: tuple[str, ...]) -> str:
    """Write a notebook of these cells, named after the test."""
    name = re.sub(r"\W+", "-", request.node.name) + ".ipynb"
    write_notebook(server.work / name, *cells)
    return name


@pytest.fixture
def open_notebook(application: Application, server: Server, request) -> Iterator[Callable[..., NotebookPage]]:
    """Open a notebook of these cells, with the page and the kernel that the tests share."""
    failures = request.session.testsfailed
    yield lambda *cells: application.open(write(server, request, cells))
    passed = request.session.testsfailed == failures
    application.close(page=passed, kernel=passed)


@pytest.fixture
def advised(open_notebook) -> NotebookPage:
    """A notebook whose first cell shows an advisor, with a cell after it."""
    notebook = open_notebook(ADVISE, "'tail'")
    notebook.advise()
    return notebook


@pytest.fixture(scope="session")
def site(root: Path) -> Iterator[Site]:
    """The server of the pages without Jupyter."""
    require_front_end(root)
    running = Site()
    yield running
    running.close()


@pytest.fixture(scope="session")
def host_page(chromium: Browser) -> Iterator[Page]:
    """The browser's page for all tests without Jupyter: a new one would take longer than most of them."""
    context = chromium.new_context(viewport=VIEWPORT)
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()


@pytest.fixture
def host(site: Site, host_page: Page) -> Iterator[Callable[..., Host]]:
    """Show advice on a page without Jupyter: ``host(advice, application="vscode", dark=True, width=720)``."""
    opened: list[Host] = []

    def show(advice: Advice | Advisor, **options: Any) -> Host:
        opened.append(open_host(site, host_page, **options))
        opened[-1].show(advice)
        return opened[-1]

    yield show
    for made in opened:
        made.close()


@pytest.fixture(scope="session")
def recommended() -> Advice:
    """Advice of a search, with its reasons: ten billion parameters on two instances."""
    from smp_advisor import advise

    return advise("10B", "ml.p4d.24xlarge", instance_count=2, sequence_length=512, library="smp-v1", family="gpt2")
