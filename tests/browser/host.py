"""A page without Jupyter that shows the advisor, for tests that need its view and its kernel side only.

The view runs in Chromium, and its model in the process of the test: a thread takes the place of the kernel and handles
one message after another, as a kernel does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from comm.base_comm import BaseComm
from playwright.sync_api import ConsoleMessage, Error, FrameLocator, Locator, Page, expect
from tornado import httpserver, netutil, web, websocket

if TYPE_CHECKING:
    from smp_advisor.notebook.advisor import Advisor
    from smp_advisor.session import Advice

PAGES = Path(__file__).parent / "host_page"
GUARD_SECONDS = 600
"""Guard of every wait for what must happen: far beyond the time of a machine ten times slower."""


@dataclass(frozen=True)
class Application:
    """How an application with notebooks shows the output of a cell."""

    plugin: bool
    """Whether the lab extension is there."""
    framed: bool = False
    """Whether outputs are in a frame of another origin."""
    permissions: str = ""
    """Permissions of the frame."""
    policy: str = ""
    """Content security policy of the page with the view."""


STRICT = (
    "default-src 'none'; script-src 'self' blob:; style-src 'self' 'unsafe-inline';"
    " img-src data:; connect-src 'self' ws:"
)
"""Nothing from other places, no text that becomes code. Blobs are modules of anywidget, its style an element."""
APPLICATIONS = {
    "jupyter": Application(plugin=True),
    "vscode": Application(plugin=False, framed=True, permissions="clipboard-read; clipboard-write", policy=STRICT),
    "colab": Application(plugin=False, framed=True, policy=STRICT),
}


class Comm(BaseComm):
    """A widget's channel to the page."""

    def __init__(self, post: Callable[[dict[str, Any]], None], model_id: str) -> None:
        self._post = post
        super().__init__(target_name="jupyter.widget", comm_id=model_id)

    def publish_msg(
        self,
        msg_type: str,
        data: Mapping[str, Any] | None = None,
        metadata: object = None,  # noqa: ARG002 (the base class's signature)
        buffers: object = None,
        **keys: object,  # noqa: ARG002
    ) -> None:
        assert not buffers, "the advisor's view receives JSON alone"
        if msg_type == "comm_msg":
            self._post({"kind": "comm", "model": self.comm_id, "data": data})


class Socket(websocket.WebSocketHandler):
    """The page's connection to the kernel of its session."""

    session: Host

    def open(self) -> None:
        self.set_nodelay(True)
        self.session = self.application.settings["hosts"][self.get_query_argument("session")]
        self.session.connect(self)

    def on_message(self, message: str | bytes) -> None:
        self.session.requests.put(json.loads(message))


class Files(web.StaticFileHandler):
    """The pages of the host, with the policy that the address selects."""

    def set_extra_headers(self, path: str) -> None:  # noqa: ARG002 (tornado's signature)
        self.set_header("Cache-Control", "no-store")
        policy = APPLICATIONS[self.get_query_argument("host", "jupyter")].policy
        if policy and "frame" not in self.request.path:
            self.set_header("Content-Security-Policy", policy)


