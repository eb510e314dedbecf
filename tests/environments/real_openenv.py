"""A real OpenEnv server: `python -m real_openenv FOLDER` installs it, `serving` starts one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE = "openenv==0.10.0"
APP = Path(__file__).with_name("openenv_app.py")
UP = 300.0  # seconds until a server answers: its imports alone take 10


def install(home: Path) -> None:
    """A Python environment with OpenEnv, without Tandem."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = (home / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "install", PACKAGE], check=True)


@contextmanager
def serving(home: Path, log: Path, *, sessions: int) -> Iterator[str]:
    """The address of a server of so many sessions on a free port; its output goes to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [home / "bin/python", APP, str(port), str(sessions)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            line, env=os.environ | {"PYTHONPATH": ""}, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + UP
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"OpenEnv ended before it served:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"OpenEnv did not serve within {UP:g} s:\n{log.read_text()[-3000:]}")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
