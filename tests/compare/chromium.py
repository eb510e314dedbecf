"""A headless Chromium, spoken to through two pipes: no port, no socket, no library.

A message is JSON that ends in a zero byte (`--remote-debugging-pipe`).
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-component-update", "--disable-sync"),
    *("--disable-background-networking", "--mute-audio", "--remote-debugging-pipe"),
)
PATIENCE = 60.0  # seconds for any answer


class Chromium:
    """One page of one browser. `events`: all unsolicited messages, in order."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.home = tempfile.mkdtemp(prefix="chromium-")
        self.process, self._write, self._read = start(self.home)
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        """The answer. Raises RuntimeError for an error reply, TimeoutError for none."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                break
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script: str):
        """The value of an expression in the page, awaited."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def until(self, condition: str, seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"never came: {condition}"
            time.sleep(0.05)

    def look(self, width: int, height: int, scheme: str) -> None:
        """Set the screen size, light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        wish = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[wish])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path) -> None:
        """The whole page at its full length."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def _next(self) -> dict:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], PATIENCE)[0]:
                raise TimeoutError(f"chromium said nothing for {PATIENCE:g} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError(f"chromium ended with {self.process.wait()}")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self._write)  # it ends with its pipe
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._read)
        shutil.rmtree(self.home, ignore_errors=True)


# The browser's start command: the two given pipe ends become its descriptors 3 and 4.
GIVE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def start(home: str) -> tuple[subprocess.Popen, int, int]:
    """The process, its input and its output."""
    theirs_in, ours_out = high(os.pipe())
    ours_in, theirs_out = high(os.pipe())
    given = [sys.executable, "-ESc", GIVE, str(theirs_in), str(theirs_out)]
    process = subprocess.Popen(
        [*given, PROGRAM, *FLAGS, f"--user-data-dir={home}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs_in, theirs_out),
        start_new_session=True,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, ours_out, ours_in


def high(ends: tuple[int, int]) -> list[int]:
    """The same pipe under a number above 3 and 4."""
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved
