"""One server of each application and one browser for all tests; a notebook, a context and a page for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Route, expect, sync_playwright

from .page import ADVISE, NotebookPage
from .server import Server, serve, write_notebook

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

# Long enough for a busy machine: what is there at once is not waited for.
expect.set_options(timeout=60_000)

# What runs before the kernel answers can be lost, whatever the page says of the kernel.
CONNECTED = """
async () => {
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  await context.ready;
  await context.session?.kernel?.info;
}
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab_only: what this tests is the same code in Notebook 7, or not there")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames and "account" not in metafunc.fixturenames:
        only_lab = metafunc.definition.get_closest_marker("lab_only") is not None
        metafunc.parametrize("server", ["lab"] if only_lab else ["lab", "notebook"], indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run the tests of each application in one process: it has one browser and one server."""
    item.add_marker(pytest.mark.browser)
    item.add_marker(pytest.mark.xdist_group(f"browser in {item.callspec.params['server']}"))


@pytest.fixture(scope="session")
def server(request, root: Path, tmp_path_factory) -> Iterator[Server]:
    if not (root / "smp_advisor/static/widget.js").is_file():
        pytest.fail("the front end is not built: run npm run build in js/")
    with serve(request.param, root, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.is_file():
        pytest.fail("the browser tests need /usr/bin/chromium: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def refused() -> list[str]:
    """Addresses beyond the server that a page asked for."""
    return []


@pytest.fixture
def context(chromium: Browser, server: Server, refused: list[str]) -> Iterator[BrowserContext]:
    made = chromium.new_context(viewport={"width": 1280, "height": 1000})

    def guard(route: Route) -> None:
        if route.request.url.startswith((server.url, "data:", "blob:")):
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    made.route("**/*", guard)
    yield made
    made.close()


def open_page(context: BrowserContext, server: Server, name: str) -> NotebookPage:
    """Open a notebook of the server and wait for its kernel."""
    notebook = NotebookPage(context.new_page())
    notebook.page.goto(server.address(name))
    notebook.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    notebook.page.evaluate(CONNECTED)
    notebook.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=60_000)
    return notebook


@pytest.fixture
def open_notebook(context: BrowserContext, server: Server, request) -> Iterator[Callable[..., NotebookPage]]:
    """Open a notebook of these cells; `name` to open one that is there."""

    def opened(*cells: str, name: str = "") -> NotebookPage:
        if not name:
            name = re.sub(r"\W+", "-", request.node.name) + ".ipynb"
            write_notebook(server.work / name, *cells)
        return open_page(context, server, name)

    yield opened
    server.shut_kernels()


@pytest.fixture
def advised(open_notebook) -> NotebookPage:
    """A notebook whose first cell shows an advisor, with a cell after it."""
    notebook = open_notebook(ADVISE, "'tail'")
    notebook.advise()
    return notebook


@pytest.fixture
def screenshot(root: Path, server: Server) -> Callable[[NotebookPage, str], None]:
    """Save a picture of the page in artifacts/screenshots."""
    folder = root / "artifacts" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)

    def take(notebook: NotebookPage, name: str) -> None:
        notebook.page.screenshot(path=str(folder / f"{name}-{server.app}.png"))

    return take
