"""A Jupyter server on this machine alone, with its configuration and its front end in folders of the test's own."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

TOKEN = "smp-advisor-tests"
START_SECONDS = 600
PREFERENCES = {"instance": "ml.p4de.24xlarge", "instanceCount": 2, "library": "smp-v1", "region": "eu-west-1"}
"""Settings of the user, as the editor of settings saves them."""


@dataclass(frozen=True)
class Server:
    """A running server of one application."""

    app: str
    name: str
    """Name for files: the application, and whether it is the oldest version."""
    url: str
    work: Path
    """Where its notebooks lie."""

    def address(self, name: str) -> str:
        """Of a notebook's page."""
        if self.app == "lab":
            return f"{self.url}/lab/tree/{name}?token={TOKEN}&reset"
        return f"{self.url}/notebooks/{name}?token={TOKEN}"

    def move_session(self, session: str, name: str) -> str:
        """Give a notebook the kernel of this session, or a new kernel if the session has ended. Returns the session."""
        notebook = {"path": name, "name": name, "type": "notebook"}
        if any(running["id"] == session for running in self._call("api/sessions")):
            return self._call(f"api/sessions/{session}", "PATCH", notebook)["id"]
        return self._call("api/sessions", "POST", notebook | {"kernel": {"name": "python3"}})["id"]

    def shut_kernels(self, *, keep: str = "") -> None:
        """End every kernel of the server but that of the session `keep`."""
        for session in self._call("api/sessions"):
            if session["id"] != keep:
                self._call(f"api/sessions/{session['id']}", "DELETE")

    def _call(self, path: str, method: str = "GET", body: object = None):
        request = urllib.request.Request(
            f"{self.url}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return json.loads(answer.read() or "null")


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook of code cells."""
    import nbformat  # takes a second

    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, path)


@contextlib.contextmanager
def serve(app: str, root: Path, folder: Path, *, python: str = sys.executable) -> Iterator[Server]:
    """Run ``jupyter lab`` or ``jupyter notebook`` with the front end built in `root`."""
    work, port = folder / "work", free_port()
    work.mkdir(parents=True)
    command = [
        python, "-m", "jupyter", app, "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={work}",
        # So that tests can read a whole cell: the editor draws only the lines in sight.
        "--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True",
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, env=environment(root, folder, python), stdout=sink, stderr=sink, cwd=work)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(process, f"{url}/api/status?token={TOKEN}", log)
        yield Server(app, app if python == sys.executable else f"oldest-{app}", url, work)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def environment(root: Path, folder: Path, python: str) -> dict[str, str]:
    """Where Jupyter looks: for the extension in the tree, for everything of the user's in `folder`."""
    config = folder / "config"
    (config / "labconfig").mkdir(parents=True)
    # The news pop-up would cover a corner of the page.
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "labconfig" / "page_config.json").write_text(json.dumps(news))
    preferences = folder / "settings" / "smp-advisor" / "plugin.jupyterlab-settings"
    preferences.parent.mkdir(parents=True)
    preferences.write_text(json.dumps(PREFERENCES))
    extensions = folder / "share" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / "smp-advisor").symlink_to(root / "smp_advisor" / "labextension")
    kernel = folder / "share" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    shown = {"argv": start, "display_name": "Python 3 (ipykernel)", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(shown))
    return os.environ | {
        "PYTHONPATH": str(root),
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_PATH": str(folder / "share"),
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def wait_for(process: subprocess.Popen, address: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(address, timeout=20)
            return
        time.sleep(0.1)
    raise TimeoutError(f"no server within {START_SECONDS} s:\n{log.read_text()[-4000:]}")