class Site:
    """A server on this machine for the pages of all tests."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.loop = asyncio.new_event_loop()
        self.port = 0
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(GUARD_SECONDS)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        files = (r"/(.*)", Files, {"path": str(PAGES), "default_filename": "index.html"})
        server = httpserver.HTTPServer(web.Application([(r"/kernel", Socket), files], hosts=self.hosts))
        sockets = netutil.bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        server.add_sockets(sockets)
        self.loop.call_soon(started.set)
        self.loop.run_forever()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(GUARD_SECONDS)


@dataclass
class Host:
    """One page with views of one advisor at a time."""

    site: Site
    page: Page
    application: str
    inserted: list[dict[str, Any]] = field(default_factory=list)
    """Details of the view's requests to insert cells, which the lab extension answers."""
    errors: list[str] = field(default_factory=list)
    """Errors of the page: uncaught ones, those in the console, and violations of its policy."""
    requests: queue.Queue[Any] = field(default_factory=queue.Queue)
    runs: int = 0
    """How often the view requested to run its cell again."""

    def __post_init__(self) -> None:
        self._socket: Socket | None = None
        self._waiting: list[str] = []
        self._outgoing = threading.Lock()
        self._views = 0
        self._synced = threading.Event()
        self._shown: Advisor | None = None
        self._free = threading.Event()
        self._free.set()
        self._failures: list[BaseException] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", self._note)
        self._kernel = threading.Thread(target=self._work, daemon=True)
        self._kernel.start()

    def _note(self, event: ConsoleMessage | Error) -> None:
        if isinstance(event, Error):
            self.errors.append(str(event))
        elif event.type == "error":
            self.errors.append(event.text)

    @property
    def advisor(self) -> Advisor:
        """The widget that the page shows."""
        assert self._shown is not None, "show an advisor first"
        return self._shown

    @property
    def document(self) -> Page | FrameLocator:
        """The document with the views."""
        return self.page.frame_locator("iframe") if APPLICATIONS[self.application].framed else self.page

    @property
    def view(self) -> Locator:
        """The view that was added last."""
        return self.document.locator(f".output[data-view='{self._views}'] > .smp")

    def show(self, advice: Advice | Advisor) -> Advisor:
        """Replace the output by a view of new advice, as a cell does that runs again."""
        from smp_advisor.notebook.advisor import Advisor

        self._shown = advice if isinstance(advice, Advisor) else Advisor(advice)
        self._shown.comm = Comm(self.post, self._shown.model_id or f"model-{self._views}")
        self.post({"kind": "clear"})
        self.add_view()
        return self._shown

    def add_view(self) -> Locator:
        """Show the advisor once more, below, as a second cell does."""
        self._views += 1
        state = self.advisor.get_state()
        self.post({"kind": "open", "model": self.advisor.comm.comm_id, "state": state, "view": str(self._views)})
        expect(self.view).to_be_visible()
        return self.view

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A kernel that runs a cell: messages wait until the end of the block."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def restart_kernel(self) -> None:
        """End the kernel's widgets. Messages of the views that remain on the page reach nobody."""
        if self._shown is not None:
            self._shown.comm.publish_msg = lambda *_, **__: None
        self._shown = None
        self.post({"kind": "lose"})

    def settle(self) -> None:
        """Wait until the kernel has handled every message, and the views have drawn the answers."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        # The socket keeps the order: the first echo follows what the page has sent, the second one what it sends after
        # the kernel's answers.
        for _ in range(2):
            self._synced.clear()
            self.post({"kind": "sync"})
            assert self._synced.wait(GUARD_SECONDS), "the kernel is busy"
        # Panels wait a moment before their requests.
        expect(self.document.locator(".smp[aria-busy='true'], .smp [aria-busy='true']")).to_have_count(0)

    def post(self, message: dict[str, Any]) -> None:
        """Send a message to the page, from any thread."""
        text = json.dumps(message)
        with self._outgoing:
            if self._socket is None:
                self._waiting.append(text)
            else:
                self.site.loop.call_soon_threadsafe(self._write, self._socket, text)

    def connect(self, socket: Socket) -> None:
        """Send what waits to the page that has just opened."""
        with self._outgoing:
            self._socket = socket
            for text in self._waiting:
                self._write(socket, text)
            self._waiting.clear()

    @staticmethod
    def _write(socket: Socket, text: str) -> None:
        with contextlib.suppress(websocket.WebSocketClosedError):
            socket.write_message(text)

    def close(self) -> None:
        """End the kernel; an error in it fails the test."""
        self.page.remove_listener("console", self._note)
        self.page.remove_listener("pageerror", self._note)
        if not APPLICATIONS[self.application].framed:
            # Tests share the page, and an earlier test's plan is no earlier kernel's. Frames have no storage.
            self.page.evaluate("sessionStorage.clear()")
        self._free.set()
        self.requests.put(None)
        self._kernel.join(GUARD_SECONDS)
        if self._failures:
            raise self._failures[0]

    def _work(self) -> None:
        while (message := self.requests.get()) is not None:
            self._free.wait()
            try:
                self._handle(message)
            except Exception as error:  # noqa: BLE001 (the kernel lives on, and the test fails at its end)
                self._failures.append(error)

    def _handle(self, message: dict[str, Any]) -> None:
        if message["kind"] == "synced":
            self._synced.set()
        elif message["kind"] == "event":
            if message["name"] == "smp-advisor:run-cell":
                self.runs += 1
            else:
                self.inserted.append(message["detail"])
        else:
            # A kernel that does not know the widget ignores the message, and is idle again.
            if self._shown is not None and message["model"] == self._shown.comm.comm_id:
                self._shown.comm.handle_msg({"content": {"data": message["data"]}, "buffers": []})
            self.post({"kind": "idle", "model": message["model"], "id": message["id"]})


def open_host(
    site: Site, page: Page, application: str = "jupyter", *, dark: bool = False, width: int = 1280, height: int = 1000
) -> Host:
    """Lead a page to one that looks like an application's output, without an advisor."""
    page.set_viewport_size({"width": width, "height": height})
    made = Host(site, page, application)
    session = str(len(site.hosts))
    site.hosts[session] = made
    kind = APPLICATIONS[application]
    options = {
        "session": session,
        "host": application,
        "theme": "dark" if dark else "light",
        "plugin": str(kind.plugin).lower(),
    }
    if kind.framed:
        framing = {"origin": f"http://localhost:{site.port}", "allow": kind.permissions}
        page.goto(f"http://127.0.0.1:{site.port}/frame.html?{urlencode(options | framing)}")
    else:
        page.goto(f"http://127.0.0.1:{site.port}/?{urlencode(options)}")
    return made
