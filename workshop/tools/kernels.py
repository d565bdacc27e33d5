"""Kernels for many notebooks from one process that has imported the heavy libraries already.

`python workshop/tools/kernels.py COMMAND …` runs a command, `pytest --nbval` say, for which the
kernel `python3` is a fork of that process. Importing computes nothing that a notebook could see,
and every notebook still has a process of its own. Where there is no `fork`, the command runs with
the kernels it has.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

ADDRESS = "RLBOOK_KERNELS"
# Not pandas: when it is imported it asks whether it is in a notebook, and sets how wide tables are.
HEAVY = ("ipykernel.kernelapp", "matplotlib.figure", "transformers", "rlbook.training")


def run(command: Sequence[str], heavy: Sequence[str] = HEAVY) -> int:
    """Run `command` beside a process that imports `heavy` and forks kernels; its exit status."""
    if not hasattr(os, "fork"):
        return subprocess.call(command)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        address = f"{folder}/socket"
        server.bind(address)
        server.listen()
        argv = [sys.executable, "-IS", os.path.abspath(__file__), "--kernel", "{connection_file}"]
        spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
        Path(folder, "kernels/python3").mkdir(parents=True)
        Path(folder, "kernels/python3/kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        forks = os.fork()
        if not forks:
            _end_after(serve, server, heavy)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH")]))
        try:
            return subprocess.call(
                command, env=os.environ | {"JUPYTER_PATH": path, ADDRESS: address}
            )
        finally:
            os.kill(forks, signal.SIGTERM)
            os.waitpid(forks, 0)


def serve(server: socket.socket, heavy: Sequence[str]) -> None:
    """Import `heavy`, then fork a kernel for every client, until killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries the dead
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for name in heavy:
        importlib.import_module(name)
    while True:
        client, _ = server.accept()
        if not os.fork():
            server.close()
            _end_after(become_kernel, client)
        client.close()


def become_kernel(client: socket.socket) -> None:
    """Be the kernel that `client` asks for: interrupted by its bytes, ended by its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # what a notebook starts belongs to its kernel
    asked = json.loads(client.makefile(encoding="utf-8").readline())
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.argv, sys.path[0] = ["ipykernel_launcher"], ""
    threading.Thread(target=_heed, args=(client,), daemon=True).start()
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(argv=["-f", asked["file"], f"--IPKernelApp.parent_handle={os.getppid()}"])


def _heed(client: socket.socket) -> None:
    while client.recv(1):
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


def _end_after(act: Callable[..., None], *arguments: object) -> NoReturn:
    """Act and end: a fork must not return into what its parent was doing."""
    try:
        act(*arguments)
        os._exit(0)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def stand_for_kernel(file: str) -> None:
    """What Jupyter starts: ask for a kernel, pass interrupts on, end when it or Jupyter ends."""
    jupyter = os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[ADDRESS])
        signal.signal(signal.SIGINT, lambda *_: server.sendall(b"!"))
        asked = {"file": file, "folder": os.getcwd(), "environ": dict(os.environ)}
        server.sendall(json.dumps(asked).encode() + b"\n")
        while os.getppid() == jupyter and not select.select([server], [], [], 1)[0]:
            pass


if __name__ == "__main__":
    if sys.argv[1] != "--kernel":
        sys.exit(run(sys.argv[1:]))
    stand_for_kernel(sys.argv[2])
