"""One page and one kernel for the tests that leave both as they found them."""

from playwright.sync_api import BrowserContext, Page, ViewportSize

from .page import CONNECTED, NotebookPage
from .server import Server

VIEWPORT: ViewportSize = {"width": 1280, "height": 1000}

EMPTY_KERNEL = """
from ipywidgets import Widget
shell = get_ipython()
Widget.close_all()
shell.extension_manager.unload_extension("smp_advisor")
shell.reset(new_session=True)
"""
EMPTY = """
async ([code, id]) => {
  for (const widget of [...window.jupyterapp.shell.widgets('main')]) {
    const session = widget.sessionContext?.session;
    if (session?.id === id) {
      await session.kernel.requestExecute({ code, silent: true, store_history: false }).done;
    }
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

# A server can connect the page after the kernel's first status: without another message, it would not be shown as idle.
ANSWERED = (
    "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.requestKernelInfo() }"
)


def wait_for_kernel(page: Page) -> NotebookPage:
    """Wait until the page's notebook and its kernel are there."""
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.evaluate(CONNECTED)
    page.evaluate(ANSWERED)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    return NotebookPage(page)


class Application:
    """JupyterLab or Notebook 7 as a person uses it: one notebook after another, with one kernel.

    Each notebook finds the kernel as new: without variables, widgets and the extension. JupyterLab's page stays open.
    """

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.context, self._server = context, server
        self._page: Page | None = None
        self.session = ""
        """The kernel's session on the server, "" before the first notebook."""

    def open(self, name: str) -> NotebookPage:
        """Show a notebook of the server."""
        self.session = self._server.move_session(self.session, name)
        if self._page is None:
            self._page = self.context.new_page()
            self._page.goto(self._server.address(name))
        else:
            self._page.set_viewport_size(VIEWPORT)
            self._page.evaluate(OPEN, name)
        return wait_for_kernel(self._page)

    def close(self, *, page: bool = True, kernel: bool = True) -> None:
        """Close the notebook, and end its page and its kernel unless they are to be kept.

        A page does not outlive its kernel: one just reloaded may open the notebook once more, with that kernel.
        """
        if self._page is not None:
            if kernel:
                self._page.evaluate(EMPTY, [EMPTY_KERNEL, self.session])
            if not (page and kernel and self._server.app == "lab"):
                self._page.close()
                self._page = None
        self.session = self.session if kernel else ""
        self._server.shut_kernels(keep=self.session)
