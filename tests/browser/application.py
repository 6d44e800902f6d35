"""One page and one kernel for the tests that leave both as they found them."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, ViewportSize

from .page import NotebookPage
from .server import Server

VIEWPORT: ViewportSize = {"width": 1280, "height": 1000}

# What runs before the kernel answers can be lost, whatever the page says of the kernel.
CONNECTED = """
async () => {
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  await context.ready;
  await context.session?.kernel?.info;
}
"""
EMPTY_KERNEL = """
from ipywidgets import Widget
shell = get_ipython()
Widget.close_all()
shell.extension_manager.unload_extension("smp_advisor")
shell.reset(new_session=True)
"""
EMPTY = """
async (code) => {
  const shell = window.jupyterapp.shell;
  const kernel = shell.currentWidget?.sessionContext?.session?.kernel;
  if (kernel) {
    await kernel.requestExecute({ code, silent: true, store_history: false }).done;
  }
  for (const widget of [...shell.widgets('main')]) {
    widget.dispose();
  }
}
"""
OPEN = """
async (path) => {
  const widget = await window.jupyterapp.commands.execute('docmanager:open', { path, factory: 'Notebook' });
  await widget.context.ready;
}
"""


def wait_for_kernel(page: Page) -> NotebookPage:
    """Wait until the page's notebook and its kernel are there."""
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.evaluate(CONNECTED)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=60_000)
    return NotebookPage(page)


class Application:
    """JupyterLab or Notebook 7 as a person uses it: one notebook after another, with one kernel.

    Each notebook finds the kernel as new: without variables, widgets and the extension. JupyterLab's page stays open.
    """

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self._context, self._server = context, server
        self._page: Page | None = None
        self.session = ""
        """The kernel's session on the server, "" before the first notebook."""

    def open(self, name: str) -> NotebookPage:
        """Show a notebook of the server."""
        self.session = self._server.move_session(self.session, name)
        if self._page is None:
            self._page = self._context.new_page()
            self._page.goto(self._server.address(name))
        else:
            self._page.set_viewport_size(VIEWPORT)
            self._page.evaluate(OPEN, name)
        return wait_for_kernel(self._page)

    def close(self, *, keep: bool) -> None:
        """Close the notebook. A page and a kernel that a failed test leaves are not kept."""
        if self._page is None:
            return
        if keep:
            self._page.evaluate(EMPTY, EMPTY_KERNEL)
        else:
            self._server.shut_kernels()
            self.session = ""
        if not keep or self._server.app != "lab":
            self._page.close()
            self._page = None
