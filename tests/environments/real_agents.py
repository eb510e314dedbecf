"""Real clients of agents: `python -m real_agents FOLDER` installs them, apart from Tandem.

verifiers needs an older openai than the other two, so it is installed in FOLDER/verifiers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ("openai==3.54.0", "smolagents==1.26.0")
OF_VERIFIERS = ("verifiers==0.4.0", "uv>=0.9")  # its chat is a script that uv runs


def install(home: Path) -> None:
    """Two environments with the agents' packages and nothing of Tandem's."""
    for place, packages in ((home, PACKAGES), (home / "verifiers", OF_VERIFIERS)):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = (place / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "install", *packages], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
