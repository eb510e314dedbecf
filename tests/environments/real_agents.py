"""Real clients of agents: `python -m real_agents FOLDER` installs them, apart from Tandem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ("openai==3.54.0", "smolagents==1.26.0")


def install(home: Path) -> None:
    """An environment with agents' packages and nothing of Tandem's."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = (home / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "install", *PACKAGES], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
