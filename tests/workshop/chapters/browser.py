"""JupyterLab on the loopback interface, driven by a headless Chromium."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CHROMIUM_ARGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PATIENCE = 300  # seconds that a busy machine may take
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}

# The kernel is usable once the session is ready *and* its socket is connected: a widget drawn
# earlier never appears.
KERNEL_READY = """async () => {
  const app = window.jupyterapp;
  const pause = () => new Promise(resolve => setTimeout(resolve, 100));
  await app.restored;
  while (!app.shell.currentWidget?.sessionContext) await pause();
  const panel = app.shell.currentWidget;
  await panel.revealed;
  const session = panel.sessionContext;
  await session.ready;
  const ready = () => session.kernelDisplayStatus === "idle"
    && session.session?.kernel?.connectionStatus === "connected";
  while (!ready()) await pause();
}"""
RUN_ALL = """async () => {
  const app = window.jupyterapp;
  await app.commands.execute("notebook:run-all-cells");
  return app.shell.currentWidget.content.model.sharedModel.toJSON().cells;
}"""
PIXELS = """image => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL();
}"""


@contextmanager
def chromium() -> Iterator:
    """A headless Chromium. Needs playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS.split())
        yield opened
        opened.close()


class Lab:
    """A running server: `folder` is its root, `open` shows one of its notebooks."""

    def __init__(self, folder: Path, port: int, token: str):
        self.folder, self.base, self.token = folder, f"http://127.0.0.1:{port}", token

    def request(self, path: str, method: str = "GET") -> bytes:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.base + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read()

    def open(self, page, notebook: str) -> None:
        """Load a notebook in a workspace of its own and wait for its kernel."""
        workspace = secrets.token_hex(4)
        page.goto(f"{self.base}/lab/workspaces/{workspace}/tree/{notebook}?token={self.token}")
        page.wait_for_function("window.jupyterapp !== undefined", timeout=1000 * PATIENCE)
        page.evaluate(KERNEL_READY)

    def close_sessions(self) -> None:
        for session in json.loads(self.request("/api/sessions")):
            self.request(f"/api/sessions/{session['id']}", "DELETE")


@contextmanager
def running_lab(root: Path) -> Iterator[Lab]:
    """A JupyterLab with all its settings below `root`, its notebooks in `root/notebooks`."""
    folder, port, token = root / "notebooks", free_port(), secrets.token_hex(16)
    folder.mkdir()
    settings = root / "settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = {**os.environ, **{name: str(root / place) for name, place in places.items()}}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser",
        "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    log = root / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    lab = Lab(folder, port, token)
    try:
        wait_until_up(lab, server, log)
        yield lab
    finally:
        with suppress(OSError):
            lab.close_sessions()
        server.terminate()
        server.wait(PATIENCE)


def wait_until_up(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        with suppress(OSError):
            lab.request("/api/status")
            return
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
